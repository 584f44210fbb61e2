"""The parts of which every report is made. Renderers know these, and no contest; all texts are plain, not escaped.

A report is a list of blocks. `terminal`, `markdown` and `page` render it, each the blocks that are `on` its surface.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto


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

    def has_content(self, surface: Surface) -> bool:
        return True


@dataclass(frozen=True)
class Section(Block):
    """Blocks under a heading. A section without content is not shown; a folded one only where a reader can open it."""

    title: str
    blocks: Sequence[Block]
    level: int = 2
    anchor: str = ""  # the name to which links lead
    is_folded: bool = False

    def has_content(self, surface: Surface) -> bool:
        return can_unfold(surface, self.is_folded) and bool(shown(self.blocks, surface))


@dataclass(frozen=True)
class Text(Block):
    text: str
    look: Look = Look.PLAIN

    def has_content(self, surface: Surface) -> bool:
        return bool(self.text.strip())


@dataclass(frozen=True)
class Items(Block):
    """A list. The terminal begins each of its items with `bullet`."""

    texts: Sequence[str]
    title: str = ""
    look: Look = Look.PLAIN
    bullet: str = "- "

    def has_content(self, surface: Surface) -> bool:
        return bool(self.texts)


@dataclass(frozen=True)
class Facts(Block):
    """Names with their values, in groups with a title each. For pages."""

    groups: Mapping[str, Sequence[tuple[str, str]]]

    def has_content(self, surface: Surface) -> bool:
        return bool(self.groups)


@dataclass(frozen=True)
class Code(Block):
    """Commands (`sh`, which a page copies), JSON, or the lines of a log (`text`)."""

    text: str
    language: str = "text"
    title: str = ""

    def has_content(self, surface: Surface) -> bool:
        return bool(self.text.strip())


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

    def has_content(self, surface: Surface) -> bool:
        return bool(self.links)


def shown(blocks: Sequence[Block], surface: Surface) -> list[Block]:
    return [block for block in blocks if block.on & surface and block.has_content(surface)]


def can_unfold(surface: Surface, is_folded: bool) -> bool:
    """Return False for what is folded away where nothing unfolds: in the terminal and in the short report."""
    return not is_folded or bool(surface & (Surface.MARKDOWN | Surface.PAGE))


def inside(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from inside(block.blocks)
