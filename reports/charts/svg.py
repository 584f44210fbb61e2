"""SVG elements, scales and axes: the little that the charts of the HTML report are drawn with.

Built as an element tree, so that whatever a text holds is escaped when it is written. Colours and type are the page's
style sheet's, by class, so that they follow light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from records.text import one_line
from reports import format
from reports.ticks import linear_ticks, log_ticks

WIDTH = 440.0
"""Of every chart, in its own units. Its type has 12: on a phone of 375 pixels that comes out at nine."""

CHARACTER = 6.6
"""About the width of a character of the type."""

Point = tuple[float, float]


@dataclass
class Chart:
    """One chart of the page. `height` is in the units of `WIDTH`."""

    name: str  # stable, for the page's anchors and tests: "latency"
    finding: str  # what is seen
    caption: str  # what is drawn, with units
    height: float
    root: Element = field(default_factory=lambda: Element("svg"))

    @property
    def markup(self) -> Markup:
        """As inline SVG. Read out as a picture of what is seen; its marks have titles of their own."""
        self.root.attrib |= {
            "viewBox": f"0 0 {WIDTH:.0f} {self.height:.0f}",
            "role": "img",
            "aria-label": f"{self.finding}. {self.caption}",
            "tabindex": "0",
        }
        return Markup(tostring(self.root, encoding="unicode"))  # an element tree escapes what it writes


@dataclass(frozen=True)
class Scale:
    """From a value to a place on one axis, linear or logarithmic; in the middle where both ends are one value."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        if self.low == self.high:
            share = 0.5
        elif self.is_log:
            share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int) -> list[float]:
        return log_ticks(self.low, self.high, most) if self.is_log else linear_ticks(self.low, self.high, most)


def scale(values: Iterable[float], start: float, stop: float, is_log: bool, pad: float = 0.06) -> Scale:
    """One that holds the values, with room around them. Values must be positive for a logarithmic one."""
    known = list(values)
    low, high = min(known), max(known)
    if is_log:
        reach = max((high / low) ** pad, 1.15)
        return Scale(low / reach, high * reach, start, stop, is_log=True)
    reach = pad * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low - reach, high + reach, start, stop)


def add(parent: Element, tag: str, css: str = "", text: str = "", **attributes: float | str) -> Element:
    """A child of `parent`. Numbers are rounded to a tenth; `data_k` becomes `data-k`."""
    written = {name.replace("_", "-"): _written(value) for name, value in attributes.items()}
    element = SubElement(parent, tag, {"class": css, **written} if css else written)
    element.text = one_line(text) or None
    return element


def mark(parent: Element, key: int | None, tip: str) -> Element:
    """A group that belongs to configuration number `key`, and says `tip` where it is pointed at."""
    group = add(parent, "g", "mark" if key is None else f"mark k{key}", **({} if key is None else {"data_k": str(key)}))
    add(group, "title", text=tip)
    return group


def path(parent: Element, points: Sequence[Point], css: str) -> Element:
    """A line through the points."""
    return add(parent, "path", css, d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))


def bar_interval(parent: Element, low: float, high: float, y: float, cap: float = 4) -> None:
    """A horizontal interval with caps."""
    d = f"M{low:.1f} {y - cap:.1f}v{2 * cap:.1f}M{high:.1f} {y - cap:.1f}v{2 * cap:.1f}M{low:.1f} {y:.1f}H{high:.1f}"
    add(parent, "path", "interval", d=d)


def symbol(parent: Element, x: float, y: float, marker: str, css: str = "dot", size: float = 5.0) -> Element:
    """One of matplotlib's markers o, s, ^, D, v and P."""
    start_x, start_y, outline = _SYMBOLS[marker]
    placed = f"translate({x:.1f} {y:.1f}) scale({size:g})"
    return add(parent, "path", css, d=f"M{start_x} {start_y}{outline}z", transform=placed)


def x_axis(root: Element, across: Scale, y: float, title: str, most: int = 6, top: float = 0.0) -> None:
    """Numbers below `y`, with lines up to `top`, and the title with its unit below them."""
    for value in across.ticks(most):
        x = across(value)
        add(root, "path", "grid", d=f"M{x:.1f} {top:.1f}V{y:.1f}")
        add(root, "text", "tick", number(value), x=x, y=y + 16, text_anchor="middle")
    x_line(root, across, y, title)


def x_line(root: Element, across: Scale, y: float, title: str) -> None:
    """An axis without numbers."""
    add(root, "path", "axis", d=f"M{across.start:.1f} {y:.1f}H{across.stop:.1f}")
    add(root, "text", "title", title, x=(across.start + across.stop) / 2, y=y + 34, text_anchor="middle")


def y_axis(root: Element, up: Scale, x: float, right: float, title: str, most: int = 6) -> None:
    """Numbers left of `x`, with lines to `right`; the title stands above the axis, where it need not be turned."""
    for value in up.ticks(most):
        y = up(value)
        add(root, "path", "grid", d=f"M{x:.1f} {y:.1f}H{right:.1f}")
        add(root, "text", "tick", number(value), x=x - 6, y=y + 4, text_anchor="end")
    add(root, "path", "axis", d=f"M{x:.1f} {up.start:.1f}V{up.stop:.1f}")
    add(root, "text", "title", title, x=2, y=12)


def number(value: float) -> str:
    """`0.1`, `1,000`, and `10 M` for what would be long."""
    if abs(value) >= 1e6:
        return format.quantity(value, "").strip().replace(".00", "").replace(".0", "")
    return f"{value:,.6g}"


def fit(text: str, room: float) -> str:
    """`text`, cut to what fits into so many units."""
    return one_line(text, max(4, int(room / CHARACTER)))


def _written(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}"


# each from its topmost or leftmost point on, in radii
_SYMBOLS = {
    "o": (-1.0, 0.0, "a1 1 0 1 0 2 0a1 1 0 1 0 -2 0"),
    "s": (-0.9, -0.9, "h1.8v1.8h-1.8"),
    "^": (0.0, -1.15, "l1.1 2h-2.2"),
    "v": (0.0, 1.15, "l1.1 -2h-2.2"),
    "D": (0.0, -1.2, "l1.2 1.2l-1.2 1.2l-1.2 -1.2"),
    "P": (-0.4, -1.1, "h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7v-.8h.7"),
}
