"""Estimates latencies and ratios from samples. docs/method.md explains the method.

Calls of one burst share the state of the machine at that moment, and bursts of one process share its memory layout. An
interval that takes either as independent is too narrow. So each burst counts as its median, each process as the median
of its bursts, and intervals are over processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from judging.disturbance import disturbed, usual_of
from judging.intervals import median_interval, percentile, student_interval, student_quantile, welch_interval
from records.schema import Burst, Interval, Latency, Ratio

MIN_UNDISTURBED_SHARE = 0.5
"""Disturbed rounds are left out of a pair's estimate only if at least this share of its rounds was undisturbed."""

MIN_UNDISTURBED_ROUNDS = 4

ERROR_PER_DEVIATION = math.sqrt(math.pi / 2) * 1.4826
"""The standard error of a median is this many median deviations, over the root of the number of values, if these are
normal. The first factor is the error of a median over that of a mean, the second the standard deviation over the median
deviation (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, JASA 88, 1993)."""

MAX_STANDARD_ERROR = 0.0125
"""If the standard error of a ratio is at most this, more rounds add little: equal processes differ by 0 to 1.4 %."""

MAX_STANDARD_ERROR_SHARE = 1 / 8
"""If the standard error is at most this share of a difference, three processes can show the difference."""


def burst_ms(burst: Burst) -> float:
    """Return the median of a burst's calls in milliseconds, which represents the burst in every comparison."""
    return float(np.median(burst.samples_ns)) / 1e6


def burst_medians_ms(bursts: Sequence[Burst]) -> list[float]:
    """Return the median latency of each burst in milliseconds."""
    return [burst_ms(burst) for burst in bursts]


def process_medians_ms(bursts: Sequence[Burst]) -> dict[int, float]:
    """Return for each process the median over its bursts of the burst's median, in milliseconds."""
    by_process: dict[int, list[Burst]] = {}
    for burst in bursts:
        if burst.samples_ns:
            by_process.setdefault(burst.process, []).append(burst)
    return {process: float(np.median(burst_medians_ms(taken))) for process, taken in sorted(by_process.items())}


def summarise(bursts: Sequence[Burst]) -> Latency | None:
    """Return the summary of all bursts of a cell, or None without a sample."""
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
    """One burst with what a ratio needs of it."""

    ms: float
    disturbed: bool


Series = Mapping[int, Mapping[tuple[int, int], Turn]]
"""The turns of one cell by process, then by group and round."""


def series_of(bursts: Sequence[Burst]) -> Series:
    """Return the turns of one cell. Bursts without samples are left out."""
    usual = usual_of(bursts)
    series: dict[int, dict[tuple[int, int], Turn]] = {}
    for burst in bursts:
        if burst.samples_ns:
            turn = Turn(burst_ms(burst), disturbed(burst, usual))
            series.setdefault(burst.process, {})[burst.group, burst.round] = turn
    return series


def speedup(fast: Sequence[Burst], slow: Sequence[Burst], baseline: Sequence[Burst] | None = None) -> Ratio:
    """Return how many times faster `fast` is than `slow`, as `ratio_of` does. Raises ValueError if one is empty."""
    return ratio_of(series_of(fast), series_of(slow), series_of(baseline) if baseline else None)


def ratio_of(fast: Series, slow: Series, baseline: Series | None = None) -> Ratio:
    """Return how many times faster `fast` is than `slow`.

    Each round with both cells gives one ratio, so that a drift of the machine's speed divides out. A pair of processes
    that were alive together counts as the median of its rounds, which a few disturbed rounds cannot move. The interval
    is Student's t over the logarithms of these medians. Two processes without a common round are compared through
    `baseline`, if it shared rounds with each. A single pair has an interval over its rounds, and `processes` is 1.

    If no two processes can be paired, their medians are compared by Welch's t on logarithms, and `paired` is False: the
    ratio contains the drift between the two. Raises ValueError if a series is empty.
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
    """Return the geometric mean, with Student's t-interval, of one logarithm for each pair of processes."""
    interval = student_interval(logs)
    return Ratio(value=math.exp(float(np.mean(logs))), ci95=_exp(interval), paired=True, processes=len(logs))


def interval_at(ratio: Ratio, confidence: float) -> Interval:
    """Return the interval over processes for another confidence than 95 %.

    Student's t has `ratio.processes` - 1 degrees of freedom. For an unpaired ratio, Welch's approximation has at least
    as many. Raises ValueError if the ratio has no interval over processes.
    """
    if ratio.ci95 is None or ratio.processes < 2:
        raise ValueError("no interval over processes to take another confidence of")
    degrees = ratio.processes - 1
    half = math.log(ratio.ci95.high / ratio.ci95.low) / 2
    half *= student_quantile(confidence, degrees) / student_quantile(0.95, degrees)
    middle = math.sqrt(ratio.ci95.low * ratio.ci95.high)
    return Interval(low=middle * math.exp(-half), high=middle * math.exp(half))


def undisturbed_rounds(cells: Sequence[Sequence[Burst]]) -> int:
    """Return how many rounds were undisturbed for the cell that was disturbed most. `cells` holds the bursts of each.

    Rounds that were undisturbed for all cells do not matter: a pair of cells needs only its own two bursts.
    """
    return min(
        (
            sum(not turn.disturbed for turns in series_of(bursts).values() for turn in turns.values())
            for bursts in cells
        ),
        default=0,
    )


def are_precise(cells: Sequence[Sequence[Burst]], bridge: int | None = None) -> bool:
    """Return True if the rounds so far tell how each cell compares with the fastest. Each has bursts of one process.

    The standard error of the median over rounds must be at most `MAX_STANDARD_ERROR`, or an eighth of the difference.
    What processes differ by comes on top, and no number of rounds shows it. With `bridge`, each cell is compared with
    the cell at that place instead, and a large difference does not help: the error is in other ratios, too.

    Looking after each round stops a little early, at errors about a fifth larger than these.
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
        if error > max(MAX_STANDARD_ERROR, 0.0 if bridge is not None else abs(middle) * MAX_STANDARD_ERROR_SHARE):
            return False
    return True


def _shared_logs(fast: Mapping[tuple[int, int], Turn], slow: Mapping[tuple[int, int], Turn]) -> list[float]:
    """Return the logarithms of slow / fast in common rounds. Disturbed rounds are left out if enough others remain."""
    shared = sorted(fast.keys() & slow.keys())
    calm = [key for key in shared if not fast[key].disturbed and not slow[key].disturbed]
    used = calm if len(calm) >= max(MIN_UNDISTURBED_ROUNDS, MIN_UNDISTURBED_SHARE * len(shared)) else shared
    return [math.log(slow[key].ms / fast[key].ms) for key in used]


def _bridged_logs(fast: Series, slow: Series, baseline: Series) -> list[float]:
    """Return one logarithm of slow / fast, through the baseline, for each pair of processes without a common round."""
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
    """Return the ratio of the processes' medians, or of single rounds if one side has only one process."""
    processes = min(len(fast), len(slow))
    fast_logs, slow_logs = (_levels(series, over_rounds=processes == 1) for series in (fast, slow))
    ratio = math.exp(float(np.median(slow_logs) - np.median(fast_logs)))
    return Ratio(value=ratio, ci95=_exp(_welch(slow_logs, fast_logs)), paired=False, processes=processes)


def _levels(series: Series, over_rounds: bool) -> list[float]:
    logs = [[math.log(turn.ms) for turn in turns.values()] for turns in series.values()]
    return [value for each in logs for value in each] if over_rounds else [float(np.median(each)) for each in logs]


def _latency_interval(medians_ms: Sequence[float]) -> Interval | None:
    """Return Student's t-interval on logarithms, widened so that it contains the median even of skewed values."""
    interval = _exp(student_interval([math.log(value) for value in medians_ms]))
    middle = float(np.median(medians_ms))
    return interval and Interval(low=min(interval.low, middle), high=max(interval.high, middle))


def _welch(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Return `welch_interval`, with no width if no side varies. None below three values on either side."""
    if len(a) < 3 or len(b) < 3:
        return None
    if np.var(a) == 0 and np.var(b) == 0:
        difference = float(np.mean(a) - np.mean(b))
        return Interval(low=difference, high=difference)
    return welch_interval(a, b)


def _exp(interval: Interval | None) -> Interval | None:
    return interval and Interval(low=math.exp(interval.low), high=math.exp(interval.high))
