"""The backend over a small fake of TensorRT: what it asks for, and every way in which TensorRT refuses.

What an engine computes, and all of version 8.6, is tested on a GPU, in tests/gpu/test_tensorrt.py.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import onnx
import pytest
import torch

from bakeoff.backends import tensorrt as ours
from bakeoff.backends import tensorrt_profiling
from bakeoff.backends.base import BuildContext
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import OnnxModel
from bakeoff.backends.profiling import Kind, Owner
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.runtime import tensorrt as loaded
from bakeoff.backends.runtime.tensorrt import ALIGNMENT, ENGINE, Engine, Execution, Manifest
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unsupported
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import RecordingPhases
from tests.backends.fake_tensorrt import TensorRT, Tensors

INPUTS: Tensors = {"x": ((2, 3), "FLOAT"), "places": ((4,), "INT64")}
OUTPUTS: Tensors = {"y": ((2, 3), "FLOAT"), "best": ((2,), "INT64")}
OPEN = ({**INPUTS, "x": ((-1, 3), "FLOAT")}, {"y": ((-1, 3), "FLOAT"), "best": ((-1,), "INT64")})
ROWS = OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=8)
STREAM = 7
Library = Callable[..., TensorRT]


@pytest.fixture
def library(install: Callable[[str, object], None]) -> Library:
    """Return a function that puts a TensorRT in place whose engine has these tensors."""

    def put(inputs: Tensors = INPUTS, outputs: Tensors = OUTPUTS, version: str = "10.13.3.9") -> TensorRT:
        fake = TensorRT(inputs, outputs, version)
        install("tensorrt", fake)
        return fake

    return put


@pytest.fixture(autouse=True)
def trt(library: Library, monkeypatch: pytest.MonkeyPatch) -> TensorRT:
    stream = SimpleNamespace(cuda_stream=STREAM, synchronize=Mock())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return library()


GRAPH = """<ir_version: 8, opset_import: ["": 17]>
graph (float[2,3] x, int64[4] places) => (float[2,3] y, int64[2] best) { y = Relu(x)  best = ArgMax(y) }"""


def write(folder: Path, axes: tuple[OpenAxis, ...] = (), **changes: Any) -> BuildContext:
    onnx.save(onnx.parser.parse_model(GRAPH), folder / "model.onnx")
    cell = Cell(**{"model": "mlp", "backend": "tensorrt", **changes})
    context = BuildContext(cell, RecordingPhases(), folder, 1, open_axes=axes)
    graph = OnnxModel(folder / "model.onnx", ("x", "places"), ("y", "best"))
    ours.write_engine(graph, context, [(2, 3), (4,)])
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


@pytest.mark.parametrize("tf32", [False, True])
def test_an_engine_is_written_with_what_it_does_not_report_itself(tf32: bool, trt: TensorRT, tmp_path: Path) -> None:
    write(tmp_path, precision="tf32" if tf32 else "fp32", mode="opt-5")
    flag = trt.NetworkDefinitionCreationFlag["STRONGLY_TYPED"]
    trt.builder.create_network.assert_called_once_with(1 << flag)
    assert trt.config.profiling_verbosity == trt.ProfilingVerbosity["DETAILED"]
    assert (call(trt.BuilderFlag["TF32"]) in trt.config.clear_flag.mock_calls) is not tf32  # it is on by default
    assert (tmp_path / ENGINE).read_bytes() == b"engine"
    names = ("x", "places"), ("y", "best")
    assert Manifest.read(tmp_path) == Manifest(*names, ("float32", "int64"), (), tf32, 5)


def test_a_cells_timing_cache_is_empty_before_its_first_build(trt: TensorRT, tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)
    assert trt.config.create_timing_cache.mock_calls[::2] == [call(b""), call(b"timed")]


def test_an_open_axis_has_a_profile(trt: TensorRT, tmp_path: Path) -> None:
    write(tmp_path, (ROWS,))
    profile = trt.builder.create_optimization_profile.return_value
    profile.set_shape.assert_called_once_with("x", (1, 3), (2, 3), (8, 3))
    trt.config.add_optimization_profile.assert_called_once_with(profile)


@pytest.mark.parametrize("named", [{"node_operator": lambda: "Gargle", "node_name": lambda: "node_7"}, {}])
def test_a_node_that_the_parser_does_not_know_is_named_in_the_error(
    named: dict[str, Any], trt: TensorRT, tmp_path: Path
) -> None:
    """Only from version 10 on an error has a node."""
    trt.parser.parse_from_file.return_value, trt.parser.num_errors = False, 1
    trt.parser.get_error.return_value = SimpleNamespace(desc=lambda: "Plugin not found", **named)
    with pytest.raises(BakeoffError, match=f"graph: {'Gargle node_7: ' if named else ''}Plugin not found$"):
        write(tmp_path)


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
    function: str, answer: object, what: str, library: Library, tmp_path: Path
) -> None:
    trt = library(*OPEN)
    owner, name = function.split(".")
    trt.context.active_optimization_profile = -1  # as before version 10
    refuse(trt, getattr(getattr(trt, owner), name), answer, "Error Code 10:\n no implementation")

    def build_and_call() -> None:
        compiled = load(write(tmp_path, (ROWS,)))
        compiled.bind(some())
        compiled.run()

    with pytest.raises(BakeoffError) as caught:
        build_and_call()
    assert str(caught.value) == f"{what}: Error Code 10: no implementation"


@pytest.mark.parametrize(
    "words", ["Error Code 2: OutOfMemory (no further information)", "Error Code 1: Cuda Runtime (out of memory)"]
)
def test_what_is_said_of_memory_is_a_memory_error(words: str, trt: TensorRT, tmp_path: Path) -> None:
    refuse(trt, trt.builder.build_serialized_network, None, words)
    with pytest.raises(MemoryError):
        write(tmp_path)


@pytest.mark.parametrize("owner", ["Builder", "Runtime"])
def test_a_constructor_that_got_nothing_is_explained(owner: str, trt: TensorRT, tmp_path: Path) -> None:
    """With an old driver the real bindings log an error, and then pybind11 raises TypeError."""
    returned = TypeError("pybind11::init(): factory function returned nullptr")
    refuse(trt, getattr(trt, owner), returned, "CUDA initialization failure with error: 35")
    with pytest.raises(BakeoffError, match=f"{owner.lower()}: CUDA initialization failure with error: 35; pybind11"):
        load(write(tmp_path))


# --- calling


def at(offset: int, values: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values in memory that begins so many numbers after an aligned address."""
    whole = torch.empty(values.numel() + ALIGNMENT, dtype=values.dtype)
    first = -whole.data_ptr() % ALIGNMENT // whole.element_size() + offset
    return whole[first : first + values.numel()].view(values.shape).copy_(values)


@pytest.mark.parametrize(
    ("x", "is_copied"),
    [(at(0, torch.rand(2, 3)), False), (at(1, torch.rand(2, 3)), True), (at(0, torch.rand(3, 2)).t(), True)],
    ids=["aligned", "not aligned", "transposed"],
)
def test_an_input_is_copied_only_where_tensorrt_cannot_read_it(
    x: torch.Tensor, is_copied: bool, trt: TensorRT, tmp_path: Path
) -> None:
    execution = Execution(engine_in(tmp_path))
    for _ in range(2):
        execution.bind([x, torch.arange(4)])
    bound = (one.args for one in trt.context.set_tensor_address.mock_calls)
    (address,) = {address for name, address in bound if name == "x"}
    assert (address != x.data_ptr()) is is_copied
    x[:1] += 5
    execution.refresh()
    read = x if not is_copied else execution._copied[0][0]
    assert torch.equal(read, x)


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


def test_an_output_whose_size_depends_on_values_is_not_supported(library: Library, tmp_path: Path) -> None:
    library(INPUTS, {**OUTPUTS, "best": ((-1,), "INT64")})
    with pytest.raises(Unsupported, match=r"output 'best' has no static shape \(\(-1,\)\)"):
        Execution(engine_in(tmp_path))


def test_what_the_engine_does_not_read_is_not_bound(library: Library, tmp_path: Path) -> None:
    trt = library({"x": INPUTS["x"]}, OUTPUTS)
    Execution(engine_in(tmp_path)).bind(some().tensors())
    assert {bound.args[0] for bound in trt.context.set_tensor_address.mock_calls} == {"x", "y", "best"}


def test_tensors_that_cannot_be_bound_are_errors(trt: TensorRT, library: Library, tmp_path: Path) -> None:
    trt.engine.get_tensor_location.return_value = trt.TensorLocation["HOST"]
    with pytest.raises(BakeoffError, match="in host memory"):
        engine_in(tmp_path)
    library(INPUTS, {"y": OUTPUTS["y"]})
    with pytest.raises(BakeoffError, match="the engine has no output best"):
        engine_in(tmp_path)
    with pytest.raises(BakeoffError, match="torch has no type for TensorRT's FP8"):
        loaded.torch_type(trt.DataType["FP8"])


# --- what a cell reports


def test_a_record_has_the_version_and_the_types_of_layers(trt: TensorRT, tmp_path: Path) -> None:
    compiled = load(write(tmp_path))
    settings, placement = compiled.settings(), compiled.placement()
    assert (settings["tensorrt_version"], settings["builder_optimization_level"]) == ("10.13.3.9", 3)
    assert compiled.precision() == {"tensorrt_tf32": False, "tensorrt_layers": "fp32 (1)"}
    assert (placement.extent, placement.engines) == (Extent.FULL, {"TensorRT fp32": 1})
    trt.engine.create_engine_inspector.return_value.get_engine_information.return_value = "no JSON"
    assert compiled.placement().engines == {"TensorRT": 3}
    assert compiled.precision()["tensorrt_layers"] == "unknown (3)"
    replace(Manifest.read(tmp_path), narrowed=("places",)).write(tmp_path)
    again = ours.BoundEngine(Engine(tmp_path, "cpu"), tmp_path)
    assert again.settings()["int64_inputs_cast_to_int32_before_calls"] == "places"


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
    number: str, is_taken: bool, library: Library
) -> None:
    library(version=number)
    answer = ours.library_available()
    assert bool(answer) is is_taken
    assert is_taken or (number in answer.reason and answer.reason.endswith(ours.REMEDY))


def test_it_is_available_where_torch_has_the_gpu_too() -> None:
    assert ours.TensorRT().available(Device("cuda")) == torch_available(Device("cuda"))
