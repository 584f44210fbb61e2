"""Charts with a row for each cell: its latency, its speed-up over the baseline, its change between two runs."""

from collections.abc import Sequence

from bakeoff.judging.change import Change
from bakeoff.judging.compare import CellChange
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import CALLED, relation
from bakeoff.judging.intervals import ends
from bakeoff.records.schema import Ratio
from bakeoff.records.text import counted, one_line
from bakeoff.reports import findings, number_format, sentences
from bakeoff.reports.charts.chart import (
    BAR_Y,
    NAME_CHARACTERS,
    Axis,
    Bar,
    Chart,
    Dots,
    Line,
    Mark,
    Shape,
    Text,
    lost_cell,
    name,
    vertical_line,
)
from bakeoff.reports.charts.palette import Palette

LOG_FROM = 20.0
"""Latencies stand on a logarithmic axis if the longest is over so many times the shortest."""

MOST_BELOW = 10.0
"""A logarithmic axis begins at most so many times below the shortest median. Intervals are cut off there."""

LOG_FROM_RATIO = 6.0
"""The same for speed-ups."""


def latency(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw medians as bars from zero, or as dots on a logarithmic axis; hollow if the cell was wrong."""
    measured = [cell.latency for cell in contest.shown if cell.latency]
    if not measured:
        return None
    medians_ms = [each.median_ms for each in measured]
    is_log = max(medians_ms) > LOG_FROM * min(medians_ms) > 0
    low = 0.0
    if is_log:
        lowest_ms = min([*medians_ms, *(each.median_ci95_ms.low for each in measured if each.median_ci95_ms)])
        low = max(lowest_ms, min(medians_ms) / MOST_BELOW) / 1.3
    x = Axis("median latency (ms), 95 % interval", low, max(medians_ms), is_log)
    return Chart(
        name="latency",
        subject=contest.title,
        finding=sentences.of_single_calls(contest),
        caption="Median latency in ms, with its 95 % interval",
        x=x,
        marks=tuple(_median(place, cell, palette, x) for place, cell in enumerate(contest.shown)),
        rows=tuple(map(name, contest.shown)),
    )


def speedup(contest: ContestJudgement, palette: Palette) -> Chart | None:
    if not findings.has_ratio(contest):
        return None
    baseline = contest.baseline
    ratios = [cell.speedup for cell in contest.shown]
    values = [1.0, *(value for ratio in ratios if ratio for value in (ratio.value, *ends(ratio.value, ratio.ci95)))]
    low, high = min(values), max(values)
    is_log = high > LOG_FROM_RATIO * low > 0
    left = low / 1.15 if is_log else max(0.0, low - 0.08 * (high - low) - 0.02)
    marks = [
        _ratio(place, cell, ratio, palette) if ratio else lost_cell(place, cell, palette)
        for place, (cell, ratio) in enumerate(zip(contest.shown, ratios, strict=True))
    ]
    return Chart(
        name="speedup",
        subject=contest.title,
        finding=findings.speedup(contest),
        caption=f"Speed-up over {baseline} in the same rounds, with its 95 % interval; a hollow dot is called neither "
        "faster nor slower",
        x=Axis(f"speed-up over {baseline} (x), 95 % interval", left, high, is_log),
        marks=(vertical_line(1.0, len(contest.shown)), *marks),
        rows=tuple(map(name, contest.shown)),
    )


def interval(low: float, high: float, y: float) -> Line:
    return Line((low, high), (y, y), colour="ink", width=1.1)


def _median(place: int, cell: CellJudgement, palette: Palette, x: Axis) -> Mark:
    found, y = cell.latency, place + BAR_Y
    if found is None:
        return lost_cell(place, cell, palette)
    is_wrong = cell.record.status.is_failure
    dot = Dots((found.median_ms,), (y,), not is_wrong)
    shapes: list[Shape] = [dot if x.is_log else Bar(y, 0.0, found.median_ms, not is_wrong)]
    end = found.median_ms
    if found.median_ci95_ms:
        shapes.append(interval(max(x.low, found.median_ci95_ms.low), found.median_ci95_ms.high, y))
        end = max(end, found.median_ci95_ms.high)
    note = f" {cell.record.status}" if is_wrong else ""
    shapes.append(Text(end, y, f"{number_format.milliseconds(found.median_ms)}{note}"))
    measured = f"{counted(found.calls, 'call')} in {counted(found.processes, 'process')}"
    return Mark(tuple(shapes), f"{cell.label}: {number_format.median(found)} ms, {measured}", palette(cell.label))


def _ratio(place: int, cell: CellJudgement, ratio: Ratio, palette: Palette) -> Mark:
    text, y = f"{number_format.ratio(ratio.value)}x", place + BAR_Y
    low, high = ends(ratio.value, ratio.ci95)
    whisker: list[Shape] = [interval(low, high, y)] if low < high else []
    is_called = cell.is_baseline or relation(ratio) in CALLED
    shapes = (*whisker, Dots((ratio.value,), (y,), is_called), Text(max(high, ratio.value), y, text))
    tip = f"{cell.label}: {text} {number_format.ratio_interval(ratio.ci95)} over {counted(ratio.processes, 'process')}"
    return Mark(shapes, tip, palette(cell.label))


_SHORTEST_REACH = 5.0


def of_change(cells: Sequence[CellChange], title: str, palette: Palette) -> Chart | None:
    values = [value for cell in cells if cell.raw for value in _percents(cell.raw)]
    if not values:
        return None
    low, high = min(-_SHORTEST_REACH, *values), max(_SHORTEST_REACH, *values)
    return Chart(
        name="change",
        subject="",
        finding=title,
        caption="Change of latency in %, above 0 the new run takes longer",
        x=Axis("change of latency (%)", low - 0.04 * (high - low), high),
        marks=(vertical_line(0.0, len(cells)), *(_changed(place, cell, palette) for place, cell in enumerate(cells))),
        rows=tuple(one_line(cell.cell.label, NAME_CHARACTERS) for cell in cells),
    )


def _changed(place: int, cell: CellChange, palette: Palette) -> Mark:
    label, y = cell.cell.label, place + BAR_Y
    if cell.raw is None:
        return Mark(
            (Text(None, y, f"\u00d7 {cell.outcome}", colour="bad"),), f"{label}: {cell.outcome}", palette(label)
        )
    low, middle, high = _percents(cell.raw)
    shapes = Dots((middle,), (y,)), Text(high, y, number_format.spell_change(Change(cell.raw.log, None)))
    tip = f"{label}: {number_format.spell_change(cell.raw)}"
    return Mark((*([interval(low, high, y)] if low < high else []), *shapes), tip, palette(label))


def _percents(change: Change) -> tuple[float, float, float]:
    low, high = ends(change.value, change.ci95)
    return 100 * (low - 1), 100 * (change.value - 1), 100 * (high - 1)
