"""Paints charts with matplotlib, once for the page and for files. No pyplot is used, so no state outlives a call.

A figure has no `Axes`: building and drawing one takes longer than all that a chart shows in it. Every place on a
figure is known in points before it is painted. matplotlib chooses the numbers on an axis.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text as Writing
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from matplotlib.transforms import Affine2D, Bbox, TransformedBbox
from PIL import Image

from bakeoff.records.text import one_line
from bakeoff.reports import number_format
from bakeoff.reports.charts.chart import Axis, Bar, Chart, Dots, Hill, Line, Lost, Mark, Text, Tile
from bakeoff.reports.charts.clean_svg import ROOT_ATTRIBUTES, svg_of
from bakeoff.reports.charts.palette import LIGHT, Look

PAGE_IN = 7.2
DPI = 200

_POINTS = 72
_ROW_PT = 25.0
_BAR_PT = 9.0
_PAD_PT = 3.0
_LOST_PT = 9.0
_TICK_PT, _TITLE_PT, _NOTE_PT, _SMALL_PT = 13.0, 12.0, 10.0, 8.0
_CHARACTER_PT = 4.4
"""About the width of a character of a value's text."""

_MOST_NUMBERS = 6
"""Maximum count of numbers on an axis, about."""

_STYLE: dict[Any, Any] = {
    "font.size": 7.5,
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
    box = _box_pt(chart)
    return round(box.left + (box.right - box.left) * chart.x.share(value), 1)


def save_png(charts: Sequence[Chart], headline: str, path: Path) -> Path:
    parts, (width, height) = _layout(charts, headline)
    image = Image.new("RGB", (_pixels(width), _pixels(height)), "white")
    for x, y, painted in parts:
        with _styled():
            figure = _figure(painted)
            figure.set_dpi(DPI)
            figure.patch.set_visible(False)
            canvas: Any = FigureCanvasAgg(figure)
            canvas.draw()
            picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
        image.paste(picture, (_pixels(x), _pixels(y)), picture)
    image.save(path, dpi=(DPI, DPI))
    return path


def save_svg(charts: Sequence[Chart], headline: str, path: Path) -> Path:
    """Write the charts side by side. This costs little if a page has shown them."""
    path.write_text(file_svg(charts, headline), encoding="utf-8")
    return path


def file_svg(charts: Sequence[Chart], headline: str) -> str:
    parts, (width, height) = _layout(charts, headline)
    title = escape(one_line(headline or f"{charts[0].finding}. {charts[0].caption}"))
    nested = "".join(
        f'<svg x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" overflow="visible">{_svg(part)}</svg>'
        for x, y, part in parts
        for w, h in [_size_pt(part)]
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
        f'width="{width:g}pt" height="{height:g}pt" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="DejaVu Sans, sans-serif" {ROOT_ATTRIBUTES}>'
        f'<title>{title}</title><rect width="100%" height="100%" fill="#ffffff"/>{nested}</svg>\n'
    )


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
    """A headline, a legend or small type across a file."""

    width_pt: float
    text: str = ""
    legend: tuple[tuple[str, Look], ...] = ()
    small: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.text, int(self.width_pt / 5.6))

    @property
    def small_lines(self) -> list[str]:
        return [line for text in self.small for line in textwrap.wrap(one_line(text), int(self.width_pt / 3.25))]

    @property
    def columns(self) -> int:
        longest = max((len(text) for text, _ in self.legend), default=1)
        return max(1, min(len(self.legend), int(self.width_pt / (24 + 4.0 * longest))))

    @property
    def height_pt(self) -> float:
        rows = math.ceil(len(self.legend) / self.columns)
        return 13.0 * len(self.lines) + 11.5 * rows + _SMALL_PT * len(self.small_lines) + 5


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
        strip = _Strip(width, headline)
        parts.append((0.0, y, strip))
        y += strip.height_pt
    for start in range(0, len(charts), columns):
        line = charts[start : start + columns]
        parts += [(place * (width - each_pt), y, chart) for place, chart in enumerate(line)]
        y += max(_size_pt(chart)[1] for chart in line)
    legend = dict(entry for chart in charts for entry in chart.legend)
    small = dict.fromkeys([*(chart.caption for chart in charts), *(chart.origin for chart in charts)])
    for strip in (_Strip(width, legend=tuple(legend.items())), _Strip(width, small=tuple(small))):
        parts.append((0.0, y, strip))
        y += strip.height_pt
    return parts, (width, y)


@functools.lru_cache(maxsize=512)
def _svg(painted: _Painted) -> str:
    with _styled():
        return svg_of(_figure(painted), painted.marks if isinstance(painted, Chart) else ())


def _figure(painted: _Painted) -> Figure:
    sheet = _Sheet(*_size_pt(painted))
    if isinstance(painted, Chart):
        _paint(sheet, painted)
        return sheet.figure
    for number, line in enumerate(painted.lines):
        sheet.write(0.005 * painted.width_pt, 11 + 13 * number, line, weight="bold", size=9.5)
    for number, line in enumerate(painted.small_lines):
        sheet.write(2, _SMALL_PT * (number + 1), line, color=LIGHT["soft"], size=6)
    if painted.legend:
        handles = [Line2D([], [], ls="", marker=look.marker, ms=5, color=look.light) for _, look in painted.legend]
        sheet.figure.legend(
            handles, [text for text, _ in painted.legend], loc="center", ncols=painted.columns, frameon=False,
            fontsize=7, handletextpad=0.3, columnspacing=1.2, labelspacing=0.35,
        )  # fmt: skip
    return sheet.figure


class _Sheet:
    """A figure whose places are points from its left upper corner. What is added later lies on top."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width / _POINTS, height / _POINTS))
        inches = Affine2D().scale(1 / _POINTS, -1 / _POINTS).translate(0, height / _POINTS)
        self._to_pixels = inches + self.figure.dpi_scale_trans

    def add(self, artist: Artist, gid: str = "", clip: _Box | None = None) -> None:
        artist.set_transform(self._to_pixels)
        artist.set_zorder(len(self.figure.artists))
        artist.set_gid(gid or None)
        if clip:
            extent = Bbox.from_extents(clip.left, clip.top, clip.right, clip.foot)
            artist.set_clip_box(TransformedBbox(extent, self._to_pixels))
        self.figure.add_artist(artist)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, **style: Any) -> None:
        self.add(Line2D(xs, ys, color=colour, lw=0.6, **style))

    def write(self, x: float, y: float, text: str, gid: str = "", **style: Any) -> None:
        self.add(Writing(x, y, one_line(text), **style), gid)


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
    """The area of a chart that holds its data, in points from the upper left corner."""

    left: float
    right: float
    top: float
    foot: float


def _caption_lines(chart: Chart) -> tuple[list[str], list[str]]:
    def lines(text: str, character_pt: float, most: int) -> list[str]:
        room = int(chart.width_in * _POINTS / character_pt)
        return textwrap.wrap(one_line(text, 400), room, max_lines=most, placeholder=" …")

    return lines(chart.finding, 5.0, 4), lines(chart.subject, 4.35, 3)


def _caption_pt(chart: Chart) -> float:
    finding, subject = _caption_lines(chart)
    return 10.0 * len(finding) + 9.5 * len(subject) + 7


def _box_pt(chart: Chart) -> _Box:
    width = chart.width_in * _POINTS
    if chart.y is None:
        top = _caption_pt(chart)
        return _Box(8, width - 11, top, top + _ROW_PT * len(chart.rows) + 2)
    top = _caption_pt(chart) + _TITLE_PT + 2
    return _Box(chart.left_pt, width - 8, top, top + chart.plot_pt)


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


@dataclass(frozen=True)
class _Plane:
    """Turns values of a chart into points of its figure."""

    box: _Box
    x: Axis
    y: Axis | None  # None: a row for each whole number

    def across(self, values: Iterable[float]) -> list[float]:
        width = self.box.right - self.box.left
        return [self.box.left + width * self.x.share(value) for value in values]

    def down(self, values: Iterable[float]) -> list[float]:
        if self.y is None:
            return [self.box.top + _ROW_PT * value for value in values]
        height = self.box.foot - self.box.top
        return [self.box.foot - height * self.y.share(value) for value in values]


def _paint(sheet: _Sheet, chart: Chart) -> None:
    box = _box_pt(chart)
    plane = _Plane(box, _with_length(_with_room_for_texts(chart, box)), chart.y and _with_length(chart.y))
    _paint_axes(sheet, plane)
    marks = [(mark, f"mark-{number}") for number, mark in enumerate(chart.marks)]
    for mark, gid in marks:
        if not mark.tip:
            _paint_mark(sheet, plane, mark, gid)
    for place, name in enumerate(chart.rows):
        sheet.write(box.left, box.top + _ROW_PT * (place + 0.36), name, bbox=_BEHIND_TEXT)
    sheet.line((box.left, box.right), (box.foot, box.foot), LIGHT["soft"], solid_capstyle="projecting")
    if plane.y:
        sheet.line((box.left, box.left), (box.top, box.foot), LIGHT["soft"], solid_capstyle="projecting")
    for mark, gid in marks:
        if mark.tip:
            _paint_mark(sheet, plane, mark, gid)
    _write_around(sheet, chart, box)


def _paint_axes(sheet: _Sheet, plane: _Plane) -> None:
    box = plane.box
    style: dict[str, Any] = {"color": LIGHT["soft"], "size": 7}
    grid, gap = [], (math.nan, math.nan)  # one artist, since each costs as much as a whole path
    for value, text in _numbers(plane.x):
        (x,) = plane.across([value])
        grid += [(x, box.top), (x, box.foot), gap]
        sheet.write(x, box.foot + _PAD_PT, text, ha="center", va="top", **style)
    for value, text in _numbers(plane.y) if plane.y else []:
        (y,) = plane.down([value])
        grid += [(box.left, y), (box.right, y), gap]
        sheet.write(box.left - _PAD_PT, y, text, ha="right", va="center_baseline", **style)
    sheet.line([x for x, _ in grid], [y for _, y in grid], LIGHT["hair"])


def _write_around(sheet: _Sheet, chart: Chart, box: _Box) -> None:
    finding, subject = _caption_lines(chart)
    soft: dict[str, Any] = {"color": LIGHT["soft"], "size": 7}
    left, middle = 8 if chart.y is None else 2, (box.left + box.right) / 2
    y = 0.0
    for line in finding:
        sheet.write(left, y := y + 10, line, "caption", weight="bold")
    for line in subject:
        sheet.write(left, y := y + 9.5, line, "caption", **soft)
    if chart.y is not None:
        sheet.write(2, box.top - 7, chart.y.title, **soft)
    y = box.foot + _TICK_PT + 9
    sheet.write(middle, y, chart.x.title, ha="center", **soft)
    for line in _note_lines(chart):
        sheet.write(middle, y := y + _NOTE_PT, line, ha="center", color=LIGHT["bad"], size=6.5)
    x, y = box.left, y + _NOTE_PT + 1
    for text, colour in chart.colours:
        sheet.add(Rectangle((x, y - 6), 6, 6, facecolor=colour, lw=0))
        sheet.write(x + 9, y, text, **soft)
        x += 9 + 4.2 * len(text) + 14


def _with_room_for_texts(chart: Chart, box: _Box) -> Axis:
    """Return the x axis of a chart with rows, so wide that the texts right of the marks fit."""
    x = chart.x
    texts = [shape for mark in chart.marks for shape in mark.shapes if isinstance(shape, Text) and shape.x is not None]
    if chart.y is not None or not texts:
        return x
    scale: Callable[[float], float] = math.log if x.is_log else float
    low, width = scale(x.low), box.right - box.left
    span = max(
        (scale(text.x or x.low) - low) / (1 - min(0.75, (8 + _CHARACTER_PT * len(text.text)) / width)) for text in texts
    )
    high = max(low + span, scale(x.high))
    if high <= low:
        high = low + 1
    return Axis(x.title, x.low, math.exp(high) if x.is_log else high, x.is_log, x.numbers, x.is_whole)


def _with_length(axis: Axis) -> Axis:
    """Return an axis that holds its numbers, and has a length even if there is but one value."""
    places = [place for place, _ in axis.numbers]
    low, high = min([axis.low, *places]), max([axis.high, *places])
    return replace(axis, low=low, high=high) if low < high else replace(axis, low=low - 0.5, high=low + 0.5)


def _numbers(axis: Axis) -> list[tuple[float, str]]:
    if axis.numbers:
        return list(axis.numbers)
    places = _locator(axis).tick_values(axis.low, axis.high)
    return [(float(place), _number(place)) for place in places if -1e-9 <= axis.share(place) <= 1 + 1e-9]


def _locator(axis: Axis) -> Locator:
    """Return a locator of round numbers: on a logarithmic axis 1, 2, 5 or 1, 3 or 1 of each decade."""
    if axis.is_whole:
        return MaxNLocator(integer=True, nbins=12, min_n_ticks=1)
    decades = math.log10(axis.high / axis.low) if axis.is_log else 0.0
    if decades < 1:
        return MaxNLocator(nbins=_MOST_NUMBERS - axis.is_log, steps=[1, 2, 2.5, 5, 10])
    subs = next((subs for subs in ([1, 2, 5], [1, 3]) if len(subs) * decades <= _MOST_NUMBERS), [1])
    return LogLocator(subs=subs, numticks=_MOST_NUMBERS)


def _number(value: float) -> str:
    """Return `0.1`, `1,000`, or `10 M` for what would be long."""
    if abs(value) >= 1e6:
        return number_format.quantity(value, "").strip().replace(".00", "").replace(".0", "")
    return f"{value:,.6g}"


def _paint_mark(sheet: _Sheet, plane: _Plane, mark: Mark, gid: str) -> None:
    look, ground, box = mark.look or Look(0, LIGHT["soft"], "", "o"), LIGHT["ground"], plane.box
    for shape in mark.shapes:
        colour = look.light
        if not isinstance(shape, Hill | Lost) and shape.colour:
            colour = LIGHT.get(shape.colour, shape.colour)
        match shape:
            case Bar():
                left, right = plane.across((shape.left, shape.right))
                (y,) = plane.down((shape.y,))
                face, width = (colour, 0.3) if shape.is_filled else ("none", 0.9)
                corner = (left, y - _BAR_PT / 2)
                sheet.add(Rectangle(corner, right - left, _BAR_PT, fc=face, ec=colour, lw=width), gid)
            case Line():
                style: dict[str, Any] = {"ls": "--" if shape.is_dashed else "-", "alpha": shape.opacity}
                line = Line2D(plane.across(shape.xs), plane.down(shape.ys), color=colour, lw=shape.width, **style)
                is_outside = plane.y and not all(plane.y.low <= y <= plane.y.high for y in shape.ys)
                sheet.add(line, gid, box if is_outside else None)
            case Dots():
                face, edge, width = (colour, ground, 0.5) if shape.is_filled else (ground, colour, 1.1)
                style = {"ls": "", "marker": shape.shape or look.marker, "ms": shape.size}
                xs, ys = plane.across(shape.xs), plane.down(shape.ys)
                sheet.add(Line2D(xs, ys, mfc=face, mec=edge, mew=width, **style), gid)
            case Hill():
                xs = plane.across((shape.xs[0], *shape.xs, shape.xs[-1]))
                ys = plane.down((shape.foot, *shape.ys, shape.foot))
                face, width = (colour, 0.0) if shape.is_filled else ("none", 0.8)
                corners = list(zip(xs, ys, strict=True))
                sheet.add(Polygon(corners, facecolor=face, edgecolor=colour, lw=width), gid)
            case Text():
                x = box.left if shape.x is None else plane.across((shape.x,))[0] + 4
                (y,) = plane.down((shape.y,))
                style = {"color": colour, "va": "center", "size": 7, "bbox": _BEHIND_TEXT}
                sheet.write(x, y - shape.up_pt, shape.text, gid, **style)
            case Tile():
                (left, right), (top, foot) = (
                    plane.across((shape.left, shape.right)),
                    plane.down((shape.high, shape.low)),
                )
                sheet.add(Rectangle((left, top), right - left, foot - top, fc=colour, ec=ground, lw=0.8), gid)
                style = {"color": LIGHT.get(shape.ink, shape.ink), "ha": "center", "va": "center_baseline", "size": 7}
                sheet.write((left + right) / 2, (top + foot) / 2, shape.text, gid, **style)
            case Lost():
                ys = [box.foot - (shape.row + 0.5) * _LOST_PT] * len(shape.xs)
                style = {"ls": "", "marker": "x", "ms": 4.5, "mew": 1.3}
                sheet.add(Line2D(plane.across(shape.xs), ys, color=colour, **style), gid)
