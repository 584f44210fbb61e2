"""IREE on NVIDIA GPUs: what it compiles for, what is said where it cannot run, and its real compiler without a GPU."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bakeoff import backends
from bakeoff.backends import iree as ours
from bakeoff.backends.base import AVAILABLE, BuildContext
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.records.device import Device
from tests.backends.building import RecordingPhases
from tests.support.cells import cell_of

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
