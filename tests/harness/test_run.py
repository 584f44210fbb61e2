"""Whole runs over the null backend: every way a cell can end costs one row, and the rest is measured as if alone."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import contest as contests
from harness import run as runs
from harness.plan import Request
from harness.store import Store
from reports.schema import Cell, Record, Report, Status

SMALL = {"batch": ("2",), "features": ("8",), "hidden": ("8",)}


class Silent:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended_labels: list[str] = []

    def planned(self, cells: Sequence[Cell]) -> None:
        self.cells = cells

    def phase(self, cell: Cell, name: str) -> None: ...

    def measured(self, cell: Cell, median_ms: float) -> None: ...

    def ended(self, record: Record) -> None:
        self.ended_labels.append(record.cell.label)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self) -> None: ...


def measure(folder: Path, *backends: str, **fields: object) -> Report:
    request = Request.model_validate(
        {"models": ["mlp"], "devices": ["cpu"], "set": SMALL, "min_time_s": 0.05, "backends": backends, **fields}
    )
    report, _ = runs.run(request, folder, "test", Silent())
    return report


def by_label(report: Report) -> dict[str, Record]:
    return {record.cell.label: record for record in report.records}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every mode of the null backend beside eager, in one run."""
    return measure(tmp_path_factory.mktemp("endings") / "run", "eager", "null/all", time_limit_s=4.0)


@pytest.mark.parametrize(
    ("mode", "status", "reason", "died_in", "signal"),
    [
        ("null", Status.OK, "", None, None),
        ("null/unsupported", Status.UNSUPPORTED, "found out while building", None, None),
        ("null/error", Status.ERROR, "RuntimeError: scripted failure", None, None),
        ("null/oom", Status.OOM, "MemoryError: scripted: no memory left", None, None),
        ("null/crash-in-compile", Status.CRASH, "died of signal 11 (SIGSEGV) in compile", "compile", 11),
        ("null/crash-in-load", Status.CRASH, "died of signal 11 (SIGSEGV) in load", "load", 11),
        ("null/hang", Status.TIMEOUT, "not done within 4 s, in compile: raise --time-limit", "compile", None),
        ("null/wrong", Status.INCORRECT, "output 0: rmse 1", None, None),
        ("null/nan", Status.INCORRECT, "value(s) not finite", None, None),
        ("null/missing-output", Status.INCORRECT, "0 output(s) where the model has 1", None, None),
        ("null/wrong-later", Status.INCORRECT, "right at first, wrong after measuring", None, None),
        ("null/grandchildren", Status.OK, "", None, None),
        ("null/noisy-output", Status.OK, "", None, None),
    ],
)
def test_every_ending_is_one_row_with_its_reason(
    endings: Report, mode: str, status: Status, reason: str, died_in: str | None, signal: int | None
) -> None:
    record = by_label(endings)[mode]
    assert record.status is status
    assert reason in record.reason
    assert (record.died_in, record.signal) == (died_in, signal)


def test_every_planned_cell_has_exactly_one_record(endings: Report) -> None:
    assert endings.complete
    assert len(endings.records) == endings.planned == len(by_label(endings))


def test_a_crash_in_run_and_a_hang_in_run_keep_their_phases(endings: Report) -> None:
    for mode in ("null/crash-in-run", "null/hang-in-run"):
        record = by_label(endings)[mode]
        assert record.died_in in ("warm-up", "measure")
        assert [phase.name for phase in record.phases] == ["export", "compile", "load", "first_call"]


def test_an_incorrect_cell_keeps_its_numbers_and_is_never_ranked(endings: Report) -> None:
    record = by_label(endings)["null/wrong"]
    assert record.latency is not None
    assert record.latency.median_ms == pytest.approx(1.0, rel=0.2)
    assert "null/wrong" not in [standing.label for standing in endings.verdicts[0].standings]


def test_a_failure_keeps_the_last_words_of_its_log(endings: Report) -> None:
    assert "Segmentation fault" in by_label(endings)["null/crash-in-compile"].log_tail
    assert "RuntimeError: scripted failure" in by_label(endings)["null/error"].log_tail


def test_scripted_latencies_are_measured_and_ranked(endings: Report) -> None:
    records = by_label(endings)
    for mode, expected_ms in (("null", 1.0), ("null/slow", 1.2), ("null/double", 2.0)):
        latency = records[mode].latency
        assert latency is not None
        assert latency.median_ms == pytest.approx(expected_ms, rel=0.1)
        assert latency.calls >= 100
    assert records["null"].memory is not None
    assert records["null"].memory.artifact_bytes == 1000
    assert (records["null"].memory.peak_resident_bytes or 0) > 50e6


def test_cells_of_a_contest_are_measured_in_the_same_rounds_in_changing_order(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "null", "null/double")
    bursts = [(burst.started_s, burst.round, record.cell.label) for record in report.records for burst in record.bursts]
    ordered = sorted(bursts)
    rounds = [number for _, number, _ in ordered]
    assert rounds == sorted(rounds)  # a round ends before the next begins
    orders = {tuple(label for _, number, label in ordered if number == one) for one in range(10)}
    assert all(len(order) == 3 for order in orders)
    assert len(orders) > 1
    assert report.verdicts[0].lead is not None
    assert report.verdicts[0].lead.paired


def test_two_copies_of_one_backend_tie(tmp_path: Path) -> None:
    verdict = measure(tmp_path / "run", "null", "null/again").verdicts[0]
    assert verdict.winner is None
    assert sorted(verdict.tied) == ["null", "null/again"]


def test_the_sequential_schedule_shares_no_rounds_and_says_so(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "null", "null/double", schedule="sequential")
    groups = [{burst.group for burst in record.bursts} for record in report.records]
    assert groups[0].isdisjoint(groups[1])
    assert any("not measured in the same rounds" in doubt for doubt in report.verdicts[0].doubts)


def test_spawned_children_measure_the_same_and_the_report_says_how(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "null", "null/crash-in-load", start_method="spawn")
    records = by_label(report)
    assert records["null"].status is Status.OK
    assert records["null"].settings["start_method"] == "spawn"
    assert records["null/crash-in-load"].signal == 11
    assert any("spawned as a fresh interpreter" in note for note in report.notes)


def test_where_memory_holds_one_cell_at_a_time_cells_are_measured_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contests.memory, "available_bytes", lambda: 0)
    report = measure(tmp_path / "run", "null", "null/double")
    assert [record.status for record in report.records] == [Status.OK, Status.OK]
    assert report.records[0].bursts[0].group != report.records[1].bursts[0].group
    assert any("memory did not hold all cells" in note for note in report.notes)


def test_running_out_of_memory_beside_others_is_tried_again_alone(endings: Report) -> None:
    assert any("null.oom ran out of memory beside others and was tried again alone" in note for note in endings.notes)


def test_a_model_that_cannot_be_loaded_fails_every_cell_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def factory(batch: int = 1):\n    raise ValueError('no weights here')\n")
    request = Request(models=(f"{file}:factory",), devices=("cpu",), backends=("eager", "null"))
    report, _ = runs.run(request, tmp_path / "run", "test", Silent())
    assert [record.status for record in report.records] == [Status.ERROR, Status.ERROR]
    assert "no golden: ValueError: no weights here" in report.records[0].reason
    assert runs.exit_status(report) == 3


def test_resume_measures_only_what_has_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = by_label(measure(folder, "null", "null/double", "null/error"))
    (lost,) = (folder / "cells").glob("*null.double.json")
    lost.unlink()
    progress = Silent()
    report, _ = runs.resume(folder, progress)
    assert progress.ended_labels == ["null/double"]
    assert report.complete
    again = by_label(report)
    assert again["null"] == first["null"]
    assert again["null/double"].bursts[0].group not in {burst.group for burst in first["null"].bursts}
    assert any("interrupted and resumed" in note for note in report.notes)


def test_the_parent_sleeps_while_its_children_work(tmp_path: Path) -> None:
    def parent_cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    measure(tmp_path / "imports", "null")  # whatever is imported on the way is imported now
    before_s, begun = parent_cpu_s(), time.monotonic()
    measure(tmp_path / "run", "null", "null/double", min_time_s=4.0)
    assert time.monotonic() - begun > 8
    assert parent_cpu_s() - before_s < 0.05 * (time.monotonic() - begun)


def test_the_order_of_a_round_does_not_depend_on_global_random_state() -> None:
    random.seed(0)
    first = random.Random("0/1").sample(range(10), 10)
    random.seed(1)
    assert random.Random("0/1").sample(range(10), 10) == first


def test_records_are_on_disk_the_moment_they_end(tmp_path: Path) -> None:
    class Watching(Silent):
        def ended(self, record: Record) -> None:
            super().ended(record)
            assert Store(tmp_path / "run").has(record.cell.id)

    request = Request(
        models=("mlp",), devices=("cpu",), set=SMALL, min_time_s=0.05, backends=("null", "null/error", "tensorrt")
    )
    progress = Watching()
    runs.run(request, tmp_path / "run", "test", progress)
    assert sorted(progress.ended_labels) == ["null", "null/error", "tensorrt"]
