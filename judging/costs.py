"""What a deployment costs over its life, in seconds: from records to totals and crossings, pure functions.

A cell's total over n calls is a straight line: building, the first call, and n - 1 calls at the steady latency. The
first call is one of the n. It starts `cold`, from empty caches, or `warm`, from the caches and the artefact of an
earlier process. A cell that went on choosing while it answered calls has two straight pieces: until it had settled its
calls took what they took on average, and those after them the steady latency.

Building, the first call and the calls of a settling were timed once per start, in one process and in no round shared
with anybody: they count within `TIMED_ONCE_MARGIN`. Whoever is said to cost least leads even if they had been longer
for it and shorter for the other by that. When one has paid is told by building and the first call as they were timed:
that interval is one of the steady latencies' ratio and of a settling's calls alone, and a lead that may be chance is
none until settling has ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Literal

from judging.decision import (
    CALL_CONFIDENCE,
    FEWEST_PROCESSES,
    MARGIN,
    MARGIN_UNPAIRED,
    NARROW_LEAD,
    TIE_MARGIN,
    WIDE_LEAD_CONFIDENCE,
    Relation,
    relation,
)
from judging.estimate import Series, interval_at, ratio_of, series_of
from records.schema import Interval, Phase, Ratio, Record

Start = Literal["cold", "warm"]
STARTS: tuple[Start, ...] = ("cold", "warm")

HORIZON = tuple(10**power for power in range(8))
"""Numbers of calls that tables have a row for: 1 to ten million."""

TIMED_ONCE_MARGIN = MARGIN_UNPAIRED
"""By so much building, a first call and the calls of a settling may have been longer or shorter by chance alone."""


@dataclass(frozen=True)
class Unsettled:
    """The calls, after the first one, that a cell answers until how it runs is final."""

    calls: int  # at least one
    start_s: float  # building and the first call, before them
    call_s: float  # each of them, on average


@dataclass(frozen=True)
class Line:
    """What a cell costs over its calls, in seconds: straight, but for a bend where it has settled."""

    label: str
    setup_s: float  # building and the first call; what settling took beyond as many steady calls, too
    steady_s: float  # each further call, once it has settled
    unsettled: Unsettled | None = None  # what holds until then; None: it runs from its first call on as it always will

    @property
    def settled_at(self) -> int:
        """The number of calls, the first included, with which it has settled."""
        return 1 + self.unsettled.calls if self.unsettled else 1

    def total_s(self, calls: float) -> float:
        """Of `calls` >= 1 calls, the first included."""
        return float(self.exact_total_s(calls))

    def exact_total_s(self, calls: float) -> Fraction:
        early = self._unsettled_at(calls)
        setup_s, call_s = (early.start_s, early.call_s) if early else (self.setup_s, self.steady_s)
        return Fraction(setup_s) + Fraction(calls - 1) * Fraction(call_s)

    def break_even(self, other: Line) -> int | None:
        """The number of calls, the first included, from which on this never costs more than `other`.

        0: it does so from the start; None: it never does. Exact for the numbers given.
        """
        found = self.ahead_of(other)
        if not found or found[-1][1] is not None:
            return None
        first = found[-1][0]
        return 0 if first == 1 else first

    def ahead_of(self, other: Line) -> list[tuple[int, int | None]]:
        """The stretches, by first and last number of calls, over which this costs no more than `other`.

        None: without end. Exact for the numbers given.
        """
        ends = sorted({line.settled_at for line in (self, other) if line.unsettled})
        found: list[tuple[int, int | None]] = []
        for first, last in zip([1, *(end + 1 for end in ends)], [*ends, None], strict=True):
            behind_s = self.exact_total_s(first) - other.exact_total_s(first)
            gained_s = Fraction(other._call_s(first)) - Fraction(self._call_s(first))
            stretch = _at_most_zero(behind_s, gained_s, first, last)
            if stretch and found and found[-1][1] == stretch[0] - 1:
                found[-1] = (found[-1][0], stretch[1])
            elif stretch:
                found.append(stretch)
        return found

    def at(self, factor: float, settling_factor: float = 1.0, start_factor: float = 1.0) -> Line:
        """The same with a steady latency `factor` times as long.

        Calls until it has settled take `settling_factor`, building and the first call `start_factor` times as long.
        """
        steady_s = self.steady_s * factor
        if self.unsettled is None:
            return Line(self.label, self.setup_s * start_factor, steady_s)
        start_s, call_s = self.unsettled.start_s * start_factor, self.unsettled.call_s * settling_factor
        return settling_line(self.label, replace(self.unsettled, start_s=start_s, call_s=call_s), steady_s)

    def _call_s(self, calls: int) -> float:
        early = self._unsettled_at(calls)
        return early.call_s if early else self.steady_s

    def _unsettled_at(self, calls: float) -> Unsettled | None:
        return self.unsettled if calls <= self.settled_at else None


def settling_line(label: str, early: Unsettled, steady_s: float) -> Line:
    """The line of a cell whose calls take `steady_s` each after those of `early`."""
    return Line(label, early.start_s + early.calls * (early.call_s - steady_s), steady_s, early)


@dataclass(frozen=True)
class BreakEven:
    """From which call on one cell has paid against another.

    `calls` is 0 where it was never behind, None where it never pays. Where `is_established` is False, the difference of
    the steady latencies is not, and `calls` is no more than where the two lines cross. `low` and `high` are where they
    cross at either end of the 95 % interval of that difference; None where there is no crossing.
    """

    calls: int | None
    low: int | None
    high: int | None
    is_established: bool


@dataclass(frozen=True)
class Leg:
    """A stretch of the lower envelope: `line` is the cheapest from call number `first_call` on.

    `rivals` are those whose totals cannot be told from its own: on the first leg at a single call, on the last one
    anywhere in `HORIZON`, and on others at both ends, but for the leg before and the one after where they cross it.
    """

    line: Line
    first_call: int
    crossing: BreakEven | None  # against the one before it; None for the first
    rivals: Sequence[Line]


@dataclass(frozen=True)
class Cheapest:
    """Who costs least over `calls` calls, and whose total cannot be told from that."""

    calls: int
    line: Line
    rivals: Sequence[Line]


@dataclass(frozen=True)
class Outcome:
    """One cell against the baseline over a given number of calls."""

    label: str
    baseline: str
    calls: int
    overhead_s: float  # of building, the first call, and those of `calls` that it settled in, beyond as many of theirs
    steady: Ratio
    total_speedup: float  # the baseline's total / the cell's
    total_speedup_ci95: Interval | None  # from the steady latencies' interval and a settling's margin alone
    total_speedup_believed: Interval | None  # what a winner may be named by: with the margin of all that was timed once
    break_even: BreakEven
    settling_calls: int = 0  # that it takes to settle, after the first one
    settled_overhead_s: float = 0.0  # what the overhead is once all of them were made

    @property
    def winner(self) -> str | None:
        """The one that costs less, or None where that cannot be told, or by less than `TIE_MARGIN`."""
        if self.total_speedup_believed is None:
            return None
        if self.total_speedup >= 1 + TIE_MARGIN and self.total_speedup_believed.low > 1:
            return self.label
        if self.total_speedup <= 1 / (1 + TIE_MARGIN) and self.total_speedup_believed.high < 1:
            return self.baseline
        return None


class Costs:
    """What the cells of one contest cost, for each way to start.

    Only records with samples and a timed first call have a line; the warm ones only where a second process started
    from the caches of the first. `baseline` bridges cells that shared no rounds.
    """

    def __init__(self, records: Sequence[Record], baseline: str | None = None) -> None:
        series = {record.cell.label: series_of(record.bursts) for record in records}
        self._series: dict[str, Series] = {label: turns for label, turns in series.items() if turns}
        self._baseline = self._series.get(baseline or "")
        measured = [record for record in records if record.cell.label in self._series]
        self._lines = {start: _lines(measured, start) for start in STARTS}
        self._ratios: dict[tuple[str, str], Ratio] = {}

    def lines(self, start: Start) -> list[Line]:
        """Of all cells that have one."""
        return list(self._lines[start].values())

    def steady(self, ours: str, theirs: str) -> Ratio:
        """How many times faster a steady call of `ours` is than one of `theirs`. Raises KeyError for unknown labels."""
        if (ours, theirs) not in self._ratios:
            self._ratios[ours, theirs] = ratio_of(self._series[ours], self._series[theirs], self._baseline)
        return self._ratios[ours, theirs]

    def break_even(self, ours: str, theirs: str, start: Start) -> BreakEven | None:
        """From which call on `ours` has paid against `theirs`; None where one has no line, or they are the same."""
        lines = self._lines[start]
        if ours == theirs or ours not in lines or theirs not in lines:
            return None
        return break_even(lines[ours], lines[theirs], self.steady(ours, theirs))

    def legs(self, start: Start, among: Collection[str]) -> list[Leg]:
        """The lower envelope over 1 to the last of `HORIZON` calls, of those labels `among` that have a line."""
        lines = [line for line in self.lines(start) if line.label in among]
        legs: list[Leg] = []
        stretches = envelope(lines, HORIZON[-1])
        for place, (line, first_call) in enumerate(stretches):
            crossing = self.break_even(line.label, legs[-1].line.label, start) if legs else None
            if crossing and crossing.calls != first_call:  # as while the one before settles, which is ahead in the end
                crossing = BreakEven(first_call, None, None, is_established=False)
            legs.append(Leg(line, first_call, crossing, self._rivals_on(stretches, place, lines)))
        return legs

    def cheapest(self, calls: int, start: Start, among: Collection[str]) -> Cheapest | None:
        """Who costs least over `calls` calls, of those labels `among` that have a line; None where none has."""
        lines = [line for line in self.lines(start) if line.label in among]
        if not lines:
            return None
        best = envelope(lines, calls)[-1][0]
        return Cheapest(calls, best, self._rivals_at(calls, best, lines))

    def outcome(self, label: str, baseline: str, calls: int, start: Start) -> Outcome | None:
        """`label` against `baseline` over `calls` calls; None where one has no line, or they are the same."""
        lines = self._lines[start]
        crossing = self.break_even(label, baseline, start)
        if crossing is None:
            return None
        ours, theirs, steady = lines[label], lines[baseline], self.steady(label, baseline)
        total_speedup = theirs.total_s(calls) / ours.total_s(calls)

        def overhead_s(calls: int) -> float:
            return ours.total_s(calls) - theirs.total_s(calls)

        def total_of(ratio: Ratio, start_margin: float = 0.0) -> Interval | None:
            ends = _ends(ours, theirs, ratio, start_margin)
            if ends is None:
                return None
            low, high = (theirs_end.total_s(calls) / ours_end.total_s(calls) for ours_end, theirs_end in ends)
            return Interval(low=low, high=high)

        is_wide = max(total_speedup, 1 / total_speedup) >= 1 + NARROW_LEAD
        believed = _believed(steady, WIDE_LEAD_CONFIDENCE if is_wide else CALL_CONFIDENCE)
        return Outcome(
            label=label,
            baseline=baseline,
            calls=calls,
            overhead_s=overhead_s(min(calls, ours.settled_at)),
            steady=steady,
            total_speedup=total_speedup,
            total_speedup_ci95=total_of(steady),
            total_speedup_believed=total_of(believed, TIMED_ONCE_MARGIN),
            break_even=crossing,
            settling_calls=ours.settled_at - 1,
            settled_overhead_s=overhead_s(ours.settled_at),
        )

    def _rivals_on(self, stretches: Sequence[tuple[Line, int]], place: int, lines: Sequence[Line]) -> list[Line]:
        """Of the `lines`, the `rivals` of that leg."""
        line, first = stretches[place]
        if place + 1 == len(stretches):
            rows = [self._rivals_at(calls, line, lines) for calls in HORIZON if calls >= first]
            return list(dict.fromkeys(rival for row in rows for rival in row))
        if place == 0:
            return self._rivals_at(first, line, lines)
        (before, _), (after, end) = stretches[place - 1], stretches[place + 1]
        as_cheap_first, as_cheap_last = (self._rivals_at(calls, line, lines) for calls in (first, end - 1))
        as_cheap = [rival for rival in as_cheap_first if rival in as_cheap_last]
        return [rival for rival in as_cheap if rival not in (before, after)]

    def _rivals_at(self, calls: int, best: Line, lines: Sequence[Line]) -> list[Line]:
        """Of the `lines`, those that may be as cheap as `best` over `calls` calls, the cheapest first."""
        others = sorted((line for line in lines if line is not best), key=lambda line: line.total_s(calls))
        return [line for line in others if self._may_be_as_cheap(line, best, calls)]

    def _may_be_as_cheap(self, line: Line, best: Line, calls: int) -> bool:
        """Whether its total may be within a tie of the cheapest's, at the ends that favour it.

        Those of the interval, and of the margin of what was timed once. With no interval nothing is known of its
        steady latency.
        """
        steady = _believed(self.steady(line.label, best.label), WIDE_LEAD_CONFIDENCE)
        ends = _ends(line, best, steady, TIMED_ONCE_MARGIN)
        fastest, slowest_best = ends[1] if ends else (line.at(0.0, _SHORTER, _SHORTER), best.at(1.0, _LONGER, _LONGER))
        return fastest.total_s(calls) < slowest_best.total_s(calls) * (1 + TIE_MARGIN)


def break_even(ours: Line, theirs: Line, steady: Ratio) -> BreakEven:
    """From which call on `ours` has paid against `theirs`.

    `steady` is how many times faster a steady call of `ours` is, and gives the interval. Established only if a
    verdict would call one of the two faster by that ratio, and both ends of its interval agree on whether it ever pays.
    """
    lead_counts_from = _lead_counts_from(ours, theirs)

    def pays_from(one: Line, other: Line) -> int | None:
        found = one.break_even(other)
        return found if found is None or lead_counts_from == 1 else max(found, lead_counts_from)

    calls = pays_from(ours, theirs)
    ends = _ends(ours, theirs, steady)
    if ends is None:
        return BreakEven(calls, None, None, is_established=False)
    slowest, fastest = (pays_from(*end) for end in ends)
    agree = (slowest is None) == (calls is None) == (fastest is None)
    differ = relation(steady) in (Relation.FASTER, Relation.SLOWER)
    return BreakEven(calls, fastest, slowest, is_established=differ and agree)


def envelope(lines: Sequence[Line], last_call: int) -> list[tuple[Line, int]]:
    """The lower envelope of `lines` over 1 to `last_call` calls: who is cheapest, and from which call on.

    Exact: it goes from crossing to crossing. Of equal totals, the line with the shorter next call is taken. One that
    takes the lead while it settles, over somebody by no more than chance may give it, has it from where it has settled.
    """
    lead_counts_from = [max(_lead_counts_from(line, other) for other in lines) for line in lines]
    found: list[tuple[Line, int]] = []
    current, first_call = min(lines, key=_order_at_first, default=None), 1
    while current is not None and first_call <= last_call:
        found.append((current, first_call))
        takes_over = [
            (calls, line)
            for line, counts_from in zip(lines, lead_counts_from, strict=True)
            if (calls := _overtakes(line, current, max(first_call + 1, counts_from)))
        ]
        first_call = min((calls for calls, _ in takes_over), default=last_call + 1)
        those = [line for calls, line in takes_over if calls == first_call]
        current = min(those, key=partial(_order_at, calls=first_call), default=None)
    return found


def line_of(record: Record, start: Start) -> Line | None:
    """The cell's line, or None where it has no latency, or no start of this kind whose first call was timed."""
    warm = record.warm_start
    setup_s = _setup_s(record.phases if start == "cold" else warm.phases if warm else [])
    if setup_s is None or record.latency is None:
        return None
    label, steady_s = record.cell.label, record.latency.median_ms / 1e3
    settling = record.settling if start == "cold" else warm.settling if warm else None
    if not settling or not settling.calls or settling.seconds <= settling.calls * steady_s:  # choosing is never a gain
        return Line(label, setup_s, steady_s)
    return settling_line(label, Unsettled(settling.calls, setup_s, settling.seconds / settling.calls), steady_s)


def _lines(records: Iterable[Record], start: Start) -> dict[str, Line]:
    return {line.label: line for record in records if (line := line_of(record, start))}


def _setup_s(phases: Sequence[Phase]) -> float | None:
    """All of them together, or None where the first call was not timed."""
    if not any(phase.name == "first_call" and phase.seconds for phase in phases):
        return None
    return sum(phase.seconds for phase in phases)


def _order_at(line: Line, calls: int) -> tuple[Fraction, Fraction]:
    return line.exact_total_s(calls), line.exact_total_s(calls + 1)


def _order_at_first(line: Line) -> tuple[Fraction, int, Fraction]:
    """Of equal first calls, that of a line which has nothing to settle."""
    return line.exact_total_s(1), line.settled_at, line.exact_total_s(2)


def _overtakes(line: Line, current: Line, from_call: int) -> int | None:
    """The first number of calls, not below `from_call`, at which `line` is to be taken instead of `current`."""
    bends = {line.settled_at, current.settled_at}
    for first, last in line.ahead_of(current):
        # of two that are equal for a while, one may take the lead where either bends
        for calls in sorted({max(first, from_call), *(bend for bend in bends if bend > max(first, from_call))}):
            if (last is None or calls <= last) and _order_at(line, calls) < _order_at(current, calls):
                return calls
    return None


def _lead_counts_from(ours: Line, theirs: Line) -> int:
    """The number of calls from which on a lead of `ours` is one: 1, or where it has settled.

    Before that it has to be more than chance may give to the calls of its settling: over the margin with the first
    call, or still there in the end if those calls had been longer by the margin.
    """
    if ours.unsettled is None or ours == theirs or ours.total_s(1) * _LONGER <= theirs.total_s(1):
        return 1
    slow, quick = ours.at(1.0, _LONGER), theirs.at(1.0, _SHORTER)
    return 1 if slow.exact_total_s(ours.settled_at) <= quick.exact_total_s(ours.settled_at) else ours.settled_at


def _at_most_zero(value: Fraction, fall: Fraction, first: int, last: int | None) -> tuple[int, int | None] | None:
    """Where, from `first` to `last`, what is `value` at `first` and falls by `fall` a call is at most zero."""
    if value <= 0 <= fall:
        return first, last
    if value <= 0:
        turns = first + math.floor(value / fall)
        return first, turns if last is None else min(turns, last)
    if fall <= 0:
        return None
    turns = first + math.ceil(value / fall)
    return (turns, last) if last is None or turns <= last else None


_LONGER = 1 + TIMED_ONCE_MARGIN
_SHORTER = 1 / _LONGER


def _ends(
    ours: Line, theirs: Line, steady: Ratio, start_margin: float = 0.0
) -> tuple[tuple[Line, Line], tuple[Line, Line]] | None:
    """Both lines at the end of the ratio's interval that is worst for `ours`, and at the best; None without one.

    The steady latency that varies is that of `ours`, around the cell's median: the paired ratio is free of drift, and
    says how wide the interval is. Where it cannot see what lies between processes, or between rounds, the margins that
    a verdict asks for are added. So they are to the calls in which either settled, which share no rounds. Building and
    the first call are longer and shorter by `start_margin`.
    """
    if steady.ci95 is None:
        return None
    slack, longer, shorter = 1 + _unseen(steady), 1 + start_margin, 1 / (1 + start_margin)
    worst = ours.at(slack * steady.value / steady.ci95.low, _LONGER, longer), theirs.at(1.0, _SHORTER, shorter)
    best = ours.at(steady.value / steady.ci95.high / slack, _SHORTER, shorter), theirs.at(1.0, _LONGER, longer)
    return worst, best


def _believed(steady: Ratio, confidence: float) -> Ratio:
    """`steady` with the interval by which a winner over so many calls may be named.

    The 95 % one where a verdict would call one of the two faster. Else the steady latencies may well be equal, and a
    winner has to be one by its setup: the interval is that of `confidence`, as a verdict asks for it, and holds 1.
    """
    if steady.ci95 is None or relation(steady) in (Relation.FASTER, Relation.SLOWER):
        return steady
    is_over_processes = steady.paired and steady.processes >= FEWEST_PROCESSES
    interval = interval_at(steady, confidence) if is_over_processes else steady.ci95
    return steady.model_copy(update={"ci95": Interval(low=min(interval.low, 1.0), high=max(interval.high, 1.0))})


def _unseen(ratio: Ratio) -> float:
    if not ratio.paired:
        return MARGIN_UNPAIRED
    return MARGIN if ratio.processes < FEWEST_PROCESSES else 0.0
