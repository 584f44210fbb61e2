"""Median latency with its interval, a bar per cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import LOG_FROM
from reports.figures.panels import Drawing, Panel, label_ends, name_rows


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    """Bars from zero; dots on a logarithmic axis where the slowest takes over 20 times what the fastest does."""
    measured = [(place, row.record) for place, row in enumerate(contest.cells) if row.record.latency]
    medians_ms = [record.latency.median_ms for _, record in measured if record.latency]
    is_log = max(medians_ms) > LOG_FROM * min(medians_ms) > 0
    ends = []
    for place, record in measured:
        if record.latency is None:
            continue
        look, median_ms = panel.looks(record.cell.label), record.latency.median_ms
        right = max(median_ms, record.latency.median_ci95_ms.high if record.latency.median_ci95_ms else 0)
        face = "none" if record.status.is_failure else look.colour
        if is_log:
            panel.axes.plot(median_ms, place, look.marker, ms=5, mfc=face, mec=look.colour)
        else:
            edge = look.colour if record.status.is_failure else "white"
            panel.axes.barh(place, median_ms, height=0.7, color=face, edgecolor=edge, hatch=look.hatch, lw=0.8)
        if record.latency.median_ci95_ms:
            interval = record.latency.median_ci95_ms
            panel.axes.plot(
                [interval.low, interval.high], [place, place], color="black", lw=1, marker="" if is_log else "|", ms=4
            )
        note = f" {record.status}" if record.status.is_failure else ""
        ends.append((place, right, f"{format.milliseconds(median_ms)}{note}"))
    label_ends(panel, ends, min(medians_ms) / 1.3 if is_log else 0, is_log)
    name_rows(panel, contest.cells, [place for place, _, _ in ends])


DRAWING = Drawing(
    name="latency",
    headline=findings.latency_over_all,
    x_label="median latency (ms), 95 % interval",
    title=lambda contest: contest.title,
    shows=findings.has_latency,
    finding=findings.latency,
    paint=_paint,
    rows=lambda contest: contest.cells,
)
