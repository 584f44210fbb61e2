"""Charts with a row for each cell: its latency, speed-up and change, its single calls, and how it builds and starts."""

from collections.abc import Sequence

import numpy as np

from bakeoff.judging.change import Change
from bakeoff.judging.compare import CellChange
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import CALLED, relation
from bakeoff.judging.intervals import ends
from bakeoff.judging.samples import Deviation, Distribution
from bakeoff.judging.start_times import STAGES, StartsJudgement
from bakeoff.records.schema import Ratio
from bakeoff.records.text import counted, one_line
from bakeoff.reports import findings, number_format, sentences, start_report
from bakeoff.reports.charts.chart import (
    BAR_Y,
    FOOT_Y,
    NAME_CHARACTERS,
    Axis,
    Bar,
    Chart,
    Dots,
    Hill,
    Line,
    Mark,
    Shape,
    Text,
    axis_around,
    lost_cell,
    name,
    vertical_line,
)
from bakeoff.reports.charts.palette import Palette

LOG_FROM = 20.0
"""Latencies stand on a logarithmic axis if the longest is over so many times the shortest."""

MOST_BELOW = 10.0
"""A logarithmic axis begins at most so many times below the shortest median. Intervals are cut off there."""

LOG_FROM_RATIO = 6.0
"""The same for speed-ups."""


def latency(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw medians as bars from zero, or as dots on a logarithmic axis; hollow if the cell was wrong."""
    measured = [cell.latency for cell in contest.shown if cell.latency]
    if not measured:
        return None
    medians_ms = [each.median_ms for each in measured]
    is_log = max(medians_ms) > LOG_FROM * min(medians_ms) > 0
    low = 0.0
    if is_log:
        lowest_ms = min([*medians_ms, *(each.median_ci95_ms.low for each in measured if each.median_ci95_ms)])
        low = max(lowest_ms, min(medians_ms) / MOST_BELOW) / 1.3
    x = Axis("median latency (ms), 95 % interval", low, max(medians_ms), is_log)
    return Chart(
        name="latency",
        subject=contest.title,
        finding=sentences.of_single_calls(contest),
        caption="Median latency in ms, with its 95 % interval",
        x=x,
        marks=tuple(_median(place, cell, palette, x) for place, cell in enumerate(contest.shown)),
        rows=tuple(map(name, contest.shown)),
    )


def speedup(contest: ContestJudgement, palette: Palette) -> Chart | None:
    if not findings.has_ratio(contest):
        return None
    baseline = contest.baseline
    ratios = [cell.speedup for cell in contest.shown]
    values = [1.0, *(value for ratio in ratios if ratio for value in (ratio.value, *ends(ratio.value, ratio.ci95)))]
    low, high = min(values), max(values)
    is_log = high > LOG_FROM_RATIO * low > 0
    left = low / 1.15 if is_log else max(0.0, low - 0.08 * (high - low) - 0.02)
    marks = [
        _ratio(place, cell, ratio, palette) if ratio else lost_cell(place, cell, palette)
        for place, (cell, ratio) in enumerate(zip(contest.shown, ratios, strict=True))
    ]
    return Chart(
        name="speedup",
        subject=contest.title,
        finding=findings.speedup(contest),
        caption=f"Speed-up over {baseline} in the same rounds, with its 95 % interval; a hollow dot is called neither "
        "faster nor slower",
        x=Axis(f"speed-up over {baseline} (x), 95 % interval", left, high, is_log),
        marks=(vertical_line(1.0, len(contest.shown)), *marks),
        rows=tuple(map(name, contest.shown)),
    )


def interval(low: float, high: float, y: float) -> Line:
    return Line((low, high), (y, y), colour="ink", width=1.1)


def _median(place: int, cell: CellJudgement, palette: Palette, x: Axis) -> Mark:
    found, y = cell.latency, place + BAR_Y
    if found is None:
        return lost_cell(place, cell, palette)
    is_wrong = cell.record.status.is_failure
    dot = Dots((found.median_ms,), (y,), not is_wrong)
    shapes: list[Shape] = [dot if x.is_log else Bar(y, 0.0, found.median_ms, not is_wrong)]
    end = found.median_ms
    if found.median_ci95_ms:
        shapes.append(interval(max(x.low, found.median_ci95_ms.low), found.median_ci95_ms.high, y))
        end = max(end, found.median_ci95_ms.high)
    note = f" {cell.record.status}" if is_wrong else ""
    shapes.append(Text(end, y, f"{number_format.milliseconds(found.median_ms)}{note}"))
    measured = f"{counted(found.calls, 'call')} in {counted(found.processes, 'process')}"
    return Mark(tuple(shapes), f"{cell.label}: {number_format.median(found)} ms, {measured}", palette(cell.label))


def _ratio(place: int, cell: CellJudgement, ratio: Ratio, palette: Palette) -> Mark:
    text, y = f"{number_format.ratio(ratio.value)}x", place + BAR_Y
    low, high = ends(ratio.value, ratio.ci95)
    whisker: list[Shape] = [interval(low, high, y)] if low < high else []
    is_called = cell.is_baseline or relation(ratio) in CALLED
    shapes = (*whisker, Dots((ratio.value,), (y,), is_called), Text(max(high, ratio.value), y, text))
    tip = f"{cell.label}: {text} {number_format.ratio_interval(ratio.ci95)} over {counted(ratio.processes, 'process')}"
    return Mark(shapes, tip, palette(cell.label))


_SHORTEST_REACH = 5.0


def of_change(cells: Sequence[CellChange], title: str, palette: Palette) -> Chart | None:
    values = [value for cell in cells if cell.raw for value in _percents(cell.raw)]
    if not values:
        return None
    low, high = min(-_SHORTEST_REACH, *values), max(_SHORTEST_REACH, *values)
    return Chart(
        name="change",
        subject="",
        finding=title,
        caption="Change of latency in %, above 0 the new run takes longer",
        x=Axis("change of latency (%)", low - 0.04 * (high - low), high),
        marks=(vertical_line(0.0, len(cells)), *(_changed(place, cell, palette) for place, cell in enumerate(cells))),
        rows=tuple(one_line(cell.cell.label, NAME_CHARACTERS) for cell in cells),
    )


def _changed(place: int, cell: CellChange, palette: Palette) -> Mark:
    label, y = cell.cell.label, place + BAR_Y
    if cell.raw is None:
        return Mark(
            (Text(None, y, f"\u00d7 {cell.outcome}", colour="bad"),), f"{label}: {cell.outcome}", palette(label)
        )
    low, middle, high = _percents(cell.raw)
    shapes = Dots((middle,), (y,)), Text(high, y, number_format.spell_change(Change(cell.raw.log, None)))
    tip = f"{label}: {number_format.spell_change(cell.raw)}"
    return Mark((*([interval(low, high, y)] if low < high else []), *shapes), tip, palette(label))


def _percents(change: Change) -> tuple[float, float, float]:
    low, high = ends(change.value, change.ci95)
    return 100 * (low - 1), 100 * (change.value - 1), 100 * (high - 1)


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


_PHASES = {"export": "#4b6a9b", "compile": "#8c93a3", "load": "#b5a76c", "capture": "#a35d6a", "first_call": "#e6c229"}
_OTHER_PHASE = "#777777"


def phases(contest: ContestJudgement, palette: Palette) -> Chart | None:
    longest_s = max(
        (sum(phase.seconds for phase in cell.record.phases_until_first_answer) for cell in contest.shown), default=0.0
    )
    if longest_s <= 0:
        return None
    names_in_records = {phase.name for cell in contest.shown for phase in cell.record.phases_until_first_answer}
    names = [phase for phase in _PHASES if phase in names_in_records]
    return Chart(
        name="phases",
        subject=contest.title,
        finding=findings.phases(contest),
        caption="Time until the first answer in s: export, compile, load, capture and first call, from empty caches",
        x=Axis("time (s)", 0.0, longest_s),
        marks=tuple(mark for place, cell in enumerate(contest.shown) for mark in _stack(place, cell, palette)),
        rows=tuple(map(name, contest.shown)),
        colours=(
            *((phase.replace("_", " "), _PHASES[phase]) for phase in names),
            *([("other", _OTHER_PHASE)] if names_in_records - set(names) else []),
        ),
    )


def _stack(place: int, cell: CellJudgement, palette: Palette) -> list[Mark]:
    if not cell.record.phases:
        return [lost_cell(place, cell, palette)]
    marks, left_s, look = [], 0.0, palette(cell.label)
    for phase in cell.record.phases_until_first_answer:
        bar = Bar(place + BAR_Y, left_s, left_s + phase.seconds, colour=_PHASES.get(phase.name, _OTHER_PHASE))
        marks.append(Mark((bar,), f"{cell.label}: {phase.name} {number_format.seconds(phase.seconds)} s", look))
        left_s += phase.seconds
    lost = "" if cell.latency else f" \u00d7 {one_line(number_format.ending(cell.record), 30)}"
    text = f"{number_format.seconds(left_s)}{lost}"
    return [
        *marks,
        Mark(
            (Text(left_s, place + BAR_Y, text),), f"{cell.label}: {number_format.seconds(left_s)} s in all{lost}", look
        ),
    ]


_STAGES = {"interpreter": "#8c93a3", "imports": "#4b6a9b", "load": "#b5a76c", "first answer": "#e6c229"}


def starts(contest: ContestJudgement, palette: Palette) -> Chart | None:
    judged = contest.starts
    return starts_chart(judged, contest.title, start_report.headline(judged)) if judged and judged.cells else None


def starts_chart(judged: StartsJudgement, subject: str, finding: str, origin: str = "") -> Chart:
    """Draw the median of each stage as a stack. Its number is the median of the whole start."""
    marks = []
    for place, cell in enumerate(judged.cells):
        left_s = 0.0
        for stage in STAGES:
            right_s = left_s + cell.stages[stage]
            said = f"{cell.label}: {stage} {number_format.seconds(cell.stages[stage])} s"
            marks.append(Mark((Bar(place + BAR_Y, left_s, right_s, colour=_STAGES[stage]),), said))
            left_s = right_s
        marks.append(Mark((Text(left_s, place + BAR_Y, number_format.seconds(cell.value)),)))
    longest_s = max(sum(cell.stages.values()) for cell in judged.cells)
    return Chart(
        name="starts",
        subject=subject,
        finding=finding,
        caption="From the start of the process to the first answer in s: medians of each stage",
        x=Axis("time (s)", 0.0, longest_s),
        marks=tuple(marks),
        rows=tuple(one_line(cell.label, NAME_CHARACTERS) for cell in judged.cells),
        colours=tuple(_STAGES.items()),
        origin=origin,
    )
