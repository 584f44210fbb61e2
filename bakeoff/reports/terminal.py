"""Prints blocks on a terminal, or into a pipe, which has no edge: there each row and each text is one line."""

import io
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text as Styled

from bakeoff.records.text import one_line, visible
from bakeoff.reports.blocks import Block, Code, Items, Links, Look, Section, Surface, Text, shown
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, T, Table, narrowed, shown_in

WIDE = 104
"""Width of the terminal, in characters, from which an interval stands beside its value instead of below it."""

PIPE_WIDTH = 5_000
"""Width of what no terminal shows, in characters: no row is broken."""

MOST_OF_TEXT = 24
"""A column of text gets so many characters at least before other columns are left out; longer ones are folded."""

_STYLES = {
    Look.STRONG: "bold",
    Look.UNSURE: "bold yellow",
    Look.SOFT: "dim",
    Look.WARNING: "yellow",
    Look.FAILED: "red",
    Look.ABSENT: "yellow",
}


def print_blocks(blocks: Sequence[Block], console: Console) -> None:
    for block in shown(blocks, Surface.TERMINAL):
        _print(block, console)


def _print_whole(renderable: RenderableType, console: Console) -> None:
    """Print a table or a text. In a pipe none of its lines is broken, however narrow the console is."""
    if console.is_terminal:
        console.print(renderable, highlight=False)
        return
    wide = Console(file=io.StringIO(), width=PIPE_WIDTH)
    wide.print(renderable, highlight=False)
    assert isinstance(wide.file, io.StringIO)
    lines = [line.rstrip() for line in wide.file.getvalue().splitlines()]
    console.print(Styled("\n".join(lines)), highlight=False, soft_wrap=True)


def _print(block: Any, console: Console) -> None:
    match block:
        case Section():
            console.print(Styled(one_line(block.title), "bold"), soft_wrap=True)
            print_blocks(block.blocks, console)
            if block.level <= 2:
                console.print()
        case Text():
            console.print(
                Styled(one_line(block.text), _STYLES.get(block.look, "")),
                highlight=False,
                soft_wrap=not console.is_terminal or block.look not in (Look.PLAIN, Look.SOFT),
            )
        case Items():
            if block.title:
                _print_whole(Styled(f"{one_line(block.title)}:"), console)
            for text in block.texts:
                _print_item(console, block.bullet, text)
        case Table():
            if not block.has_headings:
                _print_lines(block, console)
                return
            if block.title:
                _print_whole(Styled(one_line(block.title), "italic"), console)
            _print_whole(_table(block, console.width if console.is_terminal else PIPE_WIDTH), console)
        case Code():
            lines = "\n".join(f"  {line}" for line in visible(block.text).splitlines())
            console.print(Styled(f"{block.title}:\n{lines}"), highlight=False, soft_wrap=True)
        case Links():
            for text, url in block.links:
                console.print(Styled(f"{text}: {url}"), highlight=False, soft_wrap=True)
        case _:
            raise TypeError(f"a {type(block).__name__} is not for a terminal")


def _print_item(console: Console, bullet: str, text: str) -> None:
    """Print an item of a list. Its further lines on a terminal are indented, and a pipe gets one line."""
    if not console.is_terminal:
        console.print(Styled(bullet) + Styled(one_line(text)), soft_wrap=True)
        return
    grid = Grid.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Styled(bullet), Styled(one_line(text)))
    console.print(grid)


def _table(block: Table[T], width: int) -> Grid:
    """Return a table with one line per row, or two on a narrow terminal: intervals and modes go to the second."""
    is_wide = width >= WIDE
    columns = narrowed(
        shown_in(Surface.TERMINAL, block.columns, block.rows),
        lambda kept: 1 + sum(_width(column, block.rows, is_wide) for column in kept) <= width,  # the box has an edge
    )
    has_header = any(column.heading for column in columns)
    grid = Grid(box=box.SIMPLE_HEAD, show_header=has_header, pad_edge=False, padding=0)
    for column in columns:
        if column.is_text:
            grid.add_column(Styled(_heading(column)), overflow="fold", min_width=8)
        else:
            grid.add_column(Styled(_heading(column)), justify="right", no_wrap=True)
    for row in block.rows:
        style = _STYLES.get(block.look(row), "") if block.look(row) is not Look.STRONG else ""
        grid.add_row(*(Styled(_cell(column, row, is_wide), style) for column in columns))
    return grid


def _width(column: Column[T], rows: Sequence[T], is_wide: bool) -> int:
    texts = [_heading(column), *(_cell(column, row, is_wide) for row in rows)]
    width = 1 + max(cell_len(line) for text in texts for line in text.splitlines() or [""])
    return min(width, MOST_OF_TEXT) if column.is_text and not column.is_label else width


def _heading(column: Column[T]) -> str:
    heading = visible(column.terminal_heading or f"{column.heading} {column.unit}").strip()  # it has blanks of its own
    return f"{heading} [95\u00a0%]".replace(" ", "\n") if column.interval else heading.replace(" ", "\n")


def _cell(column: Column[T], row: T, is_wide: bool) -> str:
    """Return the value with its interval; the space within an interval is another one than that before it."""
    text = one_line(column.text_of(row))
    if column.is_label and not is_wide:
        return text.replace("/", "/\n", 1).replace("[", "\n[", 1)
    return f"{text}{' ' if is_wide else chr(10)}{column.interval_of(row)}".strip()


def _print_lines(block: Table[T], console: Console) -> None:
    columns = shown_in(Surface.TERMINAL, block.columns, block.rows)
    rows = [["" if (text := column.text_of(row)) == NONE else text for column in columns] for row in block.rows]
    widths = [max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    for row, texts in zip(block.rows, rows, strict=True):
        padded = [
            set_cell_size(text, width) if column.is_text else f"{' ' * (width - cell_len(text))}{text}"
            for text, width, column in zip(texts, widths, columns, strict=True)
        ]
        console.print(Styled("  ".join(padded).rstrip(), _STYLES.get(block.look(row), "")), soft_wrap=True)
