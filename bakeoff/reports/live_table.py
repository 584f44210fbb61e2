"""Shows a run on the terminal while it goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubts_of_winner import CANNOT_RUN
from bakeoff.judging.fit import by_contest
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.records.text import counted, one_line
from bakeoff.reports import number_format, sentences
from bakeoff.reports.first_screen import not_tried_at

REFRESH_EVERY_S = 0.25

LEAST_RANGE_S, LEAST_RANGE_SHARE = 3.0, 0.1
"""The remaining time is shown as one number where its ends are closer than this."""


class LiveTable:
    """Shows what a run is doing, with one line per cell, or for a console that is no terminal, a line for each event.
    Use it as a context manager; call its methods in any order. With `quiet` it prints nothing. Its time counts from
    `begun_s` of the clock, or else from now."""

    def __init__(
        self,
        console: Console | None = None,
        quiet: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
        requirements: Requirements | None = None,
        calls: int | None = None,
        begun_s: float | None = None,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._clock_s = clock_s
        self._requirements = requirements
        self._calls = calls  # over which cells are compared, if that was asked for
        self._begun_s = clock_s() if begun_s is None else begun_s
        self._ends_s: tuple[float, float] | None = None  # when the run is expected to end, and at the latest
        self._absent: dict[str, bool] = {}  # labels that cannot run here, and whether a line has said so
        self._named: set[str] = set()  # labels that were named and never tried: a line is for all contests
        self._lines: dict[str, _Line] = {}
        self._drawn_s = -REFRESH_EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._can_redraw and not self._quiet:
            # no thread refreshes it, since a busy parent disturbs the process that is measured
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._ends_s = None  # nothing is left, and this picture stays on the screen
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
            self._live = None

    def planned(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._line(cell)
        self._draw()

    def phase(self, cell: Cell, name: str) -> None:
        line = self._line(cell)
        if line.phase == name:
            return self._draw()
        line.phase, line.began_s = name, self._clock_s()
        self._draw()

    def built(self, cell: Cell, seconds: float, is_cached: bool = False) -> None:
        origin = ", from the cache" if is_cached else ""
        self._say(f"{_describe(cell)} is ready after {number_format.seconds(seconds)} s{origin}")
        self._draw()

    def measured(self, cell: Cell, median_ms: float) -> None:
        self._line(cell).median_ms = median_ms
        self._draw()

    def ended(self, record: Record) -> None:
        line = self._line(record.cell)
        line.record, line.ended_s = record, self._clock_s()
        if record.latency:
            line.median_ms = record.latency.median_ms
        if record.status in CANNOT_RUN and not record.asked_by_name:  # one line for all of them
            self._absent.setdefault(record.cell.label, False)
        elif record.status is not Status.OK and record.cell.label not in self._named:
            about = _describe(record.cell)
            if record.status.is_absence:
                about = record.cell.label
                self._named.add(about)
            self._say(f"{about}: {number_format.ending_beside_reason(record)}, {one_line(record.reason)}")
        self._draw()

    def decided(self, records: Sequence[Record]) -> None:
        if absent := [label for label, is_named in self._absent.items() if not is_named]:
            self._absent = dict.fromkeys(self._absent, True)
            self._say(not_tried_at("here", absent))
        contest = judge_contest(records, self._requirements, self._calls)
        for cell in contest.cells:
            if cell.record.latency:  # as the tables below will say it
                self._line(cell.cell).median_ms = cell.record.latency.median_ms
        self._say(sentences.outcome(contest))

    def time_left(self, seconds: float, at_most_s: float) -> None:
        now_s = self._clock_s()
        self._ends_s = now_s + seconds, now_s + at_most_s
        self._draw()

    def note(self, text: str) -> None:
        if self._live:
            self._live.console.print(Text(one_line(text)), soft_wrap=True)
        self._say(one_line(text))

    def tick(self) -> None:
        """Update the elapsed times. Call it while waiting for something, and never during a burst."""
        self._draw()

    @property
    def _can_redraw(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def _line(self, cell: Cell) -> _Line:
        return self._lines.setdefault(cell.id, _Line(cell))

    def _say(self, text: str) -> None:
        if not self._quiet and not self._live and not self._can_redraw:
            self._console.print(Text(f"[{self._times()}] {text}"), soft_wrap=True, highlight=False)

    def _draw(self) -> None:
        now_s = self._clock_s()
        if self._live and now_s - self._drawn_s >= REFRESH_EVERY_S:
            self._drawn_s = now_s
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="ellipsis", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column()  # the reason: the only one that rich may narrow, as long as that is enough
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
        shared = set[str].intersection(*({*_words(line.cell)} for line in self._lines.values())) if lines else set()
        return [line.columns(self._clock_s(), line.cell.id in leading, shared) for line in lines]

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

    def columns(self, now_s: float, leads: bool, shared: Set[str]) -> tuple[Text, Text, Text, Text, Text]:
        """Return the texts of a row, whose first leaves out the words that all rows share, but never the label."""
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
            Text(" ".join([*(word for word in _words(self.cell) if word not in shared), self.cell.label])),
            Text(state, style=style),
            Text(elapsed),
            Text(median, style="bold" if leads else ""),
            Text(reason, style="dim", no_wrap=True, overflow="ellipsis"),
        )


def _leading(lines: Iterable[_Line]) -> set[str]:
    contests = by_contest(line for line in lines if line.record is None or line.record.status is Status.OK)
    leading = set()
    for contest in contests.values():
        measured = {line.cell.id: line.median_ms for line in contest if line.median_ms is not None}
        if len(measured) > 1 and any(line.is_in_flight for line in contest):
            leading.add(min(measured, key=lambda cell_id: measured[cell_id]))
    return leading


_STYLES = {status: "red" if status.is_failure else "yellow" if status.is_absence else "green" for status in Status}


def _describe(cell: Cell) -> str:
    return one_line(" ".join([*_words(cell), cell.label]))


def _words(cell: Cell) -> list[str]:
    sizes = [f"{name}={value}" for name, value in cell.dimensions.items()]
    task = [] if cell.task == "inference" else [cell.task]
    precision = [] if cell.compared else [cell.precision]
    return [one_line(cell.model_name), *sizes, *task, cell.device, *precision]
