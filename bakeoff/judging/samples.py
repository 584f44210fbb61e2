"""Reduces the single calls of a cell to what charts and titles show of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bakeoff.judging.disturbance import usual_of
from bakeoff.judging.estimate import burst_ms, turn_of
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Record

Values = np.ndarray[Any, np.dtype[np.float64]]

LOG_FROM_RATIO = 5.0
"""Distributions stand on a logarithmic axis if their slowest calls take more than this many times the fastest."""

SHOWN_QUANTILES = (0.005, 0.995)
"""The ends of the shown part of a distribution."""

MAX_TURNS = 60
"""If a process has more bursts, a turn is the median of several neighbours."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of one cell's calls: `heights` of at most 1 over latencies, empty if all calls are equal."""

    calls: int
    median_ms: float  # the cell's fitted latency, which every output shows
    low_ms: float
    high_ms: float
    middles_ms: tuple[float, ...]
    heights: tuple[float, ...]


@dataclass(frozen=True)
class Distributions:
    """The distributions of the cells of one contest, in bins that are even on a common axis."""

    by_label: Mapping[str, Distribution]
    is_log: bool


@dataclass(frozen=True)
class Deviation:
    """How far one burst of a process, or several that follow each other, was from the latency of the cell."""

    at_s: float
    share: float  # its median over the latency of the cell, minus 1
    disturbed: bool


def distributions_of(records: Sequence[Record]) -> Distributions:
    samples: dict[str, Values] = {}
    for record in records:
        if calls_ns := [burst.samples_ns for burst in record.bursts if burst.samples_ns]:
            samples[record.cell.label] = np.concatenate(calls_ns) / 1e6
    medians_ms = {record.cell.label: record.latency.median_ms for record in records if record.latency}
    ends: dict[str, tuple[float, float]] = {}
    for label, values in samples.items():
        own_ms = [*np.quantile(values, SHOWN_QUANTILES), *([medians_ms[label]] if label in medians_ms else [])]
        ends[label] = float(min(own_ms)), float(max(own_ms))
    lowest = min((low for low, _ in ends.values()), default=0.0)
    highest = max((high for _, high in ends.values()), default=0.0)
    is_log = bool(highest > LOG_FROM_RATIO * lowest > 0)
    distributions = {
        label: _distribution(values, medians_ms.get(label, float(np.median(values))), ends[label], is_log)
        for label, values in samples.items()
    }
    return Distributions(distributions, is_log)


def deviations_of(record: Record) -> tuple[tuple[Deviation, ...], ...]:
    usual = usual_of(record.bursts)
    filled = sorted((burst for burst in record.bursts if burst.samples_ns), key=lambda burst: burst.started_s)
    if not filled:
        return ()
    middle_ms = record.latency.median_ms if record.latency else float(np.median([burst_ms(burst) for burst in filled]))
    by_process = []
    for of_process in grouped(filled, lambda burst: burst.process).values():
        seen = [(burst.started_s, turn_of(burst, usual)) for burst in of_process]
        by_process.append(_thinned([Deviation(at_s, turn.ms / middle_ms - 1, turn.disturbed) for at_s, turn in seen]))
    return tuple(by_process)


def _thinned(deviations: Sequence[Deviation]) -> tuple[Deviation, ...]:
    step = -(-len(deviations) // MAX_TURNS)
    return tuple(
        Deviation(
            at_s=float(np.median([deviation.at_s for deviation in few])),
            share=float(np.median([deviation.share for deviation in few])),
            disturbed=2 * sum(deviation.disturbed for deviation in few) > len(few),
        )
        for few in (deviations[start : start + step] for start in range(0, len(deviations), step))
    )


def _distribution(values: Values, median_ms: float, ends_ms: tuple[float, float], is_log: bool) -> Distribution:
    low_ms, high_ms = ends_ms
    shown = values[(values >= low_ms) & (values <= high_ms)]
    if high_ms <= low_ms or not len(shown):  # of two calls, none lies between the quantiles
        return Distribution(len(values), median_ms, low_ms, high_ms, (), ())
    bins = int(np.clip(math.sqrt(len(shown)), 8, 40))  # the more calls, the finer
    edges = np.geomspace(low_ms, high_ms, bins + 1) if is_log else np.linspace(low_ms, high_ms, bins + 1)
    counts, _ = np.histogram(shown, edges)
    outline = np.convolve(np.pad(counts, 1), [0.25, 0.5, 0.25], mode="valid")
    middles_ms, heights = (edges[:-1] + edges[1:]) / 2, outline / outline.max()
    return Distribution(len(values), median_ms, low_ms, high_ms, tuple(middles_ms.tolist()), tuple(heights.tolist()))
