"""Total time over the number of calls, building included, relative to one cell's, a line per cell."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from judging.costs import HORIZON, Leg, Start
from judging.judgement import ContestJudgement
from reports import findings
from reports.chart_data import cost_lines, reference_line, relative_totals
from reports.figure_style import number_axis
from reports.figures.panels import BEHIND_TEXT, Drawing, Panel
from reports.findings import NAME_CHARACTERS, short

_DEAREST_SHOWN = 30.0  # times the reference: above, no crossing with the cheapest is to be seen


def _paint(panel: Panel, contest: ContestJudgement, start: Start) -> None:
    """Totals over those of one line, which is level then: on axes over seven decades a factor of two would not show."""
    lines, reference = cost_lines(contest, start), reference_line(contest, start)
    calls = np.geomspace(1, HORIZON[-1], 141)
    seen = []
    for line in lines:
        look, relative = panel.looks(line.label), relative_totals(line, reference, calls)
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "ms": 4, "lw": 1.3}
        panel.axes.plot(calls, relative, markevery=20, **style)
        panel.legend[short(line.label, NAME_CHARACTERS)] = Line2D([], [], **style)
        seen.append(relative)
    legs = contest.costs.legs(start, contest.contenders)
    ends = [*(leg.first_call for leg in legs[1:]), HORIZON[-1]]
    for place, (leg, end) in enumerate(zip(legs, ends, strict=True)):
        stretch = np.geomspace(leg.first_call, end, 60)
        relative = relative_totals(leg.line, reference, stretch)
        panel.axes.plot(stretch, relative, color="black", lw=5, alpha=0.18, solid_capstyle="butt", zorder=1)
        if leg.crossing:
            _mark_crossing(panel, leg, float(relative[0]), is_below=place % 2 == 1)
    low, high = float(np.min(seen)) / 1.5, min(float(np.max(seen)) * 1.3, _DEAREST_SHOWN)
    panel.axes.set_xscale("log")
    panel.axes.set_yscale("log")
    panel.axes.set_xlim(1, HORIZON[-1])
    panel.axes.set_ylim(low, high)
    number_axis(panel.axes.xaxis, 1, HORIZON[-1], is_log=True, ticks=panel.width_in * 1.5)
    number_axis(panel.axes.yaxis, low, high, is_log=True, ticks=8)
    panel.axes.set_ylabel(f"total time / {short(reference.label, 22)}'s")
    panel.axes.grid(True)


def _mark_crossing(panel: Panel, leg: Leg, height: float, is_below: bool) -> None:
    """Filled where it is established, hollow and with a question mark where it is not."""
    is_established = leg.crossing is not None and leg.crossing.is_established
    face, doubt = ("black", "") if is_established else ("white", "?")
    panel.axes.plot(leg.first_call, height, "o", ms=5, mfc=face, mec="black", zorder=5)
    panel.axes.annotate(
        f"{leg.first_call:,}{doubt}",
        (leg.first_call, height),
        xytext=(3, -10 if is_below else 5),
        textcoords="offset points",
        size=7,
        bbox=BEHIND_TEXT,
    )


def drawing_of(start: Start) -> Drawing[ContestJudgement]:
    return Drawing(
        name="costs" if start == "cold" else f"costs-{start}",
        headline=lambda _: f"What calls cost from a {start} start, building included",
        x_label="calls",
        title=lambda contest: contest.title,
        shows=partial(findings.has_costs, start=start),
        finding=partial(findings.costs, start=start),
        paint=partial(_paint, start=start),
    )
