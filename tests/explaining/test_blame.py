"""`bakeoff blame` names the smallest part of a model that loses precision, or that fails alone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff import backends
from bakeoff.backends.base import BuildContext
from bakeoff.measuring.worker import tolerance
from bakeoff.measuring.worker.blaming import Part, Search, in_float64
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records import report_file
from bakeoff.records.blame import Blame, Found
from bakeoff.records.device import CPU
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from bakeoff.reports.blame import conclusion, to_markdown
from tests.conftest import CommandLine
from tests.reports import samples


class Layer(nn.Module):
    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.rounds = nn.LayerNorm(32), nn.Linear(32, 32), rounds

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(self.norm(x)))
        return x + (y.to(torch.bfloat16).to(x.dtype) if self.rounds else y)


class Net(nn.Module):
    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(rounds and number == 3) for number in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x * 2.0) + 1.0


@contextlib.contextmanager
def phase(name: str) -> Any:
    yield


def searched(model: nn.Module, backend: str, folder: Path, looks_for_failure: bool = False) -> Blame:
    """Search in this process, in the surroundings that a worker gives."""
    cell = Cell(model="mlp", backend=backend)
    worker: Any = SimpleNamespace(
        cell=cell,
        backend=backends.create(backend),
        workspace=folder,
        context=lambda sets: BuildContext(cell, phase, folder, 1, sets),
        running=torch.inference_mode,
        clock=Clock(CPU),
    )
    torch.manual_seed(0)
    whole = Part("", type(model).__name__, model.eval(), Inputs((torch.randn(8, 32),)).map(in_float64))
    with torch.no_grad():
        return Search(worker, looks_for_failure).descend_from(whole)


def test_planted_rounding_is_named_with_its_line(tmp_path: Path) -> None:
    blame = searched(Net(rounds=True), "eager", tmp_path)
    assert blame.found is Found.PLACE and blame.place is not None
    assert blame.place.name == "layers.3: aten.to.dtype"
    assert "test_blame.py, line " in blame.line and blame.line.endswith("in forward")
    assert "Eager loses as much" in conclusion(blame)
    # halves of the row of eight layers are tried, and not each of them
    tried = [trial.name for trial in blame.trials]
    assert tried[:3] == ["", "layers.0 to layers.3", "layers.4 to layers.7"]
    assert "layers.0" not in tried and "layers.5" not in tried


@pytest.mark.parametrize("backend", ["eager", "torchscript"])
def test_a_clean_model_names_nothing(backend: str, tmp_path: Path) -> None:
    blame = searched(Net(rounds=False), backend, tmp_path)
    assert blame.found is Found.NOTHING and len(blame.trials) == 1
    assert "No part is to blame" in conclusion(blame)


class Steep(nn.Module):
    """Adds an error of a few roundings that its neighbours add, too."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Slightly() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x) * 1.0
        return x


class Slightly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else x * (1 + 1.4e-5)


def test_an_error_without_a_place_is_said_to_grow(tmp_path: Path) -> None:
    blame = searched(Steep(), "eager", tmp_path)
    assert blame.found is Found.SPREAD
    assert "the error has no single place" in conclusion(blame)


@pytest.mark.slow
def test_the_operator_that_fails_alone_is_named_and_written_as_a_script(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), Bessel())
    blame = searched(model, "onnx", tmp_path, looks_for_failure=True)
    assert blame.place is not None and blame.place.name == "2: aten.special_bessel_j0.default"
    assert "bessel_j0" in blame.place.failure
    namespace: dict[str, Any] = {"torch": torch}
    exec(blame.source, namespace)
    assert namespace["model"](*namespace["inputs"]).shape == (8, 32)
    assert "| 2: aten.special\\_bessel\\_j0.default | operator |" in to_markdown(blame)


def test_eager_excuses_a_part_only_so_far() -> None:
    def limit(eager_rmse: float) -> float:
        return tolerance.blame_limit(Precision.FP32, eager_rmse, 1.0)

    assert limit(0.0) == tolerance.rounding_floor(Precision.FP32, 1.0)
    assert limit(3e-6) == pytest.approx(1.2e-5)
    assert limit(1.0) == limit(1e-4) == pytest.approx(256 * 2.0**-23)


ODD = """
import torch
from torch import nn


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x) + 1.0


def make():
    return nn.Sequential(nn.Linear(8, 8), Bessel()), torch.randn(4, 8)
"""


@pytest.mark.slow
def test_the_script_of_a_failure_ends_as_the_cell_did(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    cell = samples.cell("onnx", model="odd.py:make")
    report = samples.report([samples.failed(cell, Status.UNSUPPORTED, "ONNX has no function for it")])
    asked = {"models": ["odd.py:make"], "backends": ["onnx"], "devices": ["cpu"]}
    report_file.write_json(report.model_copy(update={"request": asked}), tmp_path / "run")
    status, out, _ = command_line("blame", tmp_path / "run", "onnx", "--script", tmp_path / "failing.py")
    assert status == 1 and "the smallest part that fails alone is 1: aten.special" in out
    without = "import runpy, sys; sys.modules['bakeoff'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-I", "-c", without, tmp_path / "failing.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode and "eager returns" in done.stdout and "bessel_j0" in done.stderr
