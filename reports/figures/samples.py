"""How the latencies of single calls are distributed, a hill per cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings
from reports.chart_data import hills, is_log_hills, samples_ms
from reports.figure_style import number_axis
from reports.figures.panels import Drawing, Panel, name_rows


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    """With a tick at their median."""
    samples = [(place, row, samples_ms(row.record)) for place, row in enumerate(contest.cells)]
    measured = [(place, row, values) for place, row, values in samples if len(values)]
    drawn = hills([values for _, _, values in measured])
    is_log = is_log_hills(drawn)
    for (place, row, _), hill in zip(measured, drawn, strict=True):
        look, is_wrong, foot = panel.looks(row.label), row.record.status.is_failure, place + 0.38
        panel.axes.fill_between(
            hill.middles_ms,
            foot,
            foot - 0.78 * hill.heights,
            facecolor="none" if is_wrong else look.colour,
            edgecolor=look.colour if is_wrong else "white",
            hatch=look.hatch,
            lw=0.8 if is_wrong else 0.3,
        )
        panel.axes.plot([hill.median_ms] * 2, [foot, place - 0.4], color="black", lw=1)
    lowest, highest = min(hill.low_ms for hill in drawn), max(hill.high_ms for hill in drawn)
    reach = (highest / lowest) ** 0.04 if is_log else 1.0
    pad = 0.0 if is_log else 0.04 * ((highest - lowest) or highest or 1.0)
    left, right = lowest / reach - pad, highest * reach + pad
    panel.axes.set_xscale("log" if is_log else "linear")
    panel.axes.set_xlim(left, right)
    number_axis(panel.axes.xaxis, left, right, is_log, panel.ticks)
    name_rows(panel, contest.cells, [place for place, _, _ in measured])


DRAWING = Drawing(
    name="samples",
    headline=lambda _: "How the latencies of single calls are distributed",
    x_label="latency (ms), middle 99 % of the calls",
    title=lambda contest: contest.title,
    shows=findings.has_samples,
    finding=findings.samples,
    paint=_paint,
    rows=lambda contest: contest.cells,
)
