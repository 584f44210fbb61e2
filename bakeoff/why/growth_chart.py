"""The chart of how the error of a cell grows along the forward pass of its model."""

import math
from collections.abc import Sequence
from itertools import pairwise

from bakeoff.records.text import one_line
from bakeoff.reports import number_format
from bakeoff.reports.charts.chart import BAR_Y, NAME_CHARACTERS, Chart, Dots, Line, Mark, Text, axis_around
from bakeoff.why.records import Blame, GrowthPoint

ACCUMULATED, LOCAL = "#0072b2", "#d55e00"


def growth_chart(blame: Blame, finding: str) -> Chart | None:
    """Draw the accumulated and the local error of each module, a row for each, from the input down to the output.

    Return None where no module has an error above 0 that is finite.
    """
    points = blame.growth
    errors = [error for point in points for error in (point.local, point.accumulated) if is_drawn(error)]
    if not errors:
        return None
    x = axis_around("error relative to the output", [error for error in errors if error], is_log=True)
    accumulated = [(place, point.accumulated) for place, point in enumerate(points) if is_drawn(point.accumulated)]
    path = Mark(
        tuple(
            Line((first or 0.0, second or 0.0), (above + BAR_Y, below + BAR_Y), colour=ACCUMULATED)
            for (above, first), (below, second) in pairwise(accumulated)
            if below == above + 1
        )
    )
    return Chart(
        name="blame",
        subject=f"{blame.label}, {blame.precision}",
        finding=finding,
        caption="Error of modules' outputs: accumulated from the input, and of the module alone on exact inputs",
        x=x,
        y=None,
        marks=(path, *(mark for place, point in enumerate(points) for mark in marks_of(place, point, x.low))),
        rows=tuple(one_line(f"{point.name} ({point.kind})", NAME_CHARACTERS) for point in points),
        colours=(("accumulated", ACCUMULATED), ("of the module alone", LOCAL)),
    )


def is_drawn(error: float | None) -> bool:
    """Return True for an error that has a place on a logarithmic axis."""
    return bool(error) and math.isfinite(error or 0.0)


def marks_of(place: int, point: GrowthPoint, low: float) -> Sequence[Mark]:
    """Return the markers of one module, and a text where an error is not finite."""
    marks = []
    for error, shape, colour, words in (
        (point.accumulated, "o", ACCUMULATED, "accumulated"),
        (point.local, "D", LOCAL, "of the module alone"),
    ):
        if error is None:
            continue
        tip = f"{point.name}: {words} {number_format.error(error)}"
        if math.isfinite(error):
            marks.append(Mark((Dots((max(error, low),), (place + BAR_Y,), size=5.0, shape=shape, colour=colour),), tip))
        elif error is point.local or point.local is None or math.isfinite(point.local):
            marks.append(Mark((Text(low, place + BAR_Y, f"{words}: not finite", colour="bad"),), tip))
    return marks
