"""What the user's own metrics say of a build beside the float reference, sample by sample, and how sure that is.

Sources: Student's t for scores of any kind; for right or wrong, Tango's score interval of the difference of two paired
shares (Statistics in Medicine 17, 1998), and McNemar's exact test (Psychometrika 12, 1947).
"""

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from bakeoff.judging.intervals import binomial_tail, ends, student_quantile
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.schema import ORIGINAL, Interval, Record

Scores = npt.NDArray[np.float64]

Z = 1.959963984540054
"""Half the width of a normal 95 % interval, in standard deviations."""

FEWEST_DIFFERING = 5
"""Where fewer samples than this have another score than the reference gives them, their spread is hardly known."""

ROUNDING = 1e-4
"""Two evaluations of one build may differ by this share of the metric, since threads may add in another order."""

NO_CHANGE = Interval(low=0.0, high=0.0)

MOST_SAMPLES = 10**7
"""No more samples than this are ever asked for."""

IntervalOf = Callable[[int], Interval]
"""The interval that so many samples would give, if they were like those that there are."""


@dataclass(frozen=True)
class MetricJudgement:
    """One metric of one build, beside the reference's or beside that of an earlier run."""

    name: str
    value: float
    reference: float
    change_ci95: Interval | None  # of `change`; None: a plain number has none
    samples: int  # 0: a plain number
    lost: int | None = None  # samples that the reference has right and the build has wrong; None: no right or wrong
    won: int | None = None  # the other way round
    chance: float | None = None  # McNemar's: builds as good as the reference differ at least so much this often
    higher_is_better: bool | None = None  # None: `evaluate` does not say

    @property
    def change(self) -> float:
        return self.value - self.reference

    @property
    def varies(self) -> bool:
        """Return True if it is another one than the reference's by more than rounding."""
        return bool(self.lost or self.won) or abs(self.change) > ROUNDING * abs(self.reference)

    @property
    def is_surely_worse(self) -> bool:
        """Return True if all of its interval is on the side that is worse, and the change is more than rounding."""
        ends = self.change_ci95
        if ends is None or self.higher_is_better is None or not self.varies:
            return False
        return ends.high < 0 if self.higher_is_better else ends.low > 0

    def is_worse(self, share: float) -> bool:
        """Return True if it is surely worse, or without an interval by more than this share of the other value."""
        if self.change_ci95 or self.higher_is_better is None:
            return self.is_surely_worse
        return (-self.change if self.higher_is_better else self.change) > share * abs(self.reference)


@dataclass(frozen=True)
class Margin:
    """How far a metric is from what is required of it. It is met if `value` is on the right side of 0."""

    value: float
    ci95: Interval | None
    samples: int
    interval_of: IntervalOf | None = None

    def outcome(self, is_met: Callable[[float], bool]) -> Literal["met", "missed", "open"]:
        """Return whether it is surely met, surely missed, or neither. A plain number is taken as it is."""
        answers = {is_met(end) for end in ends(self.value, self.ci95)}
        return "open" if len(answers) > 1 else "met" if answers == {True} else "missed"

    def further_samples(self, is_met: Callable[[float], bool]) -> int | None:
        """Return how many more samples would decide, if they were like these. None: more than anybody has."""
        if self.interval_of is None or not self.samples:
            return None

        def decides(samples: int) -> bool:
            assert self.interval_of is not None
            ends = self.interval_of(samples)
            return is_met(ends.low) == is_met(ends.high)

        enough = bisect.bisect_left(range(MOST_SAMPLES + 1), True, lo=self.samples, key=decides)
        return enough - self.samples if enough <= MOST_SAMPLES else None


def judge_metrics(record: Record) -> Mapping[str, MetricJudgement]:
    judged = metrics_beside(record.metrics, record.reference_metrics)
    if not is_reference(record):
        return judged
    return {
        name: metric if metric.varies else replace(metric, change_ci95=NO_CHANGE) for name, metric in judged.items()
    }


def metrics_beside(ours: Metrics | None, theirs: Metrics | None) -> Mapping[str, MetricJudgement]:
    """Return each metric that both have, by name. Scores of as many samples are paired, in their order."""
    if ours is None or theirs is None:
        return {}
    return {
        name: _judgement(name, metric, theirs.values[name], ours.higher_is_better.get(name))
        for name, metric in ours.values.items()
        if name in theirs.values
    }


def _judgement(name: str, ours: Metric, theirs: Metric, higher_is_better: bool | None) -> MetricJudgement:
    given = partial(MetricJudgement, name, ours.value, theirs.value, higher_is_better=higher_is_better)
    if not ours.samples or ours.samples != theirs.samples:
        return given(change_ci95=None, samples=0)
    a, b = _array(ours), _array(theirs)
    interval = _paired(a, b)(len(a))
    if not _are_right_or_wrong(a, b):
        return given(change_ci95=interval, samples=len(a))
    lost, won = int(np.sum(a < b)), int(np.sum(a > b))
    return given(change_ci95=interval, samples=len(a), lost=lost, won=won, chance=mcnemar(lost, won))


def change_margin(record: Record, name: str, share: float) -> Margin | None:
    """Return how far a metric is above the reference's, changed by this share of it. None: it was not measured."""
    all_metrics = (record.metrics or Metrics(), record.reference_metrics or Metrics())
    ours, theirs = (metrics.values.get(name) for metrics in all_metrics)
    if ours is None or theirs is None:
        return None
    allowed = share * abs(theirs.value)
    value = ours.value - theirs.value - allowed
    if is_reference(record):
        # of a metric of 0 no share can be lost, and the reference loses nothing of itself
        return Margin(-allowed or -share, None, ours.samples)
    if not ours.samples:
        return Margin(value, None, 0)
    a, b = _array(ours), _array(theirs)
    if _are_right_or_wrong(a, b):
        return _margin(value, len(a), _shifted(_paired(a, b), -allowed))
    sign = math.copysign(1.0, theirs.value)
    return _margin(value, len(a), _student(a - b * (1 + share * sign), _floor(a, b)))


def value_margin(record: Record, name: str, limit: float) -> Margin | None:
    metric = record.metrics.values.get(name) if record.metrics else None
    if metric is None:
        return None
    value = metric.value - limit
    if not metric.samples:
        return Margin(value, None, 0)
    scores = _array(metric)
    of = partial(_wilson, metric.value) if _are_right_or_wrong(scores) else _student(scores)
    return _margin(value, len(scores), _shifted(of, -limit))


def is_reference(record: Record) -> bool:
    """Return True for the cell that is the reference itself: eager in float32, or a pipeline as it was."""
    cell = record.cell
    return cell.label == ORIGINAL or (cell.configuration == "eager" and cell.precision == "fp32" and not cell.dynamic)


def mcnemar(lost: int, won: int) -> float:
    """Return how often builds that are as good as the reference would differ at least so much from it."""
    return min(1.0, 2 * binomial_tail(min(lost, won), lost + won))


def _array(metric: Metric) -> Scores:
    return np.array(metric.scores, dtype=np.float64)


def _are_right_or_wrong(*scores: Scores) -> bool:
    return all(bool(np.all((values == 0) | (values == 1))) for values in scores)


def _margin(value: float, samples: int, interval_of: IntervalOf) -> Margin:
    return Margin(value, interval_of(samples), samples, interval_of)


def _shifted(interval_of: IntervalOf, by: float) -> IntervalOf:
    def shifted(samples: int) -> Interval:
        ends = interval_of(samples)
        return Interval(low=ends.low + by, high=ends.high + by)

    return shifted


def _paired(a: Scores, b: Scores) -> IntervalOf:
    if _are_right_or_wrong(a, b):
        return partial(_tango, float(np.mean(a > b)), float(np.mean(a < b)))
    return _student(a - b, _floor(a, b))


def _student(values: Scores, floor: Callable[[int], float] = lambda samples: 0.0) -> IntervalOf:
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.inf

    def interval_of(samples: int) -> Interval:
        quantile = student_quantile(0.95, max(1, min(samples, 10_000) - 1))
        half = max(quantile * deviation / math.sqrt(samples), floor(samples))
        return Interval(low=mean - half, high=mean + half)

    return interval_of


def _floor(a: Scores, b: Scores) -> Callable[[int], float]:
    """Return the least half width: that of Tango's interval without a difference, over the range of all scores. Where
    hardly any sample differs, more of them may turn out to."""
    if int(np.sum(a != b)) >= FEWEST_DIFFERING:
        return lambda samples: 0.0
    reach = float(max(a.max(), b.max()) - min(a.min(), b.min()))
    return lambda samples: reach * Z**2 / (samples + Z**2)


def _wilson(share: float, samples: int) -> Interval:
    """Return Wilson's interval of a share (Journal of the American Statistical Association 22, 1927)."""
    middle = (share + Z**2 / (2 * samples)) / (1 + Z**2 / samples)
    half = Z * math.sqrt(share * (1 - share) / samples + Z**2 / (4 * samples**2)) / (1 + Z**2 / samples)
    return Interval(low=middle - half, high=middle + half)


def _tango(won: float, lost: float, samples: int) -> Interval:
    """Return the interval of a difference of paired shares: all differences that a score test does not reject. `won`
    and `lost` are shares of the samples that changed from wrong to right, and from right to wrong."""

    def is_rejected(difference: float) -> bool:
        """Look whether the counts are further from this difference than chance takes them."""
        b = -(won + lost) + (2 - won + lost) * difference
        c = -lost * difference * (1 - difference)
        q = (math.sqrt(max(0.0, b * b - 8 * c)) - b) / 4
        variance = max(0.0, (2 * q + difference * (1 - difference)) / samples)
        return (won - lost - difference) ** 2 > Z**2 * variance

    def end(outside: float) -> float:
        inside = won - lost
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if is_rejected(middle) else (middle, outside)
        return inside

    return Interval(low=end(-1.0), high=end(1.0))
