"""Columns, which say how a value is written and on which surfaces it stands, and tables made of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from bakeoff.records.schema import Interval
from bakeoff.records.text import is_unknown
from bakeoff.reports import number_format
from bakeoff.reports.blocks import Block, Look, can_unfold
from bakeoff.reports.blocks import Surface as Surface
from bakeoff.reports.number_format import NONE

T = TypeVar("T")
Raw = str | int | float | bool | None

WRITTEN: dict[str, Callable[[Any], str]] = {
    "ms": number_format.milliseconds,
    "s": number_format.seconds,
    "MiB": number_format.mebibytes,
    "%": number_format.percent,
    "x": number_format.ratio,
    **dict.fromkeys(("calls", "tokens"), number_format.count),
    **dict.fromkeys(("1/s", "calls/s", "samples/s", "tokens/s"), number_format.rate),
}
"""How a value of a unit is written. What follows the first word of a column's unit only says of what it is."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column, and all that an output needs to print it. Its texts are plain: each output escapes them itself."""

    heading: str
    value: Callable[[T], Raw]  # unrounded, in the unit of the CSV; the page sorts by it; None: not known
    unit: str = ""
    write: Callable[[Any], str] | None = None  # writes a value, and both ends of its interval; None: as its unit asks
    text: Callable[[T], str] | None = None  # replaces `write` where the value alone does not say enough
    interval: Callable[[T], Interval | None] | None = None
    note: Callable[[T], str] | None = None  # stands beside the text; the terminal leaves it out
    is_bad: Callable[[T], bool] | None = None  # the text is emphasised
    is_text: bool = False  # set to the left
    is_label: bool = False  # names a configuration: a page shows its colour, and a narrow terminal its mode below it
    link: Callable[[T], str] | None = None  # where the text leads to
    strength: Callable[[T], float] | None = None  # from -1 to 1: how strongly a page colours the value
    surfaces: Surface | None = None  # None: all of them, or of a column with `details` none
    terminal_heading: str | None = None  # a shorter one, its unit included; its lines break at blanks
    spare: int = 0  # a table without room leaves out the column with the highest number first
    details: str = ""  # the group that shows it in the details of a cell
    csv: str = ""  # its name there
    csv_interval: str = ""  # the names of both ends there, with `{}` for `low` and `high`

    @property
    def on(self) -> Surface:
        """The surfaces on which it stands, beside the details and the CSV."""
        return (Surface.NONE if self.details else Surface.ALL) if self.surfaces is None else self.surfaces

    def written(self, value: Any) -> str:
        return (self.write or WRITTEN.get(self.unit.replace(",", "").partition(" ")[0], str))(value)

    def text_of(self, row: T) -> str:
        """Return the value as text, without unit, interval and note."""
        if self.text:
            return self.text(row)
        value = self.value(row)
        return NONE if value is None else self.written(value)

    def interval_of(self, row: T) -> str:
        """Return `[0.0170, 0.0181]` with a space that does not break, or nothing for an interval without width."""
        ends = self.interval(row) if self.interval else None
        return "" if ends is None or ends.low >= ends.high else number_format.interval(ends, self.written)

    def note_of(self, row: T) -> str:
        return self.note(row) if self.note else ""

    def is_bad_of(self, row: T) -> bool:
        return self.is_bad is not None and self.is_bad(row)

    def csv_of(self, row: T) -> dict[str, Raw]:
        value = self.value(row)
        fields: dict[str, Raw] = {}
        if self.csv:
            fields[self.csv] = value
        if self.csv_interval and self.interval:
            ends = self.interval(row)
            is_known = ends is not None and not is_unknown(ends.low, ends.high, self.written)
            for end in ("low", "high"):
                fields[self.csv_interval.format(end)] = getattr(ends, end) if is_known else None
        return fields


@dataclass(frozen=True)
class Table(Block, Generic[T]):
    """A row for each of `rows`, with the columns that have a value and stand on the surface. A table with `details`
    sorts, unfolds and filters on a page, by `status` where it is no column of its own."""

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    title: str = ""
    label: str = ""  # says what it is to those who cannot see it, where there is no title
    look: Callable[[T], Look] = lambda _: Look.PLAIN
    details: Callable[[T], Sequence[Block]] | None = None
    status: Column[T] | None = None
    is_folded: bool = False
    has_headings: bool = True

    def has_content(self, surface: Surface) -> bool:
        return can_unfold(surface, self.is_folded) and bool(self.rows)


def csv_field(name: str, value: Callable[[T], Raw]) -> Column[T]:
    return Column(name, value, surfaces=Surface.NONE, csv=name)


def fields_of(columns: Sequence[Column[T]], row: T) -> dict[str, Raw]:
    return {name: value for column in columns for name, value in column.csv_of(row).items()}


def shown_in(surface: Surface, columns: Sequence[Column[T]], rows: Sequence[T]) -> list[Column[T]]:
    return [column for column in columns if column.on & surface and any(column.text_of(row) != NONE for row in rows)]


def narrowed(columns: Sequence[Column[T]], has_room: Callable[[Sequence[Column[T]]], bool]) -> list[Column[T]]:
    """Return the columns for which there is room: without those to spare, and then without those before the last."""
    kept = list(columns)
    while len(kept) > 1 and not has_room(kept):
        least = max(kept[:-1], key=lambda column: column.spare)
        kept.remove(least if least.spare else kept[-2])
    return kept


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], sides: str, title: str = "") -> Table[Any]:
    """Return a table of texts. `lrr` sets the first of three columns to the left."""
    return Table(
        [
            Column(heading, itemgetter(place), is_text=side == "l")
            for place, (heading, side) in enumerate(zip(headings, sides, strict=True))
        ],
        list(rows),
        title,
    )
