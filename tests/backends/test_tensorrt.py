"""The backend over a small fake of TensorRT: what it asks for, and every way in which TensorRT refuses.

What an engine computes is tested on a GPU, in tests/gpu/test_tensorrt.py.
"""

import ctypes
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import onnx
import pytest
import torch

from bakeoff.backends import tensorrt as ours
from bakeoff.backends import tensorrt_8, tensorrt_profiling
from bakeoff.backends.base import BuildContext
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import OnnxModel
from bakeoff.backends.profiling import Kind, Owner
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.runtime import tensorrt as loaded
from bakeoff.backends.runtime.tensorrt import ALIGNMENT, ENGINE, Complaints, Engine, Execution, Manifest, logger_for
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unsupported
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import RecordingPhases
from tests.fakes.tensorrt import TensorRT, Tensors

Both = tuple[Tensors, Tensors]
INPUTS: Tensors = {"x": ((2, 3), "FLOAT"), "places": ((4,), "INT64")}
OUTPUTS: Tensors = {"y": ((2, 3), "FLOAT"), "best": ((2,), "INT64")}
NARROWED: Both = ({**INPUTS, "places": ((4,), "INT32")}, {**OUTPUTS, "best": ((2,), "INT32")})
OPEN: Both = ({**NARROWED[0], "x": ((-1, 3), "FLOAT")}, {"y": ((-1, 3), "FLOAT"), "best": ((-1,), "INT32")})
ROWS = OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=8)
STREAM = 7
Version = Callable[..., TensorRT]


@pytest.fixture
def version(install: Callable[[str, object], None]) -> Version:
    """Return a function that puts a version of TensorRT in place, whose engine has these tensors."""

    def put(number: str, inputs: Tensors = INPUTS, outputs: Tensors = OUTPUTS) -> TensorRT:
        library = TensorRT(inputs, outputs, number)
        install("tensorrt", library)
        return library

    return put


@pytest.fixture(autouse=True)
def trt(version: Version, monkeypatch: pytest.MonkeyPatch) -> TensorRT:
    stream = SimpleNamespace(cuda_stream=STREAM, synchronize=Mock())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return version("10.13.3.9")


HALVES = """graph (float[2,3] x, int64[4] places) => (float[2,3] y, int64[2] best) {
    twice = Add(x, x)  halves = Cast<to=10>(twice)  most = Cast<to=1>(halves)
    y = Relu(most)  best = ArgMax<axis=1, keepdims=0>(y)
}"""


def graph_in(folder: Path, text: str = HALVES) -> OnnxModel:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), folder / "model.onnx")
    return OnnxModel(folder / "model.onnx", ("x", "places"), ("y", "best"))


def a_cell(**changes: Any) -> Cell:
    return Cell(**{"model": "mlp", "backend": "tensorrt", **changes})


def write(folder: Path, axes: tuple[OpenAxis, ...] = (), **changes: Any) -> BuildContext:
    context = BuildContext(a_cell(**changes), RecordingPhases(), folder, 1, open_axes=axes)
    ours.write_engine(graph_in(folder), context, [(2, 3), (4,)])
    return context


def load(context: BuildContext) -> ours.BoundEngine:
    compiled = ours.TensorRT().load(some(), context)
    assert isinstance(compiled, ours.BoundEngine)
    return compiled


def some() -> Inputs:
    return Inputs((torch.rand(2, 3), torch.arange(4)))


def engine_in(folder: Path) -> Engine:
    Manifest(("x", "places"), ("y", "best"), ("float32", "int64"), (), False, 3).write(folder)
    (folder / ENGINE).write_bytes(b"engine")
    return Engine(folder, "cpu")


# --- building


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    ("number", "kind", "narrowed"), [("10.13.3.9", "STRONGLY_TYPED", ()), ("8.6.0", "EXPLICIT_BATCH", ("places",))]
)
def test_an_engine_is_written_with_what_it_does_not_report_itself(
    number: str, kind: str, narrowed: tuple[str, ...], tf32: bool, version: Version, tmp_path: Path
) -> None:
    trt = version(number)
    write(tmp_path, precision="tf32" if tf32 else "fp32", mode="opt-5")
    trt.builder.create_network.assert_called_once_with(1 << trt.NetworkDefinitionCreationFlag[kind])
    assert trt.config.profiling_verbosity == trt.ProfilingVerbosity["DETAILED"]
    assert (call(trt.BuilderFlag["TF32"]) in trt.config.clear_flag.mock_calls) is not tf32  # it is on by default
    assert (tmp_path / ENGINE).read_bytes() == b"engine"
    names = ("x", "places"), ("y", "best")
    assert Manifest.read(tmp_path) == Manifest(*names, ("float32", "int64"), narrowed, tf32, 5)


def test_a_cells_timing_cache_is_empty_before_its_first_build(trt: TensorRT, tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)
    assert trt.config.create_timing_cache.mock_calls[::2] == [call(b""), call(b"timed")]


def test_an_open_axis_has_a_profile(trt: TensorRT, tmp_path: Path) -> None:
    write(tmp_path, (ROWS,))
    profile = trt.builder.create_optimization_profile.return_value
    profile.set_shape.assert_called_once_with("x", (1, 3), (2, 3), (8, 3))
    trt.config.add_optimization_profile.assert_called_once_with(profile)


class Taken(torch.nn.Module):
    def forward(self, numbers: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return numbers[places].mean(-1)


@pytest.mark.parametrize(("number", "is_lowered"), [("10.13.3.9", False), ("8.6.0", True)])
def test_the_graph_has_an_opset_that_the_version_reads(
    number: str, is_lowered: bool, version: Version, tmp_path: Path
) -> None:
    trt, phases = version(number), RecordingPhases()
    inputs = Inputs((torch.rand(8, 4), torch.arange(4)))
    ours.TensorRT().package(Taken().eval(), inputs, BuildContext(a_cell(), phases, tmp_path, 1))
    (path,) = trt.parser.parse_from_file.call_args.args
    (opset,) = (one.version for one in onnx.load(path).opset_import if not one.domain)
    assert (opset == 17) is is_lowered and phases.names == ["export", "compile"]


@pytest.mark.parametrize(
    ("number", "named"),
    [("10.13.3.9", {"node_operator": lambda: "Gargle", "node_name": lambda: "node_7"}), ("8.6.0", {})],
)
def test_a_node_that_the_parser_does_not_know_is_named_in_the_error(
    number: str, named: dict[str, Any], version: Version, tmp_path: Path
) -> None:
    trt = version(number)
    trt.parser.parse_from_file.return_value, trt.parser.num_errors = False, 1
    trt.parser.get_error.return_value = SimpleNamespace(desc=lambda: "Plugin not found", **named)
    said = f"{'Gargle node_7: ' if named else ''}Plugin not found"
    with pytest.raises(BakeoffError, match=f"^TensorRT's ONNX parser refused the graph: {said}$"):
        write(tmp_path)


# --- TensorRT before version 9

FLOATS = "graph (float[2] x) => (float[2] y) { y = Relu(x) }"
QUANTISED = """graph (float[2] x) => (float[2] y) <float scale = {0.1}, int8 zero = {0}> {
    small = QuantizeLinear(x, scale, zero)  y = DequantizeLinear(small, scale, zero)
}"""


@pytest.mark.parametrize(
    ("text", "flags", "in_float32"),
    [
        (FLOATS, set(), set()),
        (QUANTISED, {"INT8"}, set()),
        (HALVES, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, {"twice", "y"}),
    ],
    ids=["float32", "int8", "float16"],
)
def test_flags_and_layers_keep_the_types_of_the_graph(
    text: str, flags: set[str], in_float32: set[str], version: Version, tmp_path: Path
) -> None:
    trt = version("8.6.0")
    kinds = {"twice": "CONVOLUTION", "halves": "CAST", "most": "CAST", "y": "CONVOLUTION", "unknown": "CONVOLUTION"}
    layers = {name: Mock(type=trt.LayerType[kind], num_outputs=1) for name, kind in kinds.items()}
    for name, layer in layers.items():
        layer.get_output.return_value = SimpleNamespace(name=name)
    network = Mock(num_layers=len(layers), get_layer=list(layers.values()).__getitem__)
    tensorrt_8.keep_types(network, trt.config, graph_in(tmp_path, text).path)
    assert trt.config.set_flag.mock_calls == [call(flag) for flag in trt.BuilderFlag if flag.name in flags]
    assert {name for name, layer in layers.items() if layer.precision is trt.float32} == in_float32
    for name, layer in layers.items():
        assert layer.set_output_type.mock_calls == ([call(0, trt.float32)] if name in in_float32 else [])
    trt.config.set_preview_feature.assert_called_once_with(trt.PreviewFeature["PROFILE_SHARING_0806"], True)


@pytest.mark.parametrize(
    ("library", "has_tactics"),
    [(SimpleNamespace(cublasCreate_v2=None, cudnnCreate=None), True), (SimpleNamespace(), False)],
    ids=["installed", "empty"],
)
def test_tactics_of_libraries_that_are_not_there_are_left_out(
    library: object, has_tactics: bool, version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt = version("8.6.0")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    write(tmp_path)
    own = 1 << trt.TacticSource["EDGE_MASK_CONVOLUTIONS"] | 1 << trt.TacticSource["JIT_CONVOLUTIONS"]
    assert trt.config.set_tactic_sources.mock_calls == ([] if has_tactics else [call(own)])


# --- refusals


def refuse(trt: TensorRT, function: Mock, answer: object, words: str) -> None:
    """Let a function log words, and then raise or return the answer."""

    def refused(*_: object, **__: object) -> object:
        trt.log(words)
        if isinstance(answer, Exception):
            raise answer
        return answer

    function.side_effect = refused


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Error Code 10:\n no implementation", BakeoffError),
        ("Error Code 2: OutOfMemory (no further information)", MemoryError),
        ("Error Code 1: Cuda Runtime (out of memory)", MemoryError),
    ],
)
@pytest.mark.parametrize(
    ("function", "answer", "what"),
    [
        ("builder.build_serialized_network", None, "TensorRT built no engine"),
        ("config.create_timing_cache", None, "TensorRT took no timing cache"),
        ("config.set_timing_cache", False, "TensorRT took no timing cache"),
        ("config.add_optimization_profile", -1, "TensorRT took no optimisation profile"),
        ("runtime.deserialize_cuda_engine", None, "TensorRT could not read its engine back"),
        ("engine.create_execution_context", None, "TensorRT made no execution context"),
        ("context.set_optimization_profile_async", False, "TensorRT gave a further context no optimisation profile"),
        ("context.set_input_shape", False, "TensorRT did not take the shape (2, 3) of input 'x'"),
        ("context.set_tensor_address", False, "TensorRT did not take the address of tensor 'x'"),
        ("context.execute_async_v3", False, "TensorRT enqueued nothing"),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error_with_what_tensorrt_logged(
    function: str, answer: object, what: str, words: str, kind: type[Exception], version: Version, tmp_path: Path
) -> None:
    trt = version("8.6.0", *OPEN)
    owner, name = function.split(".")
    for one in trt.contexts if owner == "context" else [getattr(trt, owner)]:
        refuse(trt, getattr(one, name), answer, words)

    def build_and_call() -> None:
        compiled = load(write(tmp_path, (ROWS,)))
        compiled.instance()
        compiled.bind(some())
        compiled.run()

    with pytest.raises(kind) as caught:
        build_and_call()
    assert str(caught.value) == f"{what}: {' '.join(words.split())}"


@pytest.mark.parametrize("owner", ["Builder", "Runtime"])
def test_a_constructor_that_got_nothing_is_explained(owner: str, trt: TensorRT, tmp_path: Path) -> None:
    """With an old driver the real bindings log an error, and then pybind11 raises TypeError."""
    returned = TypeError("pybind11::init(): factory function returned nullptr")
    refuse(trt, getattr(trt, owner), returned, "CUDA initialization failure with error: 35")
    said = f"TensorRT made no {owner.lower()}: CUDA initialization failure with error: 35; pybind11"
    with pytest.raises(BakeoffError, match=said):
        load(write(tmp_path))


def test_only_errors_are_kept_and_warnings_go_to_the_log(caplog: pytest.LogCaptureFixture, trt: TensorRT) -> None:
    complaints = Complaints()
    logger = logger_for(complaints)
    with caplog.at_level(logging.DEBUG):
        for severity in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO"):
            logger.log(getattr(trt.ILogger, severity), severity.lower())
    assert list(complaints.errors) == ["internal_error", "error"]
    assert [record.levelname for record in caplog.records if record.name == "tensorrt"] == ["ERROR", "ERROR", "WARNING"]


# --- calling


def at(offset: int, values: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values in memory that begins so many numbers after an aligned address."""
    whole = torch.empty(values.numel() + ALIGNMENT, dtype=values.dtype)
    first = -whole.data_ptr() % ALIGNMENT // whole.element_size() + offset
    return whole[first : first + values.numel()].view(values.shape).copy_(values)


def addresses(trt: TensorRT, name: str) -> list[int]:
    """Return the addresses that a tensor was given, in order."""
    given = (one.args for one in trt.contexts[0].set_tensor_address.mock_calls)
    return [address for tensor, address in given if tensor == name]


@pytest.mark.parametrize(
    ("number", "name", "tensor", "is_copied"),
    [
        ("10.13.3.9", "x", at(0, torch.rand(2, 3)), False),
        ("10.13.3.9", "x", at(1, torch.rand(2, 3)), True),
        ("10.13.3.9", "x", at(0, torch.rand(3, 2)).t(), True),
        ("10.13.3.9", "places", at(0, torch.arange(4)), False),
        ("8.6.0", "places", at(0, torch.arange(4)), True),
    ],
    ids=["aligned", "not aligned", "transposed", "int64", "int64 narrowed to int32"],
)
def test_an_input_is_copied_only_where_tensorrt_cannot_read_it(
    number: str, name: str, tensor: torch.Tensor, is_copied: bool, version: Version, tmp_path: Path
) -> None:
    trt = version(number, *(NARROWED if number == "8.6.0" else (INPUTS, OUTPUTS)))
    execution = Execution(engine_in(tmp_path))
    tensors = {"x": at(0, torch.rand(2, 3)), "places": torch.arange(4), name: tensor}
    for _ in range(2):
        execution.bind(list(tensors.values()))
    execution.enqueue(STREAM)
    assert trt.contexts[0].read[name] == tensor.tolist()
    (address,) = set(addresses(trt, name))
    assert (address != tensor.data_ptr()) is is_copied
    tensor[:1] += 5
    execution.refresh()
    execution.enqueue(STREAM)
    assert trt.contexts[0].read[name] == tensor.tolist()


@pytest.mark.parametrize("tensors", [(INPUTS, OUTPUTS), NARROWED], ids=["int64", "int32"])
def test_outputs_have_the_types_of_the_graph_and_stay_where_they_are(
    tensors: Both, version: Version, tmp_path: Path
) -> None:
    trt = version("10.13.3.9", *tensors)
    compiled = load(write(tmp_path))
    for _ in range(2):
        compiled.bind(some())
        compiled.run()
        torch.testing.assert_close(compiled.outputs(), (torch.arange(6.0).view(2, 3), torch.arange(2)))
    trt.contexts[0].execute_async_v3.assert_called_with(STREAM)
    assert len(addresses(trt, "x")) == 2 and len(addresses(trt, "y")) == len(addresses(trt, "best")) == 1


@pytest.mark.parametrize(
    ("x", "places", "said"),
    [
        (torch.rand(1, 3), torch.arange(4), r"input 'x' is torch.float32 \(1, 3\), the engine takes \(\(2, 3\), "),
        (torch.rand(2, 3).double(), torch.arange(4), "input 'x' is torch.float64"),
        (torch.rand(2, 3), torch.arange(4).int(), "input 'places' is torch.int32"),
    ],
)
def test_an_input_that_the_engine_was_not_built_for_is_refused(
    x: torch.Tensor, places: torch.Tensor, said: str, tmp_path: Path
) -> None:
    """TensorRT would read past the end of a smaller input, and misread another type."""
    with pytest.raises(BakeoffError, match=said):
        Execution(engine_in(tmp_path)).bind([x, places])


def test_outputs_have_memory_for_each_size_of_a_range(version: Version, tmp_path: Path) -> None:
    trt = version("8.6.0", *OPEN)
    execution = Execution(engine_in(tmp_path))
    for rows in (1, 8, 0, 1):
        execution.bind([torch.rand(rows, 3), torch.arange(4)])
        execution.enqueue(STREAM)
        assert [tuple(output.shape) for output in execution.results()] == [(rows, 3), (rows,)]
    given = addresses(trt, "y")
    assert given[0] == given[3] and len(set(given)) == 3 and all(given) and all(addresses(trt, "x"))


def test_an_output_whose_size_depends_on_values_is_not_supported(version: Version, tmp_path: Path) -> None:
    version("10.13.3.9", INPUTS, {**OUTPUTS, "best": ((-1,), "INT64")})
    with pytest.raises(Unsupported, match=r"output 'best' has no static shape \(\(-1,\)\)"):
        Execution(engine_in(tmp_path))


@pytest.mark.parametrize(("number", "calls"), [("8.6.0", [call(0, STREAM)]), ("10.13.3.9", [])])
def test_a_further_context_is_given_the_profile_that_it_lacks(
    number: str, calls: list[Any], version: Version, tmp_path: Path
) -> None:
    trt = version(number)
    compiled = load(write(tmp_path))
    assert trt.contexts[0].set_optimization_profile_async.mock_calls == []
    other = compiled.instance()
    assert trt.contexts[1].set_optimization_profile_async.mock_calls == calls
    other.close()
    compiled.bind(some())
    compiled.run()


def test_what_the_engine_does_not_read_is_not_bound(version: Version, tmp_path: Path) -> None:
    trt = version("10.13.3.9", {"x": INPUTS["x"]}, OUTPUTS)
    Execution(engine_in(tmp_path)).bind(some().tensors())
    assert not addresses(trt, "places")


def test_tensors_that_cannot_be_bound_are_errors(trt: TensorRT, version: Version, tmp_path: Path) -> None:
    trt.engine.get_tensor_location.return_value = trt.TensorLocation["HOST"]
    with pytest.raises(BakeoffError, match="in host memory"):
        engine_in(tmp_path)
    version("10.13.3.9", INPUTS, {"y": OUTPUTS["y"]})
    with pytest.raises(BakeoffError, match="the engine has no output best"):
        engine_in(tmp_path)
    with pytest.raises(BakeoffError, match="torch has no type for TensorRT's FP8"):
        loaded.torch_type(trt.DataType["FP8"])


# --- what a cell reports


def test_a_record_has_the_version_and_the_inputs_that_are_cast(version: Version, tmp_path: Path) -> None:
    version("8.6.0", *NARROWED)
    compiled = load(write(tmp_path))
    settings, placement = compiled.settings(), compiled.placement()
    assert (settings["tensorrt_version"], settings["builder_optimization_level"]) == ("8.6.0", 3)
    assert settings["int64_inputs_cast_to_int32_before_calls"] == "places"
    assert compiled.precision() == {"tensorrt_tf32": False, "tensorrt_layers": "fp32 (1)"}
    assert (placement.extent, placement.engines) == (Extent.FULL, {"TensorRT fp32": 1})


def test_layers_are_counted_where_their_types_are_not_told(trt: TensorRT, tmp_path: Path) -> None:
    trt.engine.create_engine_inspector.return_value.get_engine_information.return_value = "no JSON"
    compiled = load(write(tmp_path))
    assert compiled.placement().engines == {"TensorRT": 3}
    assert compiled.precision()["tensorrt_layers"] == "unknown (3)"


def test_a_profile_has_the_time_of_each_layer(trt: TensorRT, tmp_path: Path) -> None:
    compiled = load(write(tmp_path))
    compiled.bind(some())
    profiler = compiled.profiler(torch.nn.Identity())
    assert profiler is not None and trt.contexts[0].enqueue_emits_profile is True
    with profiler:
        profiler.run()
        trt.contexts[0].profiler.report_layer_time("product", 0.01)
        ((span,),) = profiler.calls()
        (fact,) = profiler.work().facts
    assert (span.name, span.lasted_us) == ("product", pytest.approx(10))
    assert fact.startswith("TensorRT made 1 node of the graph's 5.")


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
        (layer("BFloat16"), "bf16"),
        (layer("Float"), "fp32"),
        (layer("Row major linear FP32"), "fp32"),
        (layer("Int8", outputs=("Float",)), "int8"),
        (layer("Thirty-two wide channel vectorized row major Int8 format"), "int8"),
        (layer("FP8"), "fp8"),
        (layer("UInt8"), "uint8"),
        (layer("UInt8", "Int64"), "uint8"),
        (layer("Int64"), "int64"),
        # indices and masks only say where to read
        (layer("Bool", "Half"), "fp16"),
        (layer("Int32", outputs=("Float",)), "fp32"),
        (layer("UInt8", outputs=("Half",)), "fp16"),
        (layer(outputs=("Half",)), "fp16"),
        (layer("N/A due to dynamic shapes", "Half"), "fp16"),
        (layer(), ""),
        ("only a name", ""),
    ],
)
def test_a_layer_counts_under_the_type_that_it_computes_in(told: Any, expected: str) -> None:
    assert ours.layer_types(json.dumps({"Layers": [told, told]})) == Counter({expected: 2})


def test_an_inspector_that_writes_no_json_is_not_read() -> None:
    assert ours.layer_types('{"Layers": [{"Metadata": "{"broken"}"}]}') == Counter()
    assert ours.layer_types('{"Layers": ["a name\nover two lines"]}') == Counter({"": 1})


# --- where it runs


@pytest.mark.parametrize(
    ("number", "is_taken"),
    [("8.5.3", False), ("8.6.0", True), ("10.13.3.9.post1", True), ("11.4.0.106", True), ("12.0.0", False)],
)
def test_versions_from_the_oldest_to_before_the_first_that_is_too_new(
    number: str, is_taken: bool, version: Version
) -> None:
    version(number)
    answer = ours.library_available()
    assert bool(answer) is is_taken
    assert is_taken or (number in answer.reason and answer.reason.endswith(ours.REMEDY))


def test_it_is_available_where_torch_has_the_gpu_too() -> None:
    assert ours.TensorRT().available(Device("cuda")) == torch_available(Device("cuda"))
