"""What a deployment costs over its life, in tables and sentences. Every output prints them; none is escaped yet."""

from __future__ import annotations

from collections.abc import Sequence

from bakeoff.judging.costs import HORIZON, STARTS, TIMED_ONCE_MARGIN, BreakEven, Leg, Line, Outcome, Start
from bakeoff.judging.judgement import ContestJudgement
from bakeoff.reports import number_format
from bakeoff.reports.columns import columns_of
from bakeoff.reports.number_format import NONE, NOT_ESTABLISHED
from bakeoff.reports.tables import Surface, Table, shown_in

WARM_UP_CALLS = 5
"""The first calls that count as warm-up, together with building. The other calls are steady."""

_WITHIN = f"{TIMED_ONCE_MARGIN:.0%}".replace("%", " %")

NOTE = (
    "The first call is one of the calls counted. Building and the first call were timed once for each start; intervals "
    "are those of the steady latencies alone. Who wins or costs least over so many calls is named alone only if that "
    f"holds even had they been {_WITHIN} longer for it and as much shorter for the other."
)


def tables(contest: ContestJudgement) -> list[Table]:
    """Return the tables that have something to show, in the order of reading."""
    if not _starts(contest):
        return []
    outcomes = [_spent_table(contest, contest.calls)] if contest.calls else []
    outcomes += [_outcomes(contest, contest.calls)] if contest.calls and contest.baseline else []
    tables = [_totals_table(contest), *outcomes, _start_table(contest)]
    return [table for table in tables if table.rows]


def sentences(contest: ContestJudgement) -> list[str]:
    """Say which cell is the cheapest from which call on, what nothing dominates, and what energy was counted."""
    sentences = [_who_is_cheapest(contest, start) for start in _starts(contest)]
    if len(contest.contenders) > 1:
        sentences.append(_what_nothing_dominates(contest))
    sources = {row.record.energy.source for row in contest.cells if row.record.energy}
    return [*sentences, *(f"Energy is that of {source}, beyond what it takes idle." for source in sorted(sources))]


def plain_verdicts(contest: ContestJudgement) -> list[str]:
    """Return a sentence for each cell and start over the number of calls that the user asked for, if any."""
    plain_verdicts = []
    for start, outcome in _each_outcome(contest, contest.calls or 0):
        lines = {line.label: line for line in contest.costs.lines(start)}
        spent = ", ".join(
            f"{label} {_spent(lines[label], outcome.calls)}" for label in (outcome.label, outcome.baseline)
        )
        over = f"{outcome.label} over {_number_of_calls(outcome.calls)} from a {start} start"
        plain_verdicts.append(f"{over}: {outcome_sentence(outcome)}; {spent}")
    return plain_verdicts


def doubt_of(leg: Leg) -> str:
    """Return ` (or eager: not established)` if others may cost as little on that leg, or nothing.

    If its own crossing is not established, that alone is said.
    """
    if leg.crossing and not leg.crossing.is_established:
        return f" ({NOT_ESTABLISHED})"
    rivals = [line.label for line in leg.rivals]
    return f" (or {number_format.first_names(rivals, shown=3)}: {NOT_ESTABLISHED})" if rivals else ""


def outcome_sentence(outcome: Outcome) -> str:
    """Return a text such as `onnx wins, 1.63x overall, 2.26x steady; pays from call 15 on`."""
    speeds = (
        f"{number_format.ratio(outcome.total_speedup)}x overall, {number_format.ratio(outcome.steady.value)}x steady"
    )
    pays = _when_it_pays(outcome.break_even)
    if outcome.winner == outcome.label:
        return f"{outcome.label} wins, {speeds}; {pays}"
    if outcome.winner == outcome.baseline:
        return f"{outcome.baseline} wins, {outcome.label} is {speeds}; {pays}"
    by_chance = outcome.break_even.is_established and outcome.break_even.calls == 0
    return f"neither wins, {outcome.label} is {speeds}; {pays}{' by what was timed once' if by_chance else ''}"


def _start_table(contest: ContestJudgement) -> Table:
    rows = [row for row in contest.cells if row.record.latency and row.record.phases]
    name, *columns = shown_in(Surface.STARTS, columns_of([contest]), rows)
    return Table(
        title="Cold and warm start" if "warm" in _starts(contest) else "Cold start",
        text_columns=[name.heading],
        number_columns=[f"{column.heading} ({column.unit})" for column in columns],
        rows=[[name.text_of(row), *(column.text_of(row) for column in columns)] for row in rows],
        is_folded=True,
    )


def _totals_table(contest: ContestJudgement) -> Table:
    """Return the one table of costs: a row for each number of calls, a column for each cell that ever costs least.

    The baseline has a column, too, if it may win.
    """
    starts = _starts(contest)
    lines = {start: {line.label: line for line in contest.costs.lines(start)} for start in starts}
    horizon = sorted({*HORIZON, *([contest.calls] if contest.calls else [])})
    best = {
        (start, calls): {line.label for line in (found.line, *found.rivals)}
        for start in starts
        for calls in horizon
        if (found := contest.costs.cheapest(calls, start, contest.contenders))
    }
    shown = {contest.baseline, *(label for labels in best.values() for label in labels)}
    labels = [label for label in contest.contenders if label in shown]

    def total(calls: int, label: str) -> str:
        """Return `0.010*, 0.0010*`, for each start in which the cell was measured."""
        return ", ".join(
            number_format.seconds(lines[start][label].total_s(calls)) + "*" * (label in best[start, calls])
            if label in lines[start]
            else NONE
            for start in starts
        )

    return Table(
        title=f"What calls take in s, building and first call included, from a {' and a '.join(starts)} start "
        "(* costs least, or may)",
        text_columns=["calls"],
        number_columns=labels,
        rows=[[number_format.count(calls), *(total(calls, label) for label in labels)] for calls in horizon],
        is_folded=True,
    )


def _outcomes(contest: ContestJudgement, calls: int) -> Table:
    rows = [
        [outcome.label, start, outcome_sentence(outcome), *_outcome_numbers(outcome)]
        for start, outcome in _each_outcome(contest, calls)
    ]
    return Table(
        title=f"Over {_number_of_calls(calls)}, against {contest.baseline}",
        text_columns=["backend", "start", "verdict"],
        number_columns=["warm-up overhead (s)", "steady speed-up [95 %]", "total speed-up"],
        rows=rows,
    )


def _spent_table(contest: ContestJudgement, calls: int) -> Table:
    """Return a table of where the time goes; it has no rows if there is nothing to compare."""
    starts = _starts(contest) if _each_outcome(contest, calls) else []
    lines = [(start, line) for start in starts for line in contest.costs.lines(start)]
    rows = []
    for start, line in lines:
        pays = contest.costs.break_even(line.label, contest.baseline, start) if contest.baseline else None
        parts = map(number_format.seconds, _parts_s(line, calls))
        rows.append([line.label, start, *parts, number_format.break_even_with_interval(pays)])
    return Table(
        title=f"What {_number_of_calls(calls)} take, {min(calls, WARM_UP_CALLS)} of them warm-up",
        text_columns=["backend", "start"],
        number_columns=["warm-up, building included (s)", "steady (s)", "total (s)", "break-even (calls)"],
        rows=rows,
    )


def _parts_s(line: Line, calls: int) -> tuple[float, float, float]:
    """Return the seconds of warm-up, of steady calls, and in total."""
    warm_up_s, total_s = line.total_s(min(calls, WARM_UP_CALLS)), line.total_s(calls)
    return warm_up_s, total_s - warm_up_s, total_s


def _spent(line: Line, calls: int) -> str:
    """Return a text such as `1.9 s (1.8 warm-up, 0.1 steady)`."""
    warm_up, steady, total = map(number_format.seconds, _parts_s(line, calls))
    return f"{total} s ({warm_up} warm-up, {steady} steady)"


def _each_outcome(contest: ContestJudgement, calls: int) -> list[tuple[Start, Outcome]]:
    baseline = contest.baseline
    if not calls or baseline is None:
        return []
    others = [label for label in contest.contenders if label != baseline]
    found = [(start, contest.costs.outcome(label, baseline, calls, start)) for label in others for start in STARTS]
    return [(start, outcome) for start, outcome in found if outcome]


def _outcome_numbers(outcome: Outcome) -> list[str]:
    steady = outcome.steady
    return [
        _signed_seconds(outcome.overhead_s),
        f"{number_format.ratio(steady.value)}x {number_format.ratio_interval(steady.ci95)}".rstrip(),
        f"{number_format.ratio(outcome.total_speedup)}x",
    ]


def _signed_seconds(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{number_format.seconds(abs(value_s))}"


def _who_is_cheapest(contest: ContestJudgement, start: Start) -> str:
    legs = contest.costs.legs(start, contest.contenders)
    first, *others = legs
    if not others:
        many = f"however many calls (up to {HORIZON[-1]:,})"
        return f"From a {start} start {first.line.label} costs least, {many}{doubt_of(first)}."
    last_call = others[0].first_call - 1
    until = "for a single call" if last_call == 1 else f"up to call {last_call:,}"
    further = ", then ".join(f"{leg.line.label} {_from_when(leg)}{doubt_of(leg)}" for leg in others)
    return f"From a {start} start {first.line.label} costs least {until}{doubt_of(first)}, then {further}."


def _from_when(leg: Leg) -> str:
    if leg.crossing is None or not leg.crossing.is_established:
        return f"from about call {leg.first_call:,} on"
    return f"from call {number_format.break_even_with_interval(leg.crossing)} on"


def _what_nothing_dominates(contest: ContestJudgement) -> str:
    front = contest.front
    text = f"Nothing dominates {_listed(front.labels)} in {_listed(front.aims)}."
    if front.left_out:
        text += f" Not every configuration has a value of {_listed(front.left_out)}: left out."
    return text


def _when_it_pays(break_even: BreakEven) -> str:
    if not break_even.is_established:
        return f"when it pays is {NOT_ESTABLISHED}"
    if break_even.calls is None:
        return "never pays"
    return "ahead from the first call on" if break_even.calls == 0 else f"pays from call {break_even.calls:,} on"


def _number_of_calls(calls: int) -> str:
    return f"{calls:,} call{'s' if calls > 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _starts(contest: ContestJudgement) -> list[Start]:
    """Return the starts that a cell which may win was measured in."""
    return [start for start in STARTS if contest.costs.legs(start, contest.contenders)]
