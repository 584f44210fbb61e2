"""Numbers from samples: pure functions. The methods and where they come from are told in docs/method.md.

Calls of one burst share the state of the machine at that moment, and bursts of one process share its memory layout: an
interval that takes either for independent is too narrow. Within a burst the median is taken, over the bursts of a
process the median again; intervals are over processes.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

from judging.disturbance import disturbed, usual_of
from records.schema import Burst, Interval, Latency, Ratio

PERCENTILE_CONFIDENCE = 0.99

CALM_SHARE = 0.5
"""Disturbed rounds are left out of a pair's estimate only if at least this part of them was undisturbed."""

FEWEST_CALM_ROUNDS = 4
"""And at least so many."""

ERROR_PER_DEVIATION = math.sqrt(math.pi / 2) * 1.4826
"""Times the median deviation, over the root of the number of values: the standard error of the median of normal ones.
The first factor is a median's error over a mean's, the second the standard deviation over the median one (Rousseeuw and
Croux, Alternatives to the Median Absolute Deviation, JASA 88, 1993)."""

PRECISE_ENOUGH = 0.0125
"""Standard error of a ratio from which on more rounds tell little beside what equal processes differ by: 0 to 1.4 % for
pairs of the transformer on two cores, by the covariance of even and odd rounds (docs/method.md)."""

PRECISE_SHARE = 1 / 8
"""Of a difference: with an error of it, three processes tell that there is one."""


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval of the median from order statistics, or None where the sample is too small for it.

    The k-th smallest and the k-th largest value enclose the median with probability 1 - 2·P(Binomial(n, 1/2) < k)
    (David & Nagaraja, Order Statistics, 3rd ed., §7.1); the largest k that keeps `confidence` is used. 95 % needs six.
    """
    n = len(values)
    k = 0
    while 2 * special.bdtr(k, n, 0.5) <= 1 - confidence:
        k += 1
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
    while special.bdtr(1, high, 1 - quantile) > 1 - confidence:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if special.bdtr(1, middle, 1 - quantile) > 1 - confidence:
            low = middle + 1
        else:
            high = middle
    return low


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """The empirical quantile, or None where the sample cannot hold it (`calls_needed`)."""
    if len(values) < calls_needed(quantile):
        return None
    return float(np.quantile(np.asarray(values, dtype=np.float64), quantile))


def burst_ms(burst: Burst) -> float:
    """What stands for a burst wherever bursts are compared: the median of its calls, in milliseconds."""
    return float(np.median(burst.samples_ns)) / 1e6


def burst_medians_ms(bursts: Sequence[Burst]) -> list[float]:
    """Median latency of each burst in milliseconds, in the order given."""
    return [float(np.median(burst.samples_ns)) / 1e6 for burst in bursts]


def process_medians_ms(bursts: Sequence[Burst]) -> dict[int, float]:
    """By process, the median over its bursts of the burst's median, in milliseconds."""
    by_process: dict[int, list[Burst]] = {}
    for burst in bursts:
        if burst.samples_ns:
            by_process.setdefault(burst.process, []).append(burst)
    return {process: float(np.median(burst_medians_ms(taken))) for process, taken in sorted(by_process.items())}


def summarise(bursts: Sequence[Burst]) -> Latency | None:
    """Summary of all bursts of a cell, or None where there is no sample."""
    filled = [burst for burst in bursts if burst.samples_ns]
    if not filled:
        return None
    calls_ms = np.concatenate([np.asarray(burst.samples_ns, dtype=np.float64) for burst in filled]) / 1e6
    medians_ms = list(process_medians_ms(filled).values())
    return Latency(
        calls=len(calls_ms),
        median_ms=float(np.median(medians_ms)),
        median_ci95_ms=_latency_interval(medians_ms)
        if len(medians_ms) > 1
        else median_interval(burst_medians_ms(filled)),
        mean_ms=float(calls_ms.mean()),
        std_ms=float(calls_ms.std(ddof=1)) if len(calls_ms) > 1 else 0.0,
        min_ms=float(calls_ms.min()),
        p90_ms=percentile(calls_ms.tolist(), 0.90),
        p95_ms=percentile(calls_ms.tolist(), 0.95),
        p99_ms=percentile(calls_ms.tolist(), 0.99),
        p999_ms=percentile(calls_ms.tolist(), 0.999),
        processes=len(medians_ms),
        process_spread=max(medians_ms) / min(medians_ms) - 1 if len(medians_ms) > 1 else None,
    )


@dataclass(frozen=True)
class Turn:
    """A burst, reduced to what a ratio needs of it."""

    ms: float
    disturbed: bool


Series = Mapping[int, Mapping[tuple[int, int], Turn]]
"""The turns of one cell: by process, then by (group, round)."""


def series_of(bursts: Sequence[Burst]) -> Series:
    """One cell's bursts made ready to be compared; those without samples are left out."""
    usual = usual_of(bursts)
    series: dict[int, dict[tuple[int, int], Turn]] = {}
    for burst in bursts:
        if burst.samples_ns:
            turn = Turn(burst_ms(burst), disturbed(burst, usual))
            series.setdefault(burst.process, {})[burst.group, burst.round] = turn
    return series


def speedup(fast: Sequence[Burst], slow: Sequence[Burst], baseline: Sequence[Burst] | None = None) -> Ratio:
    """How many times faster `fast` is than `slow`; `ratio_of` their series. Raises ValueError where either is empty."""
    return ratio_of(series_of(fast), series_of(slow), series_of(baseline) if baseline else None)


def ratio_of(fast: Series, slow: Series, baseline: Series | None = None) -> Ratio:
    """How many times faster `fast` is than `slow`.

    Each round that both were measured in gives one ratio, so that a drift of the machine's speed divides out. A pair of
    processes that lived together is worth the median of its rounds, which a few disturbed ones cannot move; the
    interval is Student's t over the logarithms of those. Two that shared no round are bridged by `baseline`, where it
    shared some with each. A single pair has its interval from order statistics over rounds, and `processes` is 1.

    Where no two processes can be paired at all, the processes' medians are compared by Welch's t on logarithms, and
    `paired` is False: drift between the two remains. Raises ValueError where either series is empty.
    """
    if not fast or not slow:
        raise ValueError("a ratio needs at least one burst on either side")
    together = sorted(fast.keys() & slow.keys())
    paired = [logs for process in together if (logs := _shared_logs(fast[process], slow[process]))]
    bridged = _bridged_logs(fast, slow, baseline or {})
    if len(paired) == 1 and not bridged:
        ratios = [math.exp(value) for value in paired[0]]
        return Ratio(value=float(np.median(ratios)), ci95=median_interval(ratios), paired=True)
    estimates = [*(float(np.median(logs)) for logs in paired), *bridged]
    return ratio_over_processes(estimates) if estimates else _unpaired(fast, slow)


def ratio_over_processes(logs: Sequence[float]) -> Ratio:
    """The ratio whose logarithm each pair of processes has estimated once: geometric mean, Student's t interval."""
    interval = _student(logs)
    return Ratio(value=math.exp(float(np.mean(logs))), ci95=_exp(interval), paired=True, processes=len(logs))


def interval_at(ratio: Ratio, confidence: float) -> Interval:
    """The interval over processes of another confidence than 95 %, from Student's t with `ratio.processes` - 1 degrees
    of freedom (of an unpaired ratio that is the fewest that Welch's approximation can come to).

    Raises ValueError where the ratio has no interval over processes.
    """
    if ratio.ci95 is None or ratio.processes < 2:
        raise ValueError("no interval over processes to take another confidence of")
    degrees = ratio.processes - 1
    half = math.log(ratio.ci95.high / ratio.ci95.low) / 2
    half *= student_quantile(confidence, degrees) / student_quantile(0.95, degrees)
    middle = math.sqrt(ratio.ci95.low * ratio.ci95.high)
    return Interval(low=middle * math.exp(-half), high=middle * math.exp(half))


@functools.cache
def student_quantile(confidence: float, degrees: int) -> float:
    """Half the width, in standard errors, of a two-sided t-interval."""
    return float(special.stdtrit(degrees, (1 + confidence) / 2))


def undisturbed_rounds(cells: Sequence[Sequence[Burst]]) -> int:
    """How many rounds were undisturbed for the cell that was disturbed most. The bursts are cell by cell.

    Not how many were so for all of them: among many cells some burst of every round is disturbed, and a pair of cells
    needs only its own two.
    """
    return min(
        (
            sum(not turn.disturbed for turns in series_of(bursts).values() for turn in turns.values())
            for bursts in cells
        ),
        default=0,
    )


def are_precise(cells: Sequence[Sequence[Burst]], bridge: int | None = None) -> bool:
    """Whether rounds tell how each cell compares with the fastest: the bursts are cell by cell, of one process each.

    They do where the standard error of the median over rounds is at most `PRECISE_ENOUGH`, or an eighth of the
    difference. What processes differ by comes on top of it, and no number of rounds tells it. With `bridge` each is
    compared with the cell of that place instead, and no difference excuses an error, which is in other ratios, too.

    Rounds that are added until they seem precise stop a little early: at errors a fifth larger than these, if one looks
    after each (drawn, normal rounds).
    """
    turns = [next(iter(series.values()), {}) for series in map(series_of, cells)]
    filled = [each for each in turns if each]
    if not filled or (bridge is not None and not turns[bridge]):
        return True
    fastest = min(filled, key=lambda each: float(np.median([turn.ms for turn in each.values()])))
    against = fastest if bridge is None else turns[bridge]
    for other in filled:
        logs = _shared_logs(against, other)
        if other is against or not logs:
            continue
        middle = float(np.median(logs))
        deviation = float(np.median(np.abs(np.asarray(logs) - middle)))
        error = ERROR_PER_DEVIATION * deviation / math.sqrt(len(logs))
        if error > max(PRECISE_ENOUGH, 0.0 if bridge is not None else abs(middle) * PRECISE_SHARE):
            return False
    return True


def _shared_logs(fast: Mapping[tuple[int, int], Turn], slow: Mapping[tuple[int, int], Turn]) -> list[float]:
    """Logarithms of slow / fast in the rounds that two processes shared; without the disturbed, if enough are left."""
    shared = sorted(fast.keys() & slow.keys())
    calm = [key for key in shared if not fast[key].disturbed and not slow[key].disturbed]
    used = calm if len(calm) >= max(FEWEST_CALM_ROUNDS, CALM_SHARE * len(shared)) else shared
    return [math.log(slow[key].ms / fast[key].ms) for key in used]


def _bridged_logs(fast: Series, slow: Series, baseline: Series) -> list[float]:
    """One logarithm of slow / fast for each pair of processes that shared no round, each against the baseline."""
    found = []
    for process in sorted(fast.keys() & slow.keys() & baseline.keys()):
        if fast[process].keys() & slow[process].keys():
            continue
        over_fast = _shared_logs(fast[process], baseline[process])
        over_slow = _shared_logs(slow[process], baseline[process])
        if over_fast and over_slow:
            found.append(float(np.median(over_fast) - np.median(over_slow)))
    return found


def _unpaired(fast: Series, slow: Series) -> Ratio:
    """From medians of processes, or of the rounds of one where either side has but one."""
    processes = min(len(fast), len(slow))
    fast_logs, slow_logs = (_levels(series, over_rounds=processes == 1) for series in (fast, slow))
    ratio = math.exp(float(np.median(slow_logs) - np.median(fast_logs)))
    return Ratio(value=ratio, ci95=_exp(_welch(slow_logs, fast_logs)), paired=False, processes=processes)


def _levels(series: Series, over_rounds: bool) -> list[float]:
    logs = [[math.log(turn.ms) for turn in turns.values()] for turns in series.values()]
    return [value for each in logs for value in each] if over_rounds else [float(np.median(each)) for each in logs]


def _latency_interval(medians_ms: Sequence[float]) -> Interval | None:
    """Student's t on logarithms over processes, which holds the median of them, too, where they are skewed."""
    interval = _exp(_student([math.log(value) for value in medians_ms]))
    middle = float(np.median(medians_ms))
    return interval and Interval(low=min(interval.low, middle), high=max(interval.high, middle))


def _student(values: Sequence[float]) -> Interval | None:
    """The 95 % t-interval of the mean, or None for fewer than two values."""
    if len(values) < 2:
        return None
    half = student_quantile(0.95, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return Interval(low=mean - half, high=mean + half)


def _welch(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """`welch_interval`, of no width where no side varies; None below three values on either side."""
    if len(a) < 3 or len(b) < 3:
        return None
    if np.var(a) == 0 and np.var(b) == 0:
        difference = float(np.mean(a) - np.mean(b))
        return Interval(low=difference, high=difference)
    return welch_interval(a, b)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Welch's 95 % t-interval of mean(a) - mean(b). Two values or more on either side; on one of them not all equal.

    Source: Welch, The Generalization of Student's Problem, Biometrika 34, 1947.
    """
    # half a second to import, for what only unpaired values need
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

    with warnings.catch_warnings():
        # values that are equal to the last bit on one side: the other side's variance is the interval's
        warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Interval(low=float(interval.low), high=float(interval.high))


def _exp(interval: Interval | None) -> Interval | None:
    return interval and Interval(low=math.exp(interval.low), high=math.exp(interval.high))
