"""Latency against build time, and what nothing dominates."""

from __future__ import annotations

from matplotlib.lines import Line2D

from judging.judgement import ContestJudgement
from reports import findings
from reports.chart_data import build_s, stairs
from reports.figure_style import GREY, number_axis
from reports.figures.panels import Drawing, Panel
from reports.findings import name


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    """Filled: nothing dominates it, in all that is compared; the stairs are the front of the two that are drawn."""
    rows = [row for row in contest.ranked if row.record.latency]
    builds_s = [build_s(row) for row in rows]
    medians_ms = [row.record.latency.median_ms for row in rows if row.record.latency]
    low, high = min(builds_s) / 1.8, max(builds_s) * 1.8
    bottom, top = min(medians_ms) / 1.3, max(medians_ms) * 1.6
    panel.axes.set_xscale("log")
    panel.axes.set_yscale("log")
    panel.axes.set_xlim(low, high)
    panel.axes.set_ylim(bottom, top)
    number_axis(panel.axes.xaxis, low, high, is_log=True, ticks=panel.ticks)
    number_axis(panel.axes.yaxis, bottom, top, is_log=True, ticks=5)
    front = stairs(list(zip(builds_s, medians_ms, strict=True)))
    front.append((high, front[-1][1]))
    panel.axes.step(*zip(*front, strict=True), where="post", color=GREY, lw=1, zorder=1)
    for row, built_s, ms in zip(rows, builds_s, medians_ms, strict=True):
        look = panel.looks(row.label)
        face = look.colour if row.label in contest.front.labels else "white"
        panel.axes.plot(built_s, ms, look.marker, ms=6.5, mfc=face, mec=look.colour, mew=1.2)
        panel.legend[name(row)] = Line2D([], [], ls="", marker=look.marker, color=look.colour)
    panel.axes.set_ylabel("median latency (ms)")
    panel.axes.grid(True)


DRAWING = Drawing(
    name="pareto",
    headline=lambda _: "What nothing dominates",
    x_label="build time (s)",
    title=lambda contest: contest.title,
    shows=findings.has_front,
    finding=findings.pareto,
    paint=_paint,
)
