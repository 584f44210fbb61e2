"""How many rounds an epoch has: cells that are alive here are made up."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.controller import contest_run
from harness.controller.cell_run import Over
from harness.controller.contest_run import Measurement
from harness.controller.launcher import Launchers
from harness.controller.progress import Silent
from harness.sampling_plan import MAX_ROUNDS_PER_EPOCH, SamplingPlan
from records.schema import Burst, Cell, Conditions, Memory, Record, Status
from records.store import Store

PLAN = SamplingPlan(processes=3, most_processes=20, rounds=12, burst_s=0.0, burst_calls=3, warm_up_s=0.0)


class Alive:
    """A cell whose bursts vary by `sd` around `level_ms`, and had to wait for a core in `waited` of ten rounds."""

    def __init__(self, level_ms: float, sd: float, waited: int = 0) -> None:
        self.bursts: list[Burst] = []
        self.cell = Cell(model="mlp", device="cpu", backend="eager")
        self.has_time_to_spare = True
        self.dies_in = -1
        self.dies_of = Status.CRASH
        self.ends_in_finish: Status | None = None
        self.has_left = False
        self.ready: Any = None
        self._draw = random.Random(f"{level_ms} {sd}")
        self._level_ms, self._sd, self._waited = level_ms, sd, waited

    def leave(self) -> None:
        self.has_left = True
        self.bursts = []

    def finish(self) -> None:
        if self.ends_in_finish is not None:
            raise Over(cast(Record, SimpleNamespace(reason="it ended", status=self.ends_in_finish)))

    def take_burst(self, group: int, number: int, started_s: float, around: Conditions) -> None:
        if number == self.dies_in:
            raise Over(cast(Record, SimpleNamespace(reason="it died", status=self.dies_of)))
        samples_ns = [round(1e6 * self._level_ms * self._draw.lognormvariate(0, self._sd))]
        seen = Conditions(calibration_ms=1.0, wait_share=0.5 if number % 10 < self._waited else 0.0)
        self.bursts.append(
            Burst(group=group, round=number, started_s=started_s, samples_ns=samples_ns, conditions=seen)
        )


class NoStore:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def next_group(self) -> int:
        return 0

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def measurement(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    monkeypatch.setattr(contest_run, "calibrate_ms", lambda: 1.0)
    made = Measurement(cast(Launchers, None), cast(Store, NoStore()), Silent(), PLAN, 600.0, interleaved=False)
    made._holds_all = True
    return made


def rounds(measurement: Measurement, *cells: Alive) -> int:
    measurement._run_rounds(cast(Any, cells))
    return len(cells[0].bursts)


def test_rounds_that_agree_are_as_many_as_planned(measurement: Measurement) -> None:
    assert rounds(measurement, Alive(1.0, 0.005), Alive(1.01, 0.005), Alive(3.0, 0.2)) == 12


def test_rounds_that_differ_by_much_are_more_up_to_a_limit(measurement: Measurement) -> None:
    assert 12 < rounds(measurement, Alive(1.0, 0.05), Alive(1.01, 0.05)) < MAX_ROUNDS_PER_EPOCH
    assert rounds(measurement, Alive(1.0, 0.3), Alive(1.01, 0.3)) == MAX_ROUNDS_PER_EPOCH


def test_rounds_beyond_the_planned_ones_take_seconds_at_most(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest_run, "MAX_FURTHER_ROUNDS_S", 0.0)
    assert rounds(measurement, Alive(1.0, 0.3), Alive(1.01, 0.3)) == 12


def test_rounds_beyond_the_planned_ones_leave_time_for_further_processes(measurement: Measurement) -> None:
    hurried = Alive(1.0, 0.3)
    hurried.has_time_to_spare = False
    assert rounds(measurement, hurried, Alive(1.01, 0.3)) == 12


def test_who_asks_for_two_processes_gets_the_rounds_planned(measurement: Measurement) -> None:
    measurement._sampling = SamplingPlan.lasting(1.5, processes=2)
    assert rounds(measurement, Alive(1.0, 0.3), Alive(1.01, 0.3)) == 12


def test_disturbed_rounds_are_made_up_for(measurement: Measurement) -> None:
    measurement._sampling = SamplingPlan.lasting(1.5, processes=2)
    assert rounds(measurement, Alive(1.0, 0.001, waited=5), Alive(1.01, 0.001)) == 19
    assert rounds(measurement, Alive(1.0, 0.001, waited=6), Alive(1.01, 0.001)) == 24


def test_a_cell_by_itself_has_as_many_as_planned(measurement: Measurement) -> None:
    assert rounds(measurement, Alive(1.0, 0.3)) == 12


def test_long_runs_keep_their_rounds(measurement: Measurement) -> None:
    measurement._sampling = SamplingPlan.lasting(18.0)
    assert rounds(measurement, Alive(1.0, 0.3), Alive(1.01, 0.3)) == 60


def test_a_cell_that_dies_leaves_the_others_to_their_rounds(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "_conclude", lambda live, record: None)
    mortal, one, other = Alive(0.5, 0.3), Alive(1.0, 0.005), Alive(1.01, 0.005)
    mortal.dies_in = 3
    survivors = measurement._run_rounds(cast(Any, [mortal, one, other]))
    assert survivors == [one, other]
    assert len(one.bursts) == len(other.bursts) == 12


@pytest.mark.parametrize("where", ["burst", "finish"])
@pytest.mark.parametrize("beside_others", [True, False])
def test_a_cell_that_runs_out_of_memory_beside_others_is_put_back_and_alone_it_ends(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch, where: str, beside_others: bool
) -> None:
    concluded: list[object] = []
    monkeypatch.setattr(measurement, "_conclude", lambda live, record: concluded.append(live))
    large, other = Alive(1.0, 0.005), Alive(1.01, 0.005)
    others = [other] if beside_others else []
    if where == "burst":
        large.dies_in, large.dies_of = 3, Status.OOM
        assert measurement._run_rounds(cast(Any, [large, *others])) == others
    else:
        large.ends_in_finish = Status.OOM
        assert not measurement._finish(cast(Any, large), cast(Any, others))
    assert (measurement._displaced, large.has_left) == (([large], True) if beside_others else ([], False))
    assert concluded == ([] if beside_others else [large])
    assert len(cast(NoStore, measurement._store).notes) == int(beside_others)


def test_what_was_put_back_is_started_again_in_the_same_epoch(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, other = Alive(1.0, 0.005), Alive(1.01, 0.005)
    large.dies_in, large.dies_of = 3, Status.OOM
    large.cell = other.cell.model_copy(update={"backend": "onnx"})
    groups: list[list[Alive]] = []

    def start(epoch: int, waiting: Any, kept: Any) -> list[Alive]:
        groups.append([*kept, *waiting])
        if len(groups) > 1:
            large.dies_in = -1
        waiting.clear()
        return groups[-1]

    monkeypatch.setattr(measurement, "_start_group", start)
    monkeypatch.setattr(measurement, "_conclude", lambda live, record: pytest.fail("it fits alone"))
    monkeypatch.setattr(Alive, "record", lambda live: SimpleNamespace(status=Status.OK), raising=False)
    monkeypatch.setattr(NoStore, "keep", lambda store, record: None, raising=False)
    assert measurement._run_epoch(0, cast(Any, [large, other])) == [large, other]
    assert groups == [[large, other], [large]]
    assert not measurement._holds_all


def test_those_that_run_out_of_memory_beside_the_one_that_stays_are_not_started_beside_it_for_ever(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fit at a time, and each of the two large ones needs more as it ends than it has beside the small one."""
    small, *large = Alive(1.0, 0.005), Alive(1.01, 0.005), Alive(1.02, 0.005)
    for number, live in enumerate(large):
        live.cell = small.cell.model_copy(update={"backend": f"large-{number}"})
        live.ends_in_finish = Status.OOM
    groups: list[list[Alive]] = []
    held_all: list[bool] = []

    def start(epoch: int, waiting: Any, kept: Any) -> list[Alive]:
        assert len(groups) < 9, "it never ends"
        group = [waiting.popleft()] if kept or not waiting else [waiting.popleft() for _ in range(min(2, len(waiting)))]
        groups.append([*kept, *group])
        return group

    def leave_room() -> None:
        for live in large:
            live.ends_in_finish = None

    def run(alive: Any) -> list[Any]:
        held_all.append(measurement._holds_all)
        return list(alive)

    monkeypatch.setattr(small, "finish", leave_room)
    monkeypatch.setattr(measurement, "_start_group", start)
    monkeypatch.setattr(measurement, "_run_rounds", run)
    monkeypatch.setattr(measurement, "_conclude", lambda live, record: pytest.fail("it fits alone"))
    monkeypatch.setattr(Alive, "record", lambda live: SimpleNamespace(status=Status.OK), raising=False)
    monkeypatch.setattr(NoStore, "keep", lambda store, record: None, raising=False)
    assert measurement._run_epoch(0, cast(Any, [small, *large])) == [small, *large]
    assert groups == [[small, large[0]], [small, large[1]], [large[0]]]
    assert held_all[0] is False, "known before rounds are judged by it"
    assert large[0].has_left and not large[1].has_left


def test_a_cell_has_room_where_what_it_took_itself_is_free(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(resident_bytes: int) -> Alive:
        made = Alive(1.0, 0.005)
        made.ready = SimpleNamespace(memory=Memory(peak_resident_bytes=resident_bytes))
        return made

    small, large, new = of(10**9), of(10**10), Alive(1.0, 0.005)
    monkeypatch.setattr(contest_run, "available_bytes", lambda: 5 * 10**9)
    assert measurement._fits(cast(Any, [small]), cast(Any, new))
    assert measurement._fits(cast(Any, [small]), cast(Any, small))
    assert not measurement._fits(cast(Any, [small]), cast(Any, large))
    assert not measurement._fits(cast(Any, [large]), cast(Any, new))
    assert measurement._fits(cast(Any, [large]), cast(Any, small))


def test_the_bursts_of_an_earlier_group_do_not_count(measurement: Measurement) -> None:
    kept = Alive(1.0, 0.005)
    assert rounds(measurement, kept, Alive(1.01, 0.3)) == MAX_ROUNDS_PER_EPOCH
    measurement._group += 1
    assert rounds(measurement, kept, Alive(1.02, 0.005)) == MAX_ROUNDS_PER_EPOCH + 12
