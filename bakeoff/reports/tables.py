"""A table of texts, which each output lays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bakeoff.reports.column import Column

T = TypeVar("T")


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
