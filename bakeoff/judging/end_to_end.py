"""What a whole request takes, where more than the model belongs to it: before, the model, after.

The stages around the model are plain functions of the user's own, the same for every backend. They are timed in the
same processes as the cells, and one latency of each holds for all of them. So they cancel in the difference of two
backends, and not in the ratio: a model that is four times faster behind 20 ms of resizing is a tie. What a ratio
allows to say is decided as for the model alone (`judging.decision`).
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.decision import FEWEST_PROCESSES, MARGIN, TIE_MARGIN, Relation, is_apart, is_decided, relation
from bakeoff.judging.fit import Fit, rounded_ms
from bakeoff.judging.intervals import (
    around,
    half_width_of,
    interval_of_sum,
    median_interval,
    ratio_of_sums,
    student_half_width,
)
from bakeoff.judging.precisions import ranks_of
from bakeoff.records.schema import AroundCall, Interval, Ratio, Record

MODEL = "the model"


@dataclass(frozen=True)
class Step:
    """One stage of a request: `before()`, the model, or `after()`."""

    name: str
    ms: float
    ci95: Interval | None
    share: float = 0.0  # of the whole request, with the best backend


@dataclass(frozen=True)
class WholeRequest:
    """A request that one backend answers."""

    label: str
    ms: float
    ci95_ms: Interval | None
    speedup: Ratio | None  # over the baseline
    rank: int


@dataclass(frozen=True)
class EndToEnd:
    """What whole requests take, the best backend first. There is at least one row, unless a stage failed."""

    steps: tuple[Step, ...]  # of a request that the best backend answers, in their order
    rows: tuple[WholeRequest, ...]
    leads: dict[str, Ratio]  # of the best one over every other
    tied: tuple[str, ...]  # share the first place, if there are several
    open_labels: tuple[str, ...]  # measuring ended before the leads over these were decided
    baseline: str | None
    failures: tuple[str, ...] = ()  # of stages that could not be timed

    @property
    def best(self) -> WholeRequest:
        return self.rows[0]

    @property
    def candidates(self) -> list[str]:
        return list(dict.fromkeys([self.best.label, *self.tied, *self.open_labels]))

    @property
    def certainty(self) -> Certainty:
        """Return how sure the order of whole requests is; doubts about the model's own numbers stand elsewhere."""
        if not self.rows:
            return Certainty.NOTHING
        if self.open_labels:
            return Certainty.OPEN
        if self.tied:
            return Certainty.TIE
        return Certainty.SURE if self.leads else Certainty.ALONE

    @property
    def longest(self) -> Step:
        """Return the stage that takes most of a request."""
        return max(self.steps, key=lambda step: step.ms)


def judge_end_to_end(
    ranked: Sequence[Record], records: Sequence[Record], fit: Fit, baseline: str | None
) -> EndToEnd | None:
    """Judge whole requests of the ranked cells, the best first; None where a request is a call of the model alone."""
    calls = [call for record in records for call in record.around]
    if not calls:
        return None
    failures = tuple(dict.fromkeys(f"{call.name}() failed: {call.failure}" for call in calls if call.failure))
    steps = {name: _pooled(name, [call for call in calls if call.name == name]) for name in ("before", "after")}
    known = [step for step in steps.values() if step]
    if failures or not known or not ranked:
        return EndToEnd((), (), {}, (), (), baseline, failures)
    own = {record.cell.label: _model(record.cell.label, fit) for record in ranked}
    best, *others = ranked
    ratios = {each.cell.label: _ratio(best.cell.label, each.cell.label, own, known, fit) for each in others}
    label = best.cell.label

    def is_behind(record: Record) -> bool:
        lead = ratios[record.cell.label]
        return relation(lead) is Relation.FASTER or _least_lead(record, own[label].ms, known) > 1 + TIE_MARGIN

    def is_open(record: Record) -> bool:
        lead = ratios[record.cell.label]
        left_and_close = record.left is not None and lead.value < 1 + TIE_MARGIN
        most = _most_lead(own[record.cell.label], known)
        return not (is_behind(record) or left_and_close or is_decided(lead) or most < 1 + TIE_MARGIN)

    behind = {each.cell.label for each in others if is_behind(each)}
    tied = list(itertools.takewhile(lambda name: name not in behind, ratios))
    ranks = ranks_of(list(own), lambda fast, slow: slow in behind or is_apart(_ratio(fast, slow, own, known, fit)))
    if tied:
        tied.insert(0, label)
    whole_ms = own[label].ms + sum(step.ms for step in known)
    stages = [step for step in (steps["before"], own[label], steps["after"]) if step]
    rows = []
    for record in ranked:
        name = record.cell.label
        over = _ratio(name, baseline, own, known, fit) if baseline in own and baseline is not None else None
        parts = [own[name], *known]
        total_ms = sum(part.ms for part in parts)
        rows.append(
            WholeRequest(
                name,
                rounded_ms(total_ms),
                interval_of_sum(total_ms, [(1.0, part.ms, part.ci95) for part in parts]),
                over,
                ranks[name],
            )
        )
    return EndToEnd(
        steps=tuple(Step(step.name, step.ms, step.ci95, step.ms / whole_ms) for step in stages),
        rows=tuple(rows),
        leads=ratios,
        tied=tuple(tied),
        open_labels=tuple(each.cell.label for each in others if is_open(each)),
        baseline=baseline if baseline in own else None,
    )


def _pooled(name: str, calls: Sequence[AroundCall]) -> Step | None:
    """Return the latency of a stage over all cells: the geometric mean over epochs, as for latencies.

    The cells of one epoch shared its minutes, so their median counts as one. In fewer than three processes the interval
    is that of the parts of their calls, as it is that of the rounds for a latency. The margin that a lead needs then
    (`judging.decision`) stands for what processes differ by.
    """
    by_epoch: dict[int, list[float]] = {}
    for call in calls:
        if call.median_ms > 0:
            by_epoch.setdefault(call.process, []).append(math.log(call.median_ms))
    if not by_epoch:
        return None
    logs = [statistics.median(epoch) for epoch in by_epoch.values()]
    value = math.exp(statistics.fmean(logs))
    if len(logs) < FEWEST_PROCESSES:
        logs = [log for epoch in by_epoch.values() for log in epoch]
    own = [median / call.median_ms for call in calls if call.median_ms > 0 for median in call.block_medians_ms]
    if len(logs) < FEWEST_PROCESSES and (ends := median_interval(own)):
        return Step(f"{name}()", value, Interval(low=value * min(ends.low, 1.0), high=value * max(ends.high, 1.0)))
    return Step(f"{name}()", value, around(value, student_half_width(logs)))


def _model(label: str, fit: Fit) -> Step:
    return Step(MODEL, fit.latency_ms[label], fit.latency_ci95_ms(label))


def _ratio(fast: str, slow: str, own: dict[str, Step], stages: Sequence[Step], fit: Fit) -> Ratio:
    """Return how many times faster a whole request is; the stages around the model are the same in both."""
    model = fit.ratio(fast, slow)
    around_ms = [step.ms for step in stages]
    value, reach = ratio_of_sums(
        [own[fast].ms, *around_ms],
        [own[slow].ms, *around_ms],
        [half_width_of(model.ci95), *(0.0 for _ in stages)],
        [half_width_of(own[fast].ci95), *(half_width_of(step.ci95) for step in stages)],
    )
    return Ratio(value=value, ci95=around(value, reach), paired=model.paired, processes=model.processes)


def _most_lead(slow: Step, stages: Sequence[Step]) -> float:
    """Return how many times as long a request takes at most as one whose model takes no time at all.

    It is taken at the ends of the intervals that make it large, and with the margin for what processes differ by.
    """
    around_ms = sum(step.ci95.low if step.ci95 else step.ms for step in stages)
    return 1 + (slow.ci95.high if slow.ci95 else slow.ms) * (1 + MARGIN) ** 2 / around_ms if around_ms > 0 else math.inf


def _least_lead(record: Record, best_ms: float, stages: Sequence[Step]) -> float:
    """Return how many times as long a request takes at least with a cell that was left early, as surely beaten."""
    around_ms = sum(step.ms for step in stages)
    return (best_ms * record.left.ratio + around_ms) / (best_ms + around_ms) if record.left else 0.0
