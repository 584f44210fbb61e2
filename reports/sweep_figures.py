"""What compiling is worth over the two sweeps: over the length of a sequence, and over the size of a model.

One panel for each way of computing attention, and for each task; a line for each width, and for each context. Speed-ups
are those of the verdicts. A cross stands for a contest without one, since a cell of it ended without numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from judging.judgement import ContestJudgement, contests_of
from records.schema import Ratio, Report
from reports.chart_data import ends, ratio_over_baseline
from reports.figure_style import WIDTH_IN, new_figure, number_axis, save, styled

COMPILED = "inductor"
HEIGHT_IN = 2.6
TASKS = ("inference", "forward_backward", "train_step")
MARKERS = "os^Dvp"


@dataclass(frozen=True)
class Point:
    """One contest: its place on the axis, and how many times faster compiled was; None where that is not known."""

    x: float
    tick: str
    line: str
    ratio: Ratio | None


@dataclass(frozen=True)
class Panel:
    title: str
    points: Sequence[Point]


def draw(report: Report, folder: Path) -> list[Path]:
    """Writes the figures of the sweeps that `report` holds into `folder`, as PNG and SVG. Returns the files."""
    contests = [one for one in contests_of(report) if any(row.label == COMPILED for row in one.cells)]
    attention = _panels(
        [one for one in contests if one.cell.model == "attention" and one.cell.task == "forward_backward"],
        of=lambda one: str(one.cell.dimensions["variant"]),
        place=lambda one: (float(one.cell.dimensions["seq"]), str(one.cell.dimensions["seq"])),
        line=lambda one: f"d_model {one.cell.dimensions['d_model']}",
    )
    language = [one for one in contests if one.cell.model == "transformer_lm"]
    language = [one for one in language if one.cell.dimensions["lengths"] == "fixed" and _parameters(one)]
    kinds = {name: {one.cell.dimensions.get(name) for one in language} for name in ("batch", "attention")}
    told_apart = [name for name, values in kinds.items() if len(values) > 1]
    models = _panels(
        sorted(language, key=lambda one: TASKS.index(one.cell.task)),
        of=lambda one: one.cell.task,
        place=lambda one: (float(_parameters(one)), str(one.cell.dimensions["size"])),
        line=lambda one: ", ".join(f"{name} {one.cell.dimensions[name]}" for name in ("context", *told_apart)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        return [
            *_draw(
                attention,
                "Compiled attention over eager, forward and backward",
                "sequence length",
                folder / "sweep-seq",
            ),
            *_draw(models, "Compiled language models over eager", "size of the model", folder / "sweep-size"),
        ]


def _panels(
    contests: Iterable[ContestJudgement],
    of: Callable[[ContestJudgement], str],
    place: Callable[[ContestJudgement], tuple[float, str]],
    line: Callable[[ContestJudgement], str],
) -> list[Panel]:
    """Only of contests that differ in more than one place of the axis: a single one is no sweep."""
    found: dict[str, list[Point]] = {}
    for contest in contests:
        x, tick = place(contest)
        row = next(row for row in contest.cells if row.label == COMPILED)
        found.setdefault(_title(contest, of), []).append(Point(x, tick, line(contest), ratio_over_baseline(row)))
    return [Panel(title, points) for title, points in found.items() if len({point.x for point in points}) > 1]


def _title(contest: ContestJudgement, of: Callable[[ContestJudgement], str]) -> str:
    return f"{of(contest)}, {contest.cell.device}, {contest.cell.precision}"


def _parameters(contest: ContestJudgement) -> int:
    """As the records of its cells count them; 0 where none has come so far."""
    counts = [row.record.settings.get("parameters") for row in contest.cells]
    return next((count for count in counts if isinstance(count, int)), 0)


def _draw(panels: Sequence[Panel], headline: str, x_label: str, stem: Path) -> list[Path]:
    if not panels:
        return []
    figure = new_figure(HEIGHT_IN, WIDTH_IN)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    legend: dict[str, Any] = {}
    highest = max((ends(p.ratio)[1] for panel in panels for p in panel.points if p.ratio), default=1.0)
    for axes, panel in zip(grid, panels, strict=True):
        legend |= _paint(axes, panel)
        axes.set_title(panel.title, loc="left")
        axes.set_xlabel(x_label)
        axes.set_ylim(0, 1.1 * max(1.0, highest))
    number_axis(grid[0].yaxis, 0, 1.1 * highest, is_log=False, ticks=6)
    grid[0].set_ylabel("speed-up over eager (×)")  # noqa: RUF001 - a sign of multiplication
    figure.suptitle(headline, x=0.01, ha="left", weight="bold", size=9.5)
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=min(5, len(legend)), frameon=False)
    return save(figure, stem)


def _paint(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Draws a line for each kind of point. Returns the legend's entries by their text."""
    lines: dict[str, list[Point]] = {}
    for point in sorted(panel.points, key=lambda point: point.x):
        lines.setdefault(point.line, []).append(point)
    colours = matplotlib.colormaps["viridis"]
    legend: dict[str, Any] = {}
    for place, (name, points) in enumerate(sorted(lines.items(), key=lambda item: _number(item[0]))):
        colour = colours(0.85 * place / max(1, len(lines) - 1))
        known = [(point.x, point.ratio) for point in points if point.ratio]
        (legend[name],) = axes.plot(
            [x for x, _ in known],
            [ratio.value for _, ratio in known],
            MARKERS[place % len(MARKERS)],
            ls="-",
            lw=1.2,
            ms=4,
            color=colour,
        )
        for x, ratio in known:
            axes.plot([x, x], ends(ratio), lw=0.9, color=colour)
        lost = [point.x for point in points if point.ratio is None]
        axes.plot(
            lost, [0.04 + 0.05 * place] * len(lost), "x", ms=4, color=colour, transform=axes.get_xaxis_transform()
        )
    axes.axhline(1.0, color="black", lw=0.7, ls=":")
    axes.set_xscale("log")
    ticks = {point.x: point.tick for point in panel.points}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xticks([], minor=True)
    axes.grid(True)
    return legend


def _number(text: str) -> int:
    return int(text.rpartition(" ")[2])
