"""The chart of a contest across precisions: what speed costs in error."""

from __future__ import annotations

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.reports import findings, number_format
from bakeoff.reports.charts.building import stairs
from bakeoff.reports.charts.chart import Chart, Dots, Line, Mark, Shape, axis_around, name
from bakeoff.reports.charts.palette import Palette

SMALLEST_ERROR = 1e-12
"""A smaller error stands here on the logarithmic axis."""


def latency_over_error(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw latency against error of all right cells. The stairs are the front; a filled dot may win the contest."""
    points = [
        (cell, max(accuracy.relative_rmse, SMALLEST_ERROR), latency)
        for cell in contest.cells
        if cell.place is not None and (latency := cell.latency) and latency.median_ms > 0
        if (accuracy := cell.record.accuracy) and not accuracy.unchecked
    ]
    if len(points) < 2:
        return None
    front = stairs([(error, latency.median_ms) for _, error, latency in points])
    x = axis_around("relative RMSE against float64", [error for _, error, _ in points], is_log=True)
    corners = [front[0]]
    for error, median_ms in front[1:]:
        corners += [(error, corners[-1][1]), (error, median_ms)]
    xs, ys = zip(*corners, (x.high, corners[-1][1]), strict=True)
    marks, reached = [Mark((Line(xs, ys, colour="soft", width=1.0),))], []
    for cell, error, latency in points:
        ends_ms = (interval.low, interval.high) if (interval := latency.median_ci95_ms) else ()
        reached += [latency.median_ms, *ends_ms]
        whisker: tuple[Shape, ...] = (Line((error, error), ends_ms),) if ends_ms else ()
        dot = Dots((error,), (latency.median_ms,), cell.rank is not None, size=6.5)
        marks.append(Mark((*whisker, dot), _tip(cell, error), palette(cell.label)))
    return Chart(
        name="precisions",
        subject=contest.title,
        finding=findings.precisions(contest),
        caption="Median latency in ms with its 95 % interval against the error; the line is their front. A hollow dot "
        "may not win, because its error is larger than what is allowed",
        x=x,
        y=axis_around("median latency (ms)", reached, is_log=min(reached) > 0),
        marks=tuple(marks),
        legend=tuple((name(cell), palette(cell.label)) for cell, _, _ in points),
    )


def _tip(cell: CellJudgement, error: float) -> str:
    assert cell.latency is not None
    return f"{cell.label}: {number_format.median(cell.latency)} ms, error {number_format.error(error)}"
