"""Prints what a suite says: the table of backends, and what failed for which reason."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.judging.suites import Suite
from bakeoff.reports import suite_report
from bakeoff.reports.column import Surface, shown_in
from bakeoff.reports.terminal_parts import heading_of, print_wrapped

FAILURES_SHOWN = 12
"""Number of reasons for failing that are printed; the report has all of them."""


def print_suite(suite: Suite, console: Console) -> None:
    """Print the table of backends, what its numbers are, and what failed."""
    console.print(Text(suite_report.title(suite), style="bold"), soft_wrap=True)
    console.print(Text(f"{suite_report.finding(suite)}."), highlight=False)
    console.print(_table(suite))
    for note in suite_report.notes(suite):
        print_wrapped(console, "- ", note)
    for failures in suite.failures[:FAILURES_SHOWN]:
        print_wrapped(console, "x ", suite_report.failure(suite, failures))
    if further := suite.failures[FAILURES_SHOWN:]:
        print_wrapped(console, "x ", f"and {len(further)} more reasons, which the report has")
    console.print()


def _table(suite: Suite) -> Table:
    columns = shown_in(Surface.TERMINAL, suite_report.columns_of(suite), suite.rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        justify, overflow = ("left", "fold") if column.is_text else ("right", "ellipsis")
        table.add_column(Text(heading_of(column)), justify=justify, overflow=overflow, no_wrap=not column.is_text)  # type: ignore[arg-type]
    for row in suite.rows:
        table.add_row(*(column.text_of(row) for column in columns))
    return table
