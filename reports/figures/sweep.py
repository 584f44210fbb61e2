"""Contests that differ in one size, as lines over it: latency, and speed-up over the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.lines import Line2D

from judging.sweeps import Quantity, Sweep, Value, latency, speedup
from reports import format
from reports.chart_data import LOG_FROM, LOG_FROM_RATIO
from reports.figure_style import GREY, number_axis
from reports.figures.panels import Drawing, Panel
from reports.findings import NAME_CHARACTERS, short
from reports.sentences import sweep_finding, sweep_title

_ROOM_PER_LOST = 0.07
"""Share of the axes' height that each configuration with failures has for its marks."""


def _paint(panel: Panel, sweep: Sweep, quantity: Quantity, y_label: str, log_from: float) -> None:
    """A line per configuration. A cell that failed is a cross under its size, in a row of its configuration's."""
    reached: list[float] = []
    for label, points in sweep.lines.items():
        found = {point.size: value for point in points if (value := quantity(point.row))}
        _draw_line(panel, label, sweep.sizes, found)
        reached += [end for value in found.values() for end in (value.middle, *value.ends)]
    _scale_y(panel, reached, log_from)
    _mark_lost(panel, {label: [point.size for point in points] for label, points in sweep.failures(quantity).items()})
    panel.axes.set_ylabel(y_label)
    panel.axes.set_xlabel(sweep.dimension)
    panel.axes.grid(True)
    low, high = min(sweep.sizes), max(sweep.sizes)
    panel.axes.set_xscale("log" if high >= 8 * low > 0 else "linear")
    shown = _shown(sweep.sizes, panel.ticks)
    panel.axes.set_xticks(shown, [f"{size:,.10g}" for size in shown])
    panel.axes.set_xticks([], minor=True)


def _draw_line(panel: Panel, label: str, sizes: Sequence[float], found: dict[float, Value]) -> None:
    """It is broken where a size has no value."""
    look = panel.looks(label)
    style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "ms": 4.5, "lw": 1.3}
    if found:
        middles = [found[size].middle if size in found else math.nan for size in sizes]
        panel.axes.plot(sizes, middles, mec="black", mew=0.3, **style)
    for size, value in found.items():
        panel.axes.plot([size] * 2, value.ends, color=look.colour, lw=1)
    panel.legend[short(label, NAME_CHARACTERS)] = Line2D([], [], **style)


def _scale_y(panel: Panel, reached: Sequence[float], log_from: float) -> None:
    lowest, highest = min(reached), max(reached)
    is_log = highest > log_from * lowest > 0
    low, high = (lowest / 1.3, highest * 1.3) if is_log else (0.0, highest * 1.08)
    panel.axes.set_yscale("log" if is_log else "linear")
    panel.axes.set_ylim(low, high)
    number_axis(panel.axes.yaxis, low, high, is_log, ticks=6)


def _mark_lost(panel: Panel, lost: dict[str, list[float]]) -> None:
    for place, (label, sizes) in enumerate(lost.items()):
        panel.axes.plot(
            sizes,
            [0.04 + _ROOM_PER_LOST * place] * len(sizes),
            ls="",
            marker="x",
            ms=5,
            mew=1.4,
            color=panel.looks(label).colour,
            transform=panel.axes.get_xaxis_transform(),
            clip_on=False,
        )
        panel.legend["failed"] = Line2D([], [], ls="", marker="x", ms=5, color=GREY)


def _shown(sizes: Sequence[float], most: float) -> list[float]:
    """Every size, or every second or third one where there are too many for the axis."""
    step = -(-len(sizes) // max(2, int(most)))
    return list(sizes[::step])


def _has_latency(sweep: Sweep) -> bool:
    return any(latency(row) for contest in sweep.contests for row in contest.cells)


def _headline(sweeps: Sequence[Sweep]) -> str:
    return f"Over {format.some(list(dict.fromkeys(sweep.dimension for sweep in sweeps)), shown=3)}"


DRAWINGS = [
    Drawing(
        name="sweep-latency",
        headline=lambda sweeps: f"{_headline(sweeps)}: median latency",
        x_label="",
        title=sweep_title,
        shows=_has_latency,
        finding=sweep_finding,
        paint=lambda panel, sweep: _paint(panel, sweep, latency, "median latency (ms)", LOG_FROM),
    ),
    Drawing(
        name="sweep-speedup",
        headline=lambda sweeps: f"{_headline(sweeps)}: speed-up over eager",
        x_label="",
        title=sweep_title,
        shows=lambda sweep: sweep.has_ratio,
        finding=sweep_finding,
        paint=lambda panel, sweep: _paint(panel, sweep, speedup, "speed-up over eager (x)", LOG_FROM_RATIO),
    ),
]
