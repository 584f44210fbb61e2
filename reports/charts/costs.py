"""Total time over the number of calls, building included, relative to one cell's, a line per cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judging.costs import HORIZON, Start
from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import cost_lines, reference_line, relative_totals
from reports.charts.key import Key
from reports.charts.scatter import FOOT, HEIGHT, LEFT, RIGHT, TOP
from reports.charts.svg import Chart, Scale, add, mark, path, x_axis, y_axis

_DEAREST_SHOWN = 30.0  # times the reference: above, no crossing with the cheapest is to be seen

STOPS = [step * 10**power for power in range(7) for step in (1, 2, 3, 5, 7)] + [HORIZON[-1]]
"""Numbers of calls that the slider stops at."""


@dataclass(frozen=True)
class Stop:
    """What so many calls cost."""

    calls: int
    said: str  # who costs least
    totals: list[tuple[str, str]]  # label and seconds, the cheapest first


def chart(contest: ContestJudgement, key: Key, start: Start) -> Chart | None:
    if not findings.has_costs(contest, start):
        return None
    lines, reference = cost_lines(contest, start), reference_line(contest, start)
    made = Chart(
        "costs" if start == "cold" else f"costs-{start}",
        findings.costs(contest, start),
        f"Total time of so many calls from a {start} start, building and first call included, over {reference.label}'s",
        HEIGHT,
    )
    calls = np.geomspace(1, HORIZON[-1], 57)
    totals = {line.label: relative_totals(line, reference, calls) for line in lines}
    low = min(float(np.min(relative)) for relative in totals.values()) / 1.3
    high = min(max(float(np.max(relative)) for relative in totals.values()) * 1.3, _DEAREST_SHOWN)
    across, up = scale_of_calls(), Scale(low, high, FOOT, TOP, is_log=True)
    x_axis(made.root, across, FOOT, "calls", top=TOP)
    y_axis(made.root, up, LEFT, RIGHT, f"total time / {reference.label}'s")
    for line in lines:
        setup, steady = format.seconds(line.total_s(1)), format.milliseconds(1e3 * line.steady_s)
        group = mark(made.root, key.number(line.label), f"{line.label}: {setup} s, then {steady} ms a call")
        path(group, _visible(calls.tolist(), totals[line.label].tolist(), across, up), "line")
    add(made.root, "path", "cursor", d=f"M0 {TOP:.1f}V{FOOT:.1f}", transform=f"translate({across(1):.1f} 0)")
    return made


def stops(contest: ContestJudgement, start: Start) -> list[Stop]:
    """What the slider says at each of its stops."""
    lines = cost_lines(contest, start)
    return [
        Stop(
            calls,
            _said(contest, start, calls),
            [
                (line.label, f"{format.seconds(line.total_s(calls))} s")
                for line in sorted(lines, key=lambda line: line.total_s(calls))
            ],
        )
        for calls in STOPS
    ]


def scale_of_calls() -> Scale:
    """The axis that the slider moves along."""
    return Scale(1, HORIZON[-1], LEFT, RIGHT, is_log=True)


def _said(contest: ContestJudgement, start: Start, calls: int) -> str:
    found = contest.costs.cheapest(calls, start, contest.contenders)
    number = f"{calls:,} call{'s' if calls > 1 else ''} from a {start} start"
    if found is None:
        return f"{number}: nobody can be ranked"
    least = f"{found.line.label} costs least, {format.seconds(found.line.total_s(calls))} s"
    rivals = (
        f" (or {format.some([line.label for line in found.rivals], shown=3)}: not established)" if found.rivals else ""
    )
    return f"{number}: {least}{rivals}"


def _visible(calls: list[float], relative: list[float], across: Scale, up: Scale) -> list[tuple[float, float]]:
    """The part of a line within the axes, cut where it leaves them at the top."""
    points = [(across(x), up(y)) for x, y in zip(calls, relative, strict=True)]
    inside = [place for place, (_, y) in enumerate(points) if y >= up.stop]
    if not inside:
        return [(across.start, up.stop), (across.start, up.stop)]
    first, last = max(0, inside[0] - 1), min(len(points) - 1, inside[-1] + 1)
    return [_cut(points, place, up.stop) for place in range(first, last + 1)]


def _cut(points: list[tuple[float, float]], place: int, top: float) -> tuple[float, float]:
    x, y = points[place]
    if y >= top:
        return x, y
    inner = points[place + 1] if place + 1 < len(points) and points[place + 1][1] >= top else points[place - 1]
    share = (top - y) / (inner[1] - y)
    return x + share * (inner[0] - x), top
