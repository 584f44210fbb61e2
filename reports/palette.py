"""How a configuration looks wherever it is drawn: the hue is the backend's, lightness, hatch and marker the mode's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Rgb = tuple[float, float, float]
WHITE = (1.0, 1.0, 1.0)
BLACK = (0.0, 0.0, 0.0)

# Okabe & Ito, "Color Universal Design", 2008; with two greys for those that are no compilers, and two of Paul Tol's
_COLOURS = {
    "eager": "#4d4d4d",
    "torchscript": "#f0e442",
    "inductor": "#e69f00",
    "aotinductor": "#d55e00",
    "onnx": "#0072b2",
    "openvino": "#56b4e9",
    "tensorrt": "#009e73",
    "torch-tensorrt": "#cc79a7",
    "triton": "#332288",
    "hotpath": "#882255",
    "null": "#b0b0b0",
}
# Paul Tol's "muted" scheme, for the backends of third parties
_FURTHER_COLOURS = ["#999933", "#44aa99", "#661100", "#aa4499", "#117733", "#ddcc77"]
_HATCHES = ["", "////", "....", "xxxx", "----", "oo"]
_MARKERS = ["o", "s", "^", "D", "v", "P"]

_LIGHTER_PER_MODE = 0.3
_LIGHTEST = 0.6


@dataclass(frozen=True)
class Look:
    """How one configuration is drawn. `hatch` and `marker` are matplotlib's names."""

    colour: Rgb
    hatch: str
    marker: str

    @property
    def hex(self) -> str:
        """The colour as `#e69f00`."""
        return "#" + "".join(f"{round(255 * part):02x}" for part in self.colour)


class Looks:
    """The look of every configuration that is drawn together, by label: `looks("inductor/max-autotune")`."""

    def __init__(self, labels: Iterable[str]) -> None:
        known = {label.partition("/")[::2] for label in labels}
        unknown = sorted({backend for backend, _ in known} - _COLOURS.keys())
        self._colours = _COLOURS | {
            name: _FURTHER_COLOURS[place % len(_FURTHER_COLOURS)] for place, name in enumerate(unknown)
        }
        self._modes = {
            backend: sorted({mode for other, mode in known if other == backend and mode}) for backend, _ in known
        }

    def __call__(self, label: str) -> Look:
        """Raises KeyError or ValueError for a label that was not named at the beginning."""
        backend, _, mode = label.partition("/")
        step = 1 + self._modes[backend].index(mode) if mode else 0
        colour = _between(parse_hex(self._colours[backend]), WHITE, min(_LIGHTEST, _LIGHTER_PER_MODE * step))
        return Look(colour, _HATCHES[step % len(_HATCHES)], _MARKERS[step % len(_MARKERS)])


def parse_hex(text: str) -> Rgb:
    """`#e69f00` as parts of one."""
    red, green, blue = (int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def readable(look: Look, background: Rgb, contrast: float) -> Look:
    """The look in as little changed a colour as has at least that contrast with what it stands on.

    Contrast as WCAG 2.2 defines it, 1 to 21.
    """
    far_end = BLACK if luminance(background) > 0.5 else WHITE
    for step in range(21):
        colour = _between(look.colour, far_end, step / 20)
        if _contrast(colour, background) >= contrast:
            return Look(colour, look.hatch, look.marker)
    return Look(far_end, look.hatch, look.marker)


def luminance(colour: Rgb) -> float:
    """Relative luminance of sRGB, 0 to 1 (WCAG 2.2)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: Rgb, other: Rgb) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _between(colour: Rgb, other: Rgb, share: float) -> Rgb:
    red, green, blue = (part + (end - part) * share for part, end in zip(colour, other, strict=True))
    return red, green, blue
