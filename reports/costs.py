"""What a deployment costs over its life, in seconds: from records to totals and crossings, pure functions.

A cell's total over n calls is a straight line: building, the first call, and n - 1 calls at the steady latency. The
first call is one of the n. It starts `cold`, from empty caches, or `warm`, from the caches and the artefact of an
earlier process. A cell that went on choosing while it answered calls paid for that beside building: what these calls
took beyond steady ones is added.

Building and the first call are measured once per start, so nothing here has an interval for them; the intervals are
those of the steady latencies' ratio.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from reports.decision import (
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
from reports.schema import Interval, Phase, Ratio, Record
from reports.statistics import Series, interval_at, ratio_of, series_of

Start = Literal["cold", "warm"]
STARTS: tuple[Start, ...] = ("cold", "warm")

HORIZON = tuple(10**power for power in range(8))
"""Numbers of calls that tables have a row for: 1 to ten million."""


@dataclass(frozen=True)
class Line:
    """What a cell costs over its calls, in seconds."""

    label: str
    setup_s: float  # building and the first call
    steady_s: float  # each further call

    def total_s(self, calls: int) -> float:
        """Of `calls` >= 1 calls, the first included."""
        return float(self.exact_total_s(calls))

    def break_even(self, other: Line) -> int | None:
        """The number of calls, the first included, from which on this never costs more than `other`.

        0: it does so from the start; None: it never does. Exact for the numbers given.
        """
        extra = Fraction(self.setup_s) - Fraction(other.setup_s)
        saved = Fraction(other.steady_s) - Fraction(self.steady_s)
        if extra <= 0 and saved >= 0:
            return 0
        return 1 + math.ceil(extra / saved) if saved > 0 else None

    def at(self, factor: float) -> Line:
        """The same with a steady latency `factor` times as long."""
        return Line(self.label, self.setup_s, self.steady_s * factor)

    def exact_total_s(self, calls: int) -> Fraction:
        return Fraction(self.setup_s) + (calls - 1) * Fraction(self.steady_s)


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
    """A stretch of the lower envelope: `line` is the cheapest from call number `first_call` on."""

    line: Line
    first_call: int
    crossing: BreakEven | None  # against the one before it; None for the first


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
    overhead_s: float  # of building and the first call, beyond the baseline's
    steady: Ratio
    total_speedup: float  # the baseline's total / the cell's
    total_speedup_ci95: Interval | None  # from the steady latencies' interval alone
    total_speedup_believed: Interval | None  # from as much of it as a winner may be named by
    break_even: BreakEven

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
        for line, first_call in envelope(lines, HORIZON[-1]):
            crossing = self.break_even(line.label, legs[-1].line.label, start) if legs else None
            legs.append(Leg(line, first_call, crossing))
        return legs

    def cheapest(self, calls: int, start: Start, among: Collection[str]) -> Cheapest | None:
        """Who costs least over `calls` calls, of those labels `among` that have a line; None where none has."""
        lines = [line for line in self.lines(start) if line.label in among]
        if not lines:
            return None
        best = _cheapest_at(calls, lines)
        others = sorted((line for line in lines if line is not best), key=lambda line: line.total_s(calls))
        within = best.total_s(calls) * (1 + TIE_MARGIN)
        rivals = [line for line in others if self._at_its_fastest(line, best).total_s(calls) < within]
        return Cheapest(calls, best, rivals)

    def outcome(self, label: str, baseline: str, calls: int, start: Start) -> Outcome | None:
        """`label` against `baseline` over `calls` calls; None where one has no line, or they are the same."""
        lines = self._lines[start]
        crossing = self.break_even(label, baseline, start)
        if crossing is None:
            return None
        ours, theirs, steady = lines[label], lines[baseline], self.steady(label, baseline)
        baseline_s = theirs.total_s(calls)
        total_speedup = baseline_s / ours.total_s(calls)

        def total_of(ratio: Ratio) -> Interval | None:
            ends = _ends(ours, ratio)
            return ends and Interval(low=baseline_s / ends[0].total_s(calls), high=baseline_s / ends[1].total_s(calls))

        is_wide = max(total_speedup, 1 / total_speedup) >= 1 + NARROW_LEAD
        return Outcome(
            label=label,
            baseline=baseline,
            calls=calls,
            overhead_s=ours.setup_s - theirs.setup_s,
            steady=steady,
            total_speedup=total_speedup,
            total_speedup_ci95=total_of(steady),
            total_speedup_believed=total_of(_believed(steady, WIDE_LEAD_CONFIDENCE if is_wide else CALL_CONFIDENCE)),
            break_even=crossing,
        )

    def _at_its_fastest(self, line: Line, against: Line) -> Line:
        """`line` at the end of the interval that favours it; with no interval nothing is known but its setup."""
        ends = _ends(line, _believed(self.steady(line.label, against.label), WIDE_LEAD_CONFIDENCE))
        return ends[1] if ends else line.at(0.0)


def break_even(ours: Line, theirs: Line, steady: Ratio) -> BreakEven:
    """From which call on `ours` has paid against `theirs`.

    `steady` is how many times faster a steady call of `ours` is, and gives the interval. Established only if a
    verdict would call one of the two faster by that ratio, and both ends of its interval agree on whether it ever pays.
    """
    calls = ours.break_even(theirs)
    ends = _ends(ours, steady)
    if ends is None:
        return BreakEven(calls, None, None, is_established=False)
    slowest, fastest = (end.break_even(theirs) for end in ends)
    agree = (slowest is None) == (calls is None) == (fastest is None)
    differ = relation(steady) in (Relation.FASTER, Relation.SLOWER)
    return BreakEven(calls, fastest, slowest, is_established=differ and agree)


def envelope(lines: Sequence[Line], last_call: int) -> list[tuple[Line, int]]:
    """The lower envelope of `lines` over 1 to `last_call` calls: who is cheapest, and from which call on.

    Exact: it goes from crossing to crossing. Of equal totals, the line with the shorter steady latency is taken.
    """
    found: list[tuple[Line, int]] = []
    first_call: int | None = 1 if lines else None
    while first_call is not None and first_call <= last_call:
        current = _cheapest_at(first_call, lines)
        found.append((current, first_call))
        flatter = [line for line in lines if line.steady_s < current.steady_s]
        first_call = min((calls for line in flatter if (calls := line.break_even(current))), default=None)
    return found


def line_of(record: Record, start: Start) -> Line | None:
    """The cell's line, or None where it has no latency, or no start of this kind whose first call was timed."""
    warm = record.warm_start
    setup_s = _setup_s(record.phases if start == "cold" else warm.phases if warm else [])
    if setup_s is None or record.latency is None:
        return None
    steady_s = record.latency.median_ms / 1e3
    settling = record.settling if start == "cold" else warm.settling if warm else None
    # the line is exact from the call on from which nothing was chosen any more; for fewer calls it is too high
    searching_s = max(0.0, settling.seconds - settling.calls * steady_s) if settling else 0.0
    return Line(record.cell.label, setup_s + searching_s, steady_s)


def _lines(records: Iterable[Record], start: Start) -> dict[str, Line]:
    return {line.label: line for record in records if (line := line_of(record, start))}


def _setup_s(phases: Sequence[Phase]) -> float | None:
    """All of them together, or None where the first call was not timed."""
    if not any(phase.name == "first_call" and phase.seconds for phase in phases):
        return None
    return sum(phase.seconds for phase in phases)


def _cheapest_at(calls: int, lines: Sequence[Line]) -> Line:
    return min(lines, key=lambda line: (line.exact_total_s(calls), line.steady_s))


def _ends(ours: Line, steady: Ratio) -> tuple[Line, Line] | None:
    """`ours` with the longest and the shortest steady latency that the ratio's interval leaves; None without one.

    They are laid around the cell's median: the paired ratio is free of drift, and says how wide the interval is. Where
    it cannot see what lies between processes, or between rounds, the margins that a verdict asks for are added.
    """
    if steady.ci95 is None:
        return None
    slack = 1 + _unseen(steady)
    return ours.at(slack * steady.value / steady.ci95.low), ours.at(steady.value / steady.ci95.high / slack)


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
