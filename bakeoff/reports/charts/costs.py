"""The chart of total time over the number of calls, building included, relative to one cell's."""

import numpy as np

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.costs import HORIZON, Leg
from bakeoff.judging.costs import Line as CostLine
from bakeoff.records.text import one_line
from bakeoff.reports import findings, number_format
from bakeoff.reports.charts.chart import Axis, Chart, Dots, Line, Mark, Stop, Text
from bakeoff.reports.charts.palette import Palette

DEAREST_SHOWN = 30.0
"""Totals over so many times the reference are cut off: no crossing with the cheapest is to be seen there."""

STOPS = [step * 10**power for power in range(7) for step in (1, 2, 5)] + [HORIZON[-1]]
"""Numbers of calls that the slider stops at."""

_POINTS_PER_DECADE = 8


def costs(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw relative totals, which show a factor of two over seven decades; the grey band is the cheapest."""
    shown, legs = [*contest.contenders, contest.baseline], contest.costs.legs("cold", contest.contenders)
    lines = [line for line in contest.costs.lines("cold") if line.label in shown]
    if len(lines) < 2 or not legs:
        return None
    # the baseline, or whatever costs least over one call
    reference = next((line for line in lines if line.label == contest.baseline), legs[0].line)
    calls = np.geomspace(1, HORIZON[-1], 1 + _POINTS_PER_DECADE * (len(HORIZON) - 1)).tolist()
    totals = [relative_totals(line, reference, calls) for line in lines]
    low, high = min(map(min, totals)) / 1.4, min(max(map(max, totals)) * 1.3, DEAREST_SHOWN)
    marks = []
    for leg, end in zip(legs, [*(leg.first_call for leg in legs[1:]), HORIZON[-1]], strict=True):
        stretch = np.geomspace(leg.first_call, end, 40).tolist()
        cheapest = tuple(relative_totals(leg.line, reference, stretch))
        marks.append(Mark((Line(tuple(stretch), cheapest, colour="ink", width=5.0, opacity=0.18),)))
    for line, relative in zip(lines, totals, strict=True):
        first_s, further_ms = number_format.seconds(line.total_s(1)), number_format.milliseconds(1e3 * line.steady_s)
        tip = f"{line.label}: {first_s} s, then {further_ms} ms a call"
        marks.append(Mark(_curve(calls, relative, high), tip, palette(line.label)))
    crossings = [_crossing(leg, reference, is_below=place % 2 == 1) for place, leg in enumerate(legs) if leg.crossing]
    whose = f"total time / {one_line(reference.label, 30)}'s"
    return Chart(
        name="costs",
        subject=contest.title,
        finding=findings.costs(contest),
        caption=f"Total time of so many calls from a cold start, building and first call included, over "
        f"{reference.label}'s; the grey band is the cheapest, a hollow dot with ? a crossing that is not established",
        x=Axis("calls", 1.0, float(HORIZON[-1]), is_log=True),
        y=Axis(whose, low, high, is_log=True),
        marks=(*marks, *crossings),
        legend=tuple((one_line(line.label, 40), palette(line.label)) for line in lines),
        stops=tuple(_stop(contest, number, lines) for number in STOPS),
    )


def relative_totals(line: CostLine, reference: CostLine, calls: list[float]) -> list[float]:
    return [line.total_s(number) / reference.total_s(number) for number in calls]


def _curve(calls: list[float], relative: list[float], high: float) -> tuple[Line | Dots, ...]:
    inside = [place for place, value in enumerate(relative) if value <= high]
    first, last = (max(0, inside[0] - 1), inside[-1] + 2) if inside else (0, 2)
    dotted = [place for place in inside if place % 10 == 5]
    dots = Dots(tuple(calls[place] for place in dotted), tuple(relative[place] for place in dotted), size=4.0)
    return Line(tuple(calls[first:last]), tuple(relative[first:last])), *([dots] if dotted else [])


def _crossing(leg: Leg, reference: CostLine, is_below: bool) -> Mark:
    is_sure = leg.crossing is not None and leg.crossing.is_established
    (height,) = relative_totals(leg.line, reference, [leg.first_call])
    text = f"{leg.first_call:,}{'' if is_sure else '?'}"
    shapes = (
        Dots((leg.first_call,), (height,), is_sure, size=4.5, shape="o", colour="ink"),
        Text(leg.first_call, height, text, up_pt=-9 if is_below else 8),
    )
    doubt = "" if is_sure else " (not established)"
    return Mark(shapes, f"{leg.line.label} costs least from call {leg.first_call:,} on{doubt}")


def _stop(contest: ContestJudgement, calls: int, lines: list[CostLine]) -> Stop:
    totals = sorted(((line.label, line.total_s(calls)) for line in lines), key=lambda each: each[1])
    return Stop(
        calls,
        findings.cheapest(contest, calls),
        tuple((label, f"{number_format.seconds(total_s)} s") for label, total_s in totals),
    )
