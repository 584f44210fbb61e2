"""Charts of single calls: how their latencies are distributed, and how they moved over the run."""

from collections.abc import Sequence

import numpy as np

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.samples import Deviation, Distribution
from bakeoff.reports import findings, number_format
from bakeoff.reports.charts.chart import BAR_Y, FOOT_Y, Chart, Dots, Hill, Line, Mark, axis_around, lost_cell, name
from bakeoff.reports.charts.palette import Palette

_HILL_HEIGHT = 0.52
_DRIFT_HEIGHT = 0.24
_SMALLEST_REACH = 0.02


def samples(contest: ContestJudgement, palette: Palette) -> Chart | None:
    distributions = contest.distributions
    if not distributions.by_label:
        return None
    marks = []
    for place, cell in enumerate(contest.shown):
        hill = distributions.by_label.get(cell.label)
        if hill is None:
            marks.append(lost_cell(place, cell, palette))
            continue
        middle = f"{number_format.milliseconds(hill.low_ms)} to {number_format.milliseconds(hill.high_ms)} ms"
        shapes = _hill(hill, place + FOOT_Y, is_filled=not cell.record.status.is_failure)
        tip = (
            f"{cell.label}: {number_format.milliseconds(hill.median_ms)} ms, 99 % of {hill.calls:,} calls from {middle}"
        )
        marks.append(Mark(shapes, tip, palette(cell.label)))
    ends_ms = [end for hill in distributions.by_label.values() for end in (hill.low_ms, hill.high_ms)]
    return Chart(
        name="samples",
        subject=contest.title,
        finding=findings.samples(contest),
        caption="Latencies of single calls in ms, the middle 99 % of them, with a line at the latency of the cell",
        x=axis_around("latency of a call (ms), middle 99 % of the calls", ends_ms, distributions.is_log, pad=0.04),
        marks=tuple(marks),
        rows=tuple(map(name, contest.shown)),
    )


def drift(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw a line for each process: its bursts over time. There is none if no process has more than two bursts."""
    deviations = {place: cell.deviations for place, cell in enumerate(contest.shown) if cell.deviations}
    everything = [deviation for processes in deviations.values() for process in processes for deviation in process]
    if not any(len(process) > 2 for processes in deviations.values() for process in processes):
        return None
    reach = max(_SMALLEST_REACH, float(np.quantile([abs(deviation.share) for deviation in everything], 0.97)))
    start_s, end_s = min(deviation.at_s for deviation in everything), max(deviation.at_s for deviation in everything)
    x = axis_around("time since the run began (s)", [start_s, max(end_s, start_s + 1e-3)], is_log=False, pad=0.02)
    marks: list[Mark] = []
    for place, cell in enumerate(contest.shown):
        if place not in deviations:
            marks.append(lost_cell(place, cell, palette))
            continue
        marks.append(Mark((Line((x.low, x.high), (place + BAR_Y, place + BAR_Y), colour="faint", width=0.6),)))
        for number, process in enumerate(deviations[place], 1):
            shapes = _process(process, place + BAR_Y, reach)
            low, high = min(deviation.share for deviation in process), max(deviation.share for deviation in process)
            spread = f"{100 * low:+.1f} % to {100 * high:+.1f} % of its cell's median"
            marks.append(Mark(shapes, f"{cell.label}, process {number}: {spread}", palette(cell.label)))
    labelled = {contest.shown[place].label: processes for place, processes in deviations.items()}
    return Chart(
        name="drift",
        subject=contest.title,
        finding=findings.drift(labelled),
        caption="Latency of each burst over the run, relative to its cell's median: each row reaches "
        f"{number_format.percent(reach)} % up and down, a line is one process, a hollow dot a disturbed burst",
        x=x,
        marks=tuple(marks),
        rows=tuple(map(name, contest.shown)),
    )


def _hill(hill: Distribution, foot: float, is_filled: bool) -> tuple[Hill | Line, ...]:
    if not hill.heights:
        return (Line((hill.median_ms,) * 2, (foot, foot - _HILL_HEIGHT), colour="ink", width=1.0),)
    outline = Hill(hill.middles_ms, tuple(foot - _HILL_HEIGHT * height for height in hill.heights), foot, is_filled)
    at_ms = min(max(hill.median_ms, hill.middles_ms[0]), hill.middles_ms[-1])  # by half a bin, at most
    top = foot - _HILL_HEIGHT * float(np.interp(at_ms, hill.middles_ms, hill.heights))
    return outline, Line((at_ms, at_ms), (foot, top), colour="ink", width=1.0)


def _process(process: Sequence[Deviation], y: float, reach: float) -> tuple[Line | Dots, ...]:
    xs = [deviation.at_s for deviation in process]
    ys = [y - _DRIFT_HEIGHT * min(max(deviation.share / reach, -1.0), 1.0) for deviation in process]
    hollow = [place for place, turn in enumerate(process) if turn.disturbed]
    dots = Dots(tuple(xs[place] for place in hollow), tuple(ys[place] for place in hollow), False, 2.6, "o")
    if len(process) == 1:
        return (Dots(tuple(xs), tuple(ys), not hollow, 2.6, "o"),)
    return (Line(tuple(xs), tuple(ys), width=0.9), *([dots] if hollow else []))
