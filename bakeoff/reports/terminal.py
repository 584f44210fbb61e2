"""Shows a run on the terminal while it goes on, and prints its report at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubts_of_cells import PartlyElsewhere
from bakeoff.judging.doubts_of_winner import CANNOT_RUN, TOLD_ONCE, NotRanked
from bakeoff.judging.fit import by_contest
from bakeoff.judging.judgement import CellJudgement, ContestJudgement, Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.records.text import counted, one_line
from bakeoff.reports import (
    cost_report,
    dynamic,
    further_answers,
    headline,
    mix,
    number_format,
    sentences,
    suite_report,
    traits,
)
from bakeoff.reports.columns import BACKEND, WIDE, answers_of, columns_of
from bakeoff.reports.first_screen import AGAIN, first_screen, not_tried, not_tried_at
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Surface, T, TableOverSizes, shown_in
from bakeoff.reports.tables import Table as TextTable

REFRESH_EVERY_S = 0.25

LEAST_RANGE_S, LEAST_RANGE_SHARE = 3.0, 0.1
"""The remaining time is told as one number where its ends are closer than this."""

LEFT_OUT_FIRST = ("first call", "peak memory", "build", "relative RMSE")
"""A narrow terminal's table has no room for these where there are many columns, such as metrics."""

FEWEST_COLUMNS = 5


class LiveTable:
    """Shows what a run is doing, with one line per cell. Use it as a context manager; call its methods in any order.

    It starts no thread, since a busy parent disturbs the process that is measured: the table is drawn only when a
    method is called, and at most every `REFRESH_EVERY_S`. If the console is not a terminal, it prints a line for each
    cell that is ready or failed, and for each contest that was decided. With `quiet` it prints nothing.
    """

    def __init__(
        self,
        console: Console | None = None,
        quiet: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
        requirements: Requirements | None = None,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._clock_s = clock_s
        self._requirements = requirements
        self._begun_s = clock_s()
        self._ends_s: tuple[float, float] | None = None  # when the run is expected to end, and at the latest
        self._absent: dict[str, bool] = {}  # labels that cannot run here, and whether a line has said so
        self._told: set[str] = set()  # labels that were named and never tried: a line is for all contests
        self._lines: dict[str, _Line] = {}
        self._drawn_s = -REFRESH_EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
            self._live = None

    def planned(self, cells: Sequence[Cell]) -> None:
        """Add cells that will be measured."""
        for cell in cells:
            self._line(cell)
        self._draw()

    def phase(self, cell: Cell, name: str) -> None:
        """Show that `cell` began the phase `name`."""
        line = self._line(cell)
        if line.phase == name:
            return self._draw()
        line.phase, line.began_s = name, self._clock_s()
        self._draw()

    def built(self, cell: Cell, seconds: float, is_cached: bool = False) -> None:
        """Say that the first process of `cell` is ready."""
        origin = ", from the cache" if is_cached else ""
        self._say(f"{_describe(cell)} is ready after {number_format.seconds(seconds)} s{origin}")
        self._draw()

    def measured(self, cell: Cell, median_ms: float) -> None:
        """Show the median of `cell` so far, while rounds go on."""
        self._line(cell).median_ms = median_ms
        self._draw()

    def ended(self, record: Record) -> None:
        """Show what a cell ended as."""
        line = self._line(record.cell)
        line.record, line.ended_s = record, self._clock_s()
        if record.latency:
            line.median_ms = record.latency.median_ms
        if record.status in CANNOT_RUN and not record.asked_by_name:  # one line for all of them
            self._absent.setdefault(record.cell.label, False)
        elif record.status is not Status.OK and record.cell.label not in self._told:
            about = _describe(record.cell)
            if record.status.is_absence:
                about = record.cell.label
                self._told.add(about)
            self._say(f"{about}: {number_format.ending_beside_reason(record)}, {one_line(record.reason)}")
        self._draw()

    def decided(self, records: Sequence[Record]) -> None:
        """Say what came out of a contest, whose records these are, and what could not be tried."""
        if absent := [label for label, is_told in self._absent.items() if not is_told]:
            self._absent = dict.fromkeys(self._absent, True)
            self._say(not_tried_at("here", absent))
        self._say(sentences.outcome(judge_contest(records, self._requirements)))

    def time_left(self, seconds: float, at_most_s: float) -> None:
        """Show how long the run is expected to take from now on, and how long at most."""
        now_s = self._clock_s()
        self._ends_s = now_s + seconds, now_s + at_most_s
        self._draw()

    def note(self, text: str) -> None:
        """Print a line that stays above the table."""
        if self._live:
            self._live.console.print(Text(one_line(text)), soft_wrap=True)
        self._say(one_line(text))

    def tick(self) -> None:
        """Update the elapsed times. Call it while waiting for something, and never during a burst."""
        self._draw()

    def _line(self, cell: Cell) -> _Line:
        return self._lines.setdefault(cell.id, _Line(cell))

    def _say(self, text: str) -> None:
        if not self._quiet and not self._live and not self._console.is_terminal:
            self._console.print(Text(f"[{self._times()}] {text}"), soft_wrap=True, highlight=False)

    def _draw(self) -> None:
        now_s = self._clock_s()
        if self._live and now_s - self._drawn_s >= REFRESH_EVERY_S:
            self._drawn_s = now_s
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        """Return every cell if the terminal has enough lines, or else those in flight, and a line of counts."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(ratio=2, overflow="ellipsis", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        for columns in self._shown(max(1, self._console.height - 3)):
            table.add_row(*columns)
        return Group(table, Text(self._counts()))

    def _shown(self, room: int) -> list[tuple[Text, ...]]:
        """Return the columns of each line, or where there is no room for all, of those in flight and the last ones."""
        lines = list(self._lines.values())
        if len(lines) > room:
            in_flight = [line for line in lines if line.is_in_flight]
            recent = sorted((line for line in lines if line.record), key=lambda line: -line.ended_s)
            lines = (in_flight + recent)[:room]
        leading = _leading(self._lines.values())
        return [line.columns(self._clock_s(), line.cell.id in leading) for line in lines]

    def _counts(self) -> str:
        ended = [line.record for line in self._lines.values() if line.record]
        statuses = Counter(record.status.value for record in ended)
        parts = [f"{len(ended)} of {counted(len(self._lines), 'cell')} ended"]
        parts += [f"{number} {status}" for status, number in statuses.items()]
        in_flight = sum(line.is_in_flight for line in self._lines.values())
        return ", ".join([*parts, *([f"{in_flight} in flight"] if in_flight else []), self._times()])

    def _times(self) -> str:
        """Return `0:42, 1:30 to 2:10 left`, or the elapsed time alone where the rest is not known."""
        now_s = self._clock_s()
        elapsed = number_format.minutes(now_s - self._begun_s)
        if self._ends_s is None:
            return elapsed
        left_s, most_s = (max(0.0, end_s - now_s) for end_s in self._ends_s)
        if now_s >= self._ends_s[1] + LEAST_RANGE_S:
            return f"{elapsed}, longer than expected"
        if most_s - left_s < max(LEAST_RANGE_S, LEAST_RANGE_SHARE * most_s):
            return f"{elapsed}, about {number_format.minutes(most_s)} left"
        return f"{elapsed}, {number_format.minutes(left_s)} to {number_format.minutes(most_s)} left"


@dataclass
class _Line:
    """What is known of one cell so far, as a line of the live table."""

    cell: Cell
    phase: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0
    median_ms: float | None = None
    record: Record | None = None

    @property
    def is_in_flight(self) -> bool:
        return bool(self.phase) and self.record is None

    def columns(self, now_s: float, leads: bool) -> tuple[Text, Text, Text, Text, Text]:
        """Return the cell, its phase or end, the time it has taken, its median, and its reason or that it leads."""
        median = f"{number_format.milliseconds(self.median_ms)} ms" if self.median_ms is not None else ""
        if self.record:
            state, elapsed_s, reason = (
                number_format.ending_beside_reason(self.record),
                self.record.elapsed_s,
                one_line(self.record.reason),
            )
            style = _STYLES[self.record.status]
        else:
            state, style = one_line(self.phase) or "waiting", "" if self.phase else "dim"
            reason = "leads so far" if leads else ""
            elapsed_s = now_s - self.began_s if self.phase else 0.0
        elapsed = f"{elapsed_s:.0f} s" if elapsed_s >= 0.5 else ""
        return (
            Text(_describe(self.cell)),
            Text(state, style=style),
            Text(elapsed),
            Text(median, style="bold" if leads else ""),
            Text(reason, style="dim"),
        )


def _leading(lines: Iterable[_Line]) -> set[str]:
    """Return the id of the cell with the lowest median in each contest that goes on, where there is another one."""
    contests = by_contest(line for line in lines if line.record is None or line.record.status is Status.OK)
    leading = set()
    for contest in contests.values():
        measured = {line.cell.id: line.median_ms for line in contest if line.median_ms is not None}
        if len(measured) > 1 and any(line.is_in_flight for line in contest):
            leading.add(min(measured, key=lambda cell_id: measured[cell_id]))
    return leading


_STYLES = {status: "red" if status.is_failure else "yellow" if status.is_absence else "green" for status in Status}


COMMANDS_SHOWN = 3
"""Number of commands for one purpose that are printed."""

MOST_SECTIONS = 8
"""With suites and more contests than these, a contest is only a line: its section is in the report and on the page."""


def print_report(judgement: Judgement, console: Console, folder: str = "FOLDER") -> None:
    """Print each contest with its table and doubts, then suites and tables over sizes, and last the answers."""
    if not judgement.suites or len(judgement.contests) <= MOST_SECTIONS:
        for contest in judgement.contests:
            _print_contest(contest, console)
    for suite in judgement.suites:
        print_suite(suite, console)
    for dynamic_range in judgement.dynamic_ranges:
        print_table_over_sizes(dynamic.table_of(dynamic_range), console)
    for each in judgement.mixes:
        print_table_over_sizes(mix.table_of(each), console)
    for sentence in traits.about_models(judgement.contests):
        print_wrapped(console, "* ", sentence)
    if untried := not_tried(judgement):
        console.print(Text(one_line(untried), style="dim"), highlight=False)
    print_answers(judgement, console, folder)


def print_answers(judgement: Judgement, console: Console, folder: str = "FOLDER") -> None:
    """Print what to run now, where the report is, whether to ship the winner, and last a line for each answer."""
    screen = first_screen(judgement, folder)
    for purpose, commands in screen.commands.items():
        if purpose != AGAIN:  # who reads a terminal has just typed it
            shown = "".join(f"\n  {command}" for command in commands[:COMMANDS_SHOWN])
            more = f"\n  and {rest} more, in report.md" if (rest := len(commands) - COMMANDS_SHOWN) > 0 else ""
            console.print(Text(f"{purpose[0].upper()}{purpose[1:]}:{shown}{more}"), highlight=False, soft_wrap=True)
    if screen.variables_to_set and screen.commands.keys() - {AGAIN}:
        console.print(Text(screen.variables_to_set), highlight=False, soft_wrap=True)
    for kind, file in {"Report": "report.md", "Page": "report.html"}.items():
        console.print(Text(f"{kind}: {Path(folder, file)}"), highlight=False, soft_wrap=True)
    for sentence in screen.unfinished:
        console.print(Text(one_line(sentence), style="yellow"), soft_wrap=True)
    if screen.whether_to_ship:
        to_ship = Text(one_line(screen.whether_to_ship))
        console.print(to_ship, highlight=False, soft_wrap=not console.is_terminal)
    _print_winners(judgement, console)
    for answer in (*screen.of_suites, *screen.over_sizes):
        console.print(Text(one_line(answer), style="bold"), soft_wrap=True)


def _print_winners(judgement: Judgement, console: Console) -> None:
    """Print a line for each contest: who wins, how fast that is, how much faster than eager, and how sure."""
    contests = judgement.contests
    if not contests:
        return
    name, *others = shown_in(Surface.TERMINAL, answers_of(contests), contests)
    rows = [[text if (text := column.text_of(contest)) != NONE else "" for column in others] for contest in contests]
    rows = [
        [name.text_of(contest), f"→ {winner}", *row] for contest, (winner, *row) in zip(contests, rows, strict=True)
    ]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for contest, row in zip(contests, rows, strict=True):
        padded = [
            set_cell_size(text, width) if column.is_text else f"{' ' * (width - cell_len(text))}{text}"
            for text, width, column in zip(row, widths, (name, *others), strict=True)
        ]
        style = "bold yellow" if headline.is_unsure(contest) else "bold"
        console.print(Text("  ".join(padded).rstrip(), style), soft_wrap=True)  # a line each, however narrow


def _print_contest(contest: ContestJudgement, console: Console) -> None:
    console.print(Text(one_line(contest.title), style="bold"), soft_wrap=True)
    console.print(Text(one_line(sentences.paragraph(contest))), highlight=False)
    if any(row.record.phases or row.latency for row in contest.shown):
        console.print(_table(contest, console.width))
    for (ending, reason), labels in _endings(contest).items():
        print_wrapped(console, "x ", f"{', '.join(labels)} {ending}", reason)
    for row in contest.cells:
        placement = PartlyElsewhere.of(row.record)
        if placement and row.record.status is not Status.FALLBACK:
            print_wrapped(console, "~ ", placement.say())
    for effect, doubts in contest.doubts_of_answer.items():
        for doubt in doubts:
            if not isinstance(doubt, _TOLD_BY_A_ROW):
                print_wrapped(console, "! " if effect is Effect.WINNER else "- ", doubt.say())
    remarks = sentences.remarks(contest)
    if contest.calls and (costs := cost_report.table(contest)):
        console.print(_texts(costs))
        remarks += cost_report.sentences(contest)
    for table in further_answers.short_tables(contest):
        console.print(_texts(table))
    for sentence in (*remarks, *further_answers.sentences(contest)):
        print_wrapped(console, "= ", sentence)
    console.print()


def _texts(table: TextTable) -> Table:
    """Return a table of texts under its title."""
    drawn = Table(title=one_line(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for heading in table.text_columns:
        drawn.add_column(Text(_stacked(one_line(heading))), overflow="fold")
    for heading in table.number_columns:
        drawn.add_column(Text(_stacked(one_line(heading))), justify="right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(one_line(text).replace(" [", "\n[")) for text in row))  # intervals below their values
    return drawn


def _stacked(heading: str) -> str:
    """Return the heading with a word on each line, so that the column is no wider than its numbers."""
    return heading.replace(" ", "\n")


def _endings(contest: ContestJudgement) -> dict[tuple[str, str], list[str]]:
    """Return the labels of the cells that failed, by how they ended and why."""
    endings: dict[tuple[str, str], list[str]] = {}
    for row in contest.shown:
        if row.record.status is not Status.OK:
            ending = number_format.ending_beside_reason(row.record)
            endings.setdefault((ending, row.record.reason), []).append(row.label)
    return endings


_TOLD_BY_A_ROW = (NotRanked, PartlyElsewhere)
"""Doubts of these kinds already stand under the table."""


def _table(contest: ContestJudgement, width: int) -> Table:
    """Return a table with one line per cell, or two on a narrow terminal: intervals and modes go to the second.

    A `~` before a name says that the cell ran elsewhere, wholly or in part.
    """
    rows = [row for row in contest.shown if row.record.status not in TOLD_ONCE]  # the reasons stand below
    columns = shown_in(Surface.TERMINAL, columns_of([contest]), rows)
    columns = _fitting([column for column in columns if width >= column.terminal_width], rows, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # the box has a blank between columns
    )
    for column in columns:
        if column is BACKEND:
            table.add_column(column.heading, overflow="fold", min_width=8)
        else:
            table.add_column(Text(heading_of(column)), justify="right", no_wrap=True)
    for row in rows:
        style = "" if row.rank else _STYLES[row.record.status]
        table.add_row(*(Text(_cell(column, row, width >= WIDE), style) for column in columns))
    return table


def _fitting(
    columns: list[Column[CellJudgement]], rows: Sequence[CellJudgement], width: int
) -> list[Column[CellJudgement]]:
    """Return the columns without those that a table of this width has no room for, the least important first."""

    def width_of(column: Column[CellJudgement]) -> int:
        texts = [heading_of(column), *(_cell(column, row, width >= WIDE) for row in rows)]
        return 1 + max(cell_len(line) for text in texts for line in text.splitlines() or [""])

    for heading in LEFT_OUT_FIRST:
        if sum(map(width_of, columns)) <= width:
            break
        columns = [column for column in columns if column.heading != heading]
    while sum(map(width_of, columns)) > width and len(columns) > FEWEST_COLUMNS:
        columns = columns[:-1]
    return columns


def _cell(column: Column[CellJudgement], row: CellJudgement, is_wide: bool) -> str:
    """Return the value with its interval; the space within an interval is another one than that before it."""
    text = column.text_of(row)
    if column is BACKEND:
        text = f"{'~' if PartlyElsewhere.of(row.record) else ''}{text}"
        return text if is_wide else text.replace("/", "/\n", 1).replace("[", "\n[", 1)
    interval = column.interval_of(row)
    return f"{text}{' ' if is_wide else chr(10)}{interval}" if interval else text


def _describe(cell: Cell) -> str:
    """Return `mlp cpu fp32 inductor`, with its dimensions and task if it has any."""
    sizes = [f"{name}={value}" for name, value in cell.dimensions.items()]
    task = [] if cell.task == "inference" else [cell.task]
    return one_line(
        " ".join(
            [cell.model_name, *sizes, *task, cell.device, *([] if cell.compared else [cell.precision]), cell.label]
        )
    )


def heading_of(column: Column[T]) -> str:
    heading = column.terminal_heading or f"{column.heading} {column.unit}"
    return _stacked(f"{heading} [95\u00a0%]" if column.interval else heading)


def print_wrapped(console: Console, bullet: str, *parts: str) -> None:
    """Print an item of a list. Its further lines on a terminal are indented, and a pipe gets one line."""
    text = Text(": ".join(one_line(part) for part in parts if part))
    if not console.is_terminal:
        console.print(Text(bullet) + text, soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(bullet), text)
    console.print(grid)


def print_table_over_sizes(table_over_sizes: TableOverSizes[Any], console: Console) -> None:
    """Print a table over several sizes, and below it what stands beside its values."""
    console.print(Text(one_line(table_over_sizes.title), style="bold"), soft_wrap=True)
    console.print(Text(f"{table_over_sizes.finding}. {table_over_sizes.note}"), highlight=False)
    columns = shown_in(Surface.TERMINAL, table_over_sizes.columns, table_over_sizes.rows)
    console.print(_values(columns, table_over_sizes.rows))
    for row in table_over_sizes.rows:
        for column in columns:
            if note := column.note_of(row):
                subject = f"{columns[0].text_of(row)}, {column.heading} {column.text_of(row)}"
                print_wrapped(console, "~ ", subject, note)
    console.print()


def _values(columns: Sequence[Column[T]], rows: Sequence[T]) -> Table:
    """Return a table of values, with their intervals below them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        justify, overflow = ("left", "fold") if column.is_text else ("right", "ellipsis")
        table.add_column(Text(heading_of(column)), justify=justify, overflow=overflow, no_wrap=not column.is_text)  # type: ignore[arg-type]
    for row in rows:
        cells = ((column.text_of(row), column.interval_of(row)) for column in columns)
        table.add_row(*(Text("\n".join(filter(None, texts))) for texts in cells))
    return table


FAILURES_SHOWN = 12
"""Number of reasons for failing that are printed; the report has all of them."""


def print_suite(suite: Suite, console: Console) -> None:
    """Print the table of backends, what its numbers are, and what failed."""
    console.print(Text(suite_report.title(suite), style="bold"), soft_wrap=True)
    console.print(Text(f"{suite_report.finding(suite)}."), highlight=False)
    console.print(_values(shown_in(Surface.TERMINAL, suite_report.columns_of(suite), suite.rows), suite.rows))
    for note in suite_report.notes(suite):
        print_wrapped(console, "- ", note)
    for failures in suite.failures[:FAILURES_SHOWN]:
        print_wrapped(console, "x ", suite_report.failure(suite, failures))
    if further := suite.failures[FAILURES_SHOWN:]:
        print_wrapped(console, "x ", f"and {counted(len(further), 'more reason')}, which the report has")
    console.print()
