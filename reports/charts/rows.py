"""Charts with a line for each cell: its name above what is drawn of it, which leaves the whole width to the data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from xml.etree.ElementTree import Element

from judging.judgement import CellJudgement
from records.text import one_line
from reports import format
from reports.charts.key import Key
from reports.charts.svg import CHARACTER, WIDTH, add, fit, mark

LEFT, RIGHT = 4.0, WIDTH - 8.0
ROW = 42.0
NAME_DOWN = 13.0
_DATA_DOWN = 27.0
_AXIS_HEIGHT = 44.0


def height_of(rows: Sequence[object]) -> float:
    return ROW * len(rows) + _AXIS_HEIGHT


def foot_of(rows: Sequence[object]) -> float:
    """Where the axis stands."""
    return ROW * len(rows) + 2


def middle_of(place: int) -> float:
    """The height at which a row's data is drawn."""
    return ROW * place + _DATA_DOWN


def name_rows(root: Element, rows: Sequence[CellJudgement], key: Key, drawn: Collection[int]) -> None:
    """Each row's name; beside one that is not `drawn` a cross, and how its cell ended."""
    for place, row in enumerate(rows):
        y = ROW * place + NAME_DOWN
        add(root, "text", "label", fit(row.label, RIGHT), x=LEFT, y=y)
        if place not in drawn:
            fate = format.fate(row.record)
            group = mark(root, key.number(row.label), f"{row.label}: {fate} {one_line(row.record.reason, 200)}")
            add(group, "text", "lost", f"\u00d7 {fit(fate, RIGHT - 12)}", x=LEFT, y=middle_of(place) + 4)


def room_for(texts: Collection[str]) -> float:
    """What the longest of them takes at the end of a bar."""
    return CHARACTER * max(map(len, texts), default=0) + 10


def value_at(root: Element, text: str, x: float, place: int, css: str = "value") -> None:
    """A text right of `x` in a row."""
    add(root, "text", css, text, x=x + 6, y=middle_of(place) + 4)
