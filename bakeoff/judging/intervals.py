"""Intervals of medians, means and percentiles, with the sources of their methods."""

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from bakeoff.records.schema import Interval

PERCENTILE_CONFIDENCE = 0.99

Array = np.ndarray[Any, np.dtype[np.float64]]


def special_functions() -> ModuleType:
    """Return scipy.special. The first import takes up to half a second."""
    from scipy import special  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

    return special  # type: ignore[no-any-return,unused-ignore]


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the median from order statistics, or None below six values. Source: David & Nagaraja,
    Order Statistics, 3rd ed., §7.1."""
    n = len(values)
    k = 0
    # the k-th smallest and largest enclose the median with probability 1 - 2·P(Binomial(n, 1/2) < k)
    while 2 * special_functions().bdtr(k, n, 0.5) <= 0.05:
        k += 1
    if k < 1:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return Interval(low=float(ordered[k - 1]), high=float(ordered[n - k]))


@functools.cache
def calls_needed(quantile: float) -> int:
    """Return the smallest sample that can hold `quantile`: 64 calls for p90, 130 for p95, 662 for p99, 6,636 for p99.9.

    With a probability of 99 %, at least two calls lie above the true quantile. The bound is binomial:
    q^n + n·q^(n-1)·(1-q) <= 1 %.
    """
    return math.ceil(float(special_functions().bdtrin(1, 1 - PERCENTILE_CONFIDENCE, 1 - quantile)))


def percentile(values: Sequence[float] | Array, quantile: float) -> float | None:
    """Return the empirical quantile, or None if the sample is smaller than `calls_needed`."""
    if len(values) < calls_needed(quantile):
        return None
    return float(np.quantile(np.asarray(values, dtype=np.float64), quantile))


def binomial_tail(successes: int, trials: int) -> float:
    """Return how often a fair coin shows heads at most so many times."""
    return float(special_functions().bdtr(successes, trials, 0.5)) if trials else 1.0


@functools.cache
def student_quantile(confidence: float, degrees: int) -> float:
    """Return half the width of a two-sided t-interval, in standard errors."""
    return float(special_functions().stdtrit(degrees, (1 + confidence) / 2))


def student_half_width(logs: Sequence[float]) -> float | None:
    """Return half the width of the 95 % t-interval of the mean, or None for fewer than two values."""
    if len(logs) < 2:
        return None
    return student_quantile(0.95, len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))


def welch_half_width(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return half the width of Welch's 95 % t-interval of mean(a) - mean(b), or None below two values on either side.
    Source: Welch, The Generalization of Student's Problem, Biometrika 34, 1947."""
    if len(a) < 2 or len(b) < 2:
        return None
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        return 0.0
    # scipy.stats takes half a second to import, and only unpaired values need it
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

    with warnings.catch_warnings():
        # if all values on one side are equal to the last bit, the interval is that of the other side's variance
        warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return float(interval.high - interval.low) / 2


def around(value: float, half_width: float | None) -> Interval | None:
    """Return the interval around a value with this half width in its logarithm; None without one."""
    if half_width is None:
        return None
    return Interval(low=value * math.exp(-half_width), high=value * math.exp(half_width))


def ends(value: float, interval: Interval | None) -> tuple[float, float]:
    return (interval.low, interval.high) if interval else (value, value)


def half_width_of(interval: Interval | None) -> float | None:
    return math.log(interval.high / interval.low) / 2 if interval and interval.low > 0 else None


def interval_of_sum(value: float, parts: Sequence[tuple[float, float, Interval | None]]) -> Interval | None:
    """Return the interval of a sum of independent parts (weight, value, interval), or None where a part has no
    interval. Distances to the ends of the intervals add up as squares."""
    reaches = [(weight * (part - ends.low), weight * (ends.high - part)) for weight, part, ends in parts if ends]
    if len(reaches) < len(parts):
        return None
    below, above = (math.hypot(*side) for side in zip(*reaches, strict=True))
    return Interval(low=max(value - below, 1e-9), high=value + above)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of these spans lasted. They may overlap."""
    total, reached = 0.0, -math.inf
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total


def student_tail(half_widths: float, degrees: int) -> float:
    """Return the two-sided p-value of a distance from the middle, in half widths of the 95 % t-interval."""
    return float(2 * special_functions().stdtr(degrees, -half_widths * student_quantile(0.95, degrees)))
