"""What the command line prints, and the files that it writes for a report.

What a report needs is imported where one is written: help and usage errors come at once.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from bakeoff.records.atomic_file import write_atomically

if TYPE_CHECKING:
    from bakeoff.judging.judgement import Judgement
    from bakeoff.records.schema import Report
    from bakeoff.reports.blocks import Block

# reasons and paths are printed as they are: rich would take `[x]` for its markup and `:llama:` for an emoji
stdout = Console(markup=False, emoji=False)
stderr = Console(stderr=True, markup=False, emoji=False)


AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else (docs/json.md)")]


def console_for(as_json: bool) -> Console:
    """Return where a command says what goes on: standard error, if the answer is JSON on standard output."""
    return stderr if as_json else stdout


def write_and_print(
    report: Report,
    folder: Path,
    quiet: bool = False,
    console: Console = stdout,
    junit: Path | None = None,
    summary: Path | None = None,
    is_kept: bool = True,
) -> Judgement:
    """Write the report into `folder`, say what came out and where it is, and return what it means. `junit` and
    `summary` are files for CI. A report that is not kept leaves the files in `folder` as they are."""
    from bakeoff.judging.judgement import judge
    from bakeoff.records import report_file
    from bakeoff.reports import sentences, writer
    from bakeoff.reports.run_report import print_answers, print_report

    kept = [
        record if (folder / record.artifact).exists() else writer.without_artifact(record) for record in report.records
    ]
    judgement = judge(report.but(records=kept))
    with contextlib.ExitStack() as written:
        if is_kept:
            written.callback(writer.render, judgement, folder)  # `| head` may close the pipe before all is printed
        try:
            if is_kept:
                # the numbers are on disk before anything is said
                report_file.write_json(sentences.with_verdicts(judgement), folder)
            write_for_ci(judgement, junit, summary)
        finally:  # a disk that is full, or may only be read, does not take the answer
            if quiet:
                for reason in filter(None, map(sentences.why_nothing_is_ranked, judgement.contests)):
                    say(reason, console)
            (print_answers if quiet else print_report)(judgement, console, str(folder), is_kept)
    return judgement


@contextlib.contextmanager
def written_to_the_end() -> Iterator[list[int]]:
    """Let the first SIGINT or SIGTERM inside of the block pass, without any effect on the exit status. A second one
    raises KeyboardInterrupt. The yielded list gets the number of the first."""
    with _signals_answered_by(_pass) as numbers:
        yield numbers


@contextlib.contextmanager
def measured_to_the_end() -> Iterator[None]:
    """Have the first SIGINT or SIGTERM raise KeyboardInterrupt, which ends the measuring, and let the second one pass,
    while workers end and results are kept. The third raises it again."""
    with _signals_answered_by(_end, _pass):
        yield


def _end(number: int, frame: object) -> None:
    sys.stderr.write("Interrupted: the run ends, and keeps its numbers.\n")  # `say` would write into a live table
    raise KeyboardInterrupt


def _pass(number: int, frame: object) -> None:
    say("The report is being written. Once more ends that, too.", stderr)


@contextlib.contextmanager
def _signals_answered_by(*handlers: Callable[[int, FrameType | None], Any]) -> Iterator[list[int]]:
    """Answer the first SIGINT or SIGTERM by the first of these handlers, and so on, and later ones as Python does. The
    yielded list gets their numbers. Outside of the main thread, it does nothing."""
    numbers: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield numbers
        return

    def answer(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        following = handlers[len(numbers) - 1] if len(numbers) <= len(handlers) else signal.default_int_handler
        following(number, frame)

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Yield what shows the steps of a command on standard error: on a terminal the last one, and else all of them."""
    with stderr.status("") as status:
        yield lambda text: status.update(Text(text)) if stderr.is_terminal else say(text, stderr)


@contextlib.contextmanager
def search_progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows the progress of a search: a line for each build. Where it is interrupted, the last one is said
    again, which names the smallest part so far."""
    lines: list[str] = []

    def say_progress(text: str) -> None:
        status.update(Text(text))
        if ": build " in text or ": script " in text or ": keep " in text:
            lines.append(text)
            say(text, stderr)

    try:
        with stderr.status("") as status:
            yield say_progress
    except KeyboardInterrupt:
        if lines:
            say(f"Interrupted during {lines[-1]}", stderr)
        raise


def write_for_ci(judgement: Judgement, junit: Path | None, summary: Path | None) -> None:
    if not (junit or summary):
        return
    from bakeoff.reports import junit as junits
    from bakeoff.reports import summary as summaries

    write(junit, lambda: junits.of_run(judgement))
    write(summary, lambda: summaries.of_run(judgement))


def print_json(answer: BaseModel, exit_status: int) -> int:
    from bakeoff.reports.command_answers import document

    typer.echo(document(answer, exit_status))
    return exit_status


def answered(answer: BaseModel, exit_status: int, as_json: bool, show: Callable[[], object]) -> int:
    """Print an answer as JSON, or let `show` print it for people. Return the exit status."""
    if as_json:
        return print_json(answer, exit_status)
    show()
    return exit_status


def write(path: Path | None, text: Callable[[], str]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text())


def print_blocks(blocks: Sequence[Block], console: Console | None = None) -> None:
    from bakeoff.reports import terminal

    terminal.print_blocks(blocks, console or stdout)


def say(text: str, console: Console | None = None) -> None:
    (console or stdout).print(text, soft_wrap=True, highlight=False)
