"""What a terminal or a pipe shows of blocks."""

import io
from collections.abc import Sequence

from rich.console import Console

from bakeoff.reports import terminal
from bakeoff.reports.blocks import Block


def printed(blocks: Sequence[Block], width: int = 80, is_terminal: bool = True) -> str:
    """Return the text without colours and without blanks at the ends of lines."""
    file = io.StringIO()
    terminal.print_blocks(blocks, Console(file=file, width=width, force_terminal=is_terminal, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
