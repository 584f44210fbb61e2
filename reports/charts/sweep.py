"""Contests that differ in one size, as lines over it: latency, and speed-up over the baseline."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from judging.sweeps import Point, Quantity, Sweep, Value, latency, speedup
from records.schema import Interval
from reports import format
from reports.chart_data import LOG_FROM, LOG_FROM_RATIO
from reports.charts.key import Key
from reports.charts.scatter import FOOT, HEIGHT, LEFT, RIGHT, TOP
from reports.charts.svg import Chart, Scale, add, mark, path, scale, symbol, x_line, y_axis
from reports.sentences import sweep_finding

_LOST_ROOM = 11.0
"""What the crosses of each configuration with failures take below the lines."""


def charts(sweep: Sweep, key: Key) -> list[Chart]:
    found = [
        _chart(sweep, key, latency, "sweep-latency", "median latency (ms)", LOG_FROM),
        _chart(sweep, key, speedup, "sweep-speedup", "speed-up over eager (x)", LOG_FROM_RATIO),
    ]
    return [chart for chart in found if chart]


def _chart(sweep: Sweep, key: Key, quantity: Quantity, name: str, axis: str, log_from: float) -> Chart | None:
    lines = {
        label: {point.size: value for point in points if (value := quantity(point.row))}
        for label, points in sweep.lines.items()
    }
    reached = [end for found in lines.values() for value in found.values() for end in (value.middle, *value.ends)]
    if not reached or (quantity is speedup and not sweep.has_ratio):
        return None
    lost = sweep.failures(quantity)
    made = Chart(
        name, sweep_finding(sweep), f"{axis.capitalize()} over {sweep.dimension}, a cross where a cell failed", HEIGHT
    )
    is_log = max(sweep.sizes) >= 8 * min(sweep.sizes) > 0
    across = scale(sweep.sizes, LEFT + 8, RIGHT - 4, is_log, pad=0.03)
    up = _up(reached, log_from, FOOT - _LOST_ROOM * len(lost))
    _size_axis(made, across, sweep)
    y_axis(made.root, up, LEFT, RIGHT, axis)
    for label, found in lines.items():
        _draw_line(made, sweep, label, found, across, up, key, quantity)
    for place, (label, failed) in enumerate(lost.items()):
        _draw_failures(made, sweep, label, failed, across, FOOT - _LOST_ROOM * (place + 0.5), key)
    return made


def _draw_line(
    made: Chart,
    sweep: Sweep,
    label: str,
    found: dict[float, Value],
    across: Scale,
    up: Scale,
    key: Key,
    quantity: Quantity,
) -> None:
    """It is broken where a size has no value."""
    for start, stop in itertools.pairwise(sweep.sizes):
        if start in found and stop in found:
            ends = [(across(start), up(found[start].middle)), (across(stop), up(found[stop].middle))]
            path(mark(made.root, key.number(label), label), ends, "line")
    for size, value in found.items():
        group = mark(made.root, key.number(label), f"{_at(label, sweep, size)}: {_spelt(value, quantity)}")
        low, high = map(up, value.ends)
        add(group, "path", "whisker", d=f"M{across(size):.1f} {low:.1f}V{high:.1f}")
        symbol(group, across(size), up(value.middle), key.look(label).marker, size=5)


def _draw_failures(
    made: Chart, sweep: Sweep, label: str, failed: Sequence[Point], across: Scale, y: float, key: Key
) -> None:
    for point in failed:
        fate = f"{_at(label, sweep, point.size)}: {format.fate(point.row.record)}"
        group = mark(made.root, key.number(label), fate)
        add(group, "path", "cross", d=f"M{across(point.size) - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")


def _spelt(value: Value, quantity: Quantity) -> str:
    """`0.0175 [0.0170, 0.0181] ms` or `1.85x [1.80, 1.90]`."""
    low, high = value.ends
    interval = Interval(low=low, high=high) if low < high else None
    if quantity is speedup:
        return f"{format.ratio(value.middle)}x {format.ratio_interval(interval)}"
    return f"{format.milliseconds(value.middle)} {format.milliseconds_interval(interval)}".rstrip() + " ms"


def _at(label: str, sweep: Sweep, size: float) -> str:
    """`onnx at batch 64`."""
    return f"{label} at {sweep.dimension} {size:,.10g}"


def _up(reached: list[float], log_from: float, foot: float) -> Scale:
    if max(reached) > log_from * min(reached) > 0:
        return scale(reached, foot, TOP, is_log=True)
    return Scale(0, max(reached) * 1.06, foot, TOP)


def _size_axis(made: Chart, across: Scale, sweep: Sweep) -> None:
    """A number under each size that was measured, where there is room."""
    x_line(made.root, across, FOOT, sweep.dimension)
    written_until = -1e9
    for size in sweep.sizes:
        x = across(size)
        add(made.root, "path", "grid", d=f"M{x:.1f} {TOP:.1f}V{FOOT:.1f}")
        if x - written_until > 34:
            add(made.root, "text", "tick", f"{size:,.10g}", x=x, y=FOOT + 16, text_anchor="middle")
            written_until = x
