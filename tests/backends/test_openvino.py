"""OpenVINO, IREE, ExecuTorch and LiteRT: precisions, what they compile for, and what they tell of themselves."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bakeoff import backends
from bakeoff.backends import iree as ours
from bakeoff.backends import litert
from bakeoff.backends.base import AVAILABLE, BuildContext
from bakeoff.backends.executorch import placement_of
from bakeoff.backends.openvino import PRECISION_HINTS
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unavailable
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent
from bakeoff.truth import accuracy
from tests.backends.building import RecordingPhases, built, loaded, reference_of
from tests.support.cells import cell_of
from tests.support.modules import Calling

openvino = pytest.importorskip("openvino")

DIMENSIONS: dict[str, str | int] = {"batch": 3, "features": 32, "hidden": 48}
CAPABILITIES = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def cell_in(precision: str) -> Cell:
    return Cell(model="mlp", dimensions=DIMENSIONS, backend="openvino", precision=precision)


@pytest.mark.skipif("BF16" not in CAPABILITIES, reason="this CPU has no bfloat16, so nothing tempts OpenVINO")
def test_float32_is_float32_where_openvino_would_rather_compute_in_bfloat16(tmp_path: Path) -> None:
    with built(cell_in("fp32"), tmp_path, threads=2) as one:
        torch.testing.assert_close(one.call(one.sets[0]), one.eager(one.sets[0]))
        told = one.compiled.precision()
        model = openvino.Core().read_model(tmp_path / "model.xml")
    left_to_itself = openvino.Core().compile_model(model, "CPU")
    assert left_to_itself.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "bf16"
    assert told == {"inference_precision_hint": "f32", "nodes in f32": 3}


def test_its_use_is_not_reported_to_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    assert backends.create("openvino").available(CPU)
    assert sys.modules["openvino_telemetry"] is None


def test_tensors_that_a_model_returns_twice_are_outputs_twice(tmp_path: Path) -> None:
    """Models that also return their hidden states do so."""

    def repeated(own: Calling, x: torch.Tensor) -> dict[str, object]:
        hidden = own.up(x)
        last = torch.relu(hidden)
        return {"last": last, "hidden": (x, hidden, last), "again": hidden}

    model = loaded(Calling(repeated, up=nn.Linear(8, 8)), 3, 8, sets=2)
    for _ in range(2):  # the second time from the file that the first one left
        with built(cell_in("fp32"), tmp_path, model, threads=1) as one:
            for inputs in one.sets:
                torch.testing.assert_close(one.call(inputs), one.eager(inputs))


@pytest.mark.skipif("BF16" not in CAPABILITIES, reason="this CPU has no bfloat16")
def test_bfloat16_is_what_its_layers_run_in_and_what_it_hands_out(tmp_path: Path) -> None:
    with built(cell_in("bf16"), tmp_path, threads=2) as one:
        outputs = one.call(one.sets[1])
        told = one.compiled.precision()
        placement = one.compiled.placement()
        expected = one.eager(one.sets[1])
    assert outputs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outputs, expected)
    assert told == {"inference_precision_hint": "bf16", "nodes in bf16": 3}
    assert placement is not None and placement.engines == {"CPU bf16": 3}


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_layers_that_openvino_fuses_keep_their_precision(precision: str, tmp_path: Path) -> None:
    """With one thread, OpenVINO makes one node of several layers on some CPUs."""
    hint = PRECISION_HINTS[Precision(precision)]
    if hint.upper() not in {"F32", *CAPABILITIES}:
        pytest.skip(f"this CPU has no {precision}")
    with built(cell_in(precision), tmp_path, threads=1) as one:
        told = one.compiled.precision()
        found = accuracy.check([one.call(inputs) for inputs in one.sets], reference_of(one.cell), one.cell.precision)
    assert found.passed, found.rule
    assert told.keys() == {"inference_precision_hint", f"nodes in {hint}"}


@pytest.mark.skipif("FP16" in CAPABILITIES, reason="this CPU has float16")
def test_float16_on_a_cpu_without_it_is_refused_and_not_bfloat16(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="says OpenVINO: not in fp16"), built(cell_in("fp16"), tmp_path):
        pass


@pytest.mark.skipif("BF16" not in CAPABILITIES or "FP16" in CAPABILITIES, reason="the CPU is of another kind")
def test_a_precision_that_openvino_did_not_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a CPU's list of capabilities were wrong, OpenVINO would silently take bf16 for f16."""
    real = openvino.Core

    class Core:
        """A core that names float16 among what the CPU computes in."""

        def __init__(self) -> None:
            self.compile_model, self.read_model = real().compile_model, real().read_model
            self.available_devices = real().available_devices

        def get_property(self, *_: str) -> list[str]:
            return [*CAPABILITIES, "FP16"]

    monkeypatch.setattr(openvino, "Core", Core)
    with pytest.raises(Unavailable, match="was asked for f16 and took bf16"), built(cell_in("fp16"), tmp_path):
        pass


def test_int8_leaves_only_the_quantised_model_as_its_artefact(tmp_path: Path) -> None:
    with built(cell_in("int8"), tmp_path, threads=2) as one:
        assert [file.name for file in tmp_path.iterdir()] == ["int8.onnx"]
        assert one.compiled.precision()["layers run in int8"] == 3


CUDA = Device("cuda:1")
SIZES: dict[str, dict[str, str | int]] = {
    "mlp": {"batch": 4, "features": 64, "hidden": 64},
    "conv": {"batch": 2, "size": 32, "width": 8},
    "transformer": {"batch": 2, "seq": 32, "dim": 64, "heads": 4, "ffn": 128},
}


@pytest.fixture
def opened(install: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """IREE with everything, beside a torch with two H100: the devices that it was asked for."""
    devices: list[str] = []
    compiler = SimpleNamespace(query_available_targets=lambda: ["cuda", "llvm-cpu"])
    runtime = SimpleNamespace(query_available_drivers=lambda: ["cuda", "local-task"], get_device=devices.append)
    install("iree", SimpleNamespace(compiler=compiler, runtime=runtime))
    install("iree.compiler", compiler)
    install("iree.runtime", runtime)
    monkeypatch.setattr(ours, "torch_available", lambda device: AVAILABLE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    return devices


def reason(device: Device = CUDA) -> str:
    return backends.create("iree").available(device).reason


def test_a_gpu_is_there_if_iree_opens_the_one_that_torch_means(opened: list[str]) -> None:
    assert not reason()
    assert opened == ["cuda://1"]


def test_a_driver_that_does_not_start_says_why(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise RuntimeError("CUDA driver library 'libcuda.so' not available\nand more")

    monkeypatch.setattr("iree.runtime.get_device", refuse)
    assert reason() == "IREE's CUDA driver does not start: CUDA driver library 'libcuda.so' not available"


def test_a_gpu_that_is_too_old_is_named(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (5, 2))
    assert reason() == "IREE compiles for compute capability 6.0 and newer, and cuda:1 has 5.2"
    assert not opened


@pytest.mark.parametrize(
    ("library", "asked", "what"),
    [("compiler", "query_available_targets", "target"), ("runtime", "query_available_drivers", "driver")],
)
def test_a_build_of_iree_without_cuda_says_so(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, library: str, asked: str, what: str
) -> None:
    monkeypatch.setattr(f"iree.{library}.{asked}", lambda: ["vulkan"])
    assert reason() == f"this build of iree-base-{library} has no {what} cuda"


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((5, 2), ""),
        ((6, 1), "sm_60"),
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_80"),
        ((10, 0), "sm_80"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_gpu_gets_code_that_it_can_translate(capability: tuple[int, int], target: str) -> None:
    assert ours.cuda_target(capability) == target


def compiled(folder: Path, model: str, precision: str, options: dict[str, Any]) -> bytes:
    """Compile a model for a GPU that this machine need not have. Return the program."""
    cell = cell_of(model, "iree", SIZES[model], precision=precision)
    module, sets = move_to_device(load(cell), cell)
    context = BuildContext(cell.model_copy(update={"device": CUDA}), RecordingPhases(), folder, threads=1)
    ours._compile(module, sets[0], context, {**options, **ours.OPTIMISED}, folder / ours.ARTIFACT)
    return (folder / ours.ARTIFACT).read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("model", SIZES)
def test_its_compiler_makes_code_for_an_h100_without_one(model: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    torch.backends.mha.set_fastpath_enabled(False)
    program = compiled(tmp_path, model, precision, {"iree-cuda-target": ours.cuda_target((9, 0))})
    assert set(re.findall(rb"\.target (sm_\w+)", program)) == {b"sm_80"}
    assert b"tf32" not in program  # float32 is multiplied as it is


@pytest.mark.parametrize("target", sorted({*ours.CUDA_TARGETS.values()}))
def test_its_compiler_knows_every_target(target: str, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    assert target.encode() in compiled(tmp_path, "mlp", "fp32", {"iree-cuda-target": target})


@pytest.mark.parametrize(
    ("account", "extent", "engines", "fallbacks"),
    [
        ({"aten_linear_default": (3, 0), "getitem": (0, 1)}, Extent.FULL, {"XNNPACK": 3}, []),
        (
            {"aten_linear_default": (3, 0), "aten_where_self": (1, 2), "alloc": (0, 7)},
            Extent.PARTIAL,
            {"XNNPACK": 4, "portable kernels": 2},
            ["aten_where_self in portable kernels (2)"],
        ),
        (
            {"aten_embedding_default": (0, 1)},
            Extent.FALLBACK,
            {"portable kernels": 1},
            ["aten_embedding in portable kernels (1)"],
        ),
    ],
)
def test_executorch_says_of_each_operator_whether_xnnpack_took_it(
    account: dict[str, tuple[int, int]], extent: Extent, engines: dict[str, int], fallbacks: list[str]
) -> None:
    found = placement_of(account)
    assert (found.extent, found.engines, found.fallbacks) == (extent, engines, fallbacks)


def operator(index: int, name: str, inputs: list[int], outputs: list[int]) -> dict[str, object]:
    return {"index": index, "op_name": name, "inputs": inputs, "outputs": outputs}


REPLACED = [operator(0, "FULLY_CONNECTED", [0, 1], [2]), operator(1, "GELU", [2], [3])]


@pytest.mark.parametrize(
    ("operators", "extent", "engines", "fallbacks"),
    [
        ([*REPLACED, operator(2, "DELEGATE", [0, 1], [3])], Extent.FULL, {"XNNPACK graphs": 1}, []),
        (
            [*REPLACED, operator(2, "DELEGATE", [0, 1], [2])],
            Extent.PARTIAL,
            {"XNNPACK graphs": 1, "LiteRT's own kernels": 1},
            ["GELU in LiteRT's own kernels (1)"],
        ),
        (
            REPLACED,
            Extent.FALLBACK,
            {"LiteRT's own kernels": 2},
            ["FULLY_CONNECTED in LiteRT's own kernels (1)", "GELU in LiteRT's own kernels (1)"],
        ),
    ],
)
def test_litert_says_what_xnnpack_took(
    operators: list[dict[str, object]], extent: Extent, engines: dict[str, int], fallbacks: list[str]
) -> None:
    found = litert.placement_of(operators, [3])
    assert (found.extent, found.engines, found.fallbacks) == (extent, engines, fallbacks)
