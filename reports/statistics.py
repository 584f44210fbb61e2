"""Numbers from samples: pure functions. The methods and where they come from are told in docs/method.md.

The unit of evidence is the burst, not the call: calls of one burst share the state of the machine at that moment, so
an interval that takes them for independent is far too narrow. Within a burst the median is taken; intervals are over
bursts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

from reports.schema import Burst, Interval, Latency, Ratio

PERCENTILE_CONFIDENCE = 0.99


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval of the median from order statistics, or None where the sample is too small for it.

    The k-th smallest and the k-th largest value enclose the median with probability 1 - 2·P(Binomial(n, 1/2) < k)
    (David & Nagaraja, Order Statistics, 3rd ed., §7.1); the largest k that keeps `confidence` is used. 95 % needs six.
    """
    n = len(values)
    k = int(stats.binom.ppf((1 - confidence) / 2, n, 0.5))
    while k > 0 and 2 * stats.binom.cdf(k - 1, n, 0.5) > 1 - confidence:
        k -= 1
    if k < 1:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return Interval(low=float(ordered[k - 1]), high=float(ordered[n - k]))


def calls_needed(quantile: float, confidence: float = PERCENTILE_CONFIDENCE) -> int:
    """Smallest sample that holds `quantile`: with probability `confidence` at least two calls lie above the true one.

    Binomial bound: q^n + n·q^(n-1)·(1-q) <= 1 - confidence. 64 calls for p90, 130 for p95, 662 for p99, 6,636 for
    p99.9.
    """
    low, high = 2, 4
    while stats.binom.cdf(1, high, 1 - quantile) > 1 - confidence:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if stats.binom.cdf(1, middle, 1 - quantile) > 1 - confidence:
            low = middle + 1
        else:
            high = middle
    return low


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """The empirical quantile, or None where the sample cannot hold it (`calls_needed`)."""
    if len(values) < calls_needed(quantile):
        return None
    return float(np.quantile(np.asarray(values, dtype=np.float64), quantile))


def burst_medians_ms(bursts: Sequence[Burst]) -> list[float]:
    """Median latency of each burst in milliseconds, in the order given."""
    return [float(np.median(burst.samples_ns)) / 1e6 for burst in bursts]


def summarise(bursts: Sequence[Burst]) -> Latency | None:
    """Summary of all bursts of a cell, or None where there is no sample."""
    filled = [burst for burst in bursts if burst.samples_ns]
    if not filled:
        return None
    calls_ms = np.concatenate([np.asarray(burst.samples_ns, dtype=np.float64) for burst in filled]) / 1e6
    medians_ms = burst_medians_ms(filled)
    return Latency(
        calls=len(calls_ms),
        median_ms=float(np.median(medians_ms)),
        median_ci95_ms=median_interval(medians_ms),
        mean_ms=float(calls_ms.mean()),
        std_ms=float(calls_ms.std(ddof=1)) if len(calls_ms) > 1 else 0.0,
        min_ms=float(calls_ms.min()),
        p90_ms=percentile(calls_ms.tolist(), 0.90),
        p95_ms=percentile(calls_ms.tolist(), 0.95),
        p99_ms=percentile(calls_ms.tolist(), 0.99),
        p999_ms=percentile(calls_ms.tolist(), 0.999),
    )


def speedup(fast: Sequence[Burst], slow: Sequence[Burst]) -> Ratio:
    """How many times faster `fast` is than `slow`.

    Where both were measured in the same rounds, each round gives one ratio of burst medians, so that a drift of the
    machine's speed divides out; the estimate is the rounds' median ratio with its interval from order statistics, which
    a few disturbed rounds cannot move. Otherwise the medians are divided, the logarithms' variances added (Welch), and
    `paired` is False: drift between the two remains. Raises ValueError where either has no bursts.
    """
    fast_by_round = _medians_by_round(fast)
    slow_by_round = _medians_by_round(slow)
    if not fast_by_round or not slow_by_round:
        raise ValueError("a ratio needs at least one burst on either side")
    shared = sorted(fast_by_round.keys() & slow_by_round.keys())
    if shared:
        ratios = [slow_by_round[key] / fast_by_round[key] for key in shared]
        return Ratio(value=float(np.median(ratios)), ci95=median_interval(ratios), paired=True)
    fast_logs = [math.log(value) for value in fast_by_round.values()]
    slow_logs = [math.log(value) for value in slow_by_round.values()]
    ratio = float(np.median(list(slow_by_round.values())) / np.median(list(fast_by_round.values())))
    return Ratio(value=ratio, ci95=_exp(_welch(slow_logs, fast_logs)), paired=False)


def break_even_calls(build_s: float, baseline_build_s: float, median_ms: float, baseline_ms: float) -> int | None:
    """Number of calls after which the total time (building and calls) falls below the baseline's; None: never.

    0 where building costs no more than the baseline's and calls are no slower.
    """
    extra_s = build_s - baseline_build_s
    saved_s = (baseline_ms - median_ms) / 1e3
    if extra_s <= 0 and saved_s >= 0:
        return 0
    if saved_s <= 0:
        return None
    return math.ceil(extra_s / saved_s)


def _medians_by_round(bursts: Sequence[Burst]) -> dict[tuple[int, int], float]:
    filled = [burst for burst in bursts if burst.samples_ns]
    return dict(zip([(burst.group, burst.round) for burst in filled], burst_medians_ms(filled), strict=True))


def _welch(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's t-interval of mean(a) - mean(b), or None below three values on either side."""
    if len(a) < 3 or len(b) < 3:
        return None
    if np.var(a) == 0 and np.var(b) == 0:
        difference = float(np.mean(a) - np.mean(b))
        return Interval(low=difference, high=difference)
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Interval(low=float(interval.low), high=float(interval.high))


def _exp(interval: Interval | None) -> Interval | None:
    return interval and Interval(low=math.exp(interval.low), high=math.exp(interval.high))
