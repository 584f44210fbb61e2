"""What is seen in each chart, as one sentence for each: pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from judging.contest import ContestJudgement
from judging.costs import Start
from judging.decision import Relation, relation
from judging.samples import Turn
from judging.sweeps import Sweep
from records.text import one_line
from reports import format
from reports.cost_report import doubt_of

NAME_CHARACTERS = 36
"""Room for the longest name of ours, inductor/max-autotune-no-cudagraphs."""


def headlines(contests: Sequence[ContestJudgement], sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Return what stands above several charts of one kind, by the name of the chart."""
    over = f"Over {format.first_names(list(dict.fromkeys(sweep.dimension for sweep in sweeps)), shown=3)}"
    return {
        "latency": _latency_over_all(contests),
        "speedup": _speedup_over_all(contests),
        "build-vs-speedup": "What building costs, and what it buys",
        "pareto": "What nothing dominates",
        "costs": "What calls cost from a cold start, building included",
        "costs-warm": "What calls cost from a warm start, building included",
        "phases": "Where the time goes until the first answer",
        "samples": "How the latencies of single calls are distributed",
        "sweep-latency": f"{over}: median latency",
        "sweep-speedup": f"{over}: speed-up over eager",
        "sweep-seq": "Compiled attention over eager, forward and backward",
        "sweep-size": "Compiled language models over eager",
    }


def latency(contest: ContestJudgement) -> str:
    best = contest.best
    model = _short(contest.cell.model)
    if best is None:
        return f"nothing could be ranked on {model}"
    if contest.tied:
        return f"{_listed(contest.tied)} {'are not decided' if contest.unstable else 'tie'} on {model}"
    ratio = best.speedup
    fastest = f"{_short(best.label)} is fastest {'so far ' if contest.unstable else ''}on {model}"
    if ratio and best.label != contest.baseline:
        return f"{fastest}: {format.ratio(ratio.value)}x {contest.baseline}"
    if contest.lead:
        return f"{fastest}: {format.ratio(contest.lead.value)}x {one_line(contest.runner_up or '', 22)}"
    return f"only {_short(best.label)} could be ranked on {model}"


def speedup(contest: ContestJudgement) -> str:
    baseline = contest.baseline
    others = [cell for cell in contest.ranked if cell.label != baseline]
    faster = [cell for cell in others if (ratio := cell.speedup) and relation(ratio) is Relation.FASTER]
    if not others:
        return f"nothing to compare with {baseline}"
    return f"{len(faster) or 'none'} of {len(others)} faster than {baseline}"


def building(contest: ContestJudgement) -> str:
    best = contest.best
    ratio = best.speedup if best else None
    if best is None or ratio is None or ratio.value <= 1:
        return f"no build pays: nothing is faster than {contest.baseline}"
    return (
        f"{_short(best.label)} is {format.ratio(ratio.value)}x for {format.seconds(best.record.build_s)} s of building"
    )


def phases(contest: ContestJudgement) -> str:
    totals_s = {
        cell.label: sum(phase.seconds for phase in cell.record.phases_until_first_answer) for cell in contest.cells
    }
    slowest = max(totals_s, key=lambda label: totals_s[label])
    return f"{_short(slowest)} takes longest: {format.seconds(totals_s[slowest])} s"


def samples(contest: ContestJudgement) -> str:
    tail = contest.longest_tail
    if tail is None:
        return "few calls: too short a sample to speak of its tail"
    return f"{_short(tail.label)} varies most: {tail.percentile} {tail.over_median:.2f}x median"


def drift(turns: Mapping[str, Sequence[Sequence[Turn]]]) -> str:
    """Name the cell with processes, or else rounds, that are furthest apart."""
    spreads = {}
    for label, processes in turns.items():
        if len(processes) > 1:
            medians = [1 + float(np.median([turn.deviation for turn in process])) for process in processes]
            spreads[label] = max(medians) / min(medians) - 1
    if spreads:
        label = max(spreads, key=lambda label: spreads[label])
        return f"{_short(label)}'s processes differ most, by {format.percent(spreads[label])} %"
    widths = {
        label: float(np.ptp([turn.deviation for process in processes for turn in process]))
        for label, processes in turns.items()
    }
    label = max(widths, key=lambda label: widths[label])
    return f"{_short(label)} moved most over the rounds, within {format.percent(widths[label])} %"


def roofline(contest: ContestJudgement) -> str:
    shares = {cell.label: cell.record.roofline.share for cell in contest.ranked if cell.record.roofline}
    known = {label: share for label, share in shares.items() if share}
    if not known:
        return "no cell can be held against the floor"
    best = max(known, key=lambda label: known[label])
    return f"{_short(best)} comes nearest to the floor: {format.percent(known[best])} % of its speed"


def costs(contest: ContestJudgement, start: Start) -> str:
    first, *others = contest.costs.legs(start, contest.contenders)
    cheapest, doubt = _short(first.line.label), doubt_of(first)
    if not others:
        return f"{cheapest} costs least, however many calls{doubt}"
    in_the_end = f"{_short(others[-1].line.label)} from call {others[-1].first_call:,} on{doubt_of(others[-1])}"
    return f"{cheapest} costs least up to call {others[0].first_call - 1:,}{doubt}, {in_the_end}"


def cheapest(contest: ContestJudgement, start: Start, calls: int) -> str:
    """Name the cell that costs least over so many calls, and those that it cannot be told from."""
    found = contest.costs.cheapest(calls, start, contest.contenders)
    number = f"{calls:,} call{'s' if calls > 1 else ''} from a {start} start"
    if found is None:
        return f"{number}: nobody can be ranked"
    least = f"{found.line.label} costs least, {format.seconds(found.line.total_s(calls))} s"
    rivals = format.first_names([line.label for line in found.rivals], shown=3)
    return f"{number}: {least}{f' (or {rivals}: not established)' if rivals else ''}"


def pareto(contest: ContestJudgement) -> str:
    labels = contest.front.labels
    return f"nothing dominates {_listed(labels)}" if labels else "each is dominated by another"


def history(medians_ms: Mapping[str, Sequence[float]]) -> str:
    """Name the cell that moved most from its first run to its last."""
    moves = {label: found[-1] / found[0] for label, found in medians_ms.items() if len(found) > 1 and min(found) > 0}
    if not moves:
        return "One run"
    label = max(moves, key=lambda label: abs(math.log(moves[label])))
    return f"{_short(label)} moved most, to {format.ratio(moves[label])}x its first latency"


def has_ratio(contest: ContestJudgement) -> bool:
    """Return True if something besides the baseline has a ratio over it."""
    return any(cell.speedup for cell in contest.ranked if cell.label != contest.baseline)


def _latency_over_all(contests: Sequence[ContestJudgement]) -> str:
    winners = Counter(contest.winner for contest in contests if contest.winner)
    won = [f"{_short(label)} on {number}" for label, number in winners.most_common(3)]
    return f"Fastest: {', '.join(won)} of {len(contests)} contests" if won else "Latency: no contest has a winner"


def _speedup_over_all(contests: Sequence[ContestJudgement]) -> str:
    bests = [ratio.value for contest in contests if contest.best and (ratio := contest.best.speedup)]
    if not bests or max(bests) <= 1:
        return "Nothing is faster than eager"
    return f"The best are {format.ratio(min(bests))}x to {format.ratio(max(bests))}x as fast as eager"


def _short(label: str) -> str:
    return one_line(label, NAME_CHARACTERS)


def _listed(labels: Sequence[str]) -> str:
    names = list(map(_short, labels))
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
