"""Columns, which say how a value is written and on which surfaces it stands, and tables of texts made of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Generic, TypeVar

from bakeoff.records.schema import Interval
from bakeoff.records.text import is_unknown
from bakeoff.reports import number_format
from bakeoff.reports.number_format import NONE

T = TypeVar("T")
Raw = str | int | float | bool | None


class Surface(Flag):
    """The outputs whose tables a column can stand in. The CSV file has its own names."""

    NONE = 0
    TERMINAL = auto()
    MARKDOWN = auto()
    PAGE = auto()
    SHORT = auto()  # the table of the short report
    ALL = TERMINAL | MARKDOWN | PAGE


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column, and all that an output needs to print it. Its texts are plain: each output escapes them itself."""

    heading: str
    value: Callable[[T], Raw]  # unrounded, in the unit of the CSV; the page sorts by it; None: not known
    unit: str = ""
    write: Callable[[Any], str] = str  # writes a value, and both ends of its interval
    text: Callable[[T], str] | None = None  # replaces `write` where the value alone does not tell enough
    interval: Callable[[T], Interval | None] | None = None
    note: Callable[[T], str] | None = None  # stands beside the text; the terminal leaves it out
    is_bad: Callable[[T], bool] | None = None  # the text is emphasised
    is_text: bool = False  # set to the left
    surfaces: Surface = Surface.NONE
    terminal_heading: str | None = None  # a shorter one, its unit included; its lines break at blanks
    terminal_width: int = 0  # the terminal needs so many characters to show this column
    details: str = ""  # the group that shows it in the details of a cell
    csv: str = ""  # its name there
    csv_interval: tuple[str, str] | None = None

    def text_of(self, row: T) -> str:
        """Return the value as text, without unit, interval and note."""
        if self.text:
            return self.text(row)
        value = self.value(row)
        return NONE if value is None else self.write(value)

    def interval_of(self, row: T) -> str:
        """Return `[0.0170, 0.0181]` with a space that does not break, or nothing for an interval without width."""
        ends = self.interval(row) if self.interval else None
        return "" if ends is None or ends.low >= ends.high else number_format.interval(ends, self.write)

    def note_of(self, row: T) -> str:
        """Return what stands beside the value, or nothing."""
        return self.note(row) if self.note else ""

    def is_bad_of(self, row: T) -> bool:
        """Return whether the value is to be emphasised."""
        return self.is_bad is not None and self.is_bad(row)

    def csv_of(self, row: T) -> dict[str, Raw]:
        """Return the fields of the CSV by their names."""
        value = self.value(row)
        fields: dict[str, Raw] = {}
        if self.csv:
            fields[self.csv] = value
        if self.csv_interval and self.interval:
            ends = self.interval(row)
            is_told = ends is not None and not is_unknown(ends.low, ends.high, self.write)
            fields |= zip(self.csv_interval, (ends.low, ends.high) if ends and is_told else (None, None), strict=True)
        return fields


def fields_of(columns: Sequence[Column[T]], row: T) -> dict[str, Raw]:
    """Return the fields of a row of a CSV file by their names."""
    return {name: value for column in columns for name, value in column.csv_of(row).items()}


def shown_in(surface: Surface, columns: Sequence[Column[T]], rows: Sequence[T]) -> list[Column[T]]:
    """Return the columns of that surface that have a value in at least one row."""
    return [
        column for column in columns if column.surfaces & surface and any(column.text_of(row) != NONE for row in rows)
    ]


@dataclass(frozen=True)
class TableOverSizes(Generic[T]):
    """A table over several contests that differ in size, with what it says. The first column names the row."""

    title: str
    finding: str
    columns: Sequence[Column[T]]
    rows: Sequence[T]
    note: str


@dataclass(frozen=True)
class Table:
    """A table of texts. The columns of text come first."""

    title: str
    text_columns: Sequence[str]  # set to the left
    number_columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_folded: bool = False


def table_of(title: str, columns: Sequence[Column[T]], cells: Sequence[T]) -> Table:
    """Return a table of these columns with a row for each cell. Headings hold units, and intervals follow values."""
    texts = [column for column in columns if column.is_text]
    numbers = [column for column in columns if not column.is_text]
    return Table(
        title,
        [column.heading for column in texts],
        [f"{column.heading} ({column.unit})" if column.unit else column.heading for column in numbers],
        [[f"{each.text_of(cell)} {each.interval_of(cell)}".strip() for each in (*texts, *numbers)] for cell in cells],
    )
