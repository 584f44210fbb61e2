"""What is seen in each chart, as one sentence for each: pure functions.

A title claims only what the judgement has established. Who wins, ties or is undecided comes from there, and a count is
that of the marks in the chart.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import Relation, relation
from bakeoff.judging.samples import Deviation
from bakeoff.judging.suites import Suite
from bakeoff.judging.sweeps import Sweep
from bakeoff.records.schema import Report
from bakeoff.records.text import counted, first, listed, one_line
from bakeoff.reports import number_format
from bakeoff.reports.cost_report import doubt_of

NEAR = 1.1
"""The tau of the performance profile that a title and the table of backends name."""

NAME_CHARACTERS = 36
"""Room for the longest name of ours, inductor/max-autotune-no-cudagraphs."""


def so_far(text: str, *reports: Report) -> str:
    return text if all(report.complete for report in reports) else f"so far, {text}"


def headlines(contests: Sequence[ContestJudgement], sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Return what stands above several charts of one kind, by the name of the chart."""
    over = f"over {listed(first(list(dict.fromkeys(sweep.dimension for sweep in sweeps))))}"
    return {
        "load": "latency against the rate of requests",
        "latency": _latency_over_all(contests),
        "speedup": _speedup_over_all(contests),
        "precisions": "speed against what is lost",
        "pareto": "latency against build time",
        "costs": "what calls cost from a cold start, building included",
        "phases": "where the time goes until the first answer",
        "samples": "how the latencies of single calls are distributed",
        "profile": "how near each backend comes to the best, over all models",
        "map": "speed-up of each backend on each model",
        "sweep-latency": f"median latency {over}",
        "sweep-speedup": f"speed-up over eager {over}",
        "sweep-dynamic": f"what one build for all sizes costs {over}",
        "sweep-seq": "compiled attention over eager, forward and backward",
        "sweep-size": "compiled language models over eager",
        "starts": "from the start of a process to its first answer",
    }


def subjects(contests: Sequence[ContestJudgement]) -> dict[int, str]:
    """Return the title of each contest by its place. What distinguishes it from others of its model stands first."""
    facts = [_facts(contest) for contest in contests]
    subjects = {}
    for place, contest in enumerate(contests):
        peers = [facts[other] for other, peer in enumerate(contests) if peer.cell.model == contest.cell.model]
        apart = [fact for fact in facts[place] if not all(fact in peer for peer in peers)]
        subjects[place] = f"{', '.join(apart)}: {contest.title}" if apart else contest.title
    return subjects


def speedup(contest: ContestJudgement) -> str:
    others = [cell for cell in contest.ranked if cell.label != contest.baseline]
    faster = sum(is_faster(cell) for cell in others)
    above = sum(bool(cell.speedup and cell.speedup.ci95 and cell.speedup.ci95.low > 1) for cell in others)
    if not others:
        return f"nothing to compare with {contest.baseline}"
    perhaps = f", {above - faster} more perhaps" if above > faster else ""
    return f"{faster or 'none'} of {len(others)} faster than {contest.baseline}{perhaps}"


def is_faster(cell: CellJudgement) -> bool:
    return cell.speedup is not None and relation(cell.speedup) is Relation.FASTER


def phases(contest: ContestJudgement) -> str:
    answered = [cell for cell in contest.cells if cell.latency and cell.record.phases] or contest.cells
    totals_s = {cell.label: sum(phase.seconds for phase in cell.record.phases_until_first_answer) for cell in answered}
    slowest = max(totals_s, key=lambda label: totals_s[label])
    return f"{_short(slowest)} takes longest: {number_format.seconds(totals_s[slowest])} s"


def samples(contest: ContestJudgement) -> str:
    spreads = {
        label: hill.high_ms / hill.low_ms
        for label, hill in contest.distributions.by_label.items()
        if hill.high_ms > hill.low_ms > 0
    }
    if not spreads:
        return "all calls of a cell took equally long"
    widest = max(spreads, key=lambda label: spreads[label])
    ends = contest.distributions.by_label[widest]
    return (
        f"{_short(widest)}'s calls spread most: {number_format.milliseconds(ends.low_ms)} to "
        f"{number_format.milliseconds(ends.high_ms)} ms"
    )


def drift(deviations: Mapping[str, Sequence[Sequence[Deviation]]]) -> str:
    spreads = {}
    for label, processes in deviations.items():
        if len(processes) > 1:
            medians = [1 + float(np.median([deviation.share for deviation in process])) for process in processes]
            spreads[label] = max(medians) / min(medians) - 1
    if spreads:
        label = max(spreads, key=lambda label: spreads[label])
        return f"{_short(label)}'s processes differ most, by {number_format.percent(spreads[label])} %"
    widths = {
        label: float(np.ptp([deviation.share for process in processes for deviation in process]))
        for label, processes in deviations.items()
    }
    label = max(widths, key=lambda label: widths[label])
    return f"{_short(label)} moved most over the rounds, within {number_format.percent(widths[label])} %"


def roofline(contest: ContestJudgement) -> str:
    best = contest.best
    share = best.record.roofline.share if best and best.record.roofline else None
    if best is None or not share:
        return "no ranked cell can be held against the floor"
    who = _short(contest.fastest.leader) if contest.fastest.leader else "the lowest latency"
    return f"{who} reaches {number_format.percent(share)} % of the floor's speed"


def costs(contest: ContestJudgement) -> str:
    first, *others = contest.costs.legs("cold", contest.contenders)
    cheapest, doubt = _short(first.line.label), doubt_of(first)
    if not others:
        return f"{cheapest} costs least, however many calls{doubt}"
    crossing = others[0].crossing
    until = f"up to call {others[0].first_call - 1:,}" if crossing and crossing.is_established else "at first"
    then = "in the end " if len(others) > 1 else ""
    in_the_end = f"{then}{_short(others[-1].line.label)} from call {others[-1].first_call:,} on{doubt_of(others[-1])}"
    return f"{cheapest} costs least {until}{doubt}, {in_the_end}"


def cheapest(contest: ContestJudgement, calls: int) -> str:
    answer = contest.costs.answer(calls, "cold", contest.contenders)
    number = f"{counted(calls, 'call')} from a cold start"
    if answer is None:
        return f"{number}: nobody can be ranked"
    best, *others = answer.candidates
    least = f"{best} costs least, {number_format.seconds(answer.value)} s"
    rivals = listed(first(others), "or")
    return f"{number}: {least}{f' (or {rivals}: not established)' if rivals else ''}"


def precisions(contest: ContestJudgement) -> str:
    more_is_better = contest.load.scenario.spec.is_rate if contest.load else contest.generation is not None
    best = sorted(contest.of_precisions, key=lambda judged: judged.value, reverse=more_is_better)
    return f"{', then '.join(judged.best.label for judged in best)}: the best of each precision"


def pareto(contest: ContestJudgement) -> str:
    """Say which ranked cells another one dominates, or which none does, whichever are fewer."""
    front = [cell.label for cell in contest.ranked if cell.label in contest.front.labels]
    dominated = [cell.label for cell in contest.ranked if cell.label not in front]
    if not dominated:
        return "each is better than any other one in something"
    if not front:
        return "each is dominated by another"
    if len(dominated) > len(front):
        return f"of {len(contest.ranked)}, only {_listed(front)} {_is(front)} not dominated"
    return f"of {len(contest.ranked)}, {_listed(dominated)} {_is(dominated)} dominated"


def sweep_speedup(sweep: Sweep) -> str:
    ends = [(sweep.sizes[place], sweep.contests[place]) for place in (0, -1)]
    return ", ".join(f"{_gain(contest)} at {sweep.dimension} {size:,.10g}" for size, contest in ends)


def profile(suite: Suite) -> str:
    shares = {row.label: row.profile.share(NEAR) for row in suite.rows}
    most = max(shares.values())
    best = [label for label, share in shares.items() if share == most]
    number = suite.rows[0].profile.contests
    near = f"within {number_format.percent(NEAR - 1)} % of the best"
    return f"{_listed(best)} {_is(best)} {near} on {round(most * number)} of {number}"


def speedup_map(suite: Suite) -> str:
    cells = [cell for contest in suite.contests for cell in contest.cells if cell.label != suite.baseline]
    ranked = [cell for cell in cells if cell.rank is not None]
    faster = sum(is_faster(cell) for cell in ranked)
    return f"{faster} of {len(ranked)} cells are faster than {suite.baseline}"


def history(medians_ms: Mapping[str, Sequence[float]]) -> str:
    moves = {label: runs[-1] / runs[0] for label, runs in medians_ms.items() if len(runs) > 1 and min(runs) > 0}
    if not moves:
        return "One run"
    label = max(moves, key=lambda label: abs(math.log(moves[label])))
    times = number_format.ratio(moves[label])
    return "no cell moved" if times == "1.00" else f"{_short(label)} moved most, to {times}x its first latency"


def has_ratio(contest: ContestJudgement) -> bool:
    return any(cell.speedup for cell in contest.ranked if cell.label != contest.baseline)


def _facts(contest: ContestJudgement) -> list[str]:
    cell = contest.cell
    sizes = [f"{name} {value}" for name, value in cell.dimensions.items()]
    seed = [f"seed {cell.seed}"] if cell.seed else []
    return [str(cell.device), cell.precisions, cell.task, *sizes, *seed, contest.run_id or ""]


def _gain(contest: ContestJudgement) -> str:
    best = contest.best
    if best and best.speedup and contest.fastest.winner and is_faster(best):
        return f"{_short(best.label)} {number_format.compared(best.speedup, contest.baseline or '')}"
    return "no winner over eager"


def _latency_over_all(contests: Sequence[ContestJudgement]) -> str:
    winners = Counter(contest.fastest.winner for contest in contests if contest.fastest.winner)
    won = [f"{_short(label)} on {number}" for label, number in winners.most_common(3)]
    return f"fastest: {', '.join(won)} of {len(contests)} contests" if won else "latency: no contest has a sure winner"


def _speedup_over_all(contests: Sequence[ContestJudgement]) -> str:
    decided = [contest.cells[0] for contest in contests if contest.fastest.winner]
    gains = [cell.speedup.value for cell in decided if cell.speedup and is_faster(cell)]
    if not gains:
        return "speed-up: no contest has a sure winner over eager"
    reach = " to ".join(dict.fromkeys(f"{number_format.ratio(gain)}x" for gain in (min(gains), max(gains))))
    return f"the winner is faster than eager in {len(gains)} of {len(contests)} contests, {reach}"


def _short(label: str) -> str:
    return one_line(label, NAME_CHARACTERS)


def _is(labels: Sequence[str]) -> str:
    return "is" if len(labels) == 1 else "are"


def _listed(labels: Sequence[str]) -> str:
    return listed(first(list(map(_short, labels)), 2))
