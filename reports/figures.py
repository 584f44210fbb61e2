"""A report as figures: PNG to embed, SVG to keep. One colour per backend throughout; a mode is a lightness and a hatch.

Drawn through matplotlib's object-oriented interface, without pyplot, so that no state outlives a call.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from reports import spelling
from reports.contests import ContestView, Row, contests_of
from reports.costs import HORIZON, Leg, Line, Start
from reports.lifetime import in_the_end_or
from reports.schema import Ratio, Record, Report
from reports.statistics import percentile

PANELS_PER_FIGURE = 12
"""More contests than these go to a further figure: `latency-2.png`."""

WIDTH_IN = 7.2
DPI = 200


def draw(report: Report, folder: Path) -> list[Path]:
    """Writes every figure that has something to show into `folder`, as PNG and SVG, and returns the files written."""
    contests = contests_of(report)
    looks = Looks(row.record for contest in contests for row in contest.rows)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a model may be named in a script that the font lacks: a box in its place is no reason to fail
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for drawing in _DRAWINGS:
            shown = [contest for contest in contests if drawing.shows(contest)]
            for page, start in enumerate(range(0, len(shown), PANELS_PER_FIGURE), 1):
                stem = drawing.name if page == 1 else f"{drawing.name}-{page}"
                figure = _figure(drawing, shown[start : start + PANELS_PER_FIGURE], looks)
                files += save(figure, folder / stem)
    return files


def _use_palette(png: Path) -> None:
    """Rewrite a PNG with 256 colours of its own: these have few, and take a third of the space so."""
    with Image.open(png) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(png, optimize=True, dpi=(DPI, DPI))


@dataclass(frozen=True)
class Look:
    """How one configuration is drawn."""

    colour: tuple[float, float, float]
    hatch: str
    marker: str


class Looks:
    """The look of every configuration of a report: the hue is the backend's, lightness, hatch and marker the mode's."""

    def __init__(self, records: Iterable[Record]) -> None:
        cells = [record.cell for record in records]
        unknown = sorted({cell.backend for cell in cells} - _COLOURS.keys())
        self._colours = _COLOURS | {
            name: _FURTHER_COLOURS[place % len(_FURTHER_COLOURS)] for place, name in enumerate(unknown)
        }
        self._modes = {
            cell.backend: sorted({other.mode for other in cells if other.backend == cell.backend} - {"default"})
            for cell in cells
        }

    def __call__(self, record: Record) -> Look:
        cell = record.cell
        step = 0 if cell.mode == "default" else 1 + self._modes[cell.backend].index(cell.mode)
        lightness = min(0.6, 0.3 * step)
        red, green, blue = (part + (1 - part) * lightness for part in to_rgb(self._colours[cell.backend]))
        return Look((red, green, blue), _HATCHES[step % len(_HATCHES)], _MARKERS[step % len(_MARKERS)])


# Okabe & Ito, "Color Universal Design", 2008; with two greys for those that are no compilers
_COLOURS = {
    "eager": "#4d4d4d",
    "torchscript": "#f0e442",
    "inductor": "#e69f00",
    "aotinductor": "#d55e00",
    "onnx": "#0072b2",
    "openvino": "#56b4e9",
    "tensorrt": "#009e73",
    "torch-tensorrt": "#cc79a7",
    "null": "#b0b0b0",
}
# Paul Tol's "muted" scheme, for the backends of third parties
_NAME_CHARACTERS = 36
"""Room for the longest name of ours, inductor/max-autotune-no-cudagraphs."""

_FURTHER_COLOURS = ["#332288", "#882255", "#999933", "#44aa99", "#661100", "#aa4499", "#117733", "#ddcc77"]
_HATCHES = ["", "////", "....", "xxxx", "----", "oo"]
_MARKERS = ["o", "s", "^", "D", "v", "P"]
_GREY = "#666666"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 8,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "bakeoff",
    "text.parse_math": False,  # a dollar in a model's name is a dollar
}


@dataclass
class _Panel:
    """The axes of one contest, and what is to be written around them."""

    axes: Axes
    contest: ContestView
    looks: Looks
    outer_width_in: float
    label_width_in: float  # about what the labels left of the axis take
    legend: dict[str, Any] = field(default_factory=dict)  # label -> handle; the figure shows the union

    @property
    def width_in(self) -> float:
        """About what is left for the data."""
        return max(1.0, self.outer_width_in - self.label_width_in - 0.2)


@dataclass(frozen=True)
class _Drawing:
    name: str
    headline: Callable[[Sequence[ContestView]], str]  # over several contests
    x_label: str
    shows: Callable[[ContestView], bool]
    finding: Callable[[ContestView], str]  # over one
    paint: Callable[[_Panel], None]
    has_rows: bool = True  # one line per cell, as against a scatter


def _figure(drawing: _Drawing, contests: Sequence[ContestView], looks: Looks) -> Figure:
    columns = 1 if len(contests) <= 3 else 2
    lines = [contests[start : start + columns] for start in range(0, len(contests), columns)]
    heights_in = [_panel_height_in(drawing, line) for line in lines]
    several = len(contests) > 1
    figure = Figure(figsize=(WIDTH_IN, sum(heights_in) + 0.35 * several + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights_in)
    legend: dict[str, Any] = {}
    for axes, contest in zip(grid.flat, contests, strict=False):
        panel = _Panel(axes, contest, looks, WIDTH_IN / columns - 0.1, _label_width_in(drawing, contests))
        drawing.paint(panel)
        _caption(panel, drawing)
        legend |= panel.legend
    for axes in list(grid.flat)[len(contests) :]:
        axes.remove()
    if several:
        figure.suptitle(drawing.headline(contests), x=0.01, ha="left", weight="bold", size=9.5)
    if legend:
        columns = 4 if max(map(len, legend)) <= 22 else 3
        figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(legend) / columns))
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _label_width_in(drawing: _Drawing, contests: Sequence[ContestView]) -> float:
    """The same for all panels, whose axes stand below each other."""
    if not drawing.has_rows:
        return 0.4
    return 0.06 * max(len(_name(row)) for contest in contests for row in contest.rows) + 0.1


def _panel_height_in(drawing: _Drawing, contests: Sequence[ContestView]) -> float:
    return 0.85 + (0.2 * max(len(contest.rows) for contest in contests) if drawing.has_rows else 2.0)


def _caption(panel: _Panel, drawing: _Drawing) -> None:
    """What is seen, in bold, over what it is seen on, both from the panel's left edge; and the unit under the axis."""
    subject = _wrapped(panel.contest.title, int(panel.outer_width_in * 16.5), lines=2)
    finding = _wrapped(drawing.finding(panel.contest), int(panel.outer_width_in * 14), lines=2)
    left = -72 * panel.label_width_in
    lines = (
        (subject, 4, {"color": _GREY, "size": 7.5}),
        (finding, 5 + 10 * subject.count("\n") + 10, {"weight": "bold"}),
    )
    for text, height, style in lines:
        panel.axes.annotate(
            text, (0, 1), xycoords="axes fraction", xytext=(left, height), textcoords="offset points", **style
        )
    # it may be longer than the axis of a narrow panel: set to the right, it grows below the labels
    panel.axes.set_xlabel(drawing.x_label + panel.axes.get_xlabel(), loc="right" if drawing.has_rows else "center")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes the figure as `stem`.png and `stem`.svg and returns both. Its layout is settled by that."""
    files = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")]
    figure.savefig(files[0], dpi=DPI)
    _use_palette(files[0])
    figure.set_layout_engine("none")  # it stays as it is now: to lay it out takes longer than to draw it
    figure.savefig(files[1], metadata={"Date": None})
    return files


# --- one painter per figure


def _paint_latency(panel: _Panel) -> None:
    """Bars from zero; dots on a logarithmic axis where the slowest takes over 20 times what the fastest does."""
    measured = [(place, row.record) for place, row in enumerate(panel.contest.rows) if row.record.latency]
    medians_ms = [record.latency.median_ms for _, record in measured if record.latency]
    is_log = max(medians_ms) > 20 * min(medians_ms) > 0
    ends = []
    for place, record in measured:
        if record.latency is None:
            continue
        look, median_ms = panel.looks(record), record.latency.median_ms
        right = max(median_ms, record.latency.median_ci95_ms.high if record.latency.median_ci95_ms else 0)
        face = "none" if record.status.is_failure else look.colour
        if is_log:
            panel.axes.plot(median_ms, place, look.marker, ms=5, mfc=face, mec=look.colour)
        else:
            edge = look.colour if record.status.is_failure else "white"
            panel.axes.barh(place, median_ms, height=0.7, color=face, edgecolor=edge, hatch=look.hatch, lw=0.8)
        if record.latency.median_ci95_ms:
            interval = record.latency.median_ci95_ms
            panel.axes.plot(
                [interval.low, interval.high], [place, place], color="black", lw=1, marker="" if is_log else "|", ms=4
            )
        note = f" {record.status}" if record.status.is_failure else ""
        ends.append((place, right, f"{spelling.milliseconds(median_ms)}{note}"))
    _label_ends(panel, ends, min(medians_ms) / 1.3 if is_log else 0, is_log)
    _name_rows(panel, [place for place, _, _ in ends])


def _paint_speedup(panel: _Panel) -> None:
    rows = [
        (place, row, row.standing.speedup_over_baseline) for place, row in enumerate(panel.contest.rows) if row.standing
    ]
    ratios = [(place, row, ratio) for place, row, ratio in rows if ratio]
    panel.axes.axvline(1, color=_GREY, lw=0.9)
    ends = []
    for place, row, ratio in ratios:
        look = panel.looks(row.record)
        low, high = (ratio.ci95.low, ratio.ci95.high) if ratio.ci95 else (ratio.value, ratio.value)
        if low < high:
            panel.axes.plot([low, high], [place, place], color="black", lw=1.2, solid_capstyle="butt")
        panel.axes.plot(ratio.value, place, look.marker, ms=6.5, mfc=look.colour, mec="black", mew=0.5)
        ends.append((place, max(high, ratio.value), f"{spelling.ratio(ratio.value)}x"))
    lowest = min([1.0, *(ratio.ci95.low if ratio.ci95 else ratio.value for _, _, ratio in ratios)])
    highest = max([1.0, *(right for _, right, _ in ends)])
    is_log = highest > 6 * lowest > 0
    left = lowest / 1.15 if is_log else max(0.0, lowest - 0.08 * (highest - lowest) - 0.02)
    _label_ends(panel, ends, left, is_log)
    _name_rows(panel, [place for place, _, _ in ends])


def _paint_build_vs_speedup(panel: _Panel) -> None:
    ratios = [(row, row.standing.speedup_over_baseline) for row in panel.contest.ranked if row.standing]
    points = [(row, max(row.record.build_s, _SHORTEST_BUILD_S), ratio) for row, ratio in ratios if ratio]
    panel.axes.axhline(1, color=_GREY, lw=0.9)
    for row, build_s, ratio in points:
        look = panel.looks(row.record)
        if ratio.ci95:
            panel.axes.plot([build_s] * 2, [ratio.ci95.low, ratio.ci95.high], color=look.colour, lw=1)
        style = {"marker": look.marker, "mfc": look.colour, "mec": "black", "mew": 0.4, "ls": ""}
        panel.axes.plot(build_s, ratio.value, ms=7, **style)  # type: ignore[arg-type]  # the stubs know no mixed dict
        panel.legend[_name(row)] = Line2D([], [], ms=6, **style)  # type: ignore[arg-type]
    values = [end for _, _, ratio in points for end in (ratio.value, *_ends(ratio))]
    if max(values) > 6 * min(values):
        low, high = min([1.0, *values]) / 1.3, max([1.0, *values]) * 1.3
        panel.axes.set_yscale("log")
        panel.axes.set_ylim(low, high)
        number_axis(panel.axes.yaxis, low, high, is_log=True, ticks=6)
    else:
        panel.axes.margins(y=0.12)
    builds_s = [build_s for _, build_s, _ in points]
    low, high = min(builds_s) / 1.8, max(builds_s) * 1.8
    panel.axes.set_xscale("log")
    panel.axes.set_xlim(low, high)
    number_axis(panel.axes.xaxis, low, high, is_log=True, ticks=panel.width_in * 2.4)
    panel.axes.set_ylabel("speed-up over eager (x)")
    panel.axes.grid(True)
    clipped = "; under 1 ms: at 1 ms" if min(builds_s) == _SHORTEST_BUILD_S else ""
    panel.axes.set_xlabel(clipped)
    lost = [f"\u00d7 {_name(row)} {row.record.status}" for row in panel.contest.unranked]
    if lost:
        names = "   ".join(name.replace(" ", "\u00a0") for name in lost)
        names = textwrap.fill(names, int(panel.width_in * 16), break_on_hyphens=False)
        panel.axes.set_xlabel(f"{clipped}\n{names}")


def _paint_costs(panel: _Panel, start: Start) -> None:
    """Totals over those of one line, which is level then: on axes over seven decades a factor of two would not show."""
    lines, reference = _cost_lines(panel.contest, start), _reference(panel.contest, start)
    looks = {row.label: panel.looks(row.record) for row in panel.contest.rows}
    calls = np.geomspace(1, HORIZON[-1], 141)
    seen = []
    for line in lines:
        look, relative = looks[line.label], _relative_totals(line, reference, calls)
        style = {"color": look.colour, "marker": look.marker, "ms": 4, "lw": 1.3}
        panel.axes.plot(calls, relative, markevery=20, **style)  # type: ignore[arg-type]
        panel.legend[_short(line.label, _NAME_CHARACTERS)] = Line2D([], [], **style)  # type: ignore[arg-type]
        seen.append(relative)
    legs = panel.contest.costs.legs(start, panel.contest.contenders)
    ends = [*(leg.first_call for leg in legs[1:]), HORIZON[-1]]
    for place, (leg, end) in enumerate(zip(legs, ends, strict=True)):
        stretch = np.geomspace(leg.first_call, end, 60)
        relative = _relative_totals(leg.line, reference, stretch)
        panel.axes.plot(stretch, relative, color="black", lw=5, alpha=0.18, solid_capstyle="butt", zorder=1)
        if leg.crossing:
            _mark_crossing(panel, leg, float(relative[0]), is_below=place % 2 == 1)
    low, high = float(np.min(seen)) / 1.5, min(float(np.max(seen)) * 1.3, _DEAREST_SHOWN)
    panel.axes.set_xscale("log")
    panel.axes.set_yscale("log")
    panel.axes.set_xlim(1, HORIZON[-1])
    panel.axes.set_ylim(low, high)
    number_axis(panel.axes.xaxis, 1, HORIZON[-1], is_log=True, ticks=panel.width_in * 1.5)
    number_axis(panel.axes.yaxis, low, high, is_log=True, ticks=6)
    panel.axes.set_ylabel(f"total time / {_short(reference.label, 22)}'s")
    panel.axes.grid(True)


def _mark_crossing(panel: _Panel, leg: Leg, height: float, is_below: bool) -> None:
    """Filled where it is established, hollow and with a question mark where it is not."""
    is_established = leg.crossing is not None and leg.crossing.is_established
    face, doubt = ("black", "") if is_established else ("white", "?")
    panel.axes.plot(leg.first_call, height, "o", ms=5, mfc=face, mec="black", zorder=5)
    panel.axes.annotate(
        f"{leg.first_call:,}{doubt}",
        (leg.first_call, height),
        xytext=(3, -10 if is_below else 5),
        textcoords="offset points",
        size=7,
    )


def _relative_totals(line: Line, reference: Line, calls: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ours, theirs = (each.setup_s + (calls - 1) * each.steady_s for each in (line, reference))
    return np.asarray(ours / theirs)


def _paint_pareto(panel: _Panel) -> None:
    """Filled: nothing dominates it, in all that is compared; the stairs are the front of the two that are drawn."""
    rows = [row for row in panel.contest.ranked if row.record.latency]
    builds_s = [max(row.record.build_s, _SHORTEST_BUILD_S) for row in rows]
    medians_ms = [row.record.latency.median_ms for row in rows if row.record.latency]
    low, high = min(builds_s) / 1.8, max(builds_s) * 12  # room for what stands beside the last
    bottom, top = min(medians_ms) / 1.3, max(medians_ms) * 1.6
    panel.axes.set_xscale("log")
    panel.axes.set_yscale("log")
    panel.axes.set_xlim(low, high)
    panel.axes.set_ylim(bottom, top)
    number_axis(panel.axes.xaxis, low, high, is_log=True, ticks=panel.width_in * 2.4)
    number_axis(panel.axes.yaxis, bottom, top, is_log=True, ticks=5)
    stairs = _stairs(list(zip(builds_s, medians_ms, strict=True)))
    stairs.append((high, stairs[-1][1]))
    panel.axes.step(*zip(*stairs, strict=True), where="post", color=_GREY, lw=1, zorder=1)
    for row, build_s, ms in zip(rows, builds_s, medians_ms, strict=True):
        look = panel.looks(row.record)
        face = look.colour if row.label in panel.contest.front.labels else "white"
        panel.axes.plot(build_s, ms, look.marker, ms=6.5, mfc=face, mec=look.colour, mew=1.2)
        panel.legend[_name(row)] = Line2D([], [], ls="", marker=look.marker, color=look.colour)
    across_pt = [72 * panel.width_in * math.log(build_s / low) / math.log(high / low) for build_s in builds_s]
    up_pt = [_SCATTER_HEIGHT_PT * math.log(ms / bottom) / math.log(top / bottom) for ms in medians_ms]
    shifts_pt = _shifts_up(list(zip(across_pt, up_pt, strict=True)), width=92, height=8.5)
    for row, build_s, ms, shift_pt in zip(rows, builds_s, medians_ms, shifts_pt, strict=True):
        panel.axes.annotate(
            _memory_and_error(row.record),
            (build_s, ms),
            xytext=(7, shift_pt),
            textcoords="offset points",
            va="center",
            size=6.5,
            color=_GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
            zorder=1.5,
        )
    panel.axes.set_ylabel("median latency (ms)")
    panel.axes.grid(True)


def _memory_and_error(record: Record) -> str:
    """`412 MiB, 1.3e-07`."""
    error = record.accuracy.relative_rmse if record.accuracy else None
    return f"{spelling.mebibytes(spelling.peak_memory(record)[0])} MiB, {spelling.error(error)}"


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other is below in both, from left to right."""
    stairs: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not stairs or y < stairs[-1][1]:
            stairs.append((x, y))
    return stairs


def _shifts_up(places: Sequence[tuple[float, float]], width: float, height: float) -> list[float]:
    """By how much to move each text of that size up, from the lowest on, so that none is written over another."""
    shifts = [0.0] * len(places)
    written: list[tuple[float, float]] = []
    for number in sorted(range(len(places)), key=lambda number: places[number][1]):
        x, y = places[number]
        for other_x, other_y in sorted(written, key=lambda place: place[1]):
            if abs(x - other_x) < width and abs(y - other_y) < height:
                y = other_y + height
        written.append((x, y))
        shifts[number] = y - places[number][1]
    return shifts


def _paint_phases(panel: _Panel) -> None:
    """Stacked from zero: lengths add up, so the axis is linear however short some of them are."""
    ends = []
    for place, row in enumerate(panel.contest.rows):
        left_s = 0.0
        for phase in row.record.phases:
            look = _PHASE_LOOKS.get(phase.name, _OTHER_PHASE)
            panel.axes.barh(place, phase.seconds, left=left_s, height=0.7, color=look, edgecolor="white", lw=0.4)
            left_s += phase.seconds
        names = [phase.name if phase.name in _PHASE_LOOKS else "other" for phase in row.record.phases]
        panel.legend |= {name: Patch(color=_PHASE_LOOKS.get(name, _OTHER_PHASE)) for name in names}
        if row.record.phases:
            lost = "" if row.record.latency else f"  \u00d7 {spelling.fate(row.record)}"
            ends.append((place, left_s, f"{spelling.seconds(left_s)}{lost}"))
    panel.legend = {name: panel.legend[name] for name in [*_PHASE_LOOKS, "other"] if name in panel.legend}
    _label_ends(panel, ends, 0, is_log=False)
    _name_rows(panel, [place for place, _, _ in ends])


def _paint_samples(panel: _Panel) -> None:
    """A hill per cell: how its single calls are distributed, with a tick at their median."""
    rows = [(place, row, _samples_ms(row.record)) for place, row in enumerate(panel.contest.rows)]
    clipped = [
        (place, row, samples, *np.quantile(samples, _SHOWN_QUANTILES)) for place, row, samples in rows if len(samples)
    ]
    lowest, highest = min(each[3] for each in clipped), max(each[4] for each in clipped)
    is_log = highest > 5 * lowest > 0
    for place, row, samples, low, high in clipped:
        look = panel.looks(row.record)
        shown = samples[(samples >= low) & (samples <= high)]
        if high > low:
            bins = int(np.clip(math.sqrt(len(shown)), 8, 40))  # the more calls, the finer
            edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
            heights, _ = np.histogram(shown, edges)
            middles = (edges[:-1] + edges[1:]) / 2
            outline = np.convolve(np.pad(heights, 1), [0.25, 0.5, 0.25], mode="valid")
            hill = place + 0.38 - 0.78 * outline / outline.max()
            is_wrong = row.record.status.is_failure
            panel.axes.fill_between(
                middles,
                place + 0.38,
                hill,
                facecolor="none" if is_wrong else look.colour,
                edgecolor=look.colour if is_wrong else "white",
                hatch=look.hatch,
                lw=0.8 if is_wrong else 0.3,
            )
        panel.axes.plot([np.median(samples)] * 2, [place + 0.38, place - 0.4], color="black", lw=1)
    reach = (highest / lowest) ** 0.04 if is_log else 1.0
    pad = 0.0 if is_log else 0.04 * ((highest - lowest) or highest or 1.0)
    left, right = lowest / reach - pad, highest * reach + pad
    panel.axes.set_xscale("log" if is_log else "linear")
    panel.axes.set_xlim(left, right)
    number_axis(panel.axes.xaxis, left, right, is_log, ticks=panel.width_in * 2.4)
    _name_rows(panel, [each[0] for each in clipped])


_SHORTEST_BUILD_S = 1e-3
_DEAREST_SHOWN = 30.0  # times the reference: above, no crossing with the cheapest is to be seen
_SCATTER_HEIGHT_PT = 140  # about what the axes of a scatter have
_SHOWN_QUANTILES = (0.005, 0.995)
_PHASE_LOOKS = {"export": "#00224e", "compile": "#5a6278", "load": "#a69d75", "first_call": "#fee838"}  # cividis
_OTHER_PHASE = "#cccccc"


# --- what is seen, in words


def _headline_latency(contests: Sequence[ContestView]) -> str:
    winners = Counter(contest.verdict.winner for contest in contests if contest.verdict.winner)
    won = [f"{_short(label, _NAME_CHARACTERS)} on {number}" for label, number in winners.most_common(3)]
    return f"Fastest: {', '.join(won)} of {len(contests)} contests" if won else "Latency: no contest has a winner"


def _headline_speedup(contests: Sequence[ContestView]) -> str:
    bests = [ratio.value for contest in contests for ratio in map(_ratio_of, contest.ranked[:1]) if ratio]
    if max(bests) <= 1:
        return "Nothing is faster than eager"
    return f"The best are {spelling.ratio(min(bests))}x to {spelling.ratio(max(bests))}x as fast as eager"


def _find_latency(contest: ContestView) -> str:
    verdict, best = contest.verdict, contest.best
    model = _short(contest.cell.model, _NAME_CHARACTERS)
    if best is None:
        return f"nothing could be ranked on {model}"
    if verdict.tied:
        return f"{_listed(verdict.tied)} tie on {model}"
    ratio = best.standing.speedup_over_baseline if best.standing else None
    if ratio and best.label != verdict.baseline:
        return f"{_name(best)} is fastest on {model}: {spelling.ratio(ratio.value)}x {verdict.baseline}"
    if verdict.lead:
        lead = f"{spelling.ratio(verdict.lead.value)}x {_short(verdict.runner_up or '', 22)}"
        return f"{_name(best)} is fastest on {model}: {lead}"
    return f"only {_name(best)} could be ranked on {model}"


def _find_speedup(contest: ContestView) -> str:
    faster = [row for row in contest.ranked if (ratio := _ratio_of(row)) and ratio.ci95 and ratio.ci95.low > 1]
    others = [row for row in contest.ranked if row.label != contest.verdict.baseline]
    if not others:
        return "nothing to compare with eager"
    return f"{len(faster) or 'none'} of {len(others)} faster than eager"


def _find_build(contest: ContestView) -> str:
    best = contest.best
    ratio = _ratio_of(best) if best else None
    if best is None or ratio is None or best.label == contest.verdict.baseline:
        return "no build pays: eager is the fastest"
    return f"{_name(best)} is {spelling.ratio(ratio.value)}x for {spelling.seconds(best.record.build_s)} s of building"


def _find_phases(contest: ContestView) -> str:
    slowest = max(contest.rows, key=lambda row: _until_first_call_s(row.record))
    taken_s = _until_first_call_s(slowest.record)
    return f"{_name(slowest)} takes longest: {spelling.seconds(taken_s)} s"


def _find_samples(contest: ContestView) -> str:
    samples = {row.label: _samples_ms(row.record) for row in contest.rows if row.record.bursts}
    for quantile, name in ((0.99, "p99"), (0.95, "p95"), (0.9, "p90")):
        tails = {label: percentile(values.tolist(), quantile) for label, values in samples.items()}
        spreads = {label: tail / float(np.median(samples[label])) for label, tail in tails.items() if tail}
        if spreads:
            label = max(spreads, key=lambda label: spreads[label])
            return f"{_short(label, _NAME_CHARACTERS)} varies most: {name} {spreads[label]:.2f}x median"
    return "few calls: too short a sample to speak of its tail"


def _find_costs(contest: ContestView, start: Start) -> str:
    first, *others = contest.costs.legs(start, contest.contenders)
    name, doubt = _short(first.line.label, _NAME_CHARACTERS), in_the_end_or(contest, start)
    if not others:
        return f"{name} costs least, however many calls{doubt}"
    last = _short(others[-1].line.label, _NAME_CHARACTERS)
    in_the_end = f"{last} from call {others[-1].first_call:,} on{doubt}"
    return f"{name} costs least up to call {others[0].first_call - 1:,}, {in_the_end}"


def _cost_lines(contest: ContestView, start: Start) -> list[Line]:
    shown = [*contest.contenders, contest.baseline]
    return [line for line in contest.costs.lines(start) if line.label in shown]


def _reference(contest: ContestView, start: Start) -> Line:
    """The baseline's line, or that of the cheapest over a single call."""
    lines = _cost_lines(contest, start)
    first = contest.costs.legs(start, contest.contenders)[0].line
    return next((line for line in lines if line.label == contest.baseline), first)


def _find_pareto(contest: ContestView) -> str:
    labels = contest.front.labels
    return f"nothing dominates {_listed(labels)}" if labels else "each is dominated by another"


def _ratio_of(row: Row) -> Ratio | None:
    return row.standing.speedup_over_baseline if row.standing else None


def _ends(ratio: Ratio) -> tuple[float, ...]:
    return (ratio.ci95.low, ratio.ci95.high) if ratio.ci95 else ()


def _until_first_call_s(record: Record) -> float:
    return record.build_s + (record.first_call_s or 0.0)


def _samples_ms(record: Record) -> np.ndarray[Any, np.dtype[np.float64]]:
    bursts = [np.asarray(burst.samples_ns, dtype=np.float64) for burst in record.bursts if burst.samples_ns]
    return np.concatenate(bursts) / 1e6 if bursts else np.empty(0)


# --- axes


def _name_rows(panel: _Panel, drawn: Collection[int]) -> None:
    """A line per cell with its label, the first on top; one that is not `drawn` is a mark with how its cell ended."""
    rows = panel.contest.rows
    panel.axes.set_ylim(len(rows) - 0.4, -0.6)
    panel.axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    panel.axes.tick_params(axis="y", length=0)
    panel.axes.grid(True, axis="x")
    for place in sorted(set(range(len(rows))) - set(drawn)):
        panel.axes.text(
            0.015,
            place,
            f"\u00d7 {_short(spelling.fate(rows[place].record), 30)}",
            transform=panel.axes.get_yaxis_transform(),
            va="center",
            color=_GREY,
            size=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )


def _label_ends(panel: _Panel, ends: Sequence[tuple[int, float, str]], left: float, is_log: bool) -> None:
    """Writes each text right of its (place, right end), and widens the axis from `left` so that all of them fit."""
    scale: Callable[[float], float] = math.log if is_log else float
    start = scale(left)
    span = max(((scale(right) - start) / (1 - _share(text, panel)) for _, right, text in ends), default=1.0)
    stop = start + (span or 1.0)
    highest = math.exp(stop) if is_log else stop
    panel.axes.set_xscale("log" if is_log else "linear")
    panel.axes.set_xlim(left, highest)
    number_axis(panel.axes.xaxis, left, highest, is_log, ticks=panel.width_in * 2.4)
    for place, right, text in ends:
        panel.axes.annotate(
            text, (right, place), xytext=(4, 0), textcoords="offset points", va="center", size=7.5, clip_on=False
        )


def _share(text: str, panel: _Panel) -> float:
    """About the part of the panel's width that `text` takes."""
    return min(0.75, (0.15 + 0.066 * len(text)) / panel.width_in)


def number_axis(axis: Any, low: float, high: float, is_log: bool, ticks: float) -> None:
    """Plain numbers, about `ticks` of them at most: 0.1, 0.2, 0.5, 1 and not powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())
    if not is_log:
        axis.set_major_locator(MaxNLocator(nbins=max(3, min(8, int(ticks))), steps=[1, 2, 2.5, 5, 10]))
        return
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = max(3, 0.7 * ticks)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(marks) <= ticks:
            break
    else:
        marks = marks[:: math.ceil(len(marks) / ticks)]
    axis.set_major_locator(FixedLocator(marks))


def _name(row: Row) -> str:
    return _short(row.label, _NAME_CHARACTERS)


def _short(text: str, limit: int) -> str:
    return spelling.one_line(text, limit)


def _wrapped(text: str, width: int, lines: int) -> str:
    return "\n".join(textwrap.wrap(_short(text, 400), width, max_lines=lines, placeholder=" …"))


def _listed(labels: Sequence[str]) -> str:
    names = [_short(label, _NAME_CHARACTERS) for label in labels]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"


def _has_latency(contest: ContestView) -> bool:
    return any(row.record.latency for row in contest.rows)


def _has_ratio(contest: ContestView) -> bool:
    return any(_ratio_of(row) for row in contest.ranked if row.label != contest.verdict.baseline)


def _has_costs(contest: ContestView, start: Start) -> bool:
    """Whether there are two to compare."""
    return bool(contest.costs.legs(start, contest.contenders)) and len(_cost_lines(contest, start)) > 1


def _has_front(contest: ContestView) -> bool:
    return len(contest.ranked) > 1


def _has_phases(contest: ContestView) -> bool:
    return any(row.record.phases for row in contest.rows)


def _has_samples(contest: ContestView) -> bool:
    return any(burst.samples_ns for row in contest.rows for burst in row.record.bursts)


def _costs_drawing(name: str, start: Start) -> _Drawing:
    return _Drawing(
        name=name,
        headline=lambda _: f"What calls cost from a {start} start, building included",
        x_label="calls",
        shows=partial(_has_costs, start=start),
        finding=partial(_find_costs, start=start),
        paint=partial(_paint_costs, start=start),
        has_rows=False,
    )


_DRAWINGS = [
    _Drawing(
        name="latency",
        headline=_headline_latency,
        x_label="median latency (ms), 95 % interval",
        shows=_has_latency,
        finding=_find_latency,
        paint=_paint_latency,
    ),
    _Drawing(
        name="speedup",
        headline=_headline_speedup,
        x_label="speed-up over eager (x), 95 % interval",
        shows=_has_ratio,
        finding=_find_speedup,
        paint=_paint_speedup,
    ),
    _Drawing(
        name="build-vs-speedup",
        headline=lambda _: "What building costs, and what it buys",
        x_label="build time (s)",
        shows=_has_ratio,
        finding=_find_build,
        paint=_paint_build_vs_speedup,
        has_rows=False,
    ),
    _costs_drawing("costs", "cold"),
    _costs_drawing("costs-warm", "warm"),
    _Drawing(
        name="pareto",
        headline=lambda _: "What nothing dominates",
        x_label="build time (s); beside each: peak memory, relative error",
        shows=_has_front,
        finding=_find_pareto,
        paint=_paint_pareto,
        has_rows=False,
    ),
    _Drawing(
        name="phases",
        headline=lambda _: "Where the time goes until the first answer",
        x_label="time (s)",
        shows=_has_phases,
        finding=_find_phases,
        paint=_paint_phases,
    ),
    _Drawing(
        name="samples",
        headline=lambda _: "How the latencies of single calls are distributed",
        x_label="latency (ms), middle 99 % of the calls",
        shows=_has_samples,
        finding=_find_samples,
        paint=_paint_samples,
    ),
]
