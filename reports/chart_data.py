"""The numbers that charts of single calls are drawn from: pure functions of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from judging.disturbance import disturbed, usual_of
from judging.estimate import burst_ms
from records.schema import Record

Values = np.ndarray[Any, np.dtype[np.float64]]

LOG_FROM_SAMPLES = 5.0
"""Single calls stand on a logarithmic axis if the longest is over so many times the shortest."""

SHOWN_QUANTILES = (0.005, 0.995)
"""The ends of the part of a sample that is drawn."""

MOST_TURNS = 60
"""The most points that are drawn of a process. If it has more bursts, a point is the median of some neighbours."""


@dataclass(frozen=True)
class Distribution:
    """How single calls are distributed: `heights` of at most 1 over latencies; none if all calls are equal."""

    middles_ms: Values
    heights: Values
    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Turn:
    """A burst, or a few that follow each other."""

    at_s: float
    deviation: float  # the median over the cell's median, minus 1
    disturbed: bool


def distributions(samples: Sequence[Values]) -> tuple[list[Distribution], bool]:
    """Return the distribution of each sample in common units, and whether their axis is logarithmic.

    No sample may be empty. The bins are even on that axis.
    """
    ends = [np.quantile(values, SHOWN_QUANTILES) for values in samples]
    lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
    is_log = bool(highest > LOG_FROM_SAMPLES * lowest > 0)
    found = [
        _distribution(values, float(low), float(high), is_log)
        for values, (low, high) in zip(samples, ends, strict=True)
    ]
    return found, is_log


def samples_ms(record: Record) -> Values:
    """Return every call of every burst."""
    bursts = [np.asarray(burst.samples_ns, dtype=np.float64) for burst in record.bursts if burst.samples_ns]
    return np.concatenate(bursts) / 1e6 if bursts else np.empty(0)


def turns_of(record: Record) -> list[list[Turn]]:
    """Return the turns of each process in the order of time, at most `MOST_TURNS` of each."""
    usual = usual_of(record.bursts)
    filled = sorted((burst for burst in record.bursts if burst.samples_ns), key=lambda burst: burst.started_s)
    if not filled:
        return []
    middle = float(np.median([burst_ms(burst) for burst in filled])) or 1e-6
    by_process: dict[int, list[Turn]] = {}
    for burst in filled:
        turn = Turn(burst.started_s, burst_ms(burst) / middle - 1, disturbed(burst, usual))
        by_process.setdefault(burst.process, []).append(turn)
    return [_thinned(taken) for taken in by_process.values()]


def _thinned(turns: Sequence[Turn]) -> list[Turn]:
    step = -(-len(turns) // MOST_TURNS)
    return [
        Turn(
            at_s=float(np.median([turn.at_s for turn in few])),
            deviation=float(np.median([turn.deviation for turn in few])),
            disturbed=2 * sum(turn.disturbed for turn in few) > len(few),
        )
        for few in (turns[start : start + step] for start in range(0, len(turns), step))
    ]


def _distribution(values: Values, low: float, high: float, is_log: bool) -> Distribution:
    median_ms = float(np.median(values))
    if high <= low:
        return Distribution(np.empty(0), np.empty(0), median_ms, low, high)
    shown = values[(values >= low) & (values <= high)]
    bins = int(np.clip(math.sqrt(len(shown)), 8, 40))  # the more calls, the finer
    edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
    counts, _ = np.histogram(shown, edges)
    outline = np.convolve(np.pad(counts, 1), [0.25, 0.5, 0.25], mode="valid")
    return Distribution((edges[:-1] + edges[1:]) / 2, outline / outline.max(), median_ms, low, high)
