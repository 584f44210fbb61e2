"""A start on a GPU includes its context, and takes memory of the device."""

from pathlib import Path

import pytest

from bakeoff.judging.start_times import judge_starts
from bakeoff.records import report_file
from bakeoff.shipping import start_runs
from tests.support.measuring import measure

pytestmark = pytest.mark.gpu


def test_a_start_on_a_gpu_takes_device_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_runs, "LEAST_STARTS", 2)
    report = measure(tmp_path / "run", "eager", "torchscript", devices=("cuda",), set={"features": ("64",)})
    report_file.write_json(report, tmp_path / "run")
    found = start_runs.measure_run(tmp_path / "run", ("eager", "torchscript"), 2, False, print)
    judged = judge_starts(found.cells)
    assert {cell.label for cell in judged.cells} == {"eager", "torchscript"}, judged.without_starts
    for cell in judged.cells:
        assert min(start.device_bytes or 0 for start in cell.cell.starts) > 100 * 2**20  # a CUDA context
        assert cell.stages["first answer"] > 0
