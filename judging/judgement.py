"""`judge` turns a report into a `Judgement`: everything that any output shows, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from judging.constraints import Requirements
from judging.contest import CellJudgement, ContestJudgement
from judging.sweeps import Sweep, sweeps_of
from judging.verdict import judge_contest, judge_contests
from records.schema import Record, Report, Status, Verdict

__all__ = [
    "CellJudgement",
    "ContestJudgement",
    "Judgement",
    "contests_of",
    "contests_of_all",
    "judge",
    "judge_together",
    "judged_anew",
]


@dataclass(frozen=True)
class Judgement:
    """What one report means, or several reports that are shown together."""

    reports: tuple[Report, ...]
    contests: tuple[ContestJudgement, ...]
    sweeps: tuple[Sweep, ...]

    @property
    def report(self) -> Report:
        """The report, or the first one of several."""
        return self.reports[0]


def judge(report: Report) -> Judgement:
    """Return everything that an output of this report may show."""
    return judge_together([report])


def judge_together(reports: Sequence[Report]) -> Judgement:
    """Judge several reports to show them as one. A contest that is in several carries the name of its run."""
    contests = contests_of_all(reports)
    return Judgement(tuple(reports), tuple(contests), tuple(sweeps_of(contests)))


def contests_of(report: Report) -> list[ContestJudgement]:
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


def contests_of_all(reports: Sequence[Report]) -> list[ContestJudgement]:
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
    verdicts = judge_contests(report.records, Requirements.parse(require))
    return report.model_copy(update={"request": request | {"require": require}, "verdicts": verdicts})


def _of_run(contest: ContestJudgement, run_id: str) -> ContestJudgement:
    return replace(contest, verdict=contest.verdict.model_copy(update={"title": f"{contest.title}, {run_id}"}))


def _judge(records: Sequence[Record], report: Report) -> Verdict:
    return judge_contest(records, Requirements.parse(str(report.request.get("require") or "")))


def _view(records: Sequence[Record], verdict: Verdict, calls: int | None) -> ContestJudgement:
    places = {standing.cell_id: place for place, standing in enumerate(verdict.standings)}
    rows = [
        CellJudgement(record, verdict.standings[places[record.cell.id]] if record.cell.id in places else None)
        for record in records
    ]
    return ContestJudgement(
        # sorting is stable: failures stay in the order in which they were asked for
        cells=sorted(rows, key=lambda row: (places.get(row.record.cell.id, len(rows)), _distance(row.record.status))),
        verdict=verdict,
        calls=calls,
    )


def _distance(status: Status) -> int:
    """How far from a success a cell ended: numbers of something else, wrong ones, none, never tried."""
    if status.is_absence:
        return 4
    return {Status.OK: 0, Status.FALLBACK: 1, Status.INCORRECT: 2}.get(status, 3)
