"""The rate each cell reaches below the roof that the machine's two ceilings make."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from records.schema import Roofline
from reports import format
from reports.charts.key import Key
from reports.charts.scatter import FOOT, HEIGHT, LEFT, RIGHT, TOP
from reports.charts.svg import Chart, Scale, add, mark, path, symbol, x_axis, y_axis

_MARGIN = 6.0


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    """Nothing without a model's operations: then it has no arithmetic intensity."""
    shown = [
        (row, row.record.roofline, row.record.latency)
        for row in contest.cells
        if row.record.roofline and row.record.roofline.flops and row.record.roofline.bytes_moved
        if row.record.latency and row.record.latency.median_ms > 0
    ]
    if not shown:
        return None
    roof = shown[0][1]  # but for the share the same for all of them
    rates = {row.label: line.flops / (latency.median_ms / 1e3) for row, line, latency in shown}
    intensity, ridge = roof.flops / roof.bytes_moved, roof.ceiling_flops_per_s / roof.ceiling_bytes_per_s
    made = Chart(
        "roofline",
        _finding(contest),
        f"Operations per second against operations per byte; {format.floor(roof)} is the least a call takes",
        HEIGHT,
    )
    across = Scale(min(intensity, ridge) / _MARGIN, max(intensity, ridge) * _MARGIN, LEFT, RIGHT, is_log=True)
    top = max(roof.ceiling_flops_per_s, *rates.values()) * 2
    up = Scale(min(rates.values()) / 2, top, FOOT, TOP, is_log=True)
    x_axis(made.root, across, FOOT, "arithmetic intensity (FLOP/byte)", top=TOP)
    _rate_axis(made, up)
    _draw_roof(made, roof, across, up)
    for row, line, _ in shown:
        share = f", {format.percent(line.share)} % of the floor's speed" if line.share else ""
        rate = format.quantity(rates[row.label], "FLOP/s")
        group = mark(made.root, key.number(row.label), f"{row.label}: {rate}{share}")
        css = "wrong" if row.record.status.is_failure else "dot"
        symbol(group, across(intensity), up(rates[row.label]), key.look(row.label).marker, css, 5.5)
    return made


def _rate_axis(made: Chart, up: Scale) -> None:
    factor, unit = _prefix(up.high)
    in_unit = Scale(up.low / factor, up.high / factor, up.start, up.stop, is_log=True)
    y_axis(made.root, in_unit, LEFT, RIGHT, f"rate ({unit}FLOP/s)")


def _prefix(value: float) -> tuple[float, str]:
    """The decimal prefix in which the value is below a thousand, if there is one."""
    steps = [(10.0 ** (3 * place), prefix) for place, prefix in enumerate(["", "k", "M", "G", "T", "P"])]
    return next(((factor, prefix) for factor, prefix in steps if value < 1000 * factor), steps[-1])


def _draw_roof(made: Chart, roof: Roofline, across: Scale, up: Scale) -> None:
    peak, bandwidth = roof.ceiling_flops_per_s, roof.ceiling_bytes_per_s
    ridge = peak / bandwidth
    lowest = max(across.low, up.low / bandwidth)
    ends = [(lowest, lowest * bandwidth), (ridge, peak), (across.high, peak)]
    tip = f"{format.quantity(bandwidth, 'B/s')} of a large copy, {format.quantity(peak, 'FLOP/s')} of a large product"
    group = mark(made.root, None, tip)
    path(group, [(across(x), up(y)) for x, y in ends], "roof")
    intensity = roof.flops / roof.bytes_moved
    add(made.root, "path", "one", d=f"M{across(intensity):.1f} {FOOT:.1f}V{up(min(peak, intensity * bandwidth)):.1f}")


def _finding(contest: ContestJudgement) -> str:
    shares = {row.label: row.record.roofline.share for row in contest.cells if row.record.roofline}
    known = {label: share for label, share in shares.items() if share}
    if not known:
        return "no cell can be held against the floor"
    best = max(known, key=lambda label: known[label])
    return f"{best} comes nearest to the floor: {format.percent(known[best])} % of its speed"
