"""Charts of what one gain costs in another, with the front of both: latency and build time, speed and error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.records.schema import Interval
from bakeoff.reports import findings, number_format
from bakeoff.reports.charts.chart import Axis, Chart, Line, Mark, axis_around, name, point
from bakeoff.reports.charts.palette import Palette

SHORTEST_BUILD_S = 1e-3
"""A shorter build stands here on a logarithmic axis."""

SMALLEST_ERROR = 1e-12
"""A smaller error stands here on the logarithmic axis."""


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


def speed_over_error(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw what was asked, such as a latency or a rate, against the user's first metric, or else the error, for all
    right cells. The stairs are the front of the two; a filled dot may win the contest."""
    right = [cell for cell in contest.cells if cell.place is not None]
    errors = {
        cell.label: max(accuracy.relative_rmse, SMALLEST_ERROR)
        for cell in right
        if (accuracy := cell.record.accuracy) and accuracy.has_errors
    }
    loss, speed = _metric_of(right) or _Scale("relative RMSE", errors, 1, is_log=True), _speeds_of(contest)
    shown = [cell for cell in right if cell.label in loss.values and cell.label in speed.values]
    if len(shown) < 2:
        return None
    points = {cell.label: (loss.values[cell.label], speed.values[cell.label]) for cell in shown}
    x = axis_around(loss.title, [value for value, _ in points.values()], is_log=loss.is_log)
    marks, reached = [front_mark(list(points.values()), x, loss.sign, speed.sign)], []
    may_win = {row.label for row in contest.answer_of_builds.ranked}
    for label, (lost, value) in points.items():
        interval = speed.intervals.get(label)
        ends = (interval.low, interval.high) if interval else ()
        reached += [value, *ends]
        tip = f"{label}: {speed.title} {value:.4g}, {loss.title} {lost:.3g}"
        marks.append(Mark(point(lost, value, ends, label in may_win), tip, palette(label)))
    return Chart(
        name="precisions",
        subject=contest.title,
        finding=findings.precisions(contest),
        caption=f"{speed.title[0].upper()}{speed.title[1:]} with its 95 % interval, where there is one, against "
        f"{loss.title}; the line is their front. A hollow dot may not win",
        x=x,
        y=axis_around(speed.title, reached, is_log=min(reached) > 0),
        marks=tuple(marks),
        legend=tuple((name(cell), palette(cell.label)) for cell in shown),
    )


@dataclass(frozen=True)
class _Scale:
    """What is drawn along an axis, by label. Less is better where `sign` is 1, and more where it is -1."""

    title: str
    values: Mapping[str, float]
    sign: int
    is_log: bool = False
    intervals: Mapping[str, Interval | None] = field(default_factory=dict)


def _speeds_of(contest: ContestJudgement) -> _Scale:
    """Return what the verdict is about: rates or latencies under load, whole generations, or single calls."""
    if contest.load:
        spec, cells = contest.load.scenario.spec, contest.load.cells
        values = {cell.label: cell.value for cell in cells if cell.value}
        title = "requests/s under load" if spec.is_rate else "median latency under load (ms)"
        return _Scale(title, values, -1 if spec.is_rate else 1, intervals={cell.label: cell.interval for cell in cells})
    if contest.generation:
        totals = {cell.label: cell.total_ms for cell in contest.generation.cells}
        return _Scale("a whole generation (ms)", totals, 1)
    latencies = {cell.label: cell.latency for cell in contest.cells if cell.latency and cell.latency.median_ms > 0}
    medians_ms = {label: latency.median_ms for label, latency in latencies.items()}
    intervals = {label: latency.median_ci95_ms for label, latency in latencies.items()}
    return _Scale("median latency (ms)", medians_ms, 1, intervals=intervals)


def _metric_of(cells: Sequence[CellJudgement]) -> _Scale | None:
    """Return the first of the user's own metrics. More is better unless `evaluate` says otherwise."""
    names = dict.fromkeys(name for cell in cells for name in cell.metrics)
    for metric in names:
        values = {cell.label: cell.metrics[metric] for cell in cells if metric in cell.metrics}
        is_less = any(value.higher_is_better is False for value in values.values())
        return _Scale(metric, {label: value.value for label, value in values.items()}, 1 if is_less else -1)
    return None
