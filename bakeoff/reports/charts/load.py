"""The chart of latency against the rate of requests, with the objective drawn in."""

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.loaded_cell import LoadedCell, RatePoint
from bakeoff.records.text import one_line
from bakeoff.reports import load_report, number_format
from bakeoff.reports.charts.chart import Chart, Dots, Mark, Text, axis_around, level
from bakeoff.reports.charts.palette import Palette


def load_chart(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw p99 as filled and p50 as hollow markers, faintly with settings that were not chosen."""
    judged = contest.load
    points = [point for cell in judged.cells for point in cell.points] if judged else []
    if judged is None or not points:
        return None
    limit_ms = [judged.objective.limit_ms] if judged.objective else []
    x = axis_around("requests sent per second", [point.rate for point in points], is_log=True)
    latencies = [latency for point in points for latency in (point.p50_ms, point.p99_ms)]
    y = axis_around("latency (ms)", [*latencies, *limit_ms], is_log=True)
    marks = [mark for cell in judged.cells for mark in _marks_of(cell, palette)]
    if judged.objective:
        limit, text = limit_ms[0], f"{judged.objective.percentile} < {limit_ms[0]:g} ms"
        marks.append(Mark((level(limit, x, "bad"), Text(x.low, limit, text, colour="bad", up_pt=5.0)), text))
    return Chart(
        name="load",
        subject=contest.title,
        finding=load_report.verdict(judged).removesuffix("."),
        caption="p99 (filled) and p50 (hollow) of each window of load; settings that were not chosen are small",
        x=x,
        y=y,
        marks=tuple(marks),
        legend=tuple((one_line(cell.label, 36), palette(cell.label)) for cell in judged.cells if cell.points),
    )


def _marks_of(cell: LoadedCell, palette: Palette) -> list[Mark]:
    look = palette(cell.label)
    return [
        Mark(
            (
                Dots((point.rate,), (point.p99_ms,), size=4.5 if point.is_chosen else 2.5),
                Dots((point.rate,), (point.p50_ms,), is_filled=False, size=4.5 if point.is_chosen else 2.5),
            ),
            _tip(cell.label, point),
            look,
        )
        for point in cell.points
    ]


def _tip(label: str, point: RatePoint) -> str:
    latencies = f"p50 {number_format.milliseconds(point.p50_ms)} ms, p99 {number_format.milliseconds(point.p99_ms)} ms"
    not_chosen = "" if point.is_chosen else ", not chosen"
    return f"{label} at {number_format.rate(point.rate)} requests/s: {latencies}{not_chosen}"
