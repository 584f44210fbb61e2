"""The description of a chart: axes and marks as plain values. `paint` turns it into a picture."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bakeoff.judging.contest import CellJudgement
from bakeoff.records.text import one_line
from bakeoff.reports import number_format
from bakeoff.reports.blocks import Block, Surface
from bakeoff.reports.charts.palette import Look, Palette

COLUMN_IN = 3.5
"""The width of a chart: one of two columns on a page of 7.2 inches."""

BAR_Y, FOOT_Y = 0.7, 0.97
"""Position of bars, and of the foot of hills, in a row that begins at 0 and ends at 1."""

PLOT_PT, LEFT_PT = 150.0, 36.0
"""The height of a plot without rows, and the room left of it for the numbers of its y axis."""

NAME_CHARACTERS = 40
"""The longest name that fits above a row. The longest of ours is inductor/max-autotune-no-cudagraphs."""

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Axis:
    title: str
    low: float
    high: float
    is_log: bool = False
    numbers: tuple[tuple[float, str], ...] = ()  # what is written and where; matplotlib chooses if there are none
    is_whole: bool = False  # only whole numbers make sense on it

    def share(self, value: float) -> float:
        """Return where a value stands: 0 at the low end, 1 at the high one."""
        if self.is_log:  # what is not above 0 stands far outside
            return math.log(max(value / self.low, 1e-300)) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Bar:
    y: float
    left: float
    right: float
    is_filled: bool = True
    colour: str = ""  # a name in `palette.LIGHT`; the colour of the configuration if it is empty


@dataclass(frozen=True)
class Line:
    xs: Numbers
    ys: Numbers
    colour: str = ""
    width: float = 1.3
    is_dashed: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Dots:
    """Markers of the configuration's shape, or of `shape` (a name that matplotlib knows)."""

    xs: Numbers
    ys: Numbers
    is_filled: bool = True
    size: float = 6.0
    shape: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Hill:
    """An outline over `foot`. On charts with rows y grows downwards."""

    xs: Numbers
    ys: Numbers
    foot: float
    is_filled: bool = True


@dataclass(frozen=True)
class Text:
    """A text right of a point; charts with rows make room for it. Without `x` it stands at the left edge."""

    x: float | None
    y: float
    text: str
    colour: str = "ink"
    up_pt: float = 0.0  # so far above the point


@dataclass(frozen=True)
class Lost:
    """Crosses in a row of their own above the lower edge, where cells failed. `row` counts from 0 at the edge."""

    xs: Numbers
    row: int


@dataclass(frozen=True)
class Tile:
    """A filled rectangle with a text in its middle."""

    left: float
    right: float
    low: float
    high: float
    text: str
    colour: str = "ground"
    ink: str = "ink"


Shape = Bar | Line | Dots | Hill | Text | Lost | Tile


@dataclass(frozen=True)
class Mark:
    """What is drawn of one configuration, or of none. `tip` is shown when the mark is pointed at."""

    shapes: tuple[Shape, ...]
    tip: str = ""
    look: Look | None = None


@dataclass(frozen=True)
class Stop:
    """What the slider of the costs says at one number of calls."""

    calls: int
    text: str
    totals: tuple[tuple[str, str], ...]  # label and seconds, the cheapest first


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart. All of it is hashable, so a picture of it can be kept."""

    name: str  # also of its file: "latency"
    subject: str  # the contest or the sweep
    finding: str  # what is seen
    caption: str  # what is drawn, with units
    x: Axis
    y: Axis | None = None  # None: a row for each of `rows`
    marks: tuple[Mark, ...]
    rows: tuple[str, ...] = ()
    legend: tuple[tuple[str, Look], ...] = ()  # in figures; a page has buttons instead
    colours: tuple[tuple[str, str], ...] = ()  # texts and colours of a legend inside of the chart
    foot_note: str = ""  # below the title of the x axis
    origin: str = ""  # the machine, the versions and the date; in figures it stands below all charts
    stops: tuple[Stop, ...] = ()
    width_in: float = COLUMN_IN
    plot_pt: float = PLOT_PT  # height of the plot, without rows
    left_pt: float = LEFT_PT  # room for the numbers of the y axis


@dataclass(frozen=True)
class Charts(Block):
    """Charts side by side, with a button for each label. For pages."""

    charts: Sequence[Chart]
    labels: Sequence[str] = ()
    calls: int | None = None  # where the slider of the costs begins
    on: Surface = field(default=Surface.PAGE, kw_only=True)

    def has_content(self, surface: Surface) -> bool:
        return bool(self.charts)


def axis_around(title: str, values: Iterable[float], is_log: bool, pad: float = 0.06, keep: float = 0.0) -> Axis:
    """Return an axis that holds the values with room around them. A logarithmic one needs values above 0. `keep` is the
    share of the axis that is left empty below the values."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if is_log:
        reach = max((high / low) ** pad, 1.15)
        low, high = low / reach, high * reach
        return Axis(title, low / (high / low) ** (keep / (1 - keep)), high, is_log=True)
    reach = pad * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - reach, high + reach
    return Axis(title, low - (high - low) * keep / (1 - keep), high)


def value_axis(title: str, reached: Sequence[float], log_from: float, keep: float = 0.0) -> Axis:
    """Return an axis from zero, on which a small change looks small, or a logarithmic one for very different values.
    `keep` is the share of the axis that is left empty below the values."""
    if max(reached) > log_from * min(reached) > 0:
        return axis_around(title, reached, is_log=True, keep=keep)
    high = max(reached) * 1.06
    return Axis(title, -high * keep / (1 - keep), high)


def point(x: float, y: float, ends: Sequence[float], is_filled: bool = True, size: float = 6.5) -> tuple[Shape, ...]:
    whisker = (Line((x, x), tuple(ends)),) if ends else ()
    return (*whisker, Dots((x,), (y,), is_filled, size=size))


def vertical_line(x: float, rows: int) -> Mark:
    return Mark((Line((x, x), (0.0, rows), colour="soft", width=0.9),))


def level(y: float, x: Axis, colour: str = "soft") -> Line:
    return Line((x.low, x.high), (y, y), colour=colour, width=0.9, is_dashed=True)


def name(cell: CellJudgement) -> str:
    return one_line(cell.label, NAME_CHARACTERS)


def lost_cell(place: int, cell: CellJudgement, palette: Palette) -> Mark:
    fate = number_format.ending(cell.record)
    colour = "soft" if cell.record.status.is_absence else "bad"
    text = Text(None, place + BAR_Y, f"\u00d7 {one_line(fate, 48)}", colour=colour)
    return Mark((text,), f"{cell.label}: {fate} {one_line(cell.record.reason, 200)}".strip(), palette(cell.label))
