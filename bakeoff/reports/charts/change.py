"""The chart of a comparison: how much longer each cell takes in the new run than in the base run."""

from collections.abc import Sequence

from bakeoff.judging.change import Change
from bakeoff.judging.compare import CellChange
from bakeoff.judging.intervals import ends
from bakeoff.records.text import one_line
from bakeoff.reports.charts.chart import BAR_Y, NAME_CHARACTERS, Axis, Chart, Dots, Mark, Text, vertical_line
from bakeoff.reports.charts.palette import Palette
from bakeoff.reports.charts.speed import interval
from bakeoff.reports.number_format import spell_change

_SHORTEST_REACH = 5.0


def of_change(cells: Sequence[CellChange], title: str, palette: Palette) -> Chart | None:
    """Draw the cells of one contest; nothing if none of them has a change."""
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
        y=None,
        marks=(vertical_line(0.0, len(cells)), *(_mark(place, cell, palette) for place, cell in enumerate(cells))),
        rows=tuple(one_line(cell.cell.label, NAME_CHARACTERS) for cell in cells),
    )


def _mark(place: int, cell: CellChange, palette: Palette) -> Mark:
    label, y = cell.cell.label, place + BAR_Y
    if cell.raw is None:
        return Mark(
            (Text(None, y, f"\u00d7 {cell.outcome}", colour="bad"),), f"{label}: {cell.outcome}", palette(label)
        )
    low, middle, high = _percents(cell.raw)
    shapes = Dots((middle,), (y,)), Text(high, y, spell_change(Change(cell.raw.log, None)))
    tip = f"{label}: {spell_change(cell.raw)}"
    return Mark((*([interval(low, high, y)] if low < high else []), *shapes), tip, palette(label))


def _percents(change: Change) -> tuple[float, float, float]:
    """Return the low end, the value and the high end."""
    low, high = ends(change.value, change.ci95)
    return 100 * (low - 1), 100 * (change.value - 1), 100 * (high - 1)
