"""Prints what one build for a range of sizes costs."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.judging.dynamic import DynamicRange
from bakeoff.records.text import one_line
from bakeoff.reports import dynamic
from bakeoff.reports.column import Surface, shown_in
from bakeoff.reports.terminal_parts import heading_of, print_wrapped


def print_dynamic_range(found: DynamicRange, console: Console) -> None:
    """Print what one build for a range of sizes costs, and why builds were compiled again or serve no size."""
    console.print(Text(one_line(dynamic.title(found)), style="bold"), soft_wrap=True)
    console.print(Text(f"{dynamic.finding(found)}. {dynamic.NOTE}"), highlight=False)
    columns = shown_in(Surface.TERMINAL, dynamic.columns_of(found), found.builds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(Text(heading_of(column)), justify="left" if column.is_text else "right")
    for build in found.builds:
        cells = ((column.text_of(build), column.interval_of(build)) for column in columns)
        table.add_row(*(Text("\n".join(filter(None, texts))) for texts in cells))
    console.print(table)
    for build in found.builds:
        for column in columns:
            if note := column.note_of(build):
                print_wrapped(console, "~ ", f"{build.configuration}, {column.heading} {column.text_of(build)}", note)
    console.print()
