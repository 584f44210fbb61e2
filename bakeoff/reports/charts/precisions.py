"""The chart of a contest across precisions: what speed costs in error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.reports import findings, number_format
from bakeoff.reports.charts.building import stairs
from bakeoff.reports.charts.chart import Chart, Dots, Line, Mark, Shape, axis_around, name
from bakeoff.reports.charts.palette import Palette

SMALLEST_ERROR = 1e-12
"""A smaller error stands here on the logarithmic axis."""


def latency_over_error(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw latency against the user's first metric, or else the error, of all right cells.

    The stairs are the front of the two; a filled dot may win the contest.
    """
    measured = [
        cell for cell in contest.cells if cell.place is not None and cell.latency and cell.latency.median_ms > 0
    ]
    scale = _metric_of(measured) or _errors_of(measured)
    points = [(cell, scale.values[cell.label], cell.latency) for cell in measured if cell.label in scale.values]
    if len(points) < 2:
        return None
    x = axis_around(scale.title, [value for _, value, _ in points], is_log=scale.is_log)
    front = stairs([(scale.sign * value, latency.median_ms) for _, value, latency in points if latency])
    corners = [front[0]]
    for value, median_ms in front[1:]:
        corners += [(value, corners[-1][1]), (value, median_ms)]
    corners.append((scale.sign * (x.high if scale.sign > 0 else x.low), corners[-1][1]))
    line = Line(
        tuple(scale.sign * value for value, _ in corners), tuple(ms for _, ms in corners), colour="soft", width=1.0
    )
    marks, reached = [Mark((line,))], []
    for cell, value, latency in points:
        assert latency is not None
        ends_ms = (interval.low, interval.high) if (interval := latency.median_ci95_ms) else ()
        reached += [latency.median_ms, *ends_ms]
        whisker: tuple[Shape, ...] = (Line((value, value), ends_ms),) if ends_ms else ()
        dot = Dots((value,), (latency.median_ms,), cell.rank is not None, size=6.5)
        tip = f"{cell.label}: {number_format.median(latency)} ms, {scale.title} {value:.3g}"
        marks.append(Mark((*whisker, dot), tip, palette(cell.label)))
    return Chart(
        name="precisions",
        subject=contest.title,
        finding=findings.precisions(contest),
        caption=f"Median latency in ms with its 95 % interval against {scale.title}; the line is their front. A hollow "
        "dot may not win",
        x=x,
        y=axis_around("median latency (ms)", reached, is_log=min(reached) > 0),
        marks=tuple(marks),
        legend=tuple((name(cell), palette(cell.label)) for cell, _, _ in points),
    )


@dataclass(frozen=True)
class _Scale:
    """What is drawn along the x axis, by label. Less is better where `sign` is 1, and more where it is -1."""

    title: str
    values: Mapping[str, float]
    sign: int
    is_log: bool


def _metric_of(cells: Sequence[CellJudgement]) -> _Scale | None:
    """Return the first of the user's own metrics. More is better unless `evaluate` says otherwise."""
    names = dict.fromkeys(name for cell in cells for name in cell.metrics)
    for metric in names:
        found = {cell.label: cell.metrics[metric] for cell in cells if metric in cell.metrics}
        is_less = any(each.higher_is_better is False for each in found.values())
        return _Scale(metric, {label: each.value for label, each in found.items()}, 1 if is_less else -1, is_log=False)
    return None


def _errors_of(cells: Sequence[CellJudgement]) -> _Scale:
    errors = {
        cell.label: max(accuracy.relative_rmse, SMALLEST_ERROR)
        for cell in cells
        if (accuracy := cell.record.accuracy) and not accuracy.unchecked
    }
    return _Scale("relative RMSE", errors, 1, is_log=True)
