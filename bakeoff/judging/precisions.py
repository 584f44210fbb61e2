"""Contests across several precisions in several reports: they are compared where all have them together."""

from collections.abc import Collection, Sequence

from bakeoff.records.schema import Report


def grouped_alike(reports: Sequence[Report]) -> list[Report]:
    """Return the reports with a contest for each precision where one has precisions together that another has apart."""
    contests: dict[str, set[str]] = {}
    for cell in (record.cell for report in reports for record in report.records):
        contests.setdefault(cell.id, set()).add(cell.contest_id)
    differing = {contest_id for ids in contests.values() if len(ids) > 1 for contest_id in ids}
    return [_apart(report, differing) for report in reports]


def _apart(report: Report, contest_ids: Collection[str]) -> Report:
    records = [
        record.model_copy(update={"cell": record.cell.model_copy(update={"compared": ()})})
        if record.cell.contest_id in contest_ids
        else record
        for record in report.records
    ]
    return report.model_copy(update={"records": records})
