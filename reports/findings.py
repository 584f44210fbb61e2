"""What is seen in a figure, in words, and the little that has to be computed for it: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from judging.costs import Start
from judging.decision import Relation, relation
from judging.estimate import percentile
from judging.judgement import CellJudgement, ContestJudgement
from records.text import one_line
from reports import format
from reports.chart_data import cost_lines, ratio_over_baseline, samples_ms, until_first_call_s
from reports.cost_report import doubt_of

NAME_CHARACTERS = 36
"""Room for the longest name of ours, inductor/max-autotune-no-cudagraphs."""


def latency_over_all(contests: Sequence[ContestJudgement]) -> str:
    winners = Counter(contest.winner for contest in contests if contest.winner)
    won = [f"{short(label, NAME_CHARACTERS)} on {number}" for label, number in winners.most_common(3)]
    return f"Fastest: {', '.join(won)} of {len(contests)} contests" if won else "Latency: no contest has a winner"


def speedup_over_all(contests: Sequence[ContestJudgement]) -> str:
    bests = [ratio.value for contest in contests for ratio in map(ratio_over_baseline, contest.ranked[:1]) if ratio]
    if max(bests) <= 1:
        return "Nothing is faster than eager"
    return f"The best are {format.ratio(min(bests))}x to {format.ratio(max(bests))}x as fast as eager"


def latency(contest: ContestJudgement) -> str:
    best = contest.best
    model = short(contest.cell.model, NAME_CHARACTERS)
    if best is None:
        return f"nothing could be ranked on {model}"
    if contest.tied:
        return f"{listed(contest.tied)} {'are not decided' if contest.unstable else 'tie'} on {model}"
    ratio = best.speedup
    fastest = f"{name(best)} is fastest {'so far ' if contest.unstable else ''}on {model}"
    if ratio and best.label != contest.baseline:
        return f"{fastest}: {format.ratio(ratio.value)}x {contest.baseline}"
    if contest.lead:
        return f"{fastest}: {format.ratio(contest.lead.value)}x {short(contest.runner_up or '', 22)}"
    return f"only {name(best)} could be ranked on {model}"


def speedup(contest: ContestJudgement) -> str:
    faster = [
        row for row in contest.ranked if (ratio := ratio_over_baseline(row)) and relation(ratio) is Relation.FASTER
    ]
    others = [row for row in contest.ranked if row.label != contest.baseline]
    if not others:
        return "nothing to compare with eager"
    return f"{len(faster) or 'none'} of {len(others)} faster than eager"


def building(contest: ContestJudgement) -> str:
    best = contest.best
    ratio = ratio_over_baseline(best) if best else None
    if best is None or ratio is None or best.label == contest.baseline:
        return "no build pays: eager is the fastest"
    return f"{name(best)} is {format.ratio(ratio.value)}x for {format.seconds(best.record.build_s)} s of building"


def phases(contest: ContestJudgement) -> str:
    slowest = max(contest.cells, key=lambda row: until_first_call_s(row.record))
    taken_s = until_first_call_s(slowest.record)
    return f"{name(slowest)} takes longest: {format.seconds(taken_s)} s"


def samples(contest: ContestJudgement) -> str:
    calls_ms = {row.label: samples_ms(row.record) for row in contest.cells if row.record.bursts}
    for quantile, spelt in ((0.99, "p99"), (0.95, "p95"), (0.9, "p90")):
        tails = {label: percentile(values.tolist(), quantile) for label, values in calls_ms.items()}
        spreads = {label: tail / float(np.median(calls_ms[label])) for label, tail in tails.items() if tail}
        if spreads:
            label = max(spreads, key=lambda label: spreads[label])
            return f"{short(label, NAME_CHARACTERS)} varies most: {spelt} {spreads[label]:.2f}x median"
    return "few calls: too short a sample to speak of its tail"


def costs(contest: ContestJudgement, start: Start) -> str:
    first, *others = contest.costs.legs(start, contest.contenders)
    cheapest, doubt = short(first.line.label, NAME_CHARACTERS), doubt_of(first)
    if not others:
        return f"{cheapest} costs least, however many calls{doubt}"
    last = short(others[-1].line.label, NAME_CHARACTERS)
    in_the_end = f"{last} from call {others[-1].first_call:,} on{doubt_of(others[-1])}"
    return f"{cheapest} costs least up to call {others[0].first_call - 1:,}{doubt}, {in_the_end}"


def pareto(contest: ContestJudgement) -> str:
    labels = contest.front.labels
    return f"nothing dominates {listed(labels)}" if labels else "each is dominated by another"


def has_latency(contest: ContestJudgement) -> bool:
    return any(row.record.latency for row in contest.cells)


def has_ratio(contest: ContestJudgement) -> bool:
    return any(ratio_over_baseline(row) for row in contest.ranked if row.label != contest.baseline)


def has_costs(contest: ContestJudgement, start: Start) -> bool:
    """Whether there are two to compare."""
    return bool(contest.costs.legs(start, contest.contenders)) and len(cost_lines(contest, start)) > 1


def has_front(contest: ContestJudgement) -> bool:
    return len(contest.ranked) > 1


def has_phases(contest: ContestJudgement) -> bool:
    return any(row.record.phases for row in contest.cells)


def has_samples(contest: ContestJudgement) -> bool:
    return any(burst.samples_ns for row in contest.cells for burst in row.record.bursts)


def name(row: CellJudgement) -> str:
    return short(row.label, NAME_CHARACTERS)


def short(text: str, limit: int) -> str:
    return one_line(text, limit)


def listed(labels: Sequence[str]) -> str:
    names = [short(label, NAME_CHARACTERS) for label in labels]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
