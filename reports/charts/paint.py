"""Paints charts with matplotlib, once for the page and for files.

A chart is one `Figure`, drawn as SVG and as PNG. A page takes the SVG without its caption, with colours as variables of
the style sheet. A file is a grid of such figures. No pyplot is used, so no state outlives a call.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator
from PIL import Image

from records.text import one_line
from reports import format
from reports.charts.chart import Axis, Bar, Chart, Dots, Hill, Line, Lost, Mark, Text
from reports.charts.clean_svg import ROOT_ATTRIBUTES, svg_of
from reports.charts.palette import LIGHT, Look

PAGE_IN = 7.2
DPI = 200

_POINTS = 72
_ROW_PT, _PLOT_PT = 25.0, 150.0
_BAR_HEIGHT = 0.36
_LOST_PT = 9.0
_TICK_PT, _TITLE_PT, _NOTE_PT = 13.0, 12.0, 10.0
_CHARACTER_PT = 4.4
"""About the width of a character of a value's text."""

_STYLE: dict[Any, Any] = {
    "font.size": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "axes.edgecolor": LIGHT["soft"],
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.color": LIGHT["hair"],
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "butt",
    "text.color": LIGHT["ink"],
    "svg.fonttype": "none",
    "svg.hashsalt": "bakeoff",
    "text.parse_math": False,  # a dollar in a model's name is a dollar
}
_BEHIND_TEXT = {"facecolor": LIGHT["ground"], "edgecolor": "none", "pad": 0.6}


def page_svg(chart: Chart, variables: dict[str, str]) -> str:
    """Return the chart as SVG to stand inside of a page. `variables` are the page's names for colours."""
    head, (width, height) = _caption_pt(chart), _size_pt(chart)
    body = re.sub(r'<g class="caption">.*?</g>', "", _svg(chart), flags=re.S)
    body = re.sub(r'="(#[0-9a-f]{6})"', lambda found: f'="{variables.get(found[1], found[1])}"', body)
    if chart.stops:
        box = _box_pt(chart)
        body += f'<path class="cursor" d="M0 {box.top:g}V{box.foot:g}" transform="translate({box.left:g} 0)"/>'
    label = escape(one_line(f"{chart.finding}. {chart.caption}"))
    box_text = f"0 {head:g} {width:g} {height - head:g}"
    return f'<svg viewBox="{box_text}" role="img" aria-label="{label}" tabindex="0" {ROOT_ATTRIBUTES}>{body}</svg>'


def place_on_x(chart: Chart, value: float) -> float:
    """Return where a value of the x axis stands in the SVG."""
    box = _box_pt(chart)
    return round(box.left + (box.right - box.left) * chart.x.share(value), 1)


def save(charts: Sequence[Chart], headline: str, stem: Path) -> list[Path]:
    """Write the charts side by side as `stem`.png and `stem`.svg, and return both."""
    parts, (width, height) = _layout(charts, headline)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    image = Image.new("RGB", (_pixels(width), _pixels(height)), "white")
    for x, y, painted in parts:
        picture = _image(painted)
        image.paste(picture, (_pixels(x), _pixels(y)), picture)
    # these have few colours, and take a third of the space with a palette of 256
    image.quantize(256, dither=Image.Dither.NONE).save(png, optimize=True, dpi=(DPI, DPI))
    title = escape(one_line(headline or f"{charts[0].finding}. {charts[0].caption}"))
    nested = "".join(
        f'<svg x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" overflow="visible">{_svg(part)}</svg>'
        for x, y, part in parts
        for w, h in [_size_pt(part)]
    )
    svg.write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
        f'width="{width:g}pt" height="{height:g}pt" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="DejaVu Sans, sans-serif" {ROOT_ATTRIBUTES}>'
        f'<title>{title}</title><rect width="100%" height="100%" fill="#ffffff"/>{nested}</svg>\n',
        encoding="utf-8",
    )
    return [png, svg]


@functools.cache
def marker_svg(marker: str) -> str:
    """Return a marker with a radius of about 5 around the origin, without a colour."""
    with _styled():
        figure = Figure(figsize=(1, 1))
        figure.add_artist(Line2D([0.5], [0.5], marker=marker, ms=10, mew=0, color=LIGHT["ink"]))
        defs = re.findall(r"<defs>(.*)</defs>", svg_of(figure))[0]
    return re.sub(r' (id|fill|stroke|stroke-width)="[^"]*"', "", defs)


# --- pictures


@dataclass(frozen=True)
class _Strip:
    """A headline or a legend across a file."""

    text: str
    legend: tuple[tuple[str, Look], ...]
    width_pt: float

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.text, int(self.width_pt / 5.6))

    @property
    def columns(self) -> int:
        longest = max((len(text) for text, _ in self.legend), default=1)
        return max(1, min(len(self.legend), int(self.width_pt / (24 + 4.0 * longest))))

    @property
    def height_pt(self) -> float:
        return 13.0 * len(self.lines) + 11.5 * math.ceil(len(self.legend) / self.columns) + 5


_Painted = Chart | _Strip


def _layout(charts: Sequence[Chart], headline: str) -> tuple[list[tuple[float, float, _Painted]], tuple[float, float]]:
    """Return each part with its left and upper edge, and the size of the whole, in points."""
    several = len(charts) > 1
    each_pt = charts[0].width_in * _POINTS
    columns = 2 if several and 2 * each_pt <= PAGE_IN * _POINTS else 1
    width = PAGE_IN * _POINTS if columns == 2 else each_pt
    parts: list[tuple[float, float, _Painted]] = []
    y = 0.0
    if several:
        strip = _Strip(headline, (), width)
        parts.append((0.0, y, strip))
        y += strip.height_pt
    for start in range(0, len(charts), columns):
        line = charts[start : start + columns]
        parts += [(place * (width - each_pt), y, chart) for place, chart in enumerate(line)]
        y += max(_size_pt(chart)[1] for chart in line)
    legend = dict(entry for chart in charts for entry in chart.legend)
    if legend:
        strip = _Strip("", tuple(legend.items()), width)
        parts.append((0.0, y, strip))
        y += strip.height_pt
    return parts, (width, y)


@functools.lru_cache(maxsize=512)
def _svg(painted: _Painted) -> str:
    with _styled():
        return svg_of(_figure(painted), painted.marks if isinstance(painted, Chart) else ())


def _image(painted: _Painted) -> Image.Image:
    with _styled():
        figure = _figure(painted)
        figure.set_dpi(DPI)
        figure.patch.set_visible(False)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())


def _figure(painted: _Painted) -> Figure:
    width, height = _size_pt(painted)
    figure = Figure(figsize=(width / _POINTS, height / _POINTS))
    if isinstance(painted, Chart):
        _paint(figure, painted)
        return figure
    for number, line in enumerate(painted.lines):
        figure.text(0.005, 1 - (11 + 13 * number) / height, line, weight="bold", size=9.5)
    if painted.legend:
        handles = [Line2D([], [], ls="", marker=look.marker, ms=5, color=look.light) for _, look in painted.legend]
        figure.legend(
            handles, [text for text, _ in painted.legend], loc="center", ncols=painted.columns, frameon=False,
            fontsize=7, handletextpad=0.3, columnspacing=1.2, labelspacing=0.35,
        )  # fmt: skip
    return figure


def _pixels(points: float) -> int:
    return round(points / _POINTS * DPI)


@contextmanager
def _styled() -> Iterator[None]:
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # a model may be named in a script that the font lacks: a box in its place is no reason to fail
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


# --- one chart


@dataclass(frozen=True)
class _Box:
    """Where the data of a chart stands in it, in points from the left upper corner."""

    left: float
    right: float
    top: float
    foot: float


def _caption_lines(chart: Chart) -> tuple[list[str], list[str]]:
    """Return what is seen, and on what it is seen, as lines that fit."""

    def lines(text: str, character_pt: float, most: int) -> list[str]:
        room = int(chart.width_in * _POINTS / character_pt)
        return textwrap.wrap(one_line(text, 400), room, max_lines=most, placeholder=" …")

    return lines(chart.finding, 5.0, 3), lines(chart.subject, 4.35, 2)


def _caption_pt(chart: Chart) -> float:
    finding, subject = _caption_lines(chart)
    return 10.0 * len(finding) + 9.5 * len(subject) + 7


def _box_pt(chart: Chart) -> _Box:
    width = chart.width_in * _POINTS
    if chart.y is None:
        top = _caption_pt(chart)
        return _Box(8, width - 11, top, top + _ROW_PT * len(chart.rows) + 2)
    top = _caption_pt(chart) + _TITLE_PT + 2
    return _Box(36, width - 8, top, top + _PLOT_PT)


def _size_pt(painted: _Painted) -> tuple[float, float]:
    if isinstance(painted, _Strip):
        return painted.width_pt, painted.height_pt
    foot = _TICK_PT + _TITLE_PT + _NOTE_PT * (len(_note_lines(painted)) + bool(painted.colours)) + 4
    return painted.width_in * _POINTS, _box_pt(painted).foot + foot


def _note_lines(chart: Chart) -> list[str]:
    kept = chart.foot_note.replace(" \u00d7", "\n\u00d7").split("\n")
    lines = [""]
    for part in filter(None, kept):
        if len(lines[-1]) + len(part) > chart.width_in * 15:
            lines.append("")
        lines[-1] += f"\u2003{part}" if lines[-1] else part
    return [line for line in lines if line]


def _paint(figure: Figure, chart: Chart) -> None:
    box, (width, height) = _box_pt(chart), _size_pt(chart)
    axes = figure.add_axes(
        (box.left / width, 1 - box.foot / height, (box.right - box.left) / width, (box.foot - box.top) / height)
    )
    axes.patch.set_visible(False)
    axes.spines[["top", "right", *(["left"] if chart.y is None else [])]].set_visible(False)
    axes.tick_params(length=0, pad=3)
    _scale(axes, "x", _with_room_for_texts(chart, box), most=6)
    if chart.y is None:
        axes.set_ylim(len(chart.rows) + 2 / _ROW_PT, 0)
        axes.yaxis.set_major_locator(NullLocator())
    else:
        _scale(axes, "y", chart.y, most=6)
    axes.grid(True, clip_on=False)
    for number, mark in enumerate(chart.marks):
        _paint_mark(axes, chart, mark, f"mark-{number}", zorder=3 + number if mark.tip else 1)
    for place, name in enumerate(chart.rows):
        axes.text(0, place + 0.36, name, transform=axes.get_yaxis_transform(), bbox=_BEHIND_TEXT, zorder=1.5)
    _write_around(figure, chart, box, width, height)


def _write_around(figure: Figure, chart: Chart, box: _Box, width: float, height: float) -> None:
    """Write the caption, the titles of the axes, and what stands below them."""

    def write(x: float, y: float, text: str, **style: Any) -> None:
        figure.text(x / width, 1 - y / height, one_line(text), **style)

    finding, subject = _caption_lines(chart)
    left = 8 if chart.y is None else 2
    y = 0.0
    for line in finding:
        write(left, y := y + 10, line, weight="bold", gid="caption")
    for line in subject:
        write(left, y := y + 9.5, line, color=LIGHT["soft"], size=7, gid="caption")
    if chart.y is not None:
        write(2, box.top - 7, chart.y.title, color=LIGHT["soft"], size=7)
    y = box.foot + _TICK_PT + 9
    write((box.left + box.right) / 2, y, chart.x.title, color=LIGHT["soft"], size=7, ha="center")
    for line in _note_lines(chart):
        write((box.left + box.right) / 2, y := y + _NOTE_PT, line, color=LIGHT["bad"], size=6.5, ha="center")
    x, y = box.left, y + _NOTE_PT + 1
    for text, colour in chart.colours:
        corner, size = (x / width, 1 - y / height), (6 / width, 6 / height)
        figure.add_artist(Rectangle(corner, *size, facecolor=colour, lw=0, transform=figure.transFigure))
        write(x + 9, y, text, color=LIGHT["soft"], size=7)
        x += 9 + 4.2 * len(text) + 14


def _with_room_for_texts(chart: Chart, box: _Box) -> Axis:
    """Return the x axis of a chart with rows, so wide that the texts right of the marks fit."""
    x = chart.x
    texts = [each for mark in chart.marks for each in mark.shapes if isinstance(each, Text) and each.x is not None]
    if chart.y is not None or not texts:
        return x
    scale: Callable[[float], float] = math.log if x.is_log else float
    low, width = scale(x.low), box.right - box.left
    span = max(
        (scale(each.x or x.low) - low) / (1 - min(0.75, (8 + _CHARACTER_PT * len(each.text)) / width)) for each in texts
    )
    high = max(low + span, scale(x.high))
    if high <= low:
        high = low + 1
    return Axis(x.title, x.low, math.exp(high) if x.is_log else high, x.is_log, x.numbers, x.is_whole)


def _scale(axes: Axes, name: str, axis: Axis, most: int) -> None:
    """Set the limits of an axis, and round numbers on it."""
    low, high = (axis.low, axis.high) if axis.low < axis.high else (axis.low - 0.5, axis.low + 0.5)
    side = axes.xaxis if name == "x" else axes.yaxis
    limits = {f"{name}scale": "log" if axis.is_log else "linear", f"{name}lim": (low, high)}
    axes.set(**limits)
    side.set_minor_locator(NullLocator())
    if axis.numbers:
        places, texts = zip(*axis.numbers, strict=True)
        side.set_ticks(places, [one_line(text) for text in texts])
        return
    side.set_major_locator(_log_locator(low, high, most) if axis.is_log else _linear_locator(axis.is_whole, most))
    side.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _linear_locator(is_whole: bool, most: int) -> Locator:
    if is_whole:
        return MaxNLocator(integer=True, nbins=12, min_n_ticks=1)
    return MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])


def _log_locator(low: float, high: float, most: int) -> Locator:
    """Return 1, 2, 5 or 1, 3 or 1 of each decade, or even steps within less than a decade."""
    decades = math.log10(high / low)
    if decades < 1:
        return MaxNLocator(nbins=most - 1, steps=[1, 2, 2.5, 5, 10])
    subs = next((subs for subs in ([1, 2, 5], [1, 3]) if len(subs) * decades <= most), [1])
    return LogLocator(subs=subs, numticks=most)


def _number(value: float) -> str:
    """Return `0.1`, `1,000`, or `10 M` for what would be long."""
    if abs(value) >= 1e6:
        return format.quantity(value, "").strip().replace(".00", "").replace(".0", "")
    return f"{value:,.6g}"


def _paint_mark(axes: Axes, chart: Chart, mark: Mark, gid: str, zorder: float) -> None:
    look, ground = mark.look or Look(0, LIGHT["soft"], "", "o"), LIGHT["ground"]
    for shape in mark.shapes:
        colour = look.light
        if not isinstance(shape, Hill | Lost) and shape.colour:
            colour = LIGHT.get(shape.colour, shape.colour)
        style: dict[str, Any] = {"gid": gid, "zorder": zorder, "clip_on": False}
        match shape:
            case Bar():
                face, style["lw"] = (colour, 0.3) if shape.is_filled else ("none", 0.9)
                low, width = shape.y - _BAR_HEIGHT / 2, shape.right - shape.left
                axes.add_patch(Rectangle((shape.left, low), width, _BAR_HEIGHT, fc=face, ec=colour, **style))
            case Line():
                style["clip_on"] = chart.y is not None and not all(chart.y.low <= y <= chart.y.high for y in shape.ys)
                style |= {"lw": shape.width, "ls": "--" if shape.is_dashed else "-", "alpha": shape.opacity}
                axes.plot(shape.xs, shape.ys, color=colour, **style)
            case Dots():
                face, edge, width = (colour, ground, 0.5) if shape.is_filled else (ground, colour, 1.1)
                style |= {"ls": "", "marker": shape.shape or look.marker, "ms": shape.size}
                axes.plot(shape.xs, shape.ys, mfc=face, mec=edge, mew=width, **style)
            case Hill():
                face, style["lw"] = (colour, 0.0) if shape.is_filled else ("none", 0.8)
                xs, ys = (shape.xs[0], *shape.xs, shape.xs[-1]), (shape.foot, *shape.ys, shape.foot)
                axes.fill(xs, ys, facecolor=face, edgecolor=colour, **style)
            case Text():
                x, right = (0.0, 0) if shape.x is None else (shape.x, 4)
                style["xycoords"] = axes.get_yaxis_transform() if shape.x is None else axes.transData
                style |= {"textcoords": "offset points", "va": "center", "size": 7, "bbox": _BEHIND_TEXT}
                axes.annotate(one_line(shape.text), (x, shape.y), xytext=(right, shape.up_pt), color=colour, **style)
            case Lost():
                ys = ((shape.row + 0.5) * _LOST_PT / _PLOT_PT,) * len(shape.xs)
                style |= {"ls": "", "marker": "x", "ms": 4.5, "mew": 1.3, "transform": axes.get_xaxis_transform()}
                axes.plot(shape.xs, ys, color=colour, **style)
