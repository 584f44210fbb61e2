"""Reduces samples to what the fit of a contest is made of. docs/method.md explains the method.

Calls of one burst share the state of the machine at that moment, and bursts of one process share its memory layout. An
interval that takes either as independent is too narrow. So each burst counts as its median, each process as the median
of its bursts, and intervals are over processes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bakeoff.judging.disturbance import Usual, given, usual_of, was_slowed
from bakeoff.judging.intervals import around, student_half_width, student_quantile
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Burst, Interval, Ratio

MANY_SAMPLES = 1000

Array = np.ndarray[Any, np.dtype[np.float64]]

MIN_UNDISTURBED_SHARE = 0.5
"""Disturbed rounds are left out of a pair's estimate only if at least this share of its rounds was undisturbed."""

FEWEST_ROUNDS = 4
"""Fewer undisturbed rounds decide nothing, of one process or between two cells: for three, Student's t is 4.3 standard
errors wide, and 3.2 for four."""

ERROR_PER_DEVIATION = math.sqrt(math.pi / 2) * 1.4826
"""The standard error of a median is this many median deviations, over the root of the number of values, if these are
normal. The first factor is the error of a median over that of a mean, the second the standard deviation over the median
deviation (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, JASA 88, 1993)."""

MAX_STANDARD_ERROR = 0.0125
"""If the standard error of a ratio is at most this, more rounds add little: equal processes differ by 0 to 1.4 %."""

LEAST_ERROR = 0.0025
"""The standard error of a log ratio of one process counts as this at least: a few rounds may agree by chance."""


PAGE_FAULT_NS = 1800.0
"""What a page from the kernel takes, with clearing it: 1.8 µs by a fit over 924 processes of `conv` on a Xeon, and 2 µs
on an AMD EPYC."""

MOST_FOR_PAGES = 0.5
"""At most this share of a call counts as getting pages. Three processes of each of two equal cells of `conv` were up to
1.9 times apart, though single ones were 3.3 times."""


def burst_ms(burst: Burst) -> float:
    """Return the median of a burst's calls in milliseconds, which represents the burst in every comparison."""
    samples_ns = burst.samples_ns  # a few are quicker without numpy, and many with it
    return float(np.median(samples_ns) if len(samples_ns) > MANY_SAMPLES else statistics.median(samples_ns)) / 1e6


def burst_medians_ms(bursts: Sequence[Burst]) -> list[float]:
    return [burst_ms(burst) for burst in bursts]


def process_medians_ms(bursts: Sequence[Burst]) -> dict[int, float]:
    """Return for each process the median over its bursts of the burst's median, in milliseconds."""
    by_process = grouped((burst for burst in bursts if burst.samples_ns), lambda burst: burst.process)
    return {process: float(np.median(burst_medians_ms(by_process[process]))) for process in sorted(by_process)}


@dataclass(frozen=True)
class Turn:
    """One burst with what a ratio needs of it."""

    ms: float  # without waiting, where that is known
    disturbed: bool
    reach: float = 0.0  # the logarithm of how many times shorter it may be without waiting
    quickest_ms: float = 0.0  # its shortest call; 0: not known
    for_pages: float = 0.0  # the share of its time that getting pages from the kernel may take


Turns = Mapping[tuple[int, int], Turn]
"""The turns of one process by group and round."""

Series = Mapping[int, Turns]
"""The turns of one cell by process."""


def series_of(bursts: Sequence[Burst]) -> Series:
    """Return the turns of one cell. Bursts without samples are left out."""
    usual = usual_of(bursts)
    series: dict[int, dict[tuple[int, int], Turn]] = {}
    for burst in bursts:
        if burst.samples_ns:
            series.setdefault(burst.process, {})[burst.group, burst.round] = turn_of(burst, usual)
    return series


def turn_of(burst: Burst, usual: Usual) -> Turn:
    """Return a burst by what it was given. `usual` is that of its cell."""
    latency, conditions = given(burst, usual), burst.conditions
    is_slowed = conditions is not None and was_slowed(conditions, usual)
    ms = burst_ms(burst) if latency.ms is None else latency.ms
    pages = (conditions and conditions.page_faults) or 0
    for_pages = min(pages * PAGE_FAULT_NS / sum(burst.samples_ns), MOST_FOR_PAGES)
    return Turn(ms, latency.is_waiting or is_slowed, latency.reach, min(ms, min(burst.samples_ns) / 1e6), for_pages)


def slower_by_pages(series: Series) -> float:
    """Return how many times shorter a cell's calls may be in a process whose C library keeps its memory. Equal
    processes differ in that, because it depends on where in memory their blocks happen to lie."""
    shares = [statistics.median(turn.for_pages for turn in turns.values()) for turns in series.values()]
    return 1 / (1 - max(shares, default=0.0))


def ratio_over_processes(logs: Sequence[float]) -> Ratio:
    """Return the geometric mean, with Student's t-interval, of one logarithm for each pair of processes."""
    value = math.exp(float(np.mean(logs)))
    return Ratio(value=value, ci95=around(value, student_half_width(logs)), paired=True, processes=len(logs))


def interval_at(ratio: Ratio, confidence: float) -> Interval:
    """Return the interval over processes for another confidence than 95 %. Raise ValueError if the ratio has no
    interval over processes."""
    if ratio.ci95 is None or ratio.processes < 2:
        raise ValueError("no interval over processes to take another confidence of")
    # for an unpaired ratio, Welch's approximation has at least as many degrees of freedom
    degrees = ratio.processes - 1
    half = math.log(ratio.ci95.high / ratio.ci95.low) / 2
    half *= student_quantile(confidence, degrees) / student_quantile(0.95, degrees)
    middle = math.sqrt(ratio.ci95.low * ratio.ci95.high)
    return Interval(low=middle * math.exp(-half), high=middle * math.exp(half))


def medians_and_errors(values: Array) -> tuple[Array, Array]:
    """Return the median of each row with its standard error, by the median deviation: a few outliers move neither. NaN
    stands for a missing value, and for the results of a row without values."""
    middles = _medians(values)
    deviations = _medians(np.abs(values - middles[:, None]))
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    return middles, ERROR_PER_DEVIATION * deviations / np.sqrt(np.maximum(counts, 1))


def _medians(values: Array) -> Array:
    """Return the median of each row. It does what numpy.nanmedian does, in a hundredth of the time."""
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    in_order = np.sort(values, axis=1)  # NaN comes last
    rows = np.arange(len(values))
    medians: Array = (in_order[rows, np.maximum(counts - 1, 0) // 2] + in_order[rows, counts // 2]) / 2
    return medians


def undisturbed_rounds(bursts: Sequence[Burst]) -> int:
    return sum(not turn.disturbed for turns in series_of(bursts).values() for turn in turns.values())


def steadiest(cells: Sequence[Sequence[Burst]], preferred: int) -> int:
    """Return the place of the cell with the smallest standard error over its bursts, in logarithms. The `preferred` one
    is taken if its error is at most `MAX_STANDARD_ERROR`, or while no cell has bursts."""
    medians_by_place = {
        place: burst_medians_ms([burst for burst in bursts if burst.samples_ns]) for place, bursts in enumerate(cells)
    }
    errors = {
        place: float(medians_and_errors(np.log([medians_ms]))[1][0])
        for place, medians_ms in medians_by_place.items()
        if medians_ms
    }
    if not errors or errors.get(preferred, math.inf) <= MAX_STANDARD_ERROR:
        return preferred
    return min(errors, key=lambda place: errors[place])


def fastest(cells: Sequence[Sequence[Burst]]) -> int:
    """Return the place of the cell whose median burst is the shortest. Raises ValueError if no cell has samples."""
    by_place = {place: [burst for burst in bursts if burst.samples_ns] for place, bursts in enumerate(cells)}
    medians_ms = {place: float(np.median(burst_medians_ms(bursts))) for place, bursts in by_place.items() if bursts}
    return min(medians_ms, key=lambda place: medians_ms[place])


def shared_logs(fast: Mapping[tuple[int, int], Turn], slow: Mapping[tuple[int, int], Turn]) -> list[float]:
    """Return the logarithms of slow / fast in common rounds. Disturbed rounds are left out if enough others remain."""
    return [math.log(slow[key].ms / fast[key].ms) for key in used_rounds(fast, slow)]


def used_rounds(
    one: Mapping[tuple[int, int], Turn], other: Mapping[tuple[int, int], Turn]
) -> Sequence[tuple[int, int]]:
    """Return the common rounds that a ratio is taken over: undisturbed ones, or else those that waited least."""
    shared, calm = common_rounds(one, other)
    if not shared or are_enough(len(calm), len(shared)):
        return calm
    reaches = [one[key].reach + other[key].reach for key in shared]
    (most,) = most_reach(np.array([reaches]))
    return [key for key, reach in zip(shared, reaches, strict=True) if reach <= most]


def most_reach(reaches: Array) -> Array:
    """Return for each row how far waiting reaches in rounds that still count: nowhere, or as in the four best ones. NaN
    stands for a round that is missing."""
    fewest = min(FEWEST_ROUNDS, reaches.shape[1])
    most: Array = np.nan_to_num(np.sort(reaches, axis=1)[:, fewest - 1], nan=math.inf)
    return most


def undisturbed(series: Series) -> Series:
    """Return the turns that nothing disturbed, of the processes that have enough of them."""
    calm = {
        process: {key: turn for key, turn in turns.items() if not turn.disturbed} for process, turns in series.items()
    }
    return {process: turns for process, turns in calm.items() if len(turns) >= FEWEST_ROUNDS}


def compares_disturbed_rounds(series: Series, other: Series) -> bool:
    """Return True if two cells are compared in disturbed rounds, because in some process too few others remain."""
    pairs = [(series[process], other[process]) for process in series.keys() & other.keys()]
    return any(one[key].disturbed or its[key].disturbed for one, its in pairs for key in used_rounds(one, its))


def common_rounds(
    one: Mapping[tuple[int, int], Turn], other: Mapping[tuple[int, int], Turn]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    shared = sorted(one.keys() & other.keys())
    return shared, [key for key in shared if not one[key].disturbed and not other[key].disturbed]


def are_enough(calm: Any, shared: Any) -> Any:
    """Return True if a ratio may be taken over `calm` undisturbed rounds of `shared` ones. Arrays give an array."""
    return calm >= np.maximum(FEWEST_ROUNDS, MIN_UNDISTURBED_SHARE * shared)
