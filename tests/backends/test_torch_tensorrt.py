"""The backend over a fake of Torch-TensorRT: both ways in, the settings passed, and the placement."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff.backends import torch_tensorrt as ours
from bakeoff.backends.base import AVAILABLE, Availability
from bakeoff.backends.eager import torch_available
from bakeoff.records.device import Device
from bakeoff.records.schema import Cell, Extent
from tests.backends import fake_torch_tensorrt as torch_tensorrt
from tests.backends.building import Built, built
from tests.backends.fake_on_cpu import TorchTensorRTOnCpu
from tests.support.checkout import ROOT
from tests.support.distributions import distribute

SMALL = {"batch": 2, "features": 8, "hidden": 8}
MODES = ("default", "torch-compile")


@pytest.fixture(autouse=True)
def installed(install: Callable[[str, object], None]) -> None:
    """The fake is in Torch-TensorRT's place."""
    install("torch_tensorrt", torch_tensorrt)


def a_cell(**changes: Any) -> Cell:
    return Cell(**{"model": "mlp", "dimensions": SMALL, "backend": "torch-tensorrt", **changes})


def on_cpu(cell: Cell, folder: Path) -> AbstractContextManager[Built]:
    return built(cell, folder, backend=TorchTensorRTOnCpu())


@pytest.mark.parametrize(
    ("mode", "precision", "disabled"),
    [("default", "fp32", True), ("default", "tf32", False), ("torch-compile", "bf16", True)],
)
def test_the_settings_are_the_cells(mode: str, precision: str, disabled: bool, tmp_path: Path) -> None:
    with on_cpu(a_cell(mode=mode, precision=precision), tmp_path) as one:
        passed = ours.compilation_settings(one.context)
        assert passed["disable_tf32"] is disabled
        assert passed["use_explicit_typing"] and passed["pass_through_build_failures"]
        assert Path(passed["timing_cache_path"]).parent == tmp_path
        assert one.compiled.precision() == {"tensorrt_tf32": not disabled, "tensorrt_fp32_acc": False}


@pytest.mark.parametrize(
    ("mode", "phases", "compilations"), [("default", ("export", "compile"), 0), ("torch-compile", ("compile",), 1)]
)
def test_a_graph_that_is_wholly_converted_is_full_either_way(
    mode: str, phases: tuple[str, ...], compilations: int, tmp_path: Path
) -> None:
    """Only what compiles just in time counts compilations."""
    with on_cpu(a_cell(mode=mode), tmp_path) as one:
        assert (one.phases, one.compiled.compilations()) == (phases, compilations)
        placement = one.compiled.placement()
        assert placement is not None and (placement.extent, placement.fallbacks) == (Extent.FULL, [])
        assert placement.engines == {"TensorRT engines": 1}
        told = one.compiled.settings()
        assert (told["torch_tensorrt_version"], told["min_block_size"]) == ("2.8.0", 1)
        assert isinstance(told["tensorrt_layers"], int) and told["tensorrt_layers"] >= 3


@pytest.mark.parametrize("mode", MODES)
def test_no_engine_is_a_fallback(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tensorrt, "builds_engines", False)
    with on_cpu(a_cell(mode=mode), tmp_path) as one:
        placement = one.compiled.placement()
        assert placement is not None and placement.extent is Extent.FALLBACK
        assert set(placement.engines) == {"torch operators"}
        assert any("mm" in name or "linear" in name for name in placement.fallbacks)
        assert one.compiled.precision() == {}
        assert one.compiled.settings()["tensorrt_layers"] == 0


def test_a_part_that_is_no_graph_is_not_guessed_about() -> None:
    assert ours.coverage([lambda *_: None]) is None


@pytest.mark.parametrize(
    ("in_torch", "breaks", "extent", "fallbacks"),
    [
        (False, [], Extent.FULL, []),
        (False, ["graph break: print"], Extent.PARTIAL, ["graph break: print"]),
        (True, [], Extent.PARTIAL, [f"{torch.relu} in torch (2)"]),
    ],
)
def test_operators_in_torch_and_graph_breaks_are_no_full_placement(
    in_torch: bool, breaks: list[str], extent: Extent, fallbacks: list[str]
) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    graph.add_module("_run_on_acc_0", torch.nn.Identity())
    if in_torch:
        graph.add_module("_run_on_gpu_1", torch.fx.symbolic_trace(lambda x: torch.relu(torch.relu(x))))
    placement = ours.coverage([graph], breaks)
    assert placement is not None and (placement.extent, placement.fallbacks) == (extent, fallbacks)
    assert placement.engines == {"TensorRT engines": 1} | ({"torch operators": 2} if in_torch else {})


class CapturingOnCpu(TorchTensorRTOnCpu):
    """Takes the mode `cuda-graph` although there is no GPU."""

    def supports(self, cell: Cell) -> Availability:
        return AVAILABLE


def test_cuda_graphs_are_the_librarys_own_and_switched_off_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_tensorrt, "switched", [])
    with built(a_cell(mode="cuda-graph"), tmp_path, backend=CapturingOnCpu()) as one:
        assert torch_tensorrt.switched == [True]
        torch.testing.assert_close(one.call(one.sets[0]), one.eager(one.sets[0]))
    assert torch_tensorrt.switched == [True, False]


@pytest.mark.slow
def test_it_passes_the_conformance_suite_over_the_fake(tmp_path: Path) -> None:
    """Nothing else runs this backend. The fake and the backend are on Python's path, as if they were installed."""
    shutil.copy(torch_tensorrt.__file__, tmp_path / "torch_tensorrt.py")
    distribute(TorchTensorRTOnCpu.name, "tests.backends.fake_on_cpu:TorchTensorRTOnCpu", tmp_path)
    # the inner pytest must not act as a worker of pytest-xdist, since it would wait for the lock of this test
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    suite = [sys.executable, "-m", "pytest", "tests/backends/test_conformance.py", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*suite, "-k", TorchTensorRTOnCpu.name],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 40, done.stdout


MAJOR, MINOR = (int(number) for number in torch.__version__.split(".")[:2])
REMEDY = f"pip install 'torch-tensorrt=={MAJOR}.{MINOR}.*'"


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a version of Torch-TensorRT, as its metadata has it."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(version: str) -> None:
        information = tmp_path / f"torch_tensorrt-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-tensorrt\nVersion: {version}\n")

    return install


def test_one_for_this_torch_is_available_where_torch_has_the_gpu(release: Callable[[str], None]) -> None:
    release(f"{MAJOR}.{MINOR}.0")
    assert ours.version_matches_torch() and ours.library_imports()
    assert ours.TorchTensorRT().available(Device("cuda")) == torch_available(Device("cuda"))


@pytest.mark.skipif(bool(importlib.util.find_spec("torch_tensorrt")), reason="this machine has Torch-TensorRT")
def test_one_that_is_not_installed_is_named_with_its_remedy() -> None:
    reason = ours.TorchTensorRT().available(Device("cuda")).reason
    assert reason == f"torch-tensorrt is not installed: {REMEDY}"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (f"{MAJOR}.{MINOR + 1}.0", f"is not for torch {torch.__version__}"),
        (f"{MAJOR}.{MINOR + 2}.1+cu130", f"is not for torch {torch.__version__}"),
        ("2.7.0", "is older than 2.8"),
    ],
)
def test_one_that_is_not_this_torchs_is_refused(
    version: str, said: str, release: Callable[[str], None], install: Callable[[str, object], None]
) -> None:
    release(version)
    install("torch_tensorrt", None)  # never imported: it could crash
    reason = ours.TorchTensorRT().available(Device("cuda")).reason
    assert reason == f"torch-tensorrt {version} {said}: {REMEDY}"
