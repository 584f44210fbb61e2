"""Charts of rates: latency against the requests sent, and operations a second below the roof of the two ceilings."""

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.loaded_cell import RatePoint
from bakeoff.records.text import one_line
from bakeoff.reports import findings, load_report, number_format
from bakeoff.reports.charts.chart import Axis, Chart, Dots, Line, Mark, Text, axis_around, level, name
from bakeoff.reports.charts.palette import Palette


def load(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw p99 as filled and p50 as hollow markers, faintly with settings that were not chosen."""
    judged = contest.load
    points = [point for cell in judged.cells for point in cell.points] if judged else []
    if judged is None or not points:
        return None
    limit_ms = [judged.objective.limit_ms] if judged.objective else []
    x = axis_around("requests sent per second", [point.rate for point in points], is_log=True)
    latencies = [latency for point in points for latency in (point.p50_ms, point.p99_ms)]
    y = axis_around("latency (ms)", [*latencies, *limit_ms], is_log=True)
    marks = [_window(cell.label, point, palette) for cell in judged.cells for point in cell.points]
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


def _window(label: str, point: RatePoint, palette: Palette) -> Mark:
    size, not_chosen = (4.5, "") if point.is_chosen else (2.5, ", not chosen")
    p99 = Dots((point.rate,), (point.p99_ms,), size=size)
    p50 = Dots((point.rate,), (point.p50_ms,), is_filled=False, size=size)
    latencies = f"p50 {number_format.milliseconds(point.p50_ms)} ms, p99 {number_format.milliseconds(point.p99_ms)} ms"
    tip = f"{label} at {number_format.rate(point.rate)} requests/s: {latencies}{not_chosen}"
    return Mark((p99, p50), tip, palette(label))


_MARGIN = 6.0
_PREFIXES = {10.0 ** (3 * place): prefix for place, prefix in enumerate(["", "k", "M", "G", "T", "P"])}


def roofline(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw nothing if the model's operations are not known, if a cell was faster than the ceilings allow, or for a
    contest across precisions, which have different ceilings."""
    shown = [
        (cell, line, latency.median_ms / 1e3)
        for cell in contest.cells
        if (line := cell.record.roofline) and line.needed_flops and line.bytes_moved and not line.is_beaten
        if (latency := cell.latency) and latency.median_ms > 0
    ]
    if not shown or contest.cell.compared:
        return None
    roof = shown[0][1]  # it is the same for all of them, but for the share
    peak, bandwidth = roof.ceiling_flops_per_s, roof.ceiling_bytes_per_s
    intensity, ridge = roof.needed_flops / roof.bytes_moved, peak / bandwidth
    rates = [line.needed_flops / seconds for _, line, seconds in shown]
    top, bottom = 2 * max(peak, *rates), min(rates) / 2
    unit, prefix = next(((unit, p) for unit, p in _PREFIXES.items() if top < 1000 * unit), (1e15, "P"))
    x = Axis("arithmetic intensity (FLOP/byte)", min(intensity, ridge) / _MARGIN, _MARGIN * max(intensity, ridge), True)
    lowest = max(x.low, bottom / bandwidth)
    slope = Line((lowest, ridge, x.high), (lowest * bandwidth / unit, peak / unit, peak / unit), colour="ink")
    reached = min(peak, intensity * bandwidth) / unit
    marks = [
        Mark((Line((intensity, intensity), (bottom / unit, reached), colour="soft", width=0.9),)),
        Mark(
            (slope,),
            f"{number_format.quantity(bandwidth, 'B/s')} of the memory that holds a call's bytes, "
            f"{number_format.quantity(peak, 'FLOP/s')} of a large product",
        ),
    ]
    for (cell, line, _), rate in zip(shown, rates, strict=True):
        share = f", {number_format.percent(line.share)} % of the floor's speed" if line.share else ""
        dot = Dots((intensity,), (rate / unit,), not cell.record.status.is_failure)
        marks.append(
            Mark((dot,), f"{cell.label}: {number_format.quantity(rate, 'FLOP/s')}{share}", palette(cell.label))
        )
    return Chart(
        name="roofline",
        subject=contest.title,
        finding=findings.roofline(contest),
        caption=f"Operations per second against operations per byte; {number_format.floor(roof)} is the shortest call",
        x=x,
        y=Axis(f"rate ({prefix}FLOP/s)", bottom / unit, top / unit, is_log=True),
        marks=tuple(marks),
        legend=tuple((name(cell), palette(cell.label)) for cell, _, _ in shown),
    )
