"""Renders blocks as Markdown, for GitHub."""

import html
import re
from collections.abc import Sequence
from typing import Any

from bakeoff.records.text import one_line, visible
from bakeoff.reports.blocks import Block, Code, Items, Links, Look, Picture, Section, Surface, Text, shown
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, T, Table, narrowed, shown_in

REASON_LIMIT = 160
"""Longest note in a table, in characters."""

MOST_COLUMNS = 9
"""Number of columns of a table in the short report."""


def render(blocks: Sequence[Block], surface: Surface = Surface.MARKDOWN) -> str:
    return _joined(blocks, surface) + "\n"


def _joined(blocks: Sequence[Block], surface: Surface) -> str:
    return "\n\n".join(_written(block, surface) for block in shown(blocks, surface))


def _written(block: Any, surface: Surface) -> str:
    match block:
        case Section():
            body = _joined(block.blocks, surface)
            if block.is_folded:
                return details(block.title, body)
            target = f'<a id="{block.anchor}"></a>' if block.anchor else ""
            return f"{'#' * block.level} {target}{escape(block.title)}\n\n{body}"
        case Text():
            text = escape(block.text)
            return f"**{text}**" if block.look in (Look.STRONG, Look.UNSURE) else text
        case Items():
            if block.look is Look.WARNING:
                return "\n>\n".join(["> [!WARNING]", *(f"> {escape(text)}" for text in block.texts)])
            return _under(block.title, "\n".join(f"- {escape(text)}" for text in block.texts))
        case Table():
            written = _table(block, surface)
            return details(block.title, written) if block.is_folded else _under(block.title, written)
        case Code():
            text = visible(block.text).strip("\n")
            # longer than any run of backticks in the text
            fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
            return _under(block.title, f"{fence}{block.language}\n{text}\n{fence}")
        case Picture():
            return f"![{escape(block.caption)}]({block.file})"
        case Links():
            links = " · ".join(f"[{escape(text)}]({url})" for text, url in block.links)
            return f"{block.title}: {links}" if block.title else links
        case _:
            raise TypeError(f"a {type(block).__name__} is not for Markdown")


def _under(title: str, body: str) -> str:
    return f"{escape(title)}:\n\n{body}" if title else body


def _table(block: Table[T], surface: Surface) -> str:
    columns = shown_in(surface, block.columns, block.rows)
    if surface is Surface.SHORT:
        columns = narrowed(columns, lambda kept: len(kept) <= MOST_COLUMNS)
    notes = surface is not Surface.SHORT
    headings = [_heading(column) for column in columns]
    rule = [":--" if column.is_text else "--:" for column in columns]
    cells = ([_cell(column, row, notes) for column in columns] for row in block.rows)
    return "\n".join(f"| {' | '.join(texts)} |" for texts in [headings, rule, *cells])


def escape(text: str, limit: int | None = None) -> str:
    """Return text from outside as one line of Markdown that shows it literally, also within a table."""
    line = html.escape(one_line(text, limit), quote=False)
    line = re.sub(r"([\\`*_\[\]|~])", r"\\\1", line).replace("$", "&#36;")  # GitHub takes $...$ for mathematics
    line = re.sub(r"^([-+#=])", r"\\\1", line)  # a list or a heading at the beginning of a line
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def _heading(column: Column[T]) -> str:
    unit = f" ({escape(column.unit)})" if column.unit else ""
    return f"{escape(column.heading)}{unit}{' [95 %]' if column.interval else ''}"


def _cell(column: Column[T], row: T, notes: bool = True) -> str:
    """Return `1.85 [1.80, 1.90] (a note)`, or `crash: a note` in a column of text; what is bad is set in bold."""
    if (text := column.text_of(row)) == NONE:
        return text
    text = f"**{escape(text)}**" if column.is_bad_of(row) else escape(text)
    if column.link and (url := column.link(row)):
        text = f"[{text}]({url})"
    note = escape(column.note_of(row), REASON_LIMIT) if notes or column.is_text else ""
    if column.is_text:
        return f"{text}: {note}" if note else text
    return " ".join(part for part in (text, column.interval_of(row), note and f"({note})") if part)


def details(summary: str, body: str) -> str:
    """Return a fold. GitHub reads `body` as Markdown, because of the blank lines, and `summary` as HTML."""
    summary = re.sub(r"[*_`\[\]~$\\]", lambda match: f"&#{ord(match[0])};", html.escape(one_line(summary), quote=False))
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
