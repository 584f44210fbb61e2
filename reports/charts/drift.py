"""How each cell's latency moved over the rounds, relative to its median: a line per process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from judging.disturbance import disturbed, usual_of
from judging.estimate import burst_ms
from judging.judgement import ContestJudgement
from records.schema import Record
from reports import format
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import Chart, Scale, add, mark, path, x_axis

MOST_POINTS = 60
"""Of a process; where it has more bursts, a point is the median of as many neighbours as that takes."""

_HALF_HEIGHT = 10.0
_SMALLEST_RANGE = 0.02


@dataclass(frozen=True)
class Turn:
    """A burst, or a few that follow each other."""

    at_s: float
    deviation: float  # median / the cell's median - 1
    disturbed: bool


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    """Nothing where no cell has more than two bursts in any process."""
    turns = {place: taken for place, row in enumerate(contest.cells) if (taken := turns_of(row.record))}
    if not any(len(process) > 2 for taken in turns.values() for process in taken):
        return None
    everything = [turn for taken in turns.values() for process in taken for turn in process]
    reach = max(_SMALLEST_RANGE, float(np.quantile([abs(turn.deviation) for turn in everything], 0.97)))
    made = Chart(
        "drift",
        _finding(contest, turns),
        "Latency of each burst over the run, relative to its cell's median: each row reaches "
        f"{format.percent(reach)} % up and down, a line is one process, a hollow dot a disturbed burst",
        rows.height_of(contest.cells),
    )
    times_s = [turn.at_s for turn in everything]
    across = Scale(min(times_s), max(max(times_s), min(times_s) + 1e-3), rows.LEFT + 4, rows.RIGHT - 4)
    x_axis(made.root, across, rows.foot_of(contest.cells), "time since the run began (s)")
    for place, taken in turns.items():
        label, y = contest.cells[place].label, rows.middle_of(place)
        up = Scale(-reach, reach, y + _HALF_HEIGHT, y - _HALF_HEIGHT)
        add(made.root, "path", "level", d=f"M{across.start:.1f} {y:.1f}H{across.stop:.1f}")
        for number, process in enumerate(taken):
            _draw(made, process, across, up, key.number(label), f"{label}, process {number + 1}")
    rows.name_rows(made.root, contest.cells, key, turns)
    return made


def turns_of(record: Record) -> list[list[Turn]]:
    """By process, in the order of time; at most `MOST_POINTS` of each."""
    usual = usual_of(record.bursts)
    filled = sorted((burst for burst in record.bursts if burst.samples_ns), key=lambda burst: burst.started_s)
    if not filled:
        return []
    middle = float(np.median([burst_ms(burst) for burst in filled])) or 1e-6
    by_process: dict[int, list[Turn]] = {}
    for burst in filled:
        turn = Turn(burst.started_s, burst_ms(burst) / middle - 1, disturbed(burst, usual))
        by_process.setdefault(burst.process, []).append(turn)
    return [_thinned(taken) for taken in by_process.values()]


def _thinned(turns: Sequence[Turn]) -> list[Turn]:
    step = -(-len(turns) // MOST_POINTS)
    neighbours = [turns[start : start + step] for start in range(0, len(turns), step)]
    return [
        Turn(
            at_s=float(np.median([turn.at_s for turn in few])),
            deviation=float(np.median([turn.deviation for turn in few])),
            disturbed=2 * sum(turn.disturbed for turn in few) > len(few),
        )
        for few in neighbours
    ]


def _draw(made: Chart, process: Sequence[Turn], across: Scale, up: Scale, key: int, name: str) -> None:
    deviations = [turn.deviation for turn in process]
    tip = f"{name}: {_signed(min(deviations))} to {_signed(max(deviations))} of its cell's median"
    group = mark(made.root, key, tip)
    points = [(across(turn.at_s), up(min(max(turn.deviation, up.low), up.high))) for turn in process]
    path(group, points if len(points) > 1 else [*points, (points[0][0] + 1, points[0][1])], "line thin")
    for (x, y), turn in zip(points, process, strict=True):
        if turn.disturbed:
            add(group, "circle", "disturbed", cx=x, cy=y, r=2.4)


def _finding(contest: ContestJudgement, turns: dict[int, list[list[Turn]]]) -> str:
    """Which cell's processes, or else rounds, are furthest apart."""
    medians = {
        place: [float(np.median([turn.deviation for turn in process])) for process in taken]
        for place, taken in turns.items()
    }
    spreads = {place: (1 + max(each)) / (1 + min(each)) - 1 for place, each in medians.items() if len(each) > 1}
    if spreads:
        place = max(spreads, key=lambda place: spreads[place])
        return f"{contest.cells[place].label}'s processes differ most, by {format.percent(spreads[place])} %"
    widths = {
        place: float(np.ptp([turn.deviation for process in taken for turn in process]))
        for place, taken in turns.items()
    }
    place = max(widths, key=lambda place: widths[place])
    return f"{contest.cells[place].label} moved most over the rounds, within {format.percent(widths[place])} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
