"""The real builder of TensorRT for RTX takes our graphs. It needs no GPU; running what it builds does.

It has TensorRT's Python API, so that here backends/tensorrt.py writes strongly typed engines with a real TensorRT; the
one that runs on our GPUs, 8.6, has none. To run these tests:

    pip install onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0 tensorrt-rtx-cu13-bindings==1.7.1.116
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bakeoff.backends import tensorrt as ours
from bakeoff.backends.base import BuildContext
from bakeoff.backends.exporting import OnnxModel, export_onnx
from bakeoff.backends.onnx_plugins import RTX
from bakeoff.backends.onnx_quantising import static_onnx
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.runtime.tensorrt import ENGINE, Engine, Manifest
from bakeoff.measuring.worker import precision as switches
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.precision import Precision
from tests.backends.building import RecordingPhases
from tests.support.cells import cell_of

pytest.importorskip(RTX.module)  # loads the engine, which the bindings are linked to
bindings: Any = pytest.importorskip("tensorrt_rtx_bindings")

pytestmark = pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops.*:DeprecationWarning")

SIZES: dict[str, dict[str, str | int]] = {
    "mlp": {"batch": 4, "features": 64, "hidden": 64},
    "conv": {"batch": 2, "size": 32, "width": 8},
    "transformer": {"batch": 2, "seq": 32, "dim": 64, "heads": 4, "ffn": 128},
}


TARGETS = ["SM86", "SM89", "SM120"]


@pytest.fixture(autouse=True)
def installed(install: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for RTX is in TensorRT's place."""
    module = ModuleType("tensorrt")
    vars(module).update({name: value for name, value in vars(bindings).items() if not name.startswith("__")})
    install("tensorrt", module)
    build_for("SM86", monkeypatch)
    torch.backends.mha.set_fastpath_enabled(False)
    for name in switches.OVERRIDES:
        monkeypatch.delenv(name, raising=False)


OUR_CONFIG = ours._config


def build_for(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines built for a GPU that this machine does not have."""

    def configured(*arguments: Any) -> Any:
        config = OUR_CONFIG(*arguments)
        config.num_compute_capabilities = 1
        assert config.set_compute_capability(getattr(bindings.ComputeCapability, target), 0)
        return config

    monkeypatch.setattr(ours, "_config", configured)


def exported(folder: Path, model: str, precision: str, axes: tuple[OpenAxis, ...] = ()) -> tuple[OnnxModel, Any, Any]:
    """Export a model in its precision. Return the graph with its context and the shapes of its inputs."""
    cell = cell_of(model, "tensorrt", SIZES[model], precision=precision)
    module, sets = move_to_device(load(cell), cell)
    context = BuildContext(cell, RecordingPhases(), folder, 1, sets, open_axes=axes)
    graph = export_onnx(module, sets[0], folder, axes=axes)
    if cell.precision is Precision.INT8:
        graph = static_onnx(graph, sets, folder, symmetric=True)
    return graph, context, [tuple(tensor.shape) for tensor in sets[0].tensors()]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("model", SIZES)
def test_it_builds_an_engine_for_each_kind_of_gpu(
    model: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = exported(tmp_path, model, precision)
    engines = set()
    for target in TARGETS:
        with monkeypatch.context() as patch:
            build_for(target, patch)
            ours.write_engine(*graph)
        engines.add((tmp_path / ENGINE).read_bytes())
    assert len(engines) == len(TARGETS) and all(len(engine) > 10_000 for engine in engines)
    assert Manifest.read(tmp_path).output_names == graph[0].output_names


@pytest.mark.parametrize(
    ("precision", "override", "allowed"),
    [("fp32", "", b"0"), ("tf32", "", b"1"), ("tf32", "0", b"0"), ("fp32", "1", b"1")],
)
def test_float32_is_rounded_to_tf32_only_where_it_is_asked_for_or_where_the_variable_of_the_plugin_decides(
    precision: str, override: str, allowed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine holds the options that it was built with, as text."""
    if override:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    ours.write_engine(*exported(tmp_path, "mlp", precision))
    assert set(re.findall(rb"[ ;]tf32=(\d)", (tmp_path / ENGINE).read_bytes())) == {allowed}


def test_one_engine_is_built_for_a_range_of_sizes(tmp_path: Path) -> None:
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=8),)
    ours.write_engine(*exported(tmp_path, "mlp", "fp32", axes))
    assert (tmp_path / ENGINE).exists()


def test_a_graph_that_it_refuses_is_an_error_of_one_line_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    _, context, shapes = exported(tmp_path / "..", "mlp", "fp32")
    with pytest.raises(BakeoffError, match="ONNX parser refused the graph: ") as caught:
        ours.write_engine(OnnxModel(tmp_path / "model.onnx", ("x",), ("y",)), context, shapes)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")


@pytest.mark.usefixtures("no_gpu")
def test_the_real_plugin_says_why_it_does_not_load_without_a_driver() -> None:
    with pytest.raises(Unavailable, match=rf"{RTX.package} does not load: .* libcuda\.so\.1: ") as caught:
        RTX.find(Device("cuda"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_an_engine_cannot_be_read_back(tmp_path: Path) -> None:
    """So nothing here says that an engine runs, or that its outputs are right."""
    graph, context, shapes = exported(tmp_path, "mlp", "fp32")
    ours.write_engine(graph, context, shapes)
    with pytest.raises(BakeoffError, match=r"TensorRT made no runtime|could not read its engine back"):
        Engine(tmp_path, "cuda")
