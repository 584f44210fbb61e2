"""Computes what a deployment costs over its life, in seconds: the totals over n calls, and where they cross.

If a build needs some calls until it is final, what they take beyond as many steady calls belongs to starting. A cell
costs least only if that holds for starts longer and shorter by `TIMED_ONCE_MARGIN`, or by what warm starts differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Literal

from bakeoff.judging import decision
from bakeoff.judging.answer import Answer, Question, Score, Term, rank
from bakeoff.judging.disturbance import is_starved
from bakeoff.judging.estimate import interval_at
from bakeoff.judging.ranking import Ranking
from bakeoff.records.schema import FIRST_CALL, SETTLE, Interval, Phase, Ratio, Record

Start = Literal["cold", "warm"]
STARTS: tuple[Start, ...] = ("cold", "warm")

HORIZON = tuple(10**power for power in range(8))
"""Tables have a row for each of these numbers of calls: 1 to ten million."""

TIMED_ONCE_MARGIN = decision.MARGIN_UNPAIRED
"""The share by which starting may be longer or shorter by chance."""


@dataclass(frozen=True)
class Line:
    """The total of a cell over its calls, in seconds."""

    label: str
    setup_s: float  # building, the first call, and what calls until the build was final took beyond steady ones
    steady_s: float  # each further call
    start_factor: float = 1 + TIMED_ONCE_MARGIN  # what comes before steady calls may be so many times longer or shorter

    def total_s(self, calls: float) -> float:
        return self.setup_s + (calls - 1) * self.steady_s

    def exact_total_s(self, calls: float) -> Fraction:
        return Fraction(self.setup_s) + Fraction(calls - 1) * Fraction(self.steady_s)

    def break_even(self, other: Line) -> int | None:
        """Return the number of calls, the first included, from which on this never costs more than `other`: 0 means
        from the start, None means never."""
        behind_s = Fraction(self.setup_s) - Fraction(other.setup_s)
        gained_s = Fraction(other.steady_s) - Fraction(self.steady_s)
        if gained_s < 0:
            return None
        if behind_s <= 0:
            return 0
        return 1 + math.ceil(behind_s / gained_s) if gained_s else None

    def at(self, factor: float, start_factor: float = 1.0) -> Line:
        """Return the same line with its steady latency and its start longer by these factors."""
        return replace(self, setup_s=self.setup_s * start_factor, steady_s=self.steady_s * factor)


@dataclass(frozen=True)
class BreakEven:
    """The number of calls from which on one cell has paid against another.

    `calls` is 0 if it was never behind, and None if it never pays. If `is_established` is False, the difference of the
    steady latencies is not, and `calls` only says where the two lines cross. `low` and `high` are the crossings at the
    two ends of the 95 % interval of that difference, or None if there is no crossing.
    """

    calls: int | None
    low: int | None
    high: int | None
    is_established: bool


@dataclass(frozen=True)
class Leg:
    """A stretch of the lower envelope: `line` is the cheapest from call number `first_call` on. `rivals` are the lines
    with totals that cannot be distinguished from its own, but not the legs before and after it: see `crossing`."""

    line: Line
    first_call: int
    crossing: BreakEven | None  # against the leg before it; None for the first leg
    rivals: Sequence[Line]

    @property
    def is_established(self) -> bool:
        return self.crossing is not None and self.crossing.is_established


@dataclass(frozen=True)
class CallsScore(Score):
    """The time of so many calls, starting included. A ratio has the interval of the steady latencies alone."""

    terms: Sequence[Term] = ()
    steady: Score = field(default_factory=lambda: Score(()))  # of a further call
    lines: Mapping[str, Line] = field(default_factory=dict)
    calls: int = 1

    def ms(self, label: str) -> float:
        return 1e3 * self.value(label)

    def value(self, label: str) -> float:
        return self.lines[label].total_s(self.calls)

    def interval(self, label: str) -> None:
        """Return nothing, since starting was timed once."""

    def ratio(self, fast: str, slow: str) -> Ratio:
        ours, theirs, steady = self.lines[fast], self.lines[slow], self.steady.ratio(fast, slow)
        if fast == slow:
            return steady
        ends = _ends(ours, theirs, steady)
        totals = ends and [their_end.total_s(self.calls) / our_end.total_s(self.calls) for our_end, their_end in ends]
        interval = Interval(low=totals[0], high=totals[1]) if totals else None
        return steady.but(value=self.value(slow) / self.value(fast), ci95=interval)

    def is_beaten(self, fast: str, slow: str) -> bool:
        """Return False if the total of the second cell may be within a tie of the first one's, at the ends of the
        interval and of the starts' margin that favour it."""
        line, best = self.lines[slow], self.lines[fast]
        ends = _ends(
            line, best, _believed(self.steady.ratio(slow, fast), decision.WIDE_LEAD_CONFIDENCE), with_starts=True
        )
        # without an interval, nothing is known of its steady latency
        nothing_known = line.at(0.0, 1 / line.start_factor), best.at(1.0, best.start_factor)
        shortest, longest_best = ends[1] if ends else nothing_known
        return shortest.total_s(self.calls) >= longest_best.total_s(self.calls) * (1 + decision.TIE_MARGIN)

    def is_apart(self, fast: str, slow: str) -> bool:
        return self.is_beaten(fast, slow)

    def is_settled(self, best: str, other: str, shares_first: bool) -> bool:
        return False


class Costs:
    """The costs of the measured cells of one contest, for each way to start. Only a cell with a timed first call has a
    line, and a warm one only if a further process started from its caches."""

    def __init__(self, ranking: Ranking) -> None:
        self._steady = ranking.score
        self._baseline = ranking.baseline.cell.label if ranking.baseline else None
        self._records = {record.cell.label: record for record in ranking.measured}
        self._lines = {
            start: {line.label: line for record in ranking.measured if (line := line_of(record, start))}
            for start in STARTS
        }
        self._legs: dict[tuple[Start, tuple[str, ...]], list[Leg]] = {}

    def lines(self, start: Start) -> list[Line]:
        return list(self._lines[start].values())

    def break_even(self, ours: str, theirs: str, start: Start) -> BreakEven | None:
        """Return from which call on `ours` has paid against `theirs`; None if one has no line, or they are the same. It
        is not established where the threads of one of them waited for a core most of the time."""
        lines = self._lines[start]
        if ours == theirs or ours not in lines or theirs not in lines:
            return None
        crossing = break_even(lines[ours], lines[theirs], self._steady.ratio(ours, theirs))
        is_known = not any(is_starved(self._records[label].bursts) for label in (ours, theirs))
        return replace(crossing, is_established=crossing.is_established and is_known)

    def legs(self, start: Start, among: Collection[str]) -> list[Leg]:
        """Return the lower envelope over 1 to the last of `HORIZON` calls, of the labels `among` that have a line."""
        key = (start, tuple(among))
        if key not in self._legs:
            stretches = envelope([line for line in self.lines(start) if line.label in among], HORIZON[-1])
            self._legs[key] = [self._leg(stretches, place, among, start) for place in range(len(stretches))]
        return self._legs[key]

    def answer(self, calls: int, start: Start, among: Collection[str]) -> Answer | None:
        """Return who costs least over `calls` calls, of the labels `among` that have a line, or None without one."""
        lines = self._lines[start]
        may_win = sorted((line for line in lines.values() if line.label in among), key=partial(_order_at, calls=calls))
        if not may_win:
            return None
        return rank(
            Question.CALLS,
            CallsScore(steady=self._steady, lines=lines, calls=calls),
            [line.label for line in may_win],
            [label for label in lines if label not in among],
            self._baseline,
            unit="s",
            processes={label: len(record.processes) for label, record in self._records.items()},
        )

    def _leg(self, stretches: Sequence[tuple[Line, int]], place: int, among: Collection[str], start: Start) -> Leg:
        line, first_call = stretches[place]
        crossing = self.break_even(line.label, stretches[place - 1][0].label, start) if place else None
        return Leg(line, first_call, crossing, self._rivals_on(stretches, place, among, start))

    def _rivals_on(
        self, stretches: Sequence[tuple[Line, int]], place: int, among: Collection[str], start: Start
    ) -> list[Line]:
        line, first = stretches[place]

        def rivals_at(calls: int) -> list[Line]:
            score = CallsScore(steady=self._steady, lines=self._lines[start], calls=calls)
            others = [other for other in self.lines(start) if other.label in among and other is not line]
            others.sort(key=lambda other: other.total_s(calls))
            return [other for other in others if not score.is_beaten(line.label, other.label)]

        beside = [stretches[other][0] for other in (place - 1, place + 1) if 0 <= other < len(stretches)]
        if place + 1 == len(stretches):
            rivals = [rival for calls in HORIZON if calls >= first for rival in rivals_at(calls)]
            return [rival for rival in dict.fromkeys(rivals) if rival not in beside]
        if place == 0:
            return rivals_at(first)
        as_cheap_last = rivals_at(stretches[place + 1][1] - 1)
        return [rival for rival in rivals_at(first) if rival in as_cheap_last and rival not in beside]


def break_even(ours: Line, theirs: Line, steady: Ratio) -> BreakEven:
    """Return from which call on `ours` has paid against `theirs`. `steady` is how many times faster a steady call of
    `ours` is. The answer is established if the two surely differ, and both ends of the interval agree."""
    calls = ours.break_even(theirs)
    ends = _ends(ours, theirs, steady)
    if ends is None:
        return BreakEven(calls, None, None, is_established=False)
    slowest, fastest = (one.break_even(other) for one, other in ends)
    agree = (slowest is None) == (calls is None) == (fastest is None)
    differ = decision.relation(steady) in decision.CALLED
    return BreakEven(calls, fastest, slowest, is_established=differ and agree)


def envelope(lines: Sequence[Line], last_call: int) -> list[tuple[Line, int]]:
    """Return the lower envelope over 1 to `last_call` calls: the cheapest lines, and from which call on each is,
    exactly. Of equal totals, the line with the shorter next call is taken."""
    stretches: list[tuple[Line, int]] = []
    current, first_call = min(lines, key=partial(_order_at, calls=1), default=None), 1
    while current is not None and first_call <= last_call:
        stretches.append((current, first_call))
        steeper = [line for line in lines if line.steady_s < current.steady_s]
        takes_over = [(calls, line) for line in steeper if (calls := line.break_even(current)) and calls > first_call]
        first_call = min((calls for calls, _ in takes_over), default=last_call + 1)
        those = [line for calls, line in takes_over if calls == first_call]
        current = min(those, key=partial(_order_at, calls=first_call), default=None)
    return stretches


def line_of(record: Record, start: Start) -> Line | None:
    """Return the line of a cell, or None without a latency or a start of this kind with a timed first call."""
    warm = record.warm_start
    phases = record.phases if start == "cold" else warm.phases if warm else []
    if record.latency is None or not any(phase.name == FIRST_CALL and phase.seconds for phase in phases):
        return None
    steady_s = record.latency.median_ms / 1e3

    def setup_s(phases: Sequence[Phase]) -> float:
        # settling answers calls, too: it counts beyond them, and never as a gain
        return sum(
            max(0.0, phase.seconds - phase.calls * steady_s) if phase.name == SETTLE else phase.seconds
            for phase in phases
        )

    own_s, factor = setup_s(phases), 1 + TIMED_ONCE_MARGIN
    if start == "warm":
        all_s = [setup_s(process.phases) for process in record.processes if process.warm]
        factor = max(factor, *(max(own_s, other_s) / max(min(own_s, other_s), 1e-9) for other_s in all_s))
    return Line(record.cell.label, own_s, steady_s, factor)


def _order_at(line: Line, calls: int) -> tuple[Fraction, Fraction]:
    return line.exact_total_s(calls), Fraction(line.steady_s)


def _ends(
    ours: Line, theirs: Line, steady: Ratio, with_starts: bool = False
) -> tuple[tuple[Line, Line], tuple[Line, Line]] | None:
    """Return both lines at the end of the ratio's interval that is worst for `ours`, and at the best; None without one.
    `with_starts`, what comes before steady calls is longer and shorter, too."""
    if steady.ci95 is None:
        return None
    slack = 1 + _unseen(steady)
    own, other = (ours.start_factor, theirs.start_factor) if with_starts else (1.0, 1.0)
    # only `ours` varies, around the cell's median, because the paired ratio is free of drift
    worst = ours.at(slack * steady.value / steady.ci95.low, own), theirs.at(1.0, 1 / other)
    best = ours.at(steady.value / steady.ci95.high / slack, 1 / own), theirs.at(1.0, other)
    return worst, best


def _believed(steady: Ratio, confidence: float) -> Ratio:
    """Return `steady` with the interval by which a winner over so many calls may be named: the 95 % interval if a
    verdict would call one of the two faster, else that of this `confidence`, widened to contain 1."""
    if steady.ci95 is None or decision.relation(steady) in decision.CALLED:
        return steady
    # the steady latencies may be equal, so that a winner must win by its start
    interval = interval_at(steady, confidence) if decision.is_over_processes(steady) else steady.ci95
    return steady.but(ci95=Interval(low=min(interval.low, 1.0), high=max(interval.high, 1.0)))


def _unseen(ratio: Ratio) -> float:
    """Return the margin for differences that the interval cannot contain."""
    if not ratio.paired:
        return decision.MARGIN_UNPAIRED
    return decision.MARGIN if ratio.processes < decision.FEWEST_PROCESSES else 0.0
