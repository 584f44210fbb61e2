"""`bakeoff explain` profiles cells of a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bakeoff.records import report_file
from tests.conftest import CommandLine
from tests.reports import samples

MODEL = """
import torch
from torch import nn

torch.set_num_threads(1)


class Steps(nn.Module):
    def forward(self, x):
        for _ in range(100):
            x = torch.sin(x) + 0.001
        return x


def make():
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), Steps(), nn.Linear(32, 32))
    return nn.ModuleDict({"layers": layers})["layers"], torch.randn(8, 32)
"""


def stored_run(folder: Path, *backends: str, **of_cell: Any) -> Path:
    """Write the report of a run of the model, as if it had been measured."""
    (folder / "steps.py").write_text(MODEL)
    cells = [samples.cell(backend, model="steps.py:make", **of_cell) for backend in backends]
    records = [samples.ok(cell, samples.bursts(1.0)) for cell in cells]
    report = samples.report(records)
    asked = {"models": ["steps.py:make"], "backends": list(backends), "devices": ["cpu"]}
    report_file.write_json(report.model_copy(update={"request": asked}), folder / "run")
    return folder / "run"


def test_a_cell_is_explained_beside_eager(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager", "torchscript")
    _, out, _ = command_line("explain", run, "torchscript", "--json", "--trace", tmp_path / "trace.json")
    document = json.loads(out)
    assert [profile["label"] for profile in document["profiles"]] == ["torchscript", "eager"]
    rows = {tuple(row["modules"]): row for row in document["explanation"]["rows"]}
    assert all(rows[module,][time] > 0 for module in ("0", "2") for time in ("ms", "against_ms"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_cell_that_failed_is_refused_with_its_reason(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager")
    report = report_file.read(run)
    failed = samples.failed(samples.cell("onnx", model="steps.py:make"), samples.Status.ERROR, "no such operator")
    report_file.write_json(report.model_copy(update={"records": [*report.records, failed]}), run)
    status, _, err = command_line("explain", run, "onnx")
    assert status == 2 and "cannot be explained: it is error: no such operator" in err
    assert "resume" not in err
    ahead = samples.failed(samples.cell("onnx", model="steps.py:make"), samples.Status.NOT_REACHED, "interrupted")
    records = [*report.records, ahead]
    report_file.write_json(report.model_copy(update={"records": records, "complete": False}), run)
    _, _, err = command_line("explain", run, "onnx")
    assert f"the rest of the run: bakeoff resume {run}" in err


def test_cells_of_two_models_are_not_compared(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager", "onnx")
    report = report_file.read(run)
    other = samples.ok(samples.cell("eager", model="other.py:make"), samples.bursts(1.0))
    report_file.write_json(report.model_copy(update={"records": [*report.records, other]}), run)
    status, _, err = command_line("explain", run, "onnx", "--against", other.cell.id)
    assert status == 2 and "is of steps.py:make" in err and "is of other.py:make" in err
    status, _, err = command_line("explain", run, "onnx", "--against", "onnx")
    assert status == 2 and "is compared with itself" in err
    status, _, err = command_line("explain", run)
    assert status == 2 and "holds 2 contests" in err and other.cell.id in err
