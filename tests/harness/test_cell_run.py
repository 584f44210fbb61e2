"""What a cell's life leaves in its record, where no whole run is needed to see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.controller.cell_run import Live, Setting
from harness.controller.progress import Silent
from harness.plan import PlannedCell, Request
from harness.sampling_plan import SamplingPlan
from records.schema import Cell
from records.store import Store


@pytest.mark.parametrize(
    ("warm_up", "doubts"),
    [
        ({"steady": True}, []),
        (
            {"steady": False, "trendless": True},
            ["latencies differed by more than 2 % to the end of the warm-up, getting neither faster nor slower"],
        ),
        ({"steady": False}, ["the warm-up did not become steady within 2 % in 30 s"]),
    ],
)
def test_a_warm_up_that_was_not_steady_is_a_doubt(tmp_path: Path, warm_up: dict[str, bool], doubts: list[str]) -> None:
    cell = Cell(model="mlp", dimensions={}, device="cpu", backend="eager")
    store = Store.create(tmp_path / "run", Request(), [cell.id], "python runner.py")
    setting = Setting(store, Silent(), SamplingPlan.lasting(1.5), 60.0, tmp_path / "golden", tmp_path / "work")
    live = Live(PlannedCell(cell, asked_by_name=True), setting)
    live.ready = {"warm_up": {"calls": 120, "seconds": 30.2, **warm_up}}
    live._doubt_its_warm_up()
    assert list(live._doubts) == doubts
