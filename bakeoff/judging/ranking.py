"""Ranks the cells of one contest by their samples, and says which comparisons are not decided yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from bakeoff.judging.answer import Answer, Question, Score, Term, rank
from bakeoff.judging.constraints import NOTHING, RequirementMissed, Requirements
from bakeoff.judging.decision import Relation, is_covered_by_waiting, is_decided, may_be_decided, relation
from bakeoff.judging.doubt import FirstPlace, Stop
from bakeoff.judging.estimate import FEWEST_ROUNDS, Series, common_rounds, slower_by_pages
from bakeoff.judging.fit import fit_records, fitted
from bakeoff.records.precision import Precision
from bakeoff.records.schema import ORIGINAL, Accuracy, Cell, LeftEarly, Ratio, Record, Status, Verdict

BASELINE = "eager"

ONNX_BASELINE = "onnx"


def baseline_of(cells: Sequence[Cell]) -> str:
    """Return the label that speed-ups are taken to: eager, or for an ONNX file ONNX Runtime, in float32 or else in the
    first precision that has it. Without one, an ONNX file and compared environments have the first cell."""
    if any(cell.label == ORIGINAL for cell in cells):
        return ORIGINAL
    order = order_of_precisions(cells)
    wanted = ONNX_BASELINE if any(cell.is_onnx_file for cell in cells) else BASELINE
    in_order = sorted(cells, key=lambda cell: order.index(cell.precision))
    labels = [cell.label for cell in in_order if cell.configuration == wanted and not cell.dynamic]
    if not labels and (wanted == ONNX_BASELINE or any(cell.environment for cell in cells)):
        in_some = [cell.label for cell in in_order if cell.configuration.partition("@")[0] == wanted]
        return (in_some or [cell.label for cell in in_order])[0]
    return labels[0] if labels else " ".join([wanted, *(order[:1] if any(cell.compared for cell in cells) else ())])


def order_of_precisions(cells: Sequence[Cell]) -> list[Precision]:
    """Return the precisions of these cells' contest: float32 first, because it is what others round, then as asked."""
    named = dict.fromkeys(precision for cell in cells for precision in (*cell.compared, cell.precision))
    return sorted(named, key=lambda precision: precision is not Precision.FP32)


def undecided(records: Sequence[Record], requirements: Requirements | None = None) -> list[tuple[str, str]]:
    """Return the best cell so far with each cell for which further processes are likely to change the verdict, as pairs
    of labels of cells that meet the requirements."""
    ranking = Ranking(records, requirements)
    return [
        (ranking.labels[0], other)
        for other, lead in ranking.undecided().items()
        # where waiting alone may be the lead, more processes beside the same load say no more
        if may_be_decided(lead) and not is_covered_by_waiting(lead)
    ]


def may_win(records: Sequence[Record], requirements: Requirements | None = None) -> list[str]:
    """Return the labels of the cells that meet the requirements, and across precisions keep the tolerance."""
    return Ranking(records, requirements).labels


def beaten(records: Sequence[Record], requirements: Requirements | None = None) -> dict[str, LeftEarly]:
    """Return the cells that are surely beaten by one that meets the requirements, by label. The baseline is among them
    only once the speed-up over it is known well."""
    ranking = Ranking(records, requirements)
    return _called_slower(ranking) | ranking.beaten_in_rounds


PROCESSES_OF_BASELINE = 5
"""Speed-ups are taken to the baseline. So it takes part until this many epochs show that it is slower."""

NARROW_SPEEDUP = 1.1
"""It leaves earlier if the high end of the speed-up's 95 % interval is less than this many times the low end."""

NEAR_BEST = 1.15
"""Nobody chooses a cell for its energy that takes more than this many times as long as the best one."""


def contenders(records: Sequence[Record], requirements: Requirements | None = None) -> frozenset[str]:
    """Return the labels of the cells that somebody may choose, by the records so far: near the best cell that may win,
    or faster, and not called slower."""
    ranking = Ranking(records, requirements)
    # where nothing meets the requirements yet, the fastest one stands for it: that may be measured last
    best = min(ranking.ranked or ranking.measured, key=median_ms, default=None)
    if best is None:
        return frozenset()
    near = {record.cell.label for record in ranking.measured if median_ms(record) <= NEAR_BEST * median_ms(best)}
    return frozenset(near.difference(_called_slower(ranking).keys() - {ranking.baseline_label}))


def _called_slower(ranking: Ranking) -> dict[str, LeftEarly]:
    processes = {record.cell.label: len(record.processes) for record in ranking.ranked}
    return {
        other: LeftEarly(
            after_process=processes[other], ratio=lead.ci95.low, than=ranking.labels[0], seen_in="interval"
        )
        for other, lead in ranking.leads.items()
        if lead.ci95 and lead.ci95.low > 1 and is_decided(lead) and relation(lead) is Relation.FASTER
        if other != ranking.baseline_label or is_known_well(lead)
    }


def is_known_well(speedup: Ratio) -> bool:
    """Return True if the baseline need not take part any more, by what is known of the speed-up over it."""
    interval = speedup.ci95
    is_narrow = interval is not None and interval.high < NARROW_SPEEDUP * interval.low
    return is_narrow or speedup.processes >= PROCESSES_OF_BASELINE


@dataclass(frozen=True)
class CallScore(Score):
    """The latency of a call. Cells of one contest can be compared in the single rounds that they shared, too."""

    series: Mapping[str, Series] = field(default_factory=dict)
    beaten_in_rounds: Mapping[str, LeftEarly] = field(default_factory=dict)

    def is_apart(self, fast: str, slow: str) -> bool:
        """Return True if the first of two labels was before the second, by its interval or in every round."""
        least = _least_lead(self.series.get(fast, {}), self.series.get(slow, {}), ())
        return least >= BEATEN_BY * slower_by_pages(self.series.get(slow, {})) or super().is_apart(fast, slow)

    def is_settled(self, best: str, other: str, shares_first: bool) -> bool:
        """Return True also for a cell that was beaten in every round, unless it may share the first place."""
        return super().is_settled(best, other, shares_first) or (not shares_first and other in self.beaten_in_rounds)


class Ranking:
    """The cells of a contest that can win, the best first, and the ratio between any two of them. `records` are all of
    the contest's, with fitted latencies, which give the order."""

    def __init__(
        self, records: Sequence[Record], requirements: Requirements | None = None, over_best: bool = False
    ) -> None:
        """Rank these records. With `over_best`, the baseline is the fastest mode of the usual one's backend, in its
        precision. Raise ValueError if they are not of exactly one contest."""
        if len({record.cell.contest_id for record in records}) > 1:
            raise ValueError("a ranking is of the cells of one contest")
        self.fit = fit_records(records)
        self.records = fitted(records, self.fit)
        self.measured = [record for record in self.records if record.status is Status.OK and record.latency]
        self.baseline_label = baseline_of([record.cell for record in self.measured])
        self.baseline = next((one for one in self.measured if one.cell.label == self.baseline_label), None)
        if over_best and self.baseline:
            usual = self.baseline.cell
            kind = (usual.backend, usual.precision)
            modes = [record for record in self.measured if (record.cell.backend, record.cell.precision) == kind]
            self.baseline = min(modes, key=median_ms)
            self.baseline_label = self.baseline.cell.label
        unmet = {record.cell.label: requirements.unmet(record) if requirements else [] for record in self.measured}
        self.unmet: dict[str, list[RequirementMissed]] = {label: doubts for label, doubts in unmet.items() if doubts}
        self.tolerance = None if requirements and requirements.judge_errors else Tolerance.of(self.measured)
        allowed = [record for record in self.measured if record.cell.label not in self.unmet and self.keeps(record)]
        self.ranked = sorted(allowed, key=median_ms)
        self.labels = [record.cell.label for record in self.ranked]
        self.open_requirements = (requirements or NOTHING).open(self.ranked)
        self.plain_metrics = (requirements or NOTHING).without_interval(self.ranked)

    def keeps(self, record: Record) -> bool:
        """Return True if the cell rounds no more than the first precision does, or if something else is required."""
        return self.tolerance is None or self.tolerance.holds(record)

    @cached_property
    def score(self) -> CallScore:
        return CallScore([Term(self.fit)], series=self.fit.series, beaten_in_rounds=self.beaten_in_rounds)

    @cached_property
    def answer(self) -> Answer:
        return rank(
            Question.LATENCY,
            self.score,
            self.labels,
            [record.cell.label for record in self.measured if record.cell.label not in self.labels],
            self.baseline.cell.label if self.baseline else None,
            cells=[record.cell for record in self.measured],
            processes={record.cell.label: len(record.processes) for record in self.ranked},
        )

    @property
    def leads(self) -> dict[str, Ratio]:
        """How many times faster the best cell is than each other one. `answer` has them, too, and takes far longer."""
        return {other: self.score.ratio(self.labels[0], other) for other in self.labels[1:]}

    @cached_property
    def beaten_in_rounds(self) -> dict[str, LeftEarly]:
        """The cells that a ranked one was much faster than in every round, by label."""
        series = {record.cell.label: self.fit.series.get(record.cell.label, {}) for record in self.measured}
        return beaten_in_every_round(series, self.labels, self.baseline_label)

    def undecided(self) -> dict[str, Ratio]:
        """Return the leads that further processes may still prove or disprove. A cell that was beaten in every round is
        among them only if it may share the first place."""
        first = self.score.first_of(self.labels)
        return {
            other: lead
            for other, lead in self.leads.items()
            if not self.score.is_settled(self.labels[0], other, other in first)
        }


@dataclass(frozen=True)
class Evidence:
    """A contest's ranking, why measuring stopped, and the verdict of its last run."""

    ranking: Ranking
    stop: Stop = Stop.TIME_LIMIT
    last: Verdict | None = None  # of the last run of this contest

    @property
    def first(self) -> FirstPlace:
        answer = self.ranking.answer
        return FirstPlace(answer.first, answer.leads, answer.baseline)

    @property
    def is_live(self) -> bool:
        """Return True if the model lived in a program, so that `resume` cannot go on."""
        return any(record.cell.is_live for record in self.ranking.records)


@dataclass(frozen=True)
class Tolerance:
    """Without a required metric, a contest across precisions is won within the rounding of the first one.

    That is the error that its cells may have: a multiple of eager's, or what is rounding whatever eager's is. It is
    relative to the size of each output, and the worst output counts.
    """

    precision: Precision
    relative_rmse: float
    changes_unheld: int = 0  # of parameters by a training step: the type is too coarse to hold them

    @classmethod
    def of(cls, measured: Sequence[Record]) -> Self | None:
        """Return that of the first precision that was measured, by the checks of its cells, or None in a contest of a
        single one. Without any check, no other precision is within it."""
        cells = [record.cell for record in measured]
        if not any(cell.compared for cell in cells):
            return None
        there = {cell.precision for cell in cells}
        precision = next(one for one in order_of_precisions(cells) if one in there)
        checks = [errors for one in measured if one.cell.precision is precision and (errors := _errors(one))]
        eager = [error for check in checks if (error := check.eager_relative_rmse) is not None and math.isfinite(error)]
        limits = [
            precision.max_times_eager_rmse * max(eager, default=0.0),
            min((check.rtol for check in checks), default=0.0),
        ]
        return cls(precision, max(limits), max((check.changes_unheld for check in checks), default=0))

    def holds(self, record: Record) -> bool:
        """Return True if the cell is as exact as those of this precision. These have passed their own check."""
        if record.cell.precision is self.precision:
            return True
        errors = _errors(record)
        if errors is None:
            return False
        return errors.relative_rmse <= self.relative_rmse and errors.changes_unheld <= self.changes_unheld


def _errors(record: Record) -> Accuracy | None:
    return record.accuracy if record.accuracy and record.accuracy.has_errors else None


def median_ms(record: Record) -> float:
    """Return the median latency. Raises ValueError for a record without one."""
    if record.latency is None:
        raise ValueError(f"{record.cell.id} has no latency")
    return record.latency.median_ms


BEATEN_BY = 1.3
"""A cell is beaten if another one was this many times faster in every round. Equal processes of one cell are seldom so
far apart in all rounds, unless the slower one gets memory from the kernel, and a cell comes back where it may share the
first place."""


def beaten_in_every_round(cells: Mapping[str, Series], rivals: Sequence[str], baseline: str) -> dict[str, LeftEarly]:
    """Return the cells that one of the `rivals` beats in every undisturbed round that the two shared, by label. Two
    cells that shared no round are compared through a third one, by the worst of its rounds with each."""
    reasons = {}
    for label, series in cells.items():
        leads = {rival: _least_lead(cells[rival], series, list(cells.values())) for rival in rivals if rival != label}
        than = max(leads, key=lambda rival: leads[rival], default=None)
        # the baseline stays, because speed-ups are taken to it
        if than is not None and label != baseline and leads[than] >= BEATEN_BY * slower_by_pages(series):
            reasons[label] = LeftEarly(after_process=len(series), ratio=leads[than], than=than)
    return reasons


def _least_lead(fast: Series, slow: Series, thirds: Sequence[Series]) -> float:
    """Return how many times faster `fast` was in the round that was worst for it, or 0 if too few rounds tell."""
    logs = _shared_logs(fast, slow)
    if logs:
        return math.exp(min(logs)) if len(logs) >= FEWEST_ROUNDS else 0.0
    leads = [0.0]
    for third in thirds:
        to_fast, to_slow = _shared_logs(fast, third), _shared_logs(third, slow)
        if min(len(to_fast), len(to_slow)) >= FEWEST_ROUNDS:
            leads.append(math.exp(min(to_fast) + min(to_slow)))
    return max(leads)


def _shared_logs(fast: Series, slow: Series) -> list[float]:
    """Return the logarithms of slow / fast in the rounds that both took part in and that were undisturbed for both."""
    return [
        math.log(slow[process][key].ms / fast[process][key].ms)
        for process in fast.keys() & slow.keys()
        for key in common_rounds(fast[process], slow[process])[1]
    ]
