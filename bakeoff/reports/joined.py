"""Joins the reports of several runs, such as shards on several machines, into one."""

from collections.abc import Sequence
from pathlib import Path

from bakeoff.judging.environment_changes import bear_on_speed
from bakeoff.judging.fit import by_contest
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.store import Store
from bakeoff.reports import sentences


def join(reports: Sequence[Report], folder: Path) -> Report:
    """Return one report of all records, for `folder`, which is made.

    It has begun when the first of them began. Its environment is the first one's; where others differ, a note says so.
    Raises UsageError where two of them hold the same contest, since cells of two runs share no rounds; where they were
    judged by different requirements or numbers of calls; and where the folder is that of a run.
    """
    if Store.is_run(folder):
        raise UsageError(f"--out {folder}: it holds a run of its own; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    first = reports[0]
    _refuse_what_differs(reports)
    notes = [f"{each.run_id}: {note}" for each in reports for note in each.notes]
    for other in reports[1:]:
        if differing := bear_on_speed(first.environment, other.environment):
            told = "; ".join(map(sentences.difference, differing))
            notes.insert(0, f"{other.run_id} was measured in another environment than {first.run_id}: {told}")
    if any(record.artifact for each in reports for record in each.records):
        notes.append("What the cells built is kept in the folders of their runs.")
    return first.model_copy(
        update={
            "run_id": folder.resolve().name,
            "created_at": min(each.created_at for each in reports),
            "complete": all(each.complete for each in reports),
            "planned": sum(each.planned for each in reports),
            "command": "\n".join(each.command for each in reports if each.command),
            "request": {key: value for key, value in first.request.items() if key != "shard"},
            "own_files": {},  # each run has folders of its own
            "weights": {name: digest for each in reports for name, digest in each.weights.items()},
            "records": [without_artifact(record) for each in reports for record in each.records],
            "notes": notes,
            "elapsed_s": sum(each.elapsed_s for each in reports),
        }
    )


def _refuse_what_differs(reports: Sequence[Report]) -> None:
    holders: dict[str, str] = {}
    for report in reports:
        for contest_id in by_contest(report.records):
            if contest_id in holders:
                raise UsageError(f"{contest_id} is in {holders[contest_id]} and in {report.run_id}: join runs without "
                                 "a contest in common")  # fmt: skip
            holders[contest_id] = report.run_id
    for option in ("require", "calls"):
        if len({str(report.request.get(option) or "") for report in reports}) > 1:
            raise UsageError(f"these runs have different --{option}: give the one to judge all of them by")


def without_artifact(record: Record) -> Record:
    """Return the record of a cell whose build is not in its run's folder, so that nothing offers to export it."""
    return record.model_copy(update={"artifact": ""})
