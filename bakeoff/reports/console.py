"""What the command line prints, and the files that it writes for a report."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from pydantic import BaseModel
from rich.console import Console

from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records import report_file
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.schema import Report
from bakeoff.reports import sentences, writer
from bakeoff.reports.command_answers import document
from bakeoff.reports.terminal import print_answers, print_report

# reasons and paths are printed as they are: rich would take `[x]` for its markup and `:llama:` for an emoji
stdout = Console(markup=False, emoji=False)
stderr = Console(stderr=True, markup=False, emoji=False)


@dataclass(frozen=True)
class Told:
    """What a report means, and whether its writing was interrupted."""

    judgement: Judgement
    was_interrupted: bool


def tell(report: Report, folder: Path, quiet: bool = False, console: Console = stdout) -> Told:
    """Write the report into `folder`, say what came out, say where it is, and return what it means.

    The numbers are on disk before anything is said, and the figures are drawn after the verdict was said. The first
    Ctrl-C or SIGTERM does not end the writing.
    """
    with written_to_the_end() as interruptions:
        judgement = _tell(report, folder, quiet, console)
    return Told(judgement, bool(interruptions))


@contextlib.contextmanager
def written_to_the_end() -> Iterator[list[int]]:
    """Let the first SIGINT or SIGTERM inside of the block pass. A second one raises KeyboardInterrupt.

    The yielded list gets the number of the first. Signals are left alone in a thread, where Python does not allow
    handlers.
    """
    interruptions: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interruptions
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_first(number: int, frame: object) -> None:
        interruptions.append(number)
        for each in numbers:
            signal.signal(each, signal.default_int_handler)
        say("The report is being written. Once more ends that, too.", stderr)

    before = {number: signal.signal(number, on_first) for number in numbers}
    try:
        yield interruptions
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(report: Report, folder: Path, quiet: bool, console: Console) -> Judgement:
    judgement = judge(report)
    report_file.write_json(sentences.with_verdicts(judgement), folder)
    try:
        if quiet:
            for reason in filter(None, map(sentences.why_nothing_is_ranked, judgement.contests)):
                say(reason, console)
        (print_answers if quiet else print_report)(judgement, console, str(folder))
    finally:  # `| head` may close the pipe before all is printed
        written = writer.render(judgement, folder)
    say(f"Report: {written['report.md']}", console)
    say(f"Page: {written['report.html']}", console)
    return judgement


def print_json(answer: BaseModel, exit_status: int) -> int:
    """Print the answer of a command for programs, with its exit status inside, and return that."""
    typer.echo(document(answer, exit_status))
    return exit_status


def write_for_ci(report: Report, junit: Path | None, summary: Path | None) -> None:
    """Write the files that were asked for: JUnit's XML, and a summary in Markdown."""
    if not (junit or summary):
        return
    from bakeoff.reports import junit as junits
    from bakeoff.reports import summary as summaries

    judgement = judge(report)
    write(junit, lambda: junits.of_run(judgement))
    write(summary, lambda: summaries.of_run(judgement))


def write(path: Path | None, text: Callable[[], str]) -> None:
    """Write a file that was asked for, and its folder."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text())


def print_markdown(text: str) -> None:
    """Print Markdown, laid out where the output is a terminal."""
    if stdout.is_terminal:
        from rich.markdown import Markdown

        stdout.print(Markdown(text))
    else:
        typer.echo(text, nl=False)


def say(text: str, console: Console | None = None) -> None:
    """Print text from outside as it is, on one line."""
    (console or stdout).print(text, soft_wrap=True, highlight=False)
