"""Charts of building and starting: the stages of both, and the build time against the latency."""

from collections.abc import Sequence

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.start_times import STAGES, StartsJudgement
from bakeoff.records.text import one_line
from bakeoff.reports import findings, number_format, start_report
from bakeoff.reports.charts.chart import (
    BAR_Y,
    NAME_CHARACTERS,
    Axis,
    Bar,
    Chart,
    Line,
    Mark,
    Text,
    axis_around,
    lost_cell,
    name,
    point,
)
from bakeoff.reports.charts.palette import Palette

SHORTEST_BUILD_S = 1e-3
"""A shorter build stands here on a logarithmic axis."""

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


def pareto(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw latency against build time. The stairs are the front of these two; a filled dot is not dominated at all."""
    points = [(cell, latency) for cell in contest.ranked if (latency := cell.latency)]
    if len(contest.ranked) < 3 or any(latency.median_ms <= 0 for _, latency in points):
        return None
    builds_s = [build_s(cell) for cell, _ in points]
    is_cut = SHORTEST_BUILD_S in builds_s
    x = axis_around(f"build time (s){'; under 1 ms: at 1 ms' if is_cut else ''}", builds_s, is_log=True)
    marks = [front_mark([(build_s(cell), latency.median_ms) for cell, latency in points], x)]
    reached = []
    for cell, latency in points:
        at_s, ends_ms = build_s(cell), (interval.low, interval.high) if (interval := latency.median_ci95_ms) else ()
        reached += [latency.median_ms, *ends_ms]
        shapes = point(at_s, latency.median_ms, ends_ms, cell.label in contest.front.labels)
        record = cell.record
        speedup = [f"{number_format.ratio(cell.speedup.value)}x"] if cell.speedup and not cell.is_baseline else []
        parts = [
            f"{cell.label}: {number_format.median(latency)} ms",
            *speedup,
            f"built in {number_format.seconds(record.build_s)} s",
            f"{number_format.mebibytes(number_format.peak_memory(record)[0])} MiB",
            f"relative error {number_format.error(record.accuracy.relative_rmse if record.accuracy else None)}",
        ]
        marks.append(Mark(shapes, ", ".join(parts), palette(cell.label)))
    return Chart(
        name="pareto",
        subject=contest.title,
        finding=findings.pareto(contest),
        caption="Median latency in ms with its 95 % interval against build time in s; the line is their front. Hollow: "
        f"another one is nowhere worse, and somewhere better, in {', '.join(contest.front.aims)}",
        x=x,
        y=axis_around("median latency (ms)", reached, is_log=min(reached) > 0),
        marks=tuple(marks),
        legend=tuple((name(cell), palette(cell.label)) for cell, _ in points),
        foot_note=" ".join(
            f"\u00d7 {name(cell)} {cell.record.status}"
            for cell in contest.unranked
            if not cell.record.status.is_absence
        ),
    )


def build_s(cell: CellJudgement) -> float:
    """Return the build time, long enough for a logarithmic axis."""
    return max(cell.record.build_s, SHORTEST_BUILD_S)


def front_mark(points: Sequence[tuple[float, float]], x: Axis, x_sign: int = 1, y_sign: int = 1) -> Mark:
    """Return the front of these points as a line up to the end of the axis. A sign is -1 where more is better."""
    front = stairs([(x_sign * at, y_sign * value) for at, value in points])
    corners = [front[0]]
    for at, value in front[1:]:
        corners += [(at, corners[-1][1]), (at, value)]
    corners.append((x_sign * (x.high if x_sign > 0 else x.low), corners[-1][1]))
    xs, ys = zip(*((x_sign * at, y_sign * value) for at, value in corners), strict=True)
    return Mark((Line(xs, ys, colour="soft", width=1.0),))


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other is below in both coordinates, from left to right."""
    stairs: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not stairs or y < stairs[-1][1]:
            stairs.append((x, y))
    return stairs


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
