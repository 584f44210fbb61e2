"""The backend over a fake of Torch-TensorRT: both ways in, the settings passed, and the placement."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import backends
from backends import torch_tensorrt as ours
from backends.base import YES
from records.device import Device
from records.schema import Cell, Extent, Placement
from tests.backends.building import built
from tests.fakes import suite

SMALL = {"batch": 2, "features": 8, "hidden": 8}
MODES = ("default", "torch-compile")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the fake in Torch-TensorRT's place, and make the backend available on the CPU."""
    module = importlib.import_module("tests.fakes.torch_tensorrt")
    monkeypatch.setitem(sys.modules, "torch_tensorrt", module)
    monkeypatch.setattr(ours.TorchTensorRT, "available", lambda *_: YES)
    return module


@pytest.fixture
def compiler(fake: Any) -> Any:
    return importlib.import_module("tests.fakes.torch_tensorrt.dynamo._compiler")


def a_cell(**changes: Any) -> Cell:
    return Cell(**{"model": "mlp", "dimensions": SMALL, "backend": "torch-tensorrt", **changes})


def test_it_passes_the_conformance_suite_on_the_cpu(tmp_path: Path) -> None:
    assert suite.conformance("torch-tensorrt-on-cpu", "on_cpu:TorchTensorRTOnCpu", tmp_path) > 60


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("precision", "disabled"), [("fp32", True), ("tf32", False), ("bf16", True)])
def test_the_settings_are_the_cells(mode: str, precision: str, disabled: bool, tmp_path: Path) -> None:
    with built(a_cell(mode=mode, precision=precision), tmp_path) as one:
        passed = ours.compilation_settings(one.context)
        assert passed["disable_tf32"] is disabled
        assert passed["use_explicit_typing"] and passed["pass_through_build_failures"]
        assert Path(passed["timing_cache_path"]).parent == tmp_path
        assert one.compiled.precision() == {"tensorrt_tf32": not disabled, "tensorrt_fp32_acc": False}


def test_the_two_ways_in_differ_in_their_phases(tmp_path: Path) -> None:
    for mode, phases in (("default", ("export", "compile")), ("torch-compile", ("compile",))):
        (tmp_path / mode).mkdir()
        with built(a_cell(mode=mode), tmp_path / mode) as one:
            assert one.phases == phases


def test_only_just_in_time_counts_compilations(tmp_path: Path) -> None:
    for mode, graphs in (("default", 0), ("torch-compile", 1)):
        (tmp_path / mode).mkdir()
        with built(a_cell(mode=mode), tmp_path / mode) as one:
            assert one.compiled.compilations() == graphs


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_that_is_wholly_converted_is_full(mode: str, tmp_path: Path) -> None:
    with built(a_cell(mode=mode), tmp_path) as one:
        placement = one.compiled.placement()
        assert placement is not None and (placement.extent, placement.fallbacks) == (Extent.FULL, [])
        assert placement.engines == {"TensorRT engines": 1}
        told = one.compiled.settings()
        assert (told["torch_tensorrt_version"], told["min_block_size"]) == ("2.8.0", 1)
        assert isinstance(told["tensorrt_layers"], int) and told["tensorrt_layers"] >= 3


def test_operators_that_stayed_in_torch_are_named_and_counted(
    compiler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "_NOT_CONVERTED", {"aten.relu.default"})
    with built(a_cell(), tmp_path) as one:
        placement = one.compiled.placement()
        assert placement is not None and placement.extent is Extent.PARTIAL
        (left,) = placement.fallbacks
        assert left.startswith("aten.relu.default in torch (")
        assert placement.engines["TensorRT engines"] > 1 and placement.engines["torch operators"] >= 1
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))


@pytest.mark.parametrize("mode", MODES)
def test_no_engine_is_a_fallback(mode: str, fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below min_block_size the library only logs a warning, and returns a plain torch module."""
    compile = fake.dynamo.compile
    backend = fake.dynamo.backend.torch_tensorrt_backend

    def jit(graph: Any, inputs: Any, options: dict[str, Any]) -> Any:
        return backend(graph, inputs, options={**options, "min_block_size": 1000})

    monkeypatch.setattr(fake.dynamo, "compile", lambda *args, **kwargs: compile(*args, min_block_size=1000, **kwargs))
    monkeypatch.setattr(fake.dynamo.backend, "torch_tensorrt_backend", jit)
    with built(a_cell(mode=mode), tmp_path) as one:
        placement = one.compiled.placement()
        assert placement is not None and placement.extent is Extent.FALLBACK
        assert set(placement.engines) == {"torch operators"}
        assert any("mm" in name or "linear" in name for name in placement.fallbacks)
        assert one.compiled.precision() == {}
        assert one.compiled.settings()["tensorrt_layers"] == 0


def test_a_part_that_is_no_graph_is_not_guessed_about() -> None:
    assert ours.coverage([lambda *_: None]) is None


def test_a_graph_break_is_no_full_placement() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    graph.add_module("_run_on_acc_0", torch.nn.Identity())
    assert ours.coverage([graph]) == Placement(
        extent=Extent.FULL, engines={"TensorRT engines": 1}, evidence=["Torch-TensorRT's partitions, by name"]
    )
    broken = ours.coverage([graph], ["graph break: print"])
    assert broken is not None and (broken.extent, broken.fallbacks) == (Extent.PARTIAL, ["graph break: print"])


def test_cuda_graphs_are_the_librarys_own_and_switched_off_again(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switched: list[bool] = []

    @contextmanager
    def enable(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        switched.append(True)
        yield module
        switched.append(False)

    monkeypatch.setattr(fake.runtime, "enable_cudagraphs", enable)
    monkeypatch.setattr(ours.TorchTensorRT, "supports", lambda *_: YES)
    with built(a_cell(mode="cuda-graph"), tmp_path) as one:
        assert switched == [True]
        torch.testing.assert_close(one.call(one.sets[0]), one.eager(one.sets[0]))
    assert switched == [True, False]


def test_what_is_supported() -> None:
    backend = backends.create("torch-tensorrt")
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        assert backend.supports(a_cell(device="cuda", precision=precision))
    for precision in ("int8", "fp8"):
        assert "ModelOpt" in backend.supports(a_cell(device="cuda", precision=precision)).reason
    assert "CUDA device" in backend.supports(a_cell(mode="cuda-graph")).reason


class TestAvailability:
    @pytest.fixture(autouse=True)
    def real(self, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Restore the backend's own answer, and pretend that torch is 2.13 with CUDA."""
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "torch_tensorrt", fake)
        monkeypatch.setattr(ours, "torch_available", lambda device: YES)
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")

    @staticmethod
    def install(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        def told(name: str) -> str:
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(metadata, "version", told)

    def test_all_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install("2.13.0", monkeypatch)
        assert ours.TorchTensorRT().available(Device("cuda"))

    def test_a_cpu_is_no_gpu(self) -> None:
        assert ours.TorchTensorRT().available(Device("cpu")).reason == "TensorRT runs on NVIDIA GPUs, and cpu is none"

    @pytest.mark.parametrize(
        ("version", "said"),
        [
            (None, "torch-tensorrt is not installed"),
            ("2.14.0", "torch-tensorrt 2.14.0 is not for torch 2.13.0+cu130"),
            ("2.12.1+cu130", "torch-tensorrt 2.12.1+cu130 is not for torch 2.13.0+cu130"),
            ("2.7.0", "torch-tensorrt 2.7.0 is older than 2.8"),
        ],
    )
    def test_one_that_is_not_this_torchs(self, version: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install(version, monkeypatch)
        monkeypatch.setitem(sys.modules, "torch_tensorrt", None)  # never imported: it could crash
        assert ours.TorchTensorRT().available(Device("cuda")).reason == f"{said}: pip install 'torch-tensorrt==2.13.*'"

    def test_an_import_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install("2.13.0", monkeypatch)
        monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
        reason = ours.TorchTensorRT().available(Device("cuda")).reason
        assert reason.startswith("torch-tensorrt does not import (")
        assert reason.endswith("pip install 'torch-tensorrt==2.13.*'")
