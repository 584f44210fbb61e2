"""The parts of which every report is made. Renderers know these, and no contest; all texts are plain, not escaped.

A report is a list of blocks. `terminal`, `markdown` and `page` render it, each the blocks that are `on` its surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from bakeoff.reports.charts.chart import Chart
    from bakeoff.reports.tables import Column

T = TypeVar("T")


class Surface(Flag):
    """The outputs on which a block or a column stands. The CSV file has its own names."""

    NONE = 0
    TERMINAL = auto()
    MARKDOWN = auto()
    PAGE = auto()
    SHORT = auto()  # report.md, the short report
    ALL = TERMINAL | MARKDOWN | PAGE | SHORT


class Look(Enum):
    """How a text, a list or a row of a table stands out."""

    PLAIN = "plain"
    STRONG = "strong"  # an answer, and the row of the best
    UNSURE = "unsure"  # an answer that may change, and what speaks against it
    SOFT = "soft"  # said beside something else
    WARNING = "warning"
    FAILED = "failed"
    ABSENT = "absent"  # what was not measured


@dataclass(frozen=True, kw_only=True)
class Block:
    on: Surface = Surface.ALL


@dataclass(frozen=True)
class Section(Block):
    """Blocks under a heading. A section without content is not shown; a folded one only where a reader can open it."""

    title: str
    blocks: Sequence[Block]
    level: int = 2
    anchor: str = ""  # the name to which links lead
    is_folded: bool = False


@dataclass(frozen=True)
class Text(Block):
    text: str
    look: Look = Look.PLAIN


@dataclass(frozen=True)
class Items(Block):
    """A list. The terminal begins each of its items with `bullet`."""

    texts: Sequence[str]
    title: str = ""
    look: Look = Look.PLAIN
    bullet: str = "- "


@dataclass(frozen=True)
class Table(Block, Generic[T]):
    """A row for each of `rows`, with the columns that have a value and stand on the surface.

    A table with `details` sorts, filters and unfolds on a page. It filters by `status`, which stands beside the name of
    a row where it is no column of its own.
    """

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    title: str = ""
    label: str = ""  # says what it is to those who cannot see it, where there is no title
    look: Callable[[T], Look] = lambda _: Look.PLAIN
    details: Callable[[T], Sequence[Block]] | None = None
    status: Column[T] | None = None
    is_folded: bool = False
    has_headings: bool = True


@dataclass(frozen=True)
class Facts(Block):
    """Names with their values, in groups with a title each. For pages."""

    groups: Mapping[str, Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Code(Block):
    """Commands (`sh`, which a page copies), JSON, or the lines of a log (`text`)."""

    text: str
    language: str = "text"
    title: str = ""


@dataclass(frozen=True)
class Charts(Block):
    """Charts side by side, with a button for each label. For pages."""

    charts: Sequence[Chart]
    labels: Sequence[str] = ()
    calls: int | None = None  # where the slider of the costs begins
    on: Surface = field(default=Surface.PAGE, kw_only=True)


@dataclass(frozen=True)
class Picture(Block):
    """A picture in a file. For Markdown."""

    file: str
    caption: str
    on: Surface = field(default=Surface.MARKDOWN | Surface.SHORT, kw_only=True)


@dataclass(frozen=True)
class Links(Block):
    """Texts that lead to a place each, such as `#contest-1`."""

    links: Sequence[tuple[str, str]]
    title: str = ""


def shown(blocks: Sequence[Block], surface: Surface) -> list[Block]:
    """Return the blocks that have something to show on this surface.

    What is folded away is left out where nothing unfolds: in the terminal and in the short report.
    """
    return [block for block in blocks if block.on & surface and _has_content(block, surface)]


def inside(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield these blocks and those in their sections."""
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from inside(block.blocks)


def _has_content(block: Any, surface: Surface) -> bool:
    if getattr(block, "is_folded", False) and not surface & (Surface.MARKDOWN | Surface.PAGE):
        return False
    match block:
        case Section():
            return bool(shown(block.blocks, surface))
        case Text() | Code():
            return bool(block.text.strip())
        case Items():
            return bool(block.texts)
        case Table():
            return bool(block.rows)
        case Facts():
            return bool(block.groups)
        case Charts():
            return bool(block.charts)
        case Links():
            return bool(block.links)
    return True
