"""Turns a report into a `Judgement`: everything that any output shows, computed once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.judging.acceptance import Acceptance
from bakeoff.judging.constraints import RequirementOpen, Requirements, parse_limits_on_errors
from bakeoff.judging.contest import CellJudgement, ContestJudgement, judge_contest
from bakeoff.judging.decision import FEWEST_PROCESSES, MAX_PROCESSES
from bakeoff.judging.doubt import Stop
from bakeoff.judging.dynamic import DynamicRange, dynamic_ranges_of
from bakeoff.judging.fit import by_contest
from bakeoff.judging.generation import with_generations
from bakeoff.judging.mix import Mix, mixes_of
from bakeoff.judging.price import Price
from bakeoff.judging.suites import Suite, suites_of
from bakeoff.judging.sweeps import Sweep, sweeps_of
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import with_option

__all__ = ["CellJudgement", "ContestJudgement", "Judgement", "contests_of", "judge", "judge_together", "judged_anew"]


@dataclass(frozen=True)
class Judgement:
    """What one report means, or several reports that are shown together."""

    reports: tuple[Report, ...]
    contests: tuple[ContestJudgement, ...]
    sweeps: tuple[Sweep, ...]
    suites: tuple[Suite, ...] = ()
    dynamic_ranges: tuple[DynamicRange, ...] = ()
    mixes: tuple[Mix, ...] = ()

    @property
    def report(self) -> Report:
        return self.reports[0]

    @property
    def meets_requirements(self) -> bool:
        """Return False if every measured cell of a contest misses what is required. It is False, too, if that was not
        measured of a contest's first cell."""
        is_met = all(contest.ranked or not any(cell.unmet for cell in contest.cells) for contest in self.contests)
        return is_met and not self.unmeasured

    @property
    def unmeasured(self) -> list[str]:
        """Return what is required and was not measured of the first cell of a contest: no gate may pass by that."""
        return sorted(
            f"{doubt.required.name}, which --require asks for, was not measured of {contest.fastest.leader}"
            for contest in self.contests
            for doubt in contest.doubts
            if isinstance(doubt, RequirementOpen) and doubt.value is None and contest.fastest.leader in doubt.labels
        )


def judge(report: Report) -> Judgement:
    return judge_together([report])


def judge_together(reports: Sequence[Report]) -> Judgement:
    """Judge several reports to show them as one. A contest that is in several carries the name of its run."""
    counts = Counter(contest_id for report in reports for contest_id in by_contest(report.records))
    judged = []
    for report in reports:
        calls, price = report.request.get("calls"), str(report.request.get("price") or "")
        requirements = Requirements.parse(str(report.request.get("require") or ""))
        judged += [
            judge_contest(
                records,
                run_id=report.run_id if counts[contest_id] > 1 else None,
                stop=_stop_of(report, records),
                last=next((verdict for verdict in report.last_verdicts if verdict.contest_id == contest_id), None),
                requirements=requirements,
                calls=calls if isinstance(calls, int) else None,
                price_per_hour=Price.parse(price).per_hour if price else None,
                over_best=report.request.get("baseline") == "eager/best",
            )
            for contest_id, records in by_contest(report.records).items()
        ]
    contests = with_generations(judged)
    return Judgement(
        tuple(reports),
        tuple(contests),
        tuple(sweeps_of(contests)),
        tuple(suites_of(contests)),
        tuple(dynamic_ranges_of(contests)),
        tuple(mixes_of(contests)),
    )


def _is_so_far(report: Report, records: Sequence[Record]) -> bool:
    """Return True if what an interruption has left out bears on the answer of the contest with these records."""
    if report.complete or any(record.is_in_part for record in records):
        return not report.complete
    # a doubt says what is required of starts, and an earlier version marked no record
    return not (report.lacks_only_starts or any(record.is_in_part for record in report.records))


MOST_OF_TIME_LIMIT = 0.5
"""A contest whose cells took less of their time limit was not ended by it."""


def _stop_of(report: Report, records: Sequence[Record]) -> Stop:
    """Return what would have kept the contest with these records from getting further processes."""
    if _is_so_far(report, records):
        return Stop.INTERRUPTED
    asked = report.request.get("processes")
    asked = asked if isinstance(asked, int) else FEWEST_PROCESSES
    most = asked if asked < FEWEST_PROCESSES else max(asked, MAX_PROCESSES)
    if max(len(record.processes) for record in records) >= most:
        return Stop.PROCESSES
    if report.request.get("budget"):
        return Stop.BUDGET
    limit_s = report.request.get("time_limit_s")
    took_s = max(record.elapsed_s for record in records)
    is_early = isinstance(limit_s, int | float) and 0 < took_s < MOST_OF_TIME_LIMIT * limit_s
    return Stop.PROCESSES if is_early else Stop.TIME_LIMIT  # further processes would hardly have decided it


def contests_of(report: Report) -> tuple[ContestJudgement, ...]:
    return judge(report).contests


def judged_anew(
    report: Report, calls: int | None = None, require: str | None = None, accept: str | None = None
) -> Report:
    """Return the report with other requirements, accepted errors or number of calls. None keeps what was asked; an
    empty text or 0 asks for none. Raise UsageError for a required metric that no `evaluate` returned, and for starts
    that the run did not measure."""
    evaluated = [metrics for record in report.records if (metrics := record.reference_metrics)]
    if require and Requirements.parse(require).judge_starts and not report.request.get("starts"):
        raise UsageError(f"--require '{require}' is about starts: this run has none, and `bakeoff start` measures them")
    if require and not any(metrics.failure for metrics in evaluated):
        Requirements.parse(require).refuse_metrics({name for metrics in evaluated for name in metrics.values})
    changes = {"calls": calls, "require": require, "accept": accept}
    request = report.request | {name: value for name, value in changes.items() if value is not None}
    if calls == 0:
        request["calls"] = None
    command = report.command
    for name in (name for name, value in changes.items() if value is not None):
        value = str(request[name] or "")
        command = "\n".join(with_option(line, f"--{name}", value) for line in command.splitlines())
    records = report.records
    if require is not None or accept is not None:
        limits = parse_limits_on_errors(str(request.get("accept") or ""))
        acceptance = Acceptance(limits, Requirements.parse(str(request.get("require") or "")))
        records = [acceptance.applied_to(record) for record in records]
    return report.but(request=request, records=records, command=command)
