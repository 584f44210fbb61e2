"""What building costs against what it buys, a mark per ranked cell."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.lines import Line2D

from judging.judgement import ContestJudgement
from reports import findings
from reports.chart_data import LOG_FROM_RATIO, SHORTEST_BUILD_S, build_s, ends
from reports.figure_style import GREY, number_axis
from reports.figures.panels import Drawing, Panel
from reports.findings import name


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    ratios = [(row, row.speedup) for row in contest.ranked if row.rank]
    points = [(row, build_s(row), ratio) for row, ratio in ratios if ratio]
    panel.axes.axhline(1, color=GREY, lw=0.9)
    for row, built_s, ratio in points:
        look = panel.looks(row.label)
        if ratio.ci95:
            panel.axes.plot([built_s] * 2, [ratio.ci95.low, ratio.ci95.high], color=look.colour, lw=1)
        style: dict[str, Any] = {"marker": look.marker, "mfc": look.colour, "mec": "black", "mew": 0.4, "ls": ""}
        panel.axes.plot(built_s, ratio.value, ms=7, **style)
        panel.legend[name(row)] = Line2D([], [], ms=6, **style)
    values = [end for _, _, ratio in points for end in (ratio.value, *ends(ratio))]
    if max(values) > LOG_FROM_RATIO * min(values):
        low, high = min([1.0, *values]) / 1.3, max([1.0, *values]) * 1.3
        panel.axes.set_yscale("log")
        panel.axes.set_ylim(low, high)
        number_axis(panel.axes.yaxis, low, high, is_log=True, ticks=8)
    else:
        panel.axes.margins(y=0.12)
    builds_s = [built_s for _, built_s, _ in points]
    low, high = min(builds_s) / 1.8, max(builds_s) * 1.8
    panel.axes.set_xscale("log")
    panel.axes.set_xlim(low, high)
    number_axis(panel.axes.xaxis, low, high, is_log=True, ticks=panel.ticks)
    panel.axes.set_ylabel("speed-up over eager (x)")
    panel.axes.grid(True)
    clipped = "; under 1 ms: at 1 ms" if min(builds_s) == SHORTEST_BUILD_S else ""
    panel.axes.set_xlabel(clipped)
    lost = [f"\u00d7 {name(row)} {row.record.status}" for row in contest.unranked]
    if lost:
        names = "   ".join(name.replace(" ", "\u00a0") for name in lost)
        names = textwrap.fill(names, int(panel.width_in * 16), break_on_hyphens=False)
        panel.axes.set_xlabel(f"{clipped}\n{names}")


DRAWING = Drawing(
    name="build-vs-speedup",
    headline=lambda _: "What building costs, and what it buys",
    x_label="build time (s)",
    title=lambda contest: contest.title,
    shows=findings.has_ratio,
    finding=findings.building,
    paint=_paint,
)
