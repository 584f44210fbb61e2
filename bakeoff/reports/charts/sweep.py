"""Charts over the sizes of a sweep: lines of latency and speed-up, and what compiling is worth."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.intervals import ends
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.sweeps import COMPILED, Quantity, Sweep, Value, latency, over_own_build, speedup
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.text import one_line
from bakeoff.reports import number_format
from bakeoff.reports.charts.chart import Axis, Chart, Dots, Line, Lost, Mark, Shape, axis_around, level, value_axis
from bakeoff.reports.charts.palette import LIGHT, Look, Palette, ramp
from bakeoff.reports.charts.rows import LOG_FROM, LOG_FROM_RATIO
from bakeoff.reports.findings import sweep_speedup
from bakeoff.reports.sentences import sweep_finding, sweep_title

_TASKS = ("inference", "forward_backward", "train_step")
_LOST_SHARE = 0.06
"""The share of the axis that the crosses of each configuration take."""

_FAILED = ("failed", Look(0, LIGHT["soft"], LIGHT["soft"], "x"))


def sweep_charts(sweep: Sweep, palette: Palette) -> list[Chart]:
    fastest, gains, over = sweep_finding(sweep), sweep_speedup(sweep), "speed-up over eager (x)"
    has_ratio = sweep.has_ratio
    charts = [
        _lines(sweep, palette, latency, "sweep-latency", fastest, "median latency (ms)", LOG_FROM),
        _lines(sweep, palette, speedup, "sweep-speedup", gains, over, LOG_FROM_RATIO) if has_ratio else None,
        _cost_of_one_build(sweep, palette),
    ]
    return [chart for chart in charts if chart]


def _cost_of_one_build(sweep: Sweep, palette: Palette) -> Chart | None:
    dynamic = {label: points for label, points in sweep.lines.items() if points[0].row.cell.dynamic}
    if not any(over_own_build(point.row) for points in dynamic.values() for point in points):
        return None
    finding = f"one build for all of {sweep.dimension}, against one for each"
    title = "latency over that of its own build (x)"
    chart = _lines(sweep, palette, over_own_build, "sweep-dynamic", finding, title, LOG_FROM_RATIO, list(dynamic))
    return chart and replace(chart, marks=(Mark((level(1.0, chart.x),)), *chart.marks))


def _lines(
    sweep: Sweep,
    palette: Palette,
    quantity: Quantity,
    chart: str,
    finding: str,
    title: str,
    log_from: float,
    labels: Sequence[str] | None = None,
) -> Chart | None:
    lines = {label: points for label, points in sweep.lines.items() if labels is None or label in labels}
    values = {
        label: {point.size: value for point in points if (value := quantity(point.row))}
        for label, points in lines.items()
    }
    reached = [end for found in values.values() for value in found.values() for end in (value.middle, *value.ends)]
    if not reached:
        return None
    lost = {label: points for label, points in sweep.failures(quantity).items() if label in lines}
    marks = [mark for label, found in values.items() for mark in _line(sweep, label, found, quantity, palette(label))]
    for row, (label, points) in enumerate(lost.items()):
        for point in points:
            tip = f"{_at(label, sweep, point.size)}: {number_format.ending(point.row.record)}"
            marks.append(Mark((Lost((point.size,), row),), tip, palette(label)))
    return Chart(
        name=chart,
        subject=sweep_title(sweep),
        finding=finding,
        caption=f"{title.capitalize()} over {sweep.dimension}, a cross where a cell failed",
        x=_size_axis(sweep.dimension, {size: f"{size:,.10g}" for size in sweep.sizes}),
        y=value_axis(title, reached, log_from, _LOST_SHARE * len(lost)),
        marks=tuple(marks),
        legend=(*((one_line(label, 36), palette(label)) for label in values), *([_FAILED] if lost else [])),
    )


def _line(sweep: Sweep, label: str, found: dict[float, Value], quantity: Quantity, look: Look) -> list[Mark]:
    stretches: list[list[float]] = [[]]
    for size in sweep.sizes:
        if size in found:
            stretches[-1].append(size)
        elif stretches[-1]:
            stretches.append([])
    lines = tuple(
        Line(tuple(sizes), tuple(found[size].middle for size in sizes)) for sizes in stretches if len(sizes) > 1
    )
    points = [
        Mark(
            (Line((size, size), value.ends, width=1.0), Dots((size,), (value.middle,), size=4.5)),
            f"{_at(label, sweep, size)}: {_written(value, quantity)}",
            look,
        )
        for size, value in found.items()
    ]
    return [*([Mark(lines, label, look)] if lines else []), *points]


def _written(value: Value, quantity: Quantity) -> str:
    """Return `0.0175 [0.0170, 0.0181] ms` or `1.85x [1.80, 1.90]`."""
    low, high = value.ends
    interval = Interval(low=low, high=high) if low < high else None
    if quantity is latency:
        return f"{number_format.with_interval(value.middle, interval)} ms"
    return f"{number_format.ratio(value.middle)}x {number_format.ratio_interval(interval)}"


def _at(label: str, sweep: Sweep, size: float) -> str:
    return f"{label} at {sweep.dimension} {size:,.10g}"


def _size_axis(title: str, sizes: dict[float, str]) -> Axis:
    is_log = max(sizes) >= 8 * min(sizes) > 0
    around = axis_around(title, sizes, is_log, pad=0.03)
    shown: list[tuple[float, str]] = []
    for size, text in sorted(sizes.items()):
        if not shown or around.share(size) - around.share(shown[-1][0]) > 0.03 + 0.02 * len(text):
            shown.append((size, text))
    return Axis(title, around.low, around.high, is_log, tuple(shown))


# --- what compiling is worth: over the length of a sequence, and over the size of a language model


def compiled_attention(contests: Iterable[ContestJudgement]) -> list[Chart]:
    return _worth(
        [
            contest
            for contest in contests
            if contest.cell.model == "attention" and contest.cell.task == "forward_backward"
        ],
        chart="sweep-seq",
        subject="compiled attention over eager, forward and backward",
        axis="sequence length",
        of=lambda one: str(one.cell.dimensions["variant"]),
        place=lambda one: (float(one.cell.dimensions["seq"]), str(one.cell.dimensions["seq"])),
        line=lambda one: f"d_model {one.cell.dimensions['d_model']}",
    )


def compiled_language_models(contests: Iterable[ContestJudgement]) -> list[Chart]:
    """Draw a chart for each task, with a line for each context, and for each batch and attention if they differ."""
    shown = [contest for contest in contests if contest.cell.model == "transformer_lm"]
    shown = [one for one in shown if one.cell.dimensions.get("lengths") == "fixed" and _parameters(one)]
    kinds = {name: {one.cell.dimensions.get(name) for one in shown} for name in ("batch", "attention")}
    told_apart = ["context", *(name for name, values in kinds.items() if len(values) > 1)]
    return _worth(
        sorted(shown, key=lambda one: _TASKS.index(one.cell.task)),
        chart="sweep-size",
        subject="compiled language models over eager",
        axis="size of the model",
        of=lambda one: one.cell.task,
        place=lambda one: (float(_parameters(one)), str(one.cell.dimensions["size"])),
        line=lambda one: ", ".join(f"{name} {one.cell.dimensions[name]}" for name in told_apart),
    )


def _worth(
    contests: Sequence[ContestJudgement],
    chart: str,
    subject: str,
    axis: str,
    of: Callable[[ContestJudgement], str],
    place: Callable[[ContestJudgement], tuple[float, str]],
    line: Callable[[ContestJudgement], str],
) -> list[Chart]:
    """Draw speed-ups of the compiled cell. Contests that have only one place on the axis are no sweep."""
    panels: dict[str, dict[str, list[tuple[float, Ratio | None]]]] = {}
    numbers: dict[str, dict[float, str]] = {}
    for contest in contests:
        x, text = place(contest)
        for precision, ratio in _over_eager(contest):
            title = f"{of(contest)}, {contest.cell.device}, {precision}"
            panels.setdefault(title, {}).setdefault(line(contest), []).append((x, ratio))
            numbers.setdefault(title, {})[x] = text
    shown = {title: lines for title, lines in panels.items() if len(numbers[title]) > 1}
    ratios = [ratio for lines in shown.values() for points in lines.values() for _, ratio in points if ratio]
    highest = max([1.0, *(end for ratio in ratios for end in ends(ratio.value, ratio.ci95))])
    names = sorted({name for lines in shown.values() for name in lines}, key=lambda text: int(text.rpartition(" ")[2]))
    looks = ramp(names)
    charts = []
    for title, lines in shown.items():
        sizes = _size_axis(axis, numbers[title])
        named = [name for name in names if name in lines]
        marks = [Mark((level(1.0, sizes),))]
        marks += [Mark(_over_sizes(row, lines[name]), name, looks[name]) for row, name in enumerate(named)]
        charts.append(
            Chart(
                name=chart,
                subject=subject,
                finding=title,
                caption=f"Speed-up of {COMPILED} over eager over {axis}, a cross where a verdict has none",
                x=sizes,
                y=Axis("speed-up over eager (x)", 0.0, 1.1 * highest),
                marks=tuple(marks),
                legend=tuple((name, looks[name]) for name in named),
            )
        )
    return charts


def _over_sizes(row: int, points: Sequence[tuple[float, Ratio | None]]) -> tuple[Shape, ...]:
    ratios = sorted((at, ratio) for at, ratio in points if ratio)
    shapes: list[Shape] = [Line((at, at), ends(ratio.value, ratio.ci95), width=0.9) for at, ratio in ratios]
    xs, ys = tuple(at for at, _ in ratios), tuple(ratio.value for _, ratio in ratios)
    shapes += [Line(xs, ys), Dots(xs, ys, size=4.5)] if ratios else []
    lost = tuple(sorted(at for at, ratio in points if ratio is None))
    return (*shapes, *([Lost(lost, row)] if lost else []))


def _over_eager(contest: ContestJudgement) -> Iterator[tuple[Precision, Ratio | None]]:
    """Yield the speed-up of the compiled cell of each precision over eager in the same one, or None for a failure."""
    right = {cell.label for cell in contest.cells if cell.place is not None}
    asked = contest.cell.compared or (contest.cell.precision,)
    for cell in sorted(contest.cells, key=lambda cell: asked.index(cell.cell.precision)):
        if cell.cell.configuration != COMPILED or cell.cell.dynamic:
            continue
        eager = cell.cell.but(backend=BASELINE).label
        across = contest.fit.ratio(cell.label, eager) if {cell.label, eager} <= right else None
        yield cell.cell.precision, across if cell.cell.compared else cell.speedup


def _parameters(contest: ContestJudgement) -> int:
    counts = [cell.record.settings.get("parameters") for cell in contest.cells]
    return next((count for count in counts if isinstance(count, int)), 0)
