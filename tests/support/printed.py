"""What a terminal or a pipe shows, and every output of a run as a reader reads it."""

import html
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bakeoff.judging.judgement import Judgement
from bakeoff.reports import run_report, terminal
from bakeoff.reports.blocks import Block
from bakeoff.reports.json_answer import answer_of


def console_of(width: int, is_terminal: bool) -> Console:
    """Return a console without colours, of a terminal or a pipe. `text_of` reads it."""
    return Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def printed(blocks: Sequence[Block], width: int = 80, is_terminal: bool = True) -> str:
    console = console_of(width, is_terminal)
    terminal.print_blocks(blocks, console)
    return text_of(console)


def reported(
    judgement: Judgement, width: int = 140, is_terminal: bool = False, is_quiet: bool = False, folder: str = "FOLDER"
) -> str:
    """Return what a run prints at its end, or with `is_quiet` its answers alone."""
    console = console_of(width, is_terminal)
    (run_report.print_answers if is_quiet else run_report.print_report)(judgement, console, folder)
    return text_of(console)


def every_output(judgement: Judgement, folder: Path = Path("run")) -> dict[str, str]:
    """Return the texts of all outputs by their names: each on one line, without escapes."""
    texts = {
        "terminal": reported(judgement, folder=str(folder)),
        "quiet": reported(judgement, is_quiet=True),
        "report.md": run_report.to_short_markdown(judgement, folder).replace("\\", ""),
        "details.md": run_report.to_markdown(judgement).replace("\\", ""),
        "page": run_report.to_page(judgement),
        "JSON": answer_of(judgement, folder).model_dump_json(),
    }
    return {name: " ".join(html.unescape(text).split()) for name, text in texts.items()}
