"""The report on a run that is stored on disk, with latencies fitted to all that it holds so far, and the last run."""

from pathlib import Path

from bakeoff.judging.environment_changes import bear_on_speed
from bakeoff.judging.fit import by_contest, fitted_report
from bakeoff.records import report_file
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import ORIGINAL, WITH_WINNERS, Report, Status, Verdict
from bakeoff.records.store import Store


def report_of(store: Store) -> Report:
    """Return the report on the records that a run's folder holds so far, with fitted latencies. Nothing is measured."""
    measured = store.records()
    by_id = {record.cell.id: record for record in measured}
    if len(by_id) < len(store.planned):
        by_id = {record.cell.id: record for record in store.ahead()} | by_id
    records = [by_id[cell_id].but(is_in_part=not store.has(cell_id)) for cell_id in store.planned if cell_id in by_id]
    captured = store.environment()
    if captured is None:
        raise BakeoffError(f"{store.root} holds no environment.json: the run ended before it began; start it again")
    report = Report(
        run_id=store.root.resolve().name,
        created_at=store.created_at,
        resumed_at=store.resumed_at,
        complete=is_complete(store),
        planned=len(store.planned),
        command=store.command,
        request=store.request(),
        environment=captured.but(own_variables=store.own_variables()),
        own_files=store.own_files(),
        weights={contest_id: origin.weights for contest_id, origin in store.origins().items() if origin.weights},
        records=records,
        notes=store.notes(),
        elapsed_s=store.elapsed_s,
    )
    return fitted_report(report.but(last_verdicts=last_verdicts(store.root, report)))


def is_complete(store: Store) -> bool:
    """Return True if a run has all that it was asked for, so that `resume` has nothing to measure."""
    contests = by_contest(store.records()).values() if store.request().get("starts") else []
    measured = [records for records in contests if any(one.status is Status.OK and one.latency for one in records)]
    are_started = all(any(record.starts for record in records) for records in measured)
    return all(map(store.has, store.planned)) and are_started


def report_at(path: Path) -> Report:
    """Return the report in a file or a folder. For a run that was killed, it holds the cells that have finished."""
    if path.is_dir() and Store.is_run(path) and not (report_file.has_report(path) and report_file.read(path).complete):
        return report_of(Store.open(path))
    return report_file.read(path)


def builds_at(path: Path) -> Report:
    """Return the report at `path`, whose cells are builds. Raise UsageError for that of a whole pipeline."""
    report = report_at(path)
    if any(record.cell.backend in (ORIGINAL, WITH_WINNERS) for record in report.records):
        parts = report_file.folder_of(path) / report_file.PARTS
        raise UsageError(f"{path} is the run of a whole pipeline and has no builds: name the one of its parts, {parts}")
    return report


MOST_RUNS = 20
"""So many runs beside this one are looked at, the latest first."""


def last_verdicts(root: Path, report: Report) -> list[Verdict]:
    """Return the verdict of the last run of each contest beside this one, on the same machine and of the same files."""
    missing = {record.cell.contest_id for record in report.records}
    verdicts: list[Verdict] = []
    files = [
        file for file in root.resolve().parent.glob(f"*/{report_file.REPORT_JSON}") if file.parent != root.resolve()
    ]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MOST_RUNS]:
        try:
            last = report_file.read(file, with_samples=False)
        except UsageError:  # of another version
            continue
        if last.created_at < report.created_at and _is_alike(last, report):
            these = [verdict for verdict in last.verdicts if verdict.contest_id in missing]
            verdicts += [verdict.but(run_id=last.run_id) for verdict in these]
            missing -= {verdict.contest_id for verdict in these}
        if not missing:
            break
    return verdicts


def _is_alike(last: Report, report: Report) -> bool:
    ours, theirs = (
        (run.own_files, run.weights, *(run.request.get(option) for option in ("task", "calls", "load")))
        for run in (last, report)
    )
    return (
        ours == theirs
        and last.environment.hostname == report.environment.hostname
        and not bear_on_speed(last.environment, report.environment)
    )
