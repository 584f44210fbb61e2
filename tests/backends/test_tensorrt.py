"""The backend over a fake of TensorRT: the whole path on the CPU, and every way in which TensorRT refuses."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from bakeoff import backends
from bakeoff.backends import cuda_graph, tensorrt_profiling
from bakeoff.backends import tensorrt as ours
from bakeoff.backends.base import AVAILABLE, Availability, BuildContext
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import OnnxModel, export_onnx
from bakeoff.backends.profiling import Owner
from bakeoff.backends.ranges import OpenAxes, OpenAxis
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError
from bakeoff.records.profile import Kind
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import Built, RecordingPhases, built
from tests.fakes import suite
from tests.fakes.on_cpu import TensorRTOnCpu

ROOT = Path(__file__).parents[2]
tensorrt: Any = pytest.importorskip("tests.fakes.tensorrt")  # needs ONNX Runtime
behaviour: Any = tensorrt.behaviour
TWO_HEADS = f"{ROOT / 'examples/two_heads.py'}:factory"
KEYWORDS = f"{ROOT / 'tests/backends/keywords.py'}:factory"


@pytest.fixture(autouse=True)
def installed(install: Callable[[str, object], None]) -> Iterator[None]:
    """The fake is in TensorRT's place."""
    install("tensorrt", tensorrt)
    yield
    behaviour.reset()


@pytest.fixture(scope="module")
def exported() -> dict[str, OnnxModel]:
    return {}


@pytest.fixture(autouse=True)
def exported_once(
    exported: dict[str, OnnxModel], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is exported once for the tests of this file, because that takes a second."""

    def export(module: torch.nn.Module, inputs: Inputs, folder: Path, axes: OpenAxes = ()) -> OnnxModel:
        known = f"{module} {[(tensor.shape, tensor.dtype) for tensor in inputs.tensors()]} {axes}"
        if known not in exported:
            exported[known] = export_onnx(module, inputs, tmp_path_factory.mktemp("exported"), axes=axes)
        path = shutil.copy(exported[known].path, folder)
        return dataclasses.replace(exported[known], path=Path(path))

    monkeypatch.setattr(ours, "export_onnx", export)


def a_cell(**changes: Any) -> Cell:
    small = {"batch": 2, "features": 8, "hidden": 8}
    return Cell(**{"model": "mlp", "dimensions": small, "backend": "tensorrt", **changes})


def on_cpu(cell: Cell, folder: Path) -> AbstractContextManager[Built]:
    """Build the cell with a backend that takes the CPU for a GPU."""
    return built(cell, folder, backend=TensorRTOnCpu())


@pytest.mark.slow
def test_a_fresh_process_loads_what_was_packaged(tmp_path: Path) -> None:
    """Only the workspace is passed on, and neither the module nor the exported graph."""
    script = """
import sys, torch, on_cpu
from pathlib import Path
from bakeoff.backends.base import BuildContext
from bakeoff.models.base import Inputs
from bakeoff.records.schema import Cell
from tests.backends.building import RecordingPhases
phases = RecordingPhases()
context = BuildContext(Cell(model="never loaded", backend="tensorrt"), phases, Path(sys.argv[1]), 1)
given, expected = torch.load(sys.argv[2])
inputs = Inputs(tuple(given))
with on_cpu.TensorRTOnCpu().load(inputs, context) as compiled:
    compiled.bind(inputs)
    compiled.run()
    torch.testing.assert_close(compiled.outputs(), tuple(expected))
    assert phases.names == ["load"] and compiled.precision()["tensorrt_tf32"] is False
"""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with on_cpu(a_cell(model=TWO_HEADS, dimensions={"batch": 6, "items": 50}), workspace) as one:
        saved = (list(one.sets[1].tensors()), list(one.eager(one.sets[1])))
    torch.save(saved, tmp_path / "expected.pt")
    for file in workspace.glob("*.onnx*"):
        file.unlink()
    done = subprocess.run(
        [sys.executable, "-c", script, str(workspace), str(tmp_path / "expected.pt")],
        env=suite.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_binding_passes_the_addresses_of_inputs_and_leaves_outputs_where_they_are(tmp_path: Path) -> None:
    addresses = behaviour.addresses
    with on_cpu(a_cell(model=KEYWORDS, dimensions={}), tmp_path) as one:
        manifest = ours.Manifest.model_validate_json((tmp_path / ours.MANIFEST).read_bytes())
        kept = [addresses[name] for name in manifest.output_names]
        for inputs in one.sets[:2]:
            one.call(inputs)
            assert [addresses[name] for name in manifest.input_names] == [one.data_ptr() for one in inputs.tensors()]
            assert [addresses[name] for name in manifest.output_names] == kept


def test_inputs_that_are_not_contiguous_are_read_rightly(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path) as one:
        strided = one.sets[1].map(lambda tensor: tensor.t().contiguous().t())
        assert not all(tensor.is_contiguous() for tensor in strided.tensors())
        torch.testing.assert_close(one.call(strided), one.eager(strided))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensor: tensor[:1], r"input 'x' is torch.float32 \(1, 8\)"),
        (lambda tensor: tensor.double(), "input 'x' is torch.float64"),
    ],
    ids=["shape", "type"],
)
def test_an_input_that_the_engine_was_not_built_for_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    """TensorRT would read past the end of a smaller input, and misread another type."""
    with on_cpu(a_cell(), tmp_path) as one, pytest.raises(BakeoffError, match=said.replace("'x'", r"'\w+'")):
        one.compiled.bind(one.sets[0].map(change))


ROWS = OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=8)


def test_one_engine_serves_a_range_of_sizes(tmp_path: Path) -> None:
    with built(a_cell(), tmp_path, backend=TensorRTOnCpu(), open_axes=(ROWS,)) as one:
        for batch in (1, 2, 8, 1):
            given = Inputs((torch.randn(batch, 8),))
            torch.testing.assert_close(one.call(given), one.eager(given))
        with pytest.raises(BakeoffError, match=r"did not take the shape \(9, 8\) of input .*outside of the profile"):
            one.compiled.bind(Inputs((torch.randn(9, 8),)))


def test_a_profile_that_tensorrt_does_not_take_is_an_error(tmp_path: Path) -> None:
    behaviour.answer("IBuilderConfig.add_optimization_profile", -1)
    with (
        pytest.raises(BakeoffError, match="TensorRT took no optimisation profile"),
        built(a_cell(), tmp_path, backend=TensorRTOnCpu(), open_axes=(ROWS,)),
    ):
        pass


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("tf32", True)])
def test_tf32_is_as_the_cell_says(precision: str, tf32: bool, tmp_path: Path) -> None:
    with on_cpu(a_cell(precision=precision), tmp_path) as one:
        told = one.compiled.precision()
        assert told["tensorrt_tf32"] is tf32
        assert str(told["tensorrt_layers"]).startswith("fp32 (")


@pytest.mark.parametrize(("mode", "level"), [("default", 3), ("opt-5", 5)])
def test_the_optimisation_level_is_the_modes(mode: str, level: int, tmp_path: Path) -> None:
    with on_cpu(a_cell(mode=mode), tmp_path) as one:
        assert one.compiled.settings()["builder_optimization_level"] == level
        assert one.compiled.settings()["tensorrt_version"] == tensorrt.__version__


def test_placement_counts_layers_by_what_they_compute_in(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path) as one:
        placement = one.compiled.placement()
        assert placement is not None and placement.extent is Extent.FULL
        assert set(placement.engines) == {"TensorRT fp32"} and placement.engines["TensorRT fp32"] >= 3
        assert placement.evidence


def test_a_profile_names_the_modules_of_each_layer(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path) as made:
        profiler = made.compiled.profiler(made.module)
        assert profiler is not None
        with profiler:
            for _ in range(2):
                profiler.run()
            first, second = profiler.calls()
            (fact,) = profiler.work().facts
    known = {path for path, _ in made.module.named_modules()}
    assert len(first) == len(second) > 1 and all(span.lasted_us == pytest.approx(10) for span in first)
    owners = [path for span in first for path in span.modules]
    assert "" not in owners and set(owners) <= known and len(set(owners)) > 1
    assert fact.startswith(f"TensorRT made {len(first)} layers")


def test_layers_have_the_modules_of_the_nodes_that_the_inspector_names() -> None:
    layers = [
        {"Name": "__myl_Fc", "LayerType": "gemm", "Metadata": "[ONNX Layer: mm]\x1e[ONNX Layer: relu]"},
        {"Name": "Reformatting CopyNode", "LayerType": "Reformat"},
        "mm + relu",
    ]
    modules = {"mm": ("up",), "relu": ("act",)}
    assert tensorrt_profiling.owners_of(json.dumps({"Layers": layers}), modules) == {
        "__myl_Fc": Owner(("up", "act")),
        "Reformatting CopyNode": Owner((), Kind.COPY),
        "mm + relu": Owner(("up", "act")),
    }
    assert tensorrt_profiling.owners_of("{no json", modules) == {}


def test_the_workspace_holds_the_artefact_and_a_timing_cache_of_the_cells_own(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path):
        pass
    assert {"model.onnx", ours.ENGINE, ours.TIMING_CACHE, ours.MANIFEST} <= {file.name for file in tmp_path.iterdir()}
    assert (tmp_path / ours.TIMING_CACHE).read_bytes() == b"timed: "
    with on_cpu(a_cell(), tmp_path):
        pass
    assert (tmp_path / ours.TIMING_CACHE).read_bytes() == b"timed: timed: "


def test_closing_frees_the_context_then_the_engine_then_the_runtime(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path) as one:
        behaviour.freed.clear()  # what building needed
        one.compiled.close()
        assert behaviour.freed == ["IExecutionContext", "ICudaEngine", "Runtime"]


class CapturingOnCpu(TensorRTOnCpu):
    """Takes the mode `cuda-graph` although there is no GPU."""

    def supports(self, cell: Cell) -> Availability:
        return AVAILABLE


def test_cuda_graph_is_the_harnesss_own_capture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    captured: list[Any] = []
    monkeypatch.setattr(cuda_graph, "capture", lambda compiled, inputs, context: captured.append(inputs) or compiled)
    with built(a_cell(mode="cuda-graph"), tmp_path, backend=CapturingOnCpu()) as one:
        assert captured == [one.sets[0]]
        assert one.phases == ("export", "compile", "load")


def test_int8_is_in_the_graph_symmetric_and_without_integer_biases(tmp_path: Path) -> None:
    """TensorRT takes no zero point but 0, and does not dequantise int32."""
    with on_cpu(a_cell(precision="int8"), tmp_path) as one:
        assert one.phases == ("export", "compile", "load")
        placement = one.compiled.placement()
        assert placement is not None and placement.engines["TensorRT int8"] > 0
        error = torch.cat([(ours - eagers).flatten() for ours, eagers in pairs(one)])
        assert 0 < error.abs().max() < 0.1
        graph = onnx.load(tmp_path / "int8.onnx").graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantised = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    zero_points = [constants[node.input[2]] for node in quantised]
    assert quantised and all(points.dtype == "int8" and not points.any() for points in zero_points)


def pairs(one: Built) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return our outputs with eager's, over every input set."""
    return [pair for inputs in one.sets for pair in zip(one.call(inputs), one.eager(inputs), strict=True)]


def test_a_node_that_the_parser_does_not_know_is_named_in_the_error(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Gargle", ["x"], ["y"], name="node_7", domain="nowhere")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "graph", [value], [])), path)
    said = "^TensorRT's ONNX parser refused the graph: Gargle node_7: Plugin not found, domain nowhere$"
    with pytest.raises(BakeoffError, match=said):
        ours.write_engine(OnnxModel(path, ("x",), ("y",)), BuildContext(a_cell(), RecordingPhases(), tmp_path, 1))


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("Builder.build_serialized_network", "TensorRT built no engine"),
        ("Runtime.deserialize_cuda_engine", "TensorRT could not read its engine back"),
        ("ICudaEngine.create_execution_context", "TensorRT made no execution context"),
    ],
)
def test_none_is_an_error_with_what_tensorrt_logged(method: str, what: str, tmp_path: Path) -> None:
    behaviour.fail(method, "Error Code 10:\n no implementation")
    said = f"^{what}: Error Code 10: no implementation$"
    with pytest.raises(BakeoffError, match=said), on_cpu(a_cell(), tmp_path):
        pass


def test_an_engine_that_did_not_survive_the_disk_is_an_error(tmp_path: Path) -> None:
    with on_cpu(a_cell(), tmp_path) as one:
        context, inputs = one.context, one.sets[0]
    (tmp_path / ours.ENGINE).write_bytes(b"half an engine")
    with pytest.raises(BakeoffError, match="could not read its engine back: deserializeCudaEngine: magicTag"):
        ours.TensorRT().load(inputs, context)


@pytest.mark.parametrize(("owner", "what"), [("Builder", "TensorRT made no builder"), ("Runtime", "made no runtime")])
def test_a_constructor_that_got_nothing_is_explained(owner: str, what: str, tmp_path: Path) -> None:
    """With an old driver the real bindings log an error, and then pybind11 raises TypeError."""
    behaviour.fail_to_construct(owner, "CUDA initialization failure with error: 35")
    said = f"{what}: CUDA initialization failure with error: 35; pybind11"
    with pytest.raises(BakeoffError, match=said), on_cpu(a_cell(), tmp_path):
        pass


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("IBuilderConfig.set_timing_cache", False, "took no timing cache: TensorRT logged no error"),
        ("ICudaEngine.get_tensor_location", tensorrt.TensorLocation.HOST, "in host memory"),
        ("ICudaEngine.get_tensor_shape", tensorrt.Dims((-1, 8)), r"has no static shape \(\(-1, 8\)\)"),
        ("IExecutionContext.set_tensor_address", False, "did not take the address of tensor"),
        ("IExecutionContext.execute_async_v3", False, "^TensorRT enqueued nothing"),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error(method: str, answer: object, said: str, tmp_path: Path) -> None:
    behaviour.answer(method, answer)
    with pytest.raises(BakeoffError, match=said), on_cpu(a_cell(), tmp_path) as one:
        one.compiled.run()


def test_a_type_that_torch_lacks_is_named() -> None:
    with pytest.raises(BakeoffError, match="torch has no type for TensorRT's E8M0"):
        ours.torch_type(tensorrt.DataType("E8M0", 10))


def test_running_out_of_memory_is_told_from_other_failures() -> None:
    for words in ("Error Code 2: OutOfMemory (no further information)", "Error Code 1: Cuda Runtime (out of memory)"):
        complaints = ours.Complaints()
        complaints.errors.append(words)
        assert isinstance(complaints.failure("TensorRT built no engine"), MemoryError)
    assert isinstance(ours.Complaints().failure("TensorRT built no engine"), BakeoffError)


def test_only_errors_are_kept_and_warnings_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    complaints = ours.Complaints()
    logger = ours.logger_for(complaints)
    with caplog.at_level(logging.DEBUG):
        for severity in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO"):
            logger.log(getattr(tensorrt.ILogger, severity), severity.lower())
    assert list(complaints.errors) == ["internal_error", "error"]
    assert [(record.levelname, record.message) for record in caplog.records if record.name == "tensorrt"] == [
        ("ERROR", "internal_error"),
        ("ERROR", "error"),
        ("WARNING", "warning"),
    ]


def layer(*inputs: str, outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    def tensors(formats: tuple[str, ...]) -> list[dict[str, str]]:
        return [{"Name": "t", "Format/Datatype": text} for text in formats]

    return {"Name": "layer", "Inputs": tensors(inputs), "Outputs": tensors(outputs)}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # words of TensorRT 10's inspector, with and without an execution context, and of 8's
        (layer("Half"), "fp16"),
        (layer("Channel major FP16 format where channel % 8 == 0"), "fp16"),
        (layer("Row major linear FP16 format"), "fp16"),
        (layer("BFloat16"), "bf16"),
        (layer("Row major linear BF16 format"), "bf16"),
        (layer("Float"), "fp32"),
        (layer("Row major linear FP32"), "fp32"),
        (layer("Int8", outputs=("Float",)), "int8"),
        (layer("Thirty-two wide channel vectorized row major Int8 format"), "int8"),
        (layer("FP8"), "fp8"),
        (layer("UInt8"), "uint8"),
        (layer("Int64"), "int64"),
        (layer("Bool", "Half"), "bool"),
        (layer(outputs=("Half",)), "fp16"),
        (layer("N/A due to dynamic shapes", "Half"), "fp16"),
        (layer(), ""),
        ("only a name", ""),
    ],
)
def test_a_layer_counts_under_the_type_it_reads(told: Any, expected: str) -> None:
    assert ours.layer_types(json.dumps({"Layers": [told, told]})) == Counter({expected: 2})


def test_an_inspector_that_writes_no_json_is_not_read() -> None:
    assert ours.layer_types('{"Layers": [{"Metadata": "{"broken"}"}]}') == Counter()
    assert ours.layer_types('{"Layers": ["a name\nover two lines"]}') == Counter({"": 1})


def test_layers_are_counted_where_their_types_are_not_told(tmp_path: Path) -> None:
    behaviour.answer("EngineInspector.get_engine_information", "no JSON")
    with on_cpu(a_cell(), tmp_path) as one:
        placement = one.compiled.placement()
        layers = len(onnx.load(tmp_path / "model.onnx").graph.node)
        assert placement is not None and placement.engines == {"TensorRT": layers}
        assert str(one.compiled.precision()["tensorrt_layers"]).startswith("unknown (")


def test_what_is_supported() -> None:
    backend = backends.create("tensorrt")
    for precision in ("fp32", "tf32", "bf16", "fp16", "int8"):
        assert backend.supports(a_cell(device="cuda", precision=precision))
    assert "FP8" in backend.supports(a_cell(device="cuda", precision="fp8")).reason
    assert "CUDA device" in backend.supports(a_cell(mode="cuda-graph")).reason
    assert backend.supports(a_cell(mode="cuda-graph", device="cuda:1"))


def test_a_cpu_is_no_gpu() -> None:
    assert ours.TensorRT().available(Device("cpu")).reason == "TensorRT runs on NVIDIA GPUs, and cpu is none"


@pytest.mark.parametrize("version", ["8.6.1", "10.12.0.36", "12.0.0"])
def test_a_version_it_was_not_written_for_is_refused(version: str) -> None:
    behaviour.release(version)
    reason = ours.TensorRT().available(Device("cuda")).reason
    assert version in reason and reason.endswith(ours.REMEDY)


@pytest.mark.parametrize("version", ["10.13.3.9.post1", "10.16.1.11", "11.0.0.114", "11.4.0.106"])
def test_those_it_was_written_for_are_taken(version: str) -> None:
    behaviour.release(version)
    assert ours.library_available()


def test_a_missing_library_is_named_with_its_remedy(install: Callable[[str, object], None]) -> None:
    install("tensorrt", None)
    reason = ours.TensorRT().available(Device("cuda")).reason
    assert reason.startswith("tensorrt does not import") and reason.endswith(ours.REMEDY)


def test_it_is_available_where_torch_has_the_gpu_too() -> None:
    assert ours.TensorRT().available(Device("cuda")) == torch_available(Device("cuda"))
