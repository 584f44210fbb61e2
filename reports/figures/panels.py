"""The page that every figure is laid out on: a panel as wide as a column for each contest, with its captions."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from judging.judgement import CellJudgement
from reports import format
from reports.figure_style import COLUMN_WIDTH_IN, GREY, WIDTH_IN, Looks, new_figure, number_axis
from reports.findings import name, short

PANELS_PER_FIGURE = 12
"""More contests than these go to a further figure: `latency-2.png`."""

ROW_HEIGHT_IN = 0.22
SCATTER_HEIGHT_IN = 2.0

BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""So that no line runs through a text."""

_LABEL_CHARACTERS = 24
"""A longer label is broken behind its backend, so that it leaves room for the data."""

Subject = TypeVar("Subject")


@dataclass
class Panel:
    """The axes of one contest, and what is to be written around them."""

    axes: Axes
    looks: Looks
    outer_width_in: float
    label_width_in: float  # about what the labels left of the axis take
    legend: dict[str, Any] = field(default_factory=dict)  # label -> handle; the figure shows the union

    @property
    def width_in(self) -> float:
        """About what is left for the data."""
        return max(1.0, self.outer_width_in - self.label_width_in - 0.2)

    @property
    def ticks(self) -> float:
        """How many numbers its horizontal axis has room for."""
        return self.width_in * 2.2


@dataclass(frozen=True)
class Drawing(Generic[Subject]):
    """One figure: a panel for each subject, which is a contest or a sweep."""

    name: str
    headline: Callable[[Sequence[Subject]], str]  # over several subjects
    x_label: str
    title: Callable[[Subject], str]  # what is drawn
    shows: Callable[[Subject], bool]
    finding: Callable[[Subject], str]  # what is seen
    paint: Callable[[Panel, Subject], None]
    rows: Callable[[Subject], Sequence[CellJudgement]] = lambda _: ()  # one line each, as against a scatter


def figure_of(drawing: Drawing[Subject], subjects: Sequence[Subject], looks: Looks) -> Figure:
    """A single panel is as wide as a column; several stand in two of them."""
    columns = min(2, len(subjects))
    width_in = COLUMN_WIDTH_IN if columns == 1 else WIDTH_IN
    lines = [subjects[start : start + columns] for start in range(0, len(subjects), columns)]
    heights_in = [_panel_height_in(drawing, line) for line in lines]
    several = len(subjects) > 1
    figure = new_figure(sum(heights_in) + 0.35 * several + 0.35, width_in)
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights_in)
    legend: dict[str, Any] = {}
    for axes, subject in zip(grid.flat, subjects, strict=False):
        panel = Panel(axes, looks, width_in / columns - 0.1, _label_width_in(drawing, subjects))
        drawing.paint(panel, subject)
        _caption(panel, drawing, subject)
        legend |= panel.legend
    for axes in list(grid.flat)[len(subjects) :]:
        axes.remove()
    if several:
        headline = "\n".join(textwrap.wrap(drawing.headline(subjects), int(width_in * 13.5)))
        figure.suptitle(headline, x=0.01, ha="left", weight="bold", size=9.5)
    _add_legend(figure, legend, width_in)
    return figure


def name_rows(panel: Panel, rows: Sequence[CellJudgement], drawn: Collection[int]) -> None:
    """A line per cell with its label, the first on top; one that is not `drawn` is a mark with how its cell ended."""
    panel.axes.set_ylim(len(rows) - 0.4, -0.6)
    panel.axes.set_yticks(range(len(rows)), [_row_label(row) for row in rows], linespacing=0.95)
    panel.axes.tick_params(axis="y", length=0)
    for text in panel.axes.get_yticklabels():
        text.set_fontsize(8 if "\n" not in text.get_text() else 6.5)
    panel.axes.grid(True, axis="x")
    for place in sorted(set(range(len(rows))) - set(drawn)):
        panel.axes.text(
            0.015,
            place,
            f"\u00d7 {short(format.fate(rows[place].record), 30)}",
            transform=panel.axes.get_yaxis_transform(),
            va="center",
            color=GREY,
            size=7.5,
            bbox=BEHIND_TEXT,
        )


def label_ends(panel: Panel, ends: Sequence[tuple[int, float, str]], left: float, is_log: bool) -> None:
    """Writes each text right of its (place, right end), and widens the axis from `left` so that all of them fit."""
    scale: Callable[[float], float] = math.log if is_log else float
    start = scale(left)
    span = max(((scale(right) - start) / (1 - _share(text, panel)) for _, right, text in ends), default=1.0)
    stop = start + (span or 1.0)
    highest = math.exp(stop) if is_log else stop
    panel.axes.set_xscale("log" if is_log else "linear")
    panel.axes.set_xlim(left, highest)
    number_axis(panel.axes.xaxis, left, highest, is_log, panel.ticks)
    for place, right, text in ends:
        panel.axes.annotate(
            text,
            (right, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=7.5,
            clip_on=False,
            bbox=BEHIND_TEXT,
        )


def _panel_height_in(drawing: Drawing[Subject], subjects: Sequence[Subject]) -> float:
    most_rows = max(len(drawing.rows(subject)) for subject in subjects)
    return 0.85 + (ROW_HEIGHT_IN * most_rows if most_rows else SCATTER_HEIGHT_IN)


def _label_width_in(drawing: Drawing[Subject], subjects: Sequence[Subject]) -> float:
    """The same for all panels, which stand below each other."""
    lines = [line for subject in subjects for row in drawing.rows(subject) for line in _row_label(row).split("\n")]
    return 0.06 * max(map(len, lines)) + 0.1 if lines else 0.4


def _row_label(row: CellJudgement) -> str:
    label = name(row)
    return label if len(label) <= _LABEL_CHARACTERS else label.replace("/", "/\n", 1)


def _caption(panel: Panel, drawing: Drawing[Subject], subject: Subject) -> None:
    """What is seen, in bold, over what it is seen on, both from the panel's left edge; and the unit under the axis."""
    title = _wrapped(drawing.title(subject), int(panel.outer_width_in * 16.5), lines=2)
    finding = _wrapped(drawing.finding(subject), int(panel.outer_width_in * 14), lines=3)
    left = -72 * panel.label_width_in
    lines = (
        (title, 4, {"color": GREY, "size": 7.5}),
        (finding, 5 + 10 * title.count("\n") + 10, {"weight": "bold"}),
    )
    for text, height, style in lines:
        panel.axes.annotate(
            text, (0, 1), xycoords="axes fraction", xytext=(left, height), textcoords="offset points", **style
        )
    # it may be longer than the axis of a narrow panel: set to the right, it grows below the labels
    has_rows = bool(drawing.rows(subject))
    panel.axes.set_xlabel(drawing.x_label + panel.axes.get_xlabel(), loc="right" if has_rows else "center")


def _add_legend(figure: Figure, legend: dict[str, Any], width_in: float) -> None:
    if not legend:
        return
    columns = max(1, min(len(legend), int(width_in / (0.4 + 0.052 * max(map(len, legend))))))
    figure.set_figheight(figure.get_figheight() + 0.16 * math.ceil(len(legend) / columns))
    figure.legend(
        legend.values(),
        legend.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=7,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.35,
    )


def _share(text: str, panel: Panel) -> float:
    """About the part of the panel's width that `text` takes."""
    return min(0.75, (0.15 + 0.066 * len(text)) / panel.width_in)


def _wrapped(text: str, width: int, lines: int) -> str:
    return "\n".join(textwrap.wrap(short(text, 400), width, max_lines=lines, placeholder=" …"))
