"""What a deployment costs over its life, as one table and sentences. Every output prints them unescaped."""

from collections.abc import Sequence
from typing import Any

from bakeoff.judging.costs import HORIZON, STARTS, TIMED_ONCE_MARGIN, Leg, Start
from bakeoff.judging.judgement import ContestJudgement
from bakeoff.records.text import first, listed
from bakeoff.reports import number_format
from bakeoff.reports import sentences as report_sentences
from bakeoff.reports.blocks import Items, Look, Section, Surface, Text
from bakeoff.reports.number_format import NONE, NOT_ESTABLISHED
from bakeoff.reports.tables import Table, text_table

_WITHIN = f"{TIMED_ONCE_MARGIN:.0%}".replace("%", " %")

NOTE = (
    "The first call is one of the calls counted. Building and the first call were timed once in a process, and the "
    "median warm start is shown; intervals are those of the steady latencies alone. Who wins or costs least over so "
    f"many calls is named alone only if that holds even had they been {_WITHIN} longer for it and as much shorter for "
    "the other, or as far off as the warm starts of its processes were."
)


def sections(contest: ContestJudgement) -> list[Section]:
    starts = [start for start in STARTS if contest.costs.legs(start, contest.contenders)]
    note = Text(NOTE, Look.SOFT, on=Surface.MARKDOWN | Surface.PAGE)
    blocks = [note, Items(_sentences(contest, starts), bullet="= "), _table(contest, starts)] if starts else []
    return [Section("What a deployment costs over its life", blocks, level=3, is_folded=not contest.calls)]


def _sentences(contest: ContestJudgement, starts: Sequence[Start]) -> list[str]:
    sentences = [_who_is_cheapest(contest, start) for start in starts]
    front, contenders = contest.front, contest.contenders
    if len(contenders) > 1 and (front.left_out or not set(contenders) <= set(front.labels)):  # or else it is void
        best = listed(front.labels) or "none of them"
        gap = f" Not every configuration has a value of {listed(front.left_out)}: left out." if front.left_out else ""
        sentences.append(f"Nothing dominates {best} in {listed(front.aims)}.{gap}")
    left_out = [
        f"{cell.label} ({'; '.join(doubt.unmet for doubt in cell.unmet) or report_sentences.ending(cell)})"
        for cell in contest.unranked
        if cell.unmet or cell.beyond
    ]
    if left_out:
        sentences.append(f"Left out here, because they may not win: {', '.join(left_out)}.")
    sources = {row.record.energy.source for row in contest.cells if row.record.energy}
    return [*sentences, *(f"Energy is that of {source}, beyond what it takes idle." for source in sorted(sources))]


def doubt_of(leg: Leg) -> str:
    """Return ` (or eager: not established)` if others may cost as little on that leg, or if its own crossing is not
    established, and nothing otherwise."""
    if leg.crossing and not leg.crossing.is_established:
        return f" ({NOT_ESTABLISHED})"
    rivals = [line.label for line in leg.rivals]
    return f" (or {listed(first(rivals), 'or')}: {NOT_ESTABLISHED})" if rivals else ""


def _table(contest: ContestJudgement, starts: Sequence[Start]) -> Table[Any]:
    """Return a row for each number of calls, and a column for each cell that ever costs least, and for a baseline that
    may win."""
    lines = {start: {line.label: line for line in contest.costs.lines(start)} for start in starts}
    horizon = sorted({*HORIZON, *([contest.calls] if contest.calls else [])})
    best = {
        (start, calls): set(answer.candidates)
        for start in starts
        for calls in horizon
        if (answer := contest.costs.answer(calls, start, contest.contenders))
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

    return text_table(
        ["calls", *labels],
        [[number_format.count(calls), *(total(calls, label) for label in labels)] for calls in horizon],
        "l" + "r" * len(labels),
        f"What calls take in s, building and first call included, from a {' and a '.join(starts)} start "
        "(* costs least, or may)",
    )


def _who_is_cheapest(contest: ContestJudgement, start: Start) -> str:
    legs = contest.costs.legs(start, contest.contenders)
    first, *others = legs
    timed = {line.label for line in contest.costs.lines(start)}
    untimed = [label for label in contest.contenders if label not in timed]
    left_out = f" No {start} start of {listed(untimed)} was timed." if untimed else ""
    if not others:
        many = f"however many calls (up to {HORIZON[-1]:,})"
        return f"From a {start} start {first.line.label} costs least, {many}{doubt_of(first)}.{left_out}"
    last_call = others[0].first_call - 1
    until = "for a single call" if last_call == 1 else f"up to call {last_call:,}"
    further = []
    for leg in others:
        is_known = leg.crossing is not None and leg.crossing.is_established
        call = number_format.break_even_with_interval(leg.crossing) if is_known else f"{leg.first_call:,}"
        further.append(f"{leg.line.label} from {'' if is_known else 'about '}call {call} on{doubt_of(leg)}")
    begin = f"From a {start} start {first.line.label} costs least {until}{doubt_of(first)}"
    return f"{begin}, then {', then '.join(further)}.{left_out}"
