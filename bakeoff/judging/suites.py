"""Sums up many contests: what each backend passed, how fast it is over all of them, and where it wins.

A suite is at least `MIN_MODELS` models in one task, on one device, in one precision. Means are over the
contests that all ranked backends passed, without those for which the machine was too busy.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES, MARGIN, MARGIN_UNPAIRED
from bakeoff.judging.estimate import ratio_over_processes
from bakeoff.judging.fit import Fit
from bakeoff.judging.intervals import student_tail
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Ratio, Status

MIN_MODELS = 4
"""With fewer models, the table of winners says it all."""

MIN_PASSED_SHARE = 0.5
"""A backend that passed less has no mean: it would take most of the others' models out of theirs."""

NOT_TRIED = (Status.UNAVAILABLE, Status.NOT_REACHED, Status.LEFT_OUT)
"""What ended like this says nothing about the backend: it is not counted as asked."""

TAUS = (1.02, 1.1, 1.25, 1.5, 2.0)
"""The factors at which the performance profile is tabulated. The first is the margin within which two cells tie."""


@dataclass(frozen=True)
class Profile:
    """On what share of the contests a backend is within tau times the best: its performance profile.

    Source: Dolan and Moré, Benchmarking optimization software with performance profiles, Mathematical Programming 91,
    2002. A contest that the backend failed is never within any tau.
    """

    ratios: tuple[float, ...]  # latency over the best one's, in ascending order, of the contests that it passed
    contests: int  # with those that it failed

    def share(self, tau: float) -> float:
        return sum(ratio <= tau for ratio in self.ratios) / self.contests if self.contests else 0.0


@dataclass(frozen=True)
class Means:
    """What a ranked backend is over the contests that every ranked backend passed."""

    speedup: float | None  # geometric mean of the ratios to the baseline
    lowest: float | None  # of these ratios
    highest: float | None
    build_s: float | None  # median
    memory: float | None  # geometric mean of peak memory over the baseline's


@dataclass(frozen=True)
class SuiteRow:
    """One backend and mode over all contests of a suite."""

    label: str
    passed: int
    asked: int  # without what cannot run here and what was not reached
    cannot_run: int  # this machine lacks it
    not_reached: int
    wins: int
    profile: Profile
    means: Means | None  # None for a backend that is not ranked
    is_baseline: bool
    may_lead: bool  # no other backend is surely faster over the common contests


@dataclass(frozen=True)
class Failures:
    """Cells that failed for a reason of the same sort, on the same contests."""

    labels: tuple[str, ...]
    cell: CellJudgement  # one of them
    differ: bool  # their reasons differ in details, such as numbers
    contests: tuple[ContestJudgement, ...]


@dataclass(frozen=True)
class Suite:
    """Contests of several models that differ in model and dimensions only, and what each backend is over them."""

    contests: tuple[ContestJudgement, ...]
    rows: tuple[SuiteRow, ...]  # the best mean first; those without one last
    common: tuple[ContestJudgement, ...]  # that every ranked backend passed, with a known speed-up
    busy: int  # contests that every ranked backend passed on a machine too busy for a speed-up
    failures: tuple[Failures, ...]  # the most frequent first
    baseline: str | None
    lead: Ratio | None  # of the best mean over the next one; its `processes` are contests

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.rows]

    @property
    def wins(self) -> int:
        return sum(row.wins for row in self.rows)

    @property
    def models(self) -> int:
        """Return the number of models: a model of several sizes makes a contest of each."""
        return len({contest.cell.model for contest in self.contests})


def suites_of(contests: Sequence[ContestJudgement]) -> list[Suite]:

    def suite(contest: ContestJudgement) -> tuple[object, ...]:
        cell = contest.cell
        return (cell.task, cell.device, cell.precisions, cell.is_onnx_file, contest.run_id)

    groups = grouped(contests, suite)
    return [suite_of(group) for group in groups.values() if len({one.cell.model for one in group}) >= MIN_MODELS]


def suite_of(contests: Sequence[ContestJudgement]) -> Suite:
    by_label = grouped((cell for contest in contests for cell in contest.cells), lambda cell: cell.label)
    tried = {
        label: cells for label, cells in by_label.items() if any(not cell.record.status.is_absence for cell in cells)
    }
    asked = {label: sum(map(_was_tried, cells)) for label, cells in tried.items()}
    passes = {label: sum(map(passed, cells)) for label, cells in tried.items()}
    ranked = [label for label in tried if passes[label] and passes[label] >= MIN_PASSED_SHARE * asked[label]]
    baseline = Counter(contest.baseline for contest in contests if contest.baseline).most_common(1)
    over = baseline[0][0] if baseline else None
    alike = [contest for contest in contests if ranked and contest.baseline == over]
    all_passed = [contest for contest in alike if set(ranked) <= set(contest.contenders)]
    common = [
        contest
        for contest in all_passed
        if not over or all(cell.speedup for cell in contest.cells if cell.label in ranked)
    ]
    order = sorted(
        ranked,
        key=lambda label: statistics.fmean(math.log(one.fit.latency_ms[label]) for one in common) if common else 0.0,
    )
    # The sure winners that remain when the error over all contests together is held by Holm's method.
    tested = [contest for contest in contests if contest.fastest.leads]
    chances = [chance_of_win(contest.fit, contest.ranked[0].label, list(contest.fastest.leads)) for contest in tested]
    wins = Counter(
        contest.fastest.winner
        for contest, is_held in zip(tested, holm(chances), strict=True)
        if is_held and contest.fastest.winner and contest.fastest.certainty is Certainty.SURE
    )
    profiled = [contest for contest in contests if all(contest.cell_of(label) for label in tried if passes[label])]
    rows = [
        SuiteRow(
            label=label,
            passed=passes[label],
            asked=asked[label],
            cannot_run=sum(cell.record.status is Status.UNAVAILABLE for cell in cells),
            not_reached=sum(cell.record.status is Status.NOT_REACHED for cell in cells),
            wins=wins[label],
            profile=_profile(label, profiled),
            means=_means(label, common, over) if label in order and common else None,
            is_baseline=label == over,
            may_lead=bool(common) and label in order and not _is_surely_slower(label, order[0], common),
        )
        for label, cells in tried.items()
    ]
    places = {label: place for place, label in enumerate(order)}
    rows.sort(key=lambda row: (places.get(row.label, len(places)), -row.passed / max(row.asked, 1)))
    lead = _lead(order[0], order[1], common) if len(order) > 1 and common else None
    busy = len(all_passed) - len(common)
    return Suite(tuple(contests), tuple(rows), tuple(common), busy, tuple(_failures(contests)), over, lead)


def _was_tried(cell: CellJudgement) -> bool:
    return cell.record.status not in NOT_TRIED


def passed(cell: CellJudgement) -> bool:
    """Return True for a cell with right outputs that may win. One that does not meet the requirements has failed."""
    return cell.rank is not None


def _lead(fast: str, slow: str, common: Sequence[ContestJudgement]) -> Ratio:
    """Return the geometric mean of how many times faster one is, with Student's t-interval over the contests."""
    return ratio_over_processes([math.log(one.fit.latency_ms[slow] / one.fit.latency_ms[fast]) for one in common])


def _is_surely_slower(label: str, best: str, common: Sequence[ContestJudgement]) -> bool:
    lead = _lead(best, label, common)
    return lead.ci95 is not None and lead.ci95.low > 1


def _means(label: str, common: Sequence[ContestJudgement], baseline: str | None) -> Means:
    pairs = [(row, contest.cell_of(baseline)) for contest in common if (row := contest.cell_of(label))]
    speedups = [row.speedup.value for row, _ in pairs if row.speedup]
    built_s = [row.record.build_s for row, _ in pairs if row.record.phases]
    peaks = [(row.record.peak_bytes, over.record.peak_bytes if over else None) for row, over in pairs]
    memory = [ours / theirs for ours, theirs in peaks if ours and theirs]
    return Means(
        speedup=statistics.geometric_mean(speedups) if speedups else None,
        lowest=min(speedups, default=None),
        highest=max(speedups, default=None),
        build_s=statistics.median(built_s) if built_s else None,
        memory=statistics.geometric_mean(memory) if len(memory) == len(common) else None,
    )


def _profile(label: str, contests: Sequence[ContestJudgement]) -> Profile:
    ratios = [
        contest.fit.latency_ms[label] / contest.fit.latency_ms[contest.ranked[0].label]
        for contest in contests
        if (cell := contest.cell_of(label)) and passed(cell)
    ]
    return Profile(tuple(sorted(ratios)), len(contests))


def _failures(contests: Sequence[ContestJudgement]) -> list[Failures]:
    """Group what failed by the sort of failure, and labels that failed alike on the same contests."""
    failed = [
        (cell, contest)
        for contest in contests
        for cell in contest.cells
        if not passed(cell) and not cell.beyond and _was_tried(cell)
    ]
    # of one label, all that ended alike
    by_label = grouped(failed, lambda pair: (_kind_of_failure(pair[0]), pair[0].label))
    alike = grouped(by_label.items(), lambda item: (item[0][0], tuple(contest.contest_id for _, contest in item[1])))
    all_failures = [
        Failures(
            labels=tuple(label for (_, label), _ in group),
            cell=group[0][1][0][0],
            differ=len({cell.record.reason for _, ended in group for cell, _ in ended}) > 1,
            contests=tuple(contest for _, contest in group[0][1]),
        )
        for group in alike.values()
    ]
    return sorted(all_failures, key=lambda failures: -len(failures.contests) * len(failures.labels))


def _kind_of_failure(cell: CellJudgement) -> tuple[str, ...]:
    record = cell.record
    why = record.failure.sort if record.failure else (record.reason,)
    return (record.status.value, record.died_in or "", *why, *(missed.required.name for missed in cell.unmet))


FAMILY_ERROR = 0.05
"""The probability that any of the wins over many contests is wrong is at most this. Of a hundred equal pairs, five
would pass a test at 5 % each."""


def holm(chances: Sequence[float], error: float = FAMILY_ERROR) -> list[bool]:
    """Return for each hypothesis, given by its p-value, whether Holm's method rejects it; tests may depend on each
    other. Source: Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statistics 6, 1979."""
    rejected = [False] * len(chances)
    for place, index in enumerate(np.argsort(chances, kind="stable")):
        if chances[index] > error / (len(chances) - place):
            break
        rejected[index] = True
    return rejected


def chance_of_lead(fit: Fit, fast: str, slow: str) -> float:
    """Return the two-sided p-value of so clear a lead, if there were none: Student's t over processes, or over the
    rounds of a single one, beyond the margin that a verdict asks for."""
    ratio = fit.ratio(fast, slow)
    if ratio.ci95 is None:
        return 1.0
    is_over_processes = ratio.paired and ratio.processes >= FEWEST_PROCESSES
    margin = 0.0 if is_over_processes else MARGIN if ratio.paired else MARGIN_UNPAIRED
    beyond = math.log(ratio.value / (1 + margin))
    if beyond <= 0:
        return 1.0
    half_widths = 2 * beyond / width if (width := math.log(ratio.ci95.high / ratio.ci95.low)) > 0 else math.inf
    values = ratio.processes if ratio.processes > 1 else len(fit.round_logs(slow, fast))
    return student_tail(half_widths, max(values, FEWEST_PROCESSES) - 1)


def chance_of_win(fit: Fit, best: str, others: Sequence[str]) -> float:
    """Return the p-value of the hypothesis that some other cell is as fast: the largest of all pairs, an
    intersection-union test (Berger, Multiparameter hypothesis testing, Technometrics 24, 1982)."""
    return max((chance_of_lead(fit, best, other) for other in others), default=1.0)
