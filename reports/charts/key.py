"""Which configuration is which: the same number, colour and symbol in every chart of a page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

from markupsafe import Markup

from reports.charts.svg import symbol
from reports.palette import Look, Looks, Rgb, parse_hex, readable

LIGHT, DARK = parse_hex("#ffffff"), parse_hex("#14181f")
"""What charts stand on."""

CONTRAST = {LIGHT: 2.1, DARK: 3.0}
"""Of a line or a mark with that, at least. Shapes and labels tell configurations apart, too."""


class Key:
    """The configurations of a report, numbered by where they first appear."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(dict.fromkeys(labels))
        looks = Looks(self.labels)
        self._looks = {label: looks(label) for label in self.labels}

    def number(self, label: str) -> int:
        return self.labels.index(label)

    def look(self, label: str) -> Look:
        return self._looks[label]

    def colours(self, background: Rgb) -> list[str]:
        """Of each configuration in the order of their numbers, as they can be seen on `LIGHT` or on `DARK`."""
        return [readable(self._looks[label], background, CONTRAST[background]).hex for label in self.labels]

    def swatch(self, label: str) -> Markup:
        """Its symbol in its colour, for a legend and beside a name."""
        root = Element("svg", {"viewBox": "0 0 16 16", "class": f"swatch k{self.number(label)}", "aria-hidden": "true"})
        symbol(root, 8, 8, self.look(label).marker, size=5.5)
        return Markup(tostring(root, encoding="unicode"))  # an element tree escapes what it writes
