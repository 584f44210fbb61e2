"""A report seen contest by contest, as every form it is read in shows it: ranked cells first, then the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from judging.constraints import Requirements
from judging.costs import Costs
from judging.pareto import Front, front_of
from judging.verdict import BASELINE, judge, judge_contest
from records.schema import Cell, Record, Report, Roofline, Standing, Status, Verdict


@dataclass(frozen=True)
class Row:
    """One cell of a contest. `standing` is None where it is not ranked, whether or not it has numbers."""

    record: Record
    standing: Standing | None

    @property
    def label(self) -> str:
        return self.record.cell.label


@dataclass(frozen=True)
class ContestView:
    """The rows of one contest in the order of reading, and the verdict on them."""

    rows: Sequence[Row]
    verdict: Verdict
    calls: int | None = None  # over which each configuration is compared with the baseline, if that was asked for

    @property
    def cell(self) -> Cell:
        """Any of its cells: good for what all of them share."""
        return self.rows[0].record.cell

    @property
    def title(self) -> str:
        return self.verdict.title

    @property
    def ranked(self) -> list[Row]:
        return [row for row in self.rows if row.standing]

    @property
    def unranked(self) -> list[Row]:
        return [row for row in self.rows if not row.standing]

    @property
    def roofline(self) -> Roofline | None:
        """Any of its cells': the same for all of them but for the share."""
        return next((row.record.roofline for row in self.rows if row.record.roofline), None)

    @property
    def best(self) -> Row | None:
        """The first of the ranked rows: the winner, or the fastest of those that tie."""
        return self.rows[0] if self.rows[0].standing else None

    @property
    def contenders(self) -> list[str]:
        """Labels of those that may win."""
        return [row.label for row in self.ranked]

    @property
    def baseline(self) -> str | None:
        """The label that costs are compared with, whether or not it may win; None where it has no sound numbers."""
        label = self.verdict.baseline or BASELINE
        return next((row.label for row in self._sound if row.label == label), None)

    @cached_property
    def costs(self) -> Costs:
        """Of all cells that ended well."""
        return Costs([row.record for row in self._sound], self.baseline)

    @cached_property
    def front(self) -> Front:
        """Those of the contenders that none of them dominates."""
        return front_of([row.record for row in self.ranked])

    @property
    def _sound(self) -> list[Row]:
        return [row for row in self.rows if row.record.status is Status.OK and row.record.latency]


def contests_of(report: Report) -> list[ContestView]:
    """The contests of a report in the order of its records.

    A contest that has no verdict yet is judged here, by what the report's request requires.
    """
    verdicts = {verdict.contest_id: verdict for verdict in report.verdicts}
    records: dict[str, list[Record]] = {}
    for record in report.records:
        records.setdefault(record.cell.contest_id, []).append(record)
    calls = report.request.get("calls")
    return [
        _view(members, verdicts.get(contest_id) or _judge(members, report), calls if isinstance(calls, int) else None)
        for contest_id, members in records.items()
    ]


def contests_of_all(reports: Sequence[Report]) -> list[ContestView]:
    """Those of all reports in a row. One that is in several of them carries the name of its run in its title."""
    found = [(report, contest) for report in reports for contest in contests_of(report)]
    counts = Counter(contest.verdict.contest_id for _, contest in found)
    return [
        _of_run(contest, report.run_id) if counts[contest.verdict.contest_id] > 1 else contest
        for report, contest in found
    ]


def judged_anew(report: Report, calls: int | None = None, require: str | None = None) -> Report:
    """The same records, compared over another number of calls, or judged by other requirements; None leaves as it is.

    Raises UsageError for requirements that cannot be read.
    """
    request = report.request | ({} if calls is None else {"calls": calls})
    if require is None:
        return report.model_copy(update={"request": request})
    verdicts = judge(report.records, Requirements.parse(require))
    return report.model_copy(update={"request": request | {"require": require}, "verdicts": verdicts})


def _of_run(contest: ContestView, run_id: str) -> ContestView:
    return replace(contest, verdict=contest.verdict.model_copy(update={"title": f"{contest.title}, {run_id}"}))


def _judge(records: Sequence[Record], report: Report) -> Verdict:
    return judge_contest(records, Requirements.parse(str(report.request.get("require") or "")))


def _view(records: Sequence[Record], verdict: Verdict, calls: int | None) -> ContestView:
    places = {standing.cell_id: place for place, standing in enumerate(verdict.standings)}
    rows = [
        Row(record, verdict.standings[places[record.cell.id]] if record.cell.id in places else None)
        for record in records
    ]
    return ContestView(
        # sorting is stable: failures stay in the order in which they were asked for
        rows=sorted(rows, key=lambda row: (places.get(row.record.cell.id, len(rows)), _distance(row.record.status))),
        verdict=verdict,
        calls=calls,
    )


def _distance(status: Status) -> int:
    """How far from a success a cell ended: numbers of something else, wrong ones, none, never tried."""
    if status.is_absence:
        return 4
    return {Status.OK: 0, Status.FALLBACK: 1, Status.INCORRECT: 2}.get(status, 3)
