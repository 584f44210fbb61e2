"""What a whole request takes, where more than the model belongs to it: before, the model, after.

One latency of each stage holds for all cells. So stages cancel in the difference of two backends, and not in the ratio.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.judging.answer import Answer, Question, Score, Shared, Term, rank
from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.fit import Fit
from bakeoff.judging.intervals import around, median_interval, student_half_width
from bakeoff.records.schema import AroundCall, Interval, Record

MODEL = "the model"


@dataclass(frozen=True)
class RequestStage(Shared):
    """One stage of a request: `before()`, the model, or `after()`."""

    share: float = 0.0  # of the whole request, with the best backend


@dataclass(frozen=True)
class EndToEnd:
    """What whole requests take, the best backend first. Doubts about the model's own numbers stand elsewhere."""

    answer: Answer
    steps: tuple[RequestStage, ...] = ()  # of a request that the best backend answers, in their order
    failures: tuple[str, ...] = ()  # of stages that could not be timed: then nothing is ranked

    @property
    def longest(self) -> RequestStage:
        return max(self.steps, key=lambda step: step.ms)


def judge_end_to_end(
    ranked: Sequence[Record], records: Sequence[Record], fit: Fit, baseline: str | None
) -> EndToEnd | None:
    """Judge whole requests of the ranked cells; None where a request is a call of the model alone."""
    calls = [call for record in records for call in record.around]
    if not calls:
        return None
    failures = tuple(dict.fromkeys(f"{call.name}() failed: {call.failure}" for call in calls if call.failure))
    before, after = (_pooled(name, [call for call in calls if call.name == name]) for name in ("before", "after"))
    stages = [stage for stage in (before, after) if stage]
    if failures or not stages or not ranked:
        return EndToEnd(Answer(Question.REQUEST, baseline=baseline), failures=failures)
    labels = [record.cell.label for record in ranked]
    answer = rank(
        Question.REQUEST,
        Score([Term(fit, left={record.cell.label: record.left for record in ranked if record.left})], stages),
        labels,
        baseline=baseline if baseline in labels else None,
        processes={record.cell.label: len(record.processes) for record in ranked},
    )
    best = answer.first[0]
    model = Shared(MODEL, fit.latency_ms[best], fit.latency_ci95_ms(best))
    parts = [part for part in (before, model, after) if part]
    whole_ms = sum(part.ms for part in parts)
    return EndToEnd(answer, tuple(RequestStage(**vars(part), share=part.ms / whole_ms) for part in parts))


def _pooled(name: str, calls: Sequence[AroundCall]) -> Shared | None:
    """Return the latency of a stage over all cells: the geometric mean over epochs, as for latencies. With fewer than
    three processes, the interval is that of the parts of their calls."""
    by_epoch: dict[int, list[float]] = {}
    for call in calls:
        if call.median_ms > 0:
            by_epoch.setdefault(call.process, []).append(math.log(call.median_ms))
    if not by_epoch:
        return None
    # the cells of one epoch shared its minutes, so their median counts as one
    logs = [statistics.median(epoch) for epoch in by_epoch.values()]
    value = math.exp(statistics.fmean(logs))
    if len(logs) < FEWEST_PROCESSES:
        logs = [log for epoch in by_epoch.values() for log in epoch]
    own = [median / call.median_ms for call in calls if call.median_ms > 0 for median in call.block_medians_ms]
    if len(logs) < FEWEST_PROCESSES and (ends := median_interval(own)):
        return Shared(f"{name}()", value, Interval(low=value * min(ends.low, 1.0), high=value * max(ends.high, 1.0)))
    return Shared(f"{name}()", value, around(value, student_half_width(logs)))
