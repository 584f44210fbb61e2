"""The numbers that figures are drawn from, whatever draws them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from judging.costs import Line, Start
from judging.judgement import CellJudgement, ContestJudgement
from records.schema import Ratio, Record

Values = np.ndarray[Any, np.dtype[np.float64]]

SHORTEST_BUILD_S = 1e-3
"""A shorter one stands here on a logarithmic axis."""

LOG_FROM = 20.0
"""Latencies whose slowest takes over so many times what the fastest does stand on a logarithmic axis."""

LOG_FROM_RATIO = 6.0
"""The same of speed-ups."""

LOG_FROM_SAMPLES = 5.0
"""The same of single calls."""

SHOWN_QUANTILES = (0.005, 0.995)
"""Ends of the part of a sample that is drawn."""


@dataclass(frozen=True)
class Hill:
    """How single calls are distributed: `heights`, of at most 1, over latencies; none where all are equal."""

    middles_ms: Values
    heights: Values
    median_ms: float
    low_ms: float
    high_ms: float


def hills(samples: Sequence[Values]) -> list[Hill]:
    """Of each sample, none of them empty, in common units: bins are even on the axis that `is_log_hills` chooses."""
    ends = [np.quantile(values, SHOWN_QUANTILES) for values in samples]
    is_log = _is_log(ends)
    return [_hill(values, float(low), float(high), is_log) for values, (low, high) in zip(samples, ends, strict=True)]


def is_log_hills(drawn: Sequence[Hill]) -> bool:
    """Whether their axis is logarithmic."""
    return _is_log([(hill.low_ms, hill.high_ms) for hill in drawn])


def samples_ms(record: Record) -> Values:
    """Every call of every burst."""
    bursts = [np.asarray(burst.samples_ns, dtype=np.float64) for burst in record.bursts if burst.samples_ns]
    return np.concatenate(bursts) / 1e6 if bursts else np.empty(0)


def build_s(row: CellJudgement) -> float:
    """For a logarithmic axis."""
    return max(row.record.build_s, SHORTEST_BUILD_S)


def until_first_call_s(record: Record) -> float:
    return record.build_s + (record.first_call_s or 0.0)


def ratio_over_baseline(row: CellJudgement) -> Ratio | None:
    return row.speedup


def ends(ratio: Ratio) -> tuple[float, float]:
    """Of its interval, or twice the value where it has none."""
    return (ratio.ci95.low, ratio.ci95.high) if ratio.ci95 else (ratio.value, ratio.value)


def cost_lines(contest: ContestJudgement, start: Start) -> list[Line]:
    """Of those that may win, and of the baseline."""
    shown = [*contest.contenders, contest.baseline]
    return [line for line in contest.costs.lines(start) if line.label in shown]


def reference_line(contest: ContestJudgement, start: Start) -> Line:
    """The baseline's line, or that of the cheapest over a single call. Only where a contender has a line."""
    lines = cost_lines(contest, start)
    first = contest.costs.legs(start, contest.contenders)[0].line
    return next((line for line in lines if line.label == contest.baseline), first)


def relative_totals(line: Line, reference: Line, calls: Values) -> Values:
    """What so many calls cost, over what they cost by the reference."""
    return np.asarray([line.total_s(number) / reference.total_s(number) for number in calls.tolist()])


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other is below in both, from left to right."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _hill(values: Values, low: float, high: float, is_log: bool) -> Hill:
    median_ms = float(np.median(values))
    if high <= low:
        return Hill(np.empty(0), np.empty(0), median_ms, low, high)
    shown = values[(values >= low) & (values <= high)]
    bins = int(np.clip(math.sqrt(len(shown)), 8, 40))  # the more calls, the finer
    edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
    counts, _ = np.histogram(shown, edges)
    outline = np.convolve(np.pad(counts, 1), [0.25, 0.5, 0.25], mode="valid")
    return Hill((edges[:-1] + edges[1:]) / 2, outline / outline.max(), median_ms, low, high)


def _is_log(ends: Sequence[Any]) -> bool:
    lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
    return bool(highest > LOG_FROM_SAMPLES * lowest > 0)
