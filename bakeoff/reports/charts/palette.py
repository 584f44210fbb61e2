"""The colour and the shape of each configuration: the backend gives the hue, the mode the lightness and the shape."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from bakeoff.records.schema import Record

Rgb = tuple[float, float, float]
WHITE, BLACK = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)
DARK_GROUND = "#14181f"

LIGHT = {
    "ground": "#ffffff",
    "ink": "#16191d",
    "soft": "#59616b",
    "faint": "#d9dde2",
    "hair": "#e8eaed",
    "bad": "#a8330a",
}
"""What charts are painted with besides the colours of configurations. The page's style sheet has the same names as
variables, for light and for dark."""

CONTRAST_ON_LIGHT, CONTRAST_ON_DARK = 2.1, 3.0
"""Minimum contrast of a mark with its background, as WCAG 2.2 defines it. Shapes and names tell marks apart, too."""

_FURTHER_COLOURS = ("#999933", "#44aa99", "#661100", "#aa4499", "#117733", "#ddcc77")
"""Paul Tol's "muted" scheme, for backends that say no colour of their own."""

_RAMP = ["#440154", "#3b528b", "#21918c", "#5ec962"]  # viridis without its yellow end
_MARKERS = "os^DvP"

_LIGHTER_PER_MODE, _LIGHTEST = 0.3, 0.6


@dataclass(frozen=True)
class Look:
    """The colours and marker of a configuration, with its number on the page. `marker` is one of matplotlib's names."""

    number: int
    light: str
    dark: str
    marker: str


class Palette:
    """The looks of all configurations that are drawn together, such as `palette("inductor/max-autotune")`, numbered in
    the order in which they first appear."""

    def __init__(self, records: Iterable[Record]) -> None:
        cells = {record.cell.label: record for record in records}
        self.labels = list(cells)
        # a backend without a colour of its own gets one by its name, that no other backend has if there are enough
        said = {record.cell.backend: record.colour for record in cells.values()}
        chosen = {backend: colour for backend, colour in said.items() if colour}
        for backend in sorted(said.keys() - chosen.keys()):
            first = zlib.crc32(backend.encode()) % len(_FURTHER_COLOURS)
            ordered = [*_FURTHER_COLOURS[first:], *_FURTHER_COLOURS[:first]]
            chosen[backend] = next((colour for colour in ordered if colour not in chosen.values()), ordered[0])
        colours = {backend: parse_hex(colour) for backend, colour in chosen.items()}
        self._looks = {}
        for number, (label, record) in enumerate(cells.items()):
            # a dynamic build and one in another environment are drawn as another mode
            variants = sorted(other for other, one in cells.items() if one.cell.backend == record.cell.backend != other)
            step = 1 + variants.index(label) if label in variants else 0
            colour = mixed(colours[record.cell.backend], WHITE, min(_LIGHTEST, _LIGHTER_PER_MODE * step))
            self._looks[label] = _look(number, colour, _MARKERS[step % len(_MARKERS)])

    def __call__(self, label: str) -> Look:
        """Return the look of a label. Raises KeyError for a label that was not given at the beginning."""
        return self._looks[label]

    @property
    def looks(self) -> list[Look]:
        return list(self._looks.values())

    @property
    def variables(self) -> dict[str, str]:
        """The page's variable for each light colour: `#0072b2` is `var(--k2)`."""
        names = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
        return {look.light: f"var(--k{look.number})" for look in reversed(self.looks)} | names


def ramp(labels: Iterable[str]) -> dict[str, Look]:
    """Return looks for labels that have an order, such as sizes: from dark to bright."""
    ordered = list(labels)
    looks = {}
    for place, label in enumerate(ordered):
        whole, part = divmod(place / max(1, len(ordered) - 1) * (len(_RAMP) - 1), 1)
        stops = [parse_hex(_RAMP[min(int(whole) + step, len(_RAMP) - 1)]) for step in (0, 1)]
        looks[label] = _look(place, mixed(stops[0], stops[1], part), _MARKERS[place % len(_MARKERS)])
    return looks


def parse_hex(text: str) -> Rgb:
    """Return `#e69f00` as parts of one."""
    red, green, blue = (int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def readable(colour: Rgb, background: Rgb, contrast: float) -> Rgb:
    """Return the colour that is closest to `colour` and has at least that contrast with the background."""
    far_end = BLACK if luminance(background) > 0.5 else WHITE
    steps = (mixed(colour, far_end, step / 20) for step in range(21))
    return next((found for found in steps if _contrast(found, background) >= contrast), far_end)


def luminance(colour: Rgb) -> float:
    """Return the relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _look(number: int, colour: Rgb, marker: str) -> Look:
    light = readable(colour, WHITE, CONTRAST_ON_LIGHT)
    dark = readable(colour, parse_hex(DARK_GROUND), CONTRAST_ON_DARK)
    return Look(number, hex_of(light), hex_of(dark), marker)


def hex_of(colour: Rgb) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


def _contrast(rgb: Rgb, other: Rgb) -> float:
    darker, lighter = sorted((luminance(rgb), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(colour: Rgb, other: Rgb, share: float) -> Rgb:
    """Return a colour between two: the other one for a share of 1."""
    red, green, blue = (part + (end - part) * share for part, end in zip(colour, other, strict=True))
    return red, green, blue
