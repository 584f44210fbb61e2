"""What the tables and lists of the terminal share."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.records.text import one_line
from bakeoff.reports.column import Column, T


def heading_of(column: Column[T]) -> str:
    """Return the heading with a word on each line, so that the column is no wider than its numbers."""
    words = (column.terminal_heading or f"{column.heading} {column.unit}").split(" ")
    return "\n".join([*words, *(["[95 %]"] if column.interval else [])])


def print_wrapped(console: Console, bullet: str, *parts: str) -> None:
    """Print an item of a list; its further lines are indented."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(bullet), Text(": ".join(one_line(part) for part in parts if part)))
    console.print(grid)
