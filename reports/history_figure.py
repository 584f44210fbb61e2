"""A history as a figure, PNG to embed and SVG to keep: one panel per contest, one line per cell."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from records.schema import Latency, Record, Status
from records.text import one_line
from reports import format
from reports.figure_style import WIDTH_IN, Looks, new_figure, number_axis, save, styled
from reports.figures.panels import PANELS_PER_FIGURE
from reports.history import History

PANEL_HEIGHT_IN = 2.3


def draw(history: History, folder: Path) -> list[Path]:
    """Writes `history.png` and `history.svg`, and further pages where the contests are many, into `folder`.

    Returns the files written: none where no run has a latency. The folder must exist.
    """
    shown = [records for records in history.contests.values() if any(_points(history, record) for record in records)]
    looks = Looks(record.cell.label for records in shown for record in records)
    files: list[Path] = []
    with styled():
        for page, start in enumerate(range(0, len(shown), PANELS_PER_FIGURE), 1):
            stem = "history" if page == 1 else f"history-{page}"
            files += save(_figure(history, shown[start : start + PANELS_PER_FIGURE], looks), folder / stem)
    return files


def _figure(history: History, contests: Sequence[Sequence[Record]], looks: Looks) -> Figure:
    columns = 1 if len(contests) <= 3 else 2
    rows = math.ceil(len(contests) / columns)
    figure = new_figure(PANEL_HEIGHT_IN * rows, WIDTH_IN)
    grid = figure.subplots(rows, columns, squeeze=False)
    legend: dict[str, Any] = {}
    for axes, records in zip(grid.flat, contests, strict=False):
        legend |= _paint(axes, history, records, looks)
        _caption(axes, history, records, int(WIDTH_IN / columns * 14))
    for axes in list(grid.flat)[len(contests) :]:
        axes.remove()
    legend |= _mark_changes(list(grid.flat)[: len(contests)], history)
    legend_columns = 4 if max(map(len, legend)) <= 22 else 3
    figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(legend) / legend_columns))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _paint(axes: Axes, history: History, records: Sequence[Record], looks: Looks) -> dict[str, Any]:
    """Lines through the medians with their intervals; a gap where a cell was not ok. Returns the legend's entries."""
    legend: dict[str, Any] = {}
    reached = []
    for record in records:
        points = _points(history, record)
        if not points:
            continue
        look = looks(record.cell.label)
        medians_ms = [points[number].median_ms if number in points else math.nan for number in _numbers(history)]
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "ms": 4, "lw": 1.1}
        axes.plot(_numbers(history), medians_ms, mec="black", mew=0.3, **style)
        for number, latency in points.items():
            if latency.median_ci95_ms:
                interval = latency.median_ci95_ms
                axes.plot([number] * 2, [interval.low, interval.high], color=look.colour, lw=1)
                reached += [interval.low, interval.high]
        reached += [latency.median_ms for latency in points.values()]
        legend[one_line(record.cell.label, 36)] = Line2D([], [], **style)
    _scale(axes, len(history.runs), min(reached), max(reached))
    return legend


def _scale(axes: Axes, runs: int, lowest_ms: float, highest_ms: float) -> None:
    """From zero, so that a small change looks small; logarithmic where the slowest takes over 20 times the fastest."""
    is_log = highest_ms > 20 * lowest_ms > 0
    bottom, top = (lowest_ms / 1.3, highest_ms * 1.3) if is_log else (0.0, highest_ms * 1.08)
    axes.set_yscale("log" if is_log else "linear")
    axes.set_ylim(bottom, top)
    number_axis(axes.yaxis, bottom, top, is_log, ticks=6)
    axes.set_xlim(0.5, runs + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.grid(True, axis="y")
    axes.set_ylabel("median latency (ms)")


def _caption(axes: Axes, history: History, records: Sequence[Record], width: int) -> None:
    title = one_line(f"{_finding(history, records)}: {records[0].cell.title}", 300)
    axes.set_title("\n".join(textwrap.wrap(title, width, max_lines=2, placeholder=" …")), loc="left")
    first, last = history.runs[0].day, history.runs[-1].day
    axes.set_xlabel(f"run, {first}" if first == last else f"run, from {first} to {last}")


def _finding(history: History, records: Sequence[Record]) -> str:
    """Which cell moved most from its first run to its last."""
    moves = {}
    for record in records:
        medians_ms = [latency.median_ms for latency in _points(history, record).values()]
        if len(medians_ms) > 1 and min(medians_ms) > 0:
            moves[record.cell.label] = medians_ms[-1] / medians_ms[0]
    if not moves:
        return "One run"
    label = max(moves, key=lambda label: abs(math.log(moves[label])))
    return f"{one_line(label, 36)} moved most, to {format.ratio(moves[label])}x its first latency"


def _mark_changes(panels: Sequence[Axes], history: History) -> dict[str, Any]:
    """A line before every run whose environment differs from the last one's in what bears on speed."""
    style: dict[str, Any] = {"color": "#666666", "lw": 0.9, "ls": "--"}
    changed = [number for number, run in zip(_numbers(history), history.runs, strict=True) if run.changes]
    for axes in panels:
        for number in changed:
            axes.axvline(number - 0.5, **style)
    return {"environment changed": Line2D([], [], **style)} if changed else {}


def _numbers(history: History) -> range:
    return range(1, len(history.runs) + 1)


def _points(history: History, record: Record) -> dict[int, Latency]:
    """The latencies of one cell by the number of the run, 1 for the first, where it was ok."""
    found = {}
    for number, run in zip(_numbers(history), history.runs, strict=True):
        measured = run.records.get(record.cell.id)
        if measured and measured.status is Status.OK and measured.latency:
            found[number] = measured.latency
    return found
