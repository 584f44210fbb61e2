"""Profiles cells of a run that has ended. Each is built once more, in a worker of its own, in which nothing is timed
for a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bakeoff.judging.judgement import contests_of
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.messages import Failed, ProfileCell, Profiled
from bakeoff.measuring.session import sampling_of
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.profile import CellProfile
from bakeoff.records.schema import DECODE, TRAINED, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.records.text import one_line
from bakeoff.shipping import script_parts


class Profiles(NamedTuple):
    """The profile of a cell, with that of the cell that it is compared with, and their records in the run."""

    profile: CellProfile
    record: Record
    against: CellProfile | None
    against_record: Record | None


def profile_run(path: Path, label: str | None, against: str | None, tell: Callable[[str], None]) -> Profiles:
    """Profile a cell of the run at `path`, and the cell to compare it with.

    Without a label it is the winner, or the fastest cell where nobody wins, beside the baseline. Raises UsageError for
    what is not in the run or cannot be profiled, and BakeoffError for a cell that fails now.
    """
    report = report_at(path)
    record = script_parts.find_record(report, label) if label else fastest(report)
    other = script_parts.find_record(report, against) if against else baseline_beside(report, record)
    for each in filter(None, (record, other)):
        check_profiled(each)
    folder = path if path.is_dir() else path.parent
    request = Request(**report.request)
    with Launchers("spawn", pythons=request.env) as launchers:
        profiler = Profiler(launchers, request, Store(folder), tell)
        return Profiles(profiler.profile(record), record, profiler.profile(other) if other else None, other)


def fastest(report: Report) -> Record:
    """Return the record of the winner of the only contest, or of its fastest cell where nobody wins."""
    contests = contests_of(report)
    if len(contests) != 1:
        raise UsageError(f"{report.run_id} holds {len(contests)} contests: name a cell by its id")
    ranked = contests[0].ranked
    if not ranked:
        raise UsageError(f"{report.run_id} has no cell with a latency: bakeoff blame says what fails")
    return next((cell.record for cell in ranked if cell.label == contests[0].winner), ranked[0].record)


def baseline_beside(report: Report, record: Record) -> Record | None:
    """Return the record of eager in the same contest, or None if there is none or the record is eager's own."""
    return next(
        (
            each
            for each in report.records
            if each.cell.contest_id == record.cell.contest_id
            and each.cell.label == BASELINE
            and each.latency
            and each.cell.id != record.cell.id
        ),
        None,
    )


def check_profiled(record: Record) -> None:
    """Raise UsageError, with the reason, for a cell that cannot be profiled."""
    cell = record.cell
    reason = ""
    if record.status not in (Status.OK, Status.INCORRECT):
        reason = f"it is {record.status}: {one_line(record.reason)}"
    elif cell.task in (*TRAINED, DECODE):
        reason = f"task {cell.task} is not profiled, only inference and prefill"
    elif cell.dynamic:
        reason = "a build for a range of sizes is not profiled: name one for a single size"
    if reason:
        raise UsageError(f"{cell.id} cannot be explained: {reason}")


class Profiler:
    """Starts a worker for each cell that is profiled."""

    def __init__(self, launchers: Launchers, request: Request, store: Store, tell: Callable[[str], None]) -> None:
        self._launchers, self._request, self._store, self._tell = launchers, request, store, tell

    def profile(self, record: Record) -> CellProfile:
        """Return the profile of a cell. Raises BakeoffError, with the reason, where there is none."""
        cell = record.cell
        launcher = self._launchers.of_environment(cell.environment).first
        shared = launcher.temporary / cell.id
        log = launcher.temporary / f"{cell.id}.log"
        job = ProfileCell(
            cell=cell,
            reference=self._store.reference(cell.contest_id).resolve(),
            sampling=sampling_of(self._request),
            shared_folder=shared,
            surgical=self._request.surgical,
        )
        try:
            event = launcher.ask(
                job, log, self._request.time_limit_s, lambda phase: self._tell(f"{cell.label}: {phase}")
            )
        except (WorkerEnded, DeadlinePassed) as error:
            said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
            raise BakeoffError(f"{cell.id} could not be profiled: {error} {' '.join(said)}".strip()) from None
        if isinstance(event, Failed):
            raise BakeoffError(f"{cell.id} could not be profiled: {event.failure.sentence}")
        assert isinstance(event, Profiled)
        return event.profile
