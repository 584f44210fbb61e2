"""Builds of one cell that differ by more than its processes do."""

from collections.abc import Sequence

import pytest

from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubts_of_cells import BuildSpread, spread_of_builds
from bakeoff.judging.ranking import Evidence, Ranking
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Process, Record
from tests.reports.samples import cell, lived, ok, steady


def measured(levels_ms: Sequence[float], builds: int, backend: str = "inductor") -> Record:
    """Return a cell with a process of each level. Its builds take turns."""
    record = ok(cell(backend), steady(levels_ms))
    processes = [
        Process(index=number, warm=number >= builds, build=number % builds, phases=[], calls=18, median_ms=level_ms)
        for number, level_ms in enumerate(levels_ms)
    ]
    return record.model_copy(update={"processes": processes})


@pytest.mark.parametrize(
    ("levels_ms", "builds", "spread"),
    [
        ([1.0, 1.2, 1.001, 1.201], 2, 0.20),
        ([1.0, 1.2, 1.15, 1.05], 2, None),  # processes of one build are as far apart
        ([1.0, 1.04, 1.0001, 1.0401], 2, None),  # so far apart are processes of two kinds
        ([1.0, 1.2, 1.1], 3, None),  # no build has two processes
        ([1.0, 1.2, 1.001, 1.201], 1, None),
        ([1.0, 1.3, 1.001, 1.301, 0.999], 2, 0.30),
        ([1.0, 1.2, 1.0, 1.2], 2, 0.20),  # processes of one build that do not vary at all
        ([1.0, 1.2, 1.0], 2, 0.20),  # one process of the second build is enough
    ],
)
def test_builds_differ_if_they_are_further_apart_than_their_processes(
    levels_ms: Sequence[float], builds: int, spread: float | None
) -> None:
    assert spread_of_builds(measured(levels_ms, builds)) == (spread and pytest.approx(spread, abs=0.01))


def test_builds_that_differ_are_a_doubt_about_the_verdict() -> None:
    levels_ms = [1.0, 1.2, 1.001, 1.201, 0.999, 1.199]
    contest = judge_contest([lived(2.0, "eager", levels_ms), measured(levels_ms, 2), measured(levels_ms, 1, "onnx")])
    (doubt,) = [doubt for doubt in contest.doubts if isinstance(doubt, BuildSpread)]
    assert doubt.values == {"inductor": pytest.approx(0.2, abs=0.01)}


@pytest.mark.parametrize(("rival_ms", "effect"), [(1.15, Effect.WINNER), (3.0, Effect.NUMBER)])
def test_builds_that_differ_by_more_than_the_lead_could_change_the_winner(rival_ms: float, effect: Effect) -> None:
    levels_ms = [1.0, 1.2, 1.001, 1.201, 0.999, 1.199]
    records = [measured(levels_ms, 2), measured([rival_ms * level_ms for level_ms in levels_ms], 1, "onnx")]
    assert BuildSpread({"inductor": 0.2}).effect(Evidence(Ranking(records)).first) is effect
