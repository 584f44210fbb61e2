"""Finds what a cell's error or failure comes from, in a worker of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bakeoff.explaining.profiles import asked_of_worker
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.messages import BlameCell, Blamed
from bakeoff.records.blame import Blame
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import INFERENCE, Record, Report, Status
from bakeoff.shipping import script_parts
from bakeoff.shipping.reproduce import script_of_part


class Blamable(NamedTuple):
    """What was found, with the record of the cell, and the script of the part that fails alone, or nothing."""

    blame: Blame
    record: Record
    script: str


def blame_cell(path: Path, label: str, tell: Callable[[str], None]) -> Blamable:
    """Find the smallest part of a cell's model that loses precision, or that fails.

    Raises UsageError for a cell that cannot be looked into, and BakeoffError where looking fails.
    """
    report = report_at(path)
    record = script_parts.find_record(report, label)
    check_blamed(record)
    fails = record.status in (Status.ERROR, Status.UNSUPPORTED)
    blame = asked_of_worker(
        path,
        report,
        record,
        lambda facts: BlameCell(**facts, looks_for_failure=fails),
        Blamed,
        tell,
    ).blame
    return Blamable(blame, record, script_of(report, record, blame))


def check_blamed(record: Record) -> None:
    """Raise UsageError, with the reason, for a cell that cannot be looked into."""
    cell = record.cell
    reason = ""
    if record.status not in (Status.OK, Status.INCORRECT, Status.ERROR, Status.UNSUPPORTED):
        reason = f"it is {record.status}, and only a wrong answer or an error has a place"
    elif cell.task != INFERENCE:
        reason = f"only {INFERENCE} is looked into, and this is {cell.task}"
    elif cell.is_onnx_file:
        reason = "torch has no modules of an ONNX file"
    elif cell.dynamic:
        reason = "a build for a range of sizes is not looked into: name one for a single size"
    if reason:
        raise UsageError(f"{cell.id} cannot be blamed: {reason}")


def script_of(report: Report, record: Record, blame: Blame) -> str:
    """Return the script of the part that fails alone, or nothing where it cannot be written."""
    if not blame.source or blame.place is None:
        return ""
    try:
        return script_of_part(report, record, blame.source, blame.place.failure)
    except UsageError:  # no script does what this backend does
        return ""
