"""The one style of all figures: `with styled(): figure = new_figure(...)`, then `save(figure, folder / "latency")`.

Everything is drawn through matplotlib's object-oriented interface, without pyplot, so that no state outlives a call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from reports.palette import Look, Looks
from reports.ticks import log_ticks

__all__ = ["COLUMN_WIDTH_IN", "DPI", "GREY", "STYLE", "WIDTH_IN", "Look", "Looks", "new_figure", "number_axis", "save",
           "styled"]  # fmt: skip

WIDTH_IN = 7.2
"""Of a page's text: two columns."""

COLUMN_WIDTH_IN = 3.5
"""Of one column of a paper; the type is legible at that size, unscaled."""

DPI = 200
GREY = "#666666"

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


@contextmanager
def styled() -> Iterator[None]:
    """Whatever is drawn and saved within has the style, and leaves matplotlib's settings as they were."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a model may be named in a script that the font lacks: a box in its place is no reason to fail
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(height_in: float, width_in: float = COLUMN_WIDTH_IN) -> Figure:
    """An empty figure that lays itself out: `axes = figure.subplots()`."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes the figure as `stem`.png and `stem`.svg and returns both. Its layout is settled by that."""
    files = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")]
    figure.savefig(files[0], dpi=DPI)
    _use_palette(files[0])
    figure.set_layout_engine("none")  # it stays as it is now: to lay it out takes longer than to draw it
    figure.savefig(files[1], metadata={"Date": None})
    return files


def number_axis(axis: Any, low: float, high: float, is_log: bool, ticks: float) -> None:
    """Plain numbers, about `ticks` of them at most: 0.1, 0.2, 0.5, 1 and not powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())
    if not is_log:
        axis.set_major_locator(MaxNLocator(nbins=max(4, min(8, int(ticks))), steps=[1, 2, 2.5, 5, 10]))
        return
    axis.set_major_locator(FixedLocator(log_ticks(low, high, max(3, 0.7 * ticks))))


def _use_palette(png: Path) -> None:
    """Rewrite a PNG with 256 colours of its own: these have few, and take a third of the space so."""
    with Image.open(png) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(png, optimize=True, dpi=(DPI, DPI))
