"""Puts the two contests of a language model together: what a whole generation takes, from the prompt to its last token.

The prefill answers the prompt and gives the first token, and each further token is a decode step. A generation so takes
the one latency once, and the other once for each further token. How many times faster one backend is than another
follows from the two ratios, weighted by the share of the time that each part takes. Their intervals are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bakeoff.judging.contest import CellJudgement, ContestJudgement, GeneratingCell, Generation
from bakeoff.judging.decision import Relation, relation
from bakeoff.records.schema import DECODE, PREFILL, Interval, Ratio, Record


def with_generations(contests: Sequence[ContestJudgement]) -> list[ContestJudgement]:
    """Return the contests. Those of decode steps know the whole generation, if there is the contest of the prefill."""
    prefills = {_key(contest): contest for contest in contests if contest.cell.task == PREFILL}
    decodes = [contest for contest in contests if contest.cell.task == DECODE]
    return [
        replace(contest, generation=generation_of(prefills[_key(contest)], contest, _peak_bytes(contest, decodes)))
        if contest.cell.task == DECODE and _key(contest) in prefills
        else contest
        for contest in contests
    ]


def generation_of(
    prefill: ContestJudgement, decode: ContestJudgement, peak_bytes: Mapping[int, Mapping[str, int]]
) -> Generation:
    """Judge the cells that are ranked in both contests."""
    sizes = {name: int(decode.cell.dimensions[name]) for name in ("prompt", "new_tokens", "batch")}
    further = sizes["new_tokens"] - 1
    firsts = {cell.label: cell for cell in prefill.ranked}
    pairs = [(firsts[cell.label], cell) for cell in decode.ranked if cell.label in firsts]
    totals = {step.label: _ms(first) + further * _ms(step) for first, step in pairs}
    pairs.sort(key=lambda pair: totals[pair[1].label])
    baseline = decode.baseline if decode.baseline in totals else None

    def ratio(fast: str, slow: str) -> Ratio:
        share = _ms(firsts[fast]) / totals[fast]
        return combined(prefill.fit.ratio(fast, slow), decode.fit.ratio(fast, slow), share)

    tied = [step.label for _, step in pairs]
    for place, label in enumerate(tied[1:], start=1):
        if relation(ratio(tied[0], label)) is Relation.FASTER:
            tied = tied[:place]
            break
    cells = []
    for place, (first, step) in enumerate(pairs, start=1):
        label = step.label
        speedup = ratio(label, baseline) if baseline else None
        cells.append(
            GeneratingCell(
                prefill=first,
                decode=step,
                total_ms=totals[label],
                tokens_per_s=sizes["batch"] * 1e3 / _ms(step),
                rank=1 if label in tied else place,
                speedup=speedup,
                pays_after_tokens=_pays_after(first, step, firsts, decode, totals, speedup, sizes),
            )
        )
    return Generation(
        sizes["prompt"], sizes["new_tokens"], sizes["batch"], tuple(cells), baseline, peak_bytes=peak_bytes
    )


def combined(first: Ratio, further: Ratio, share: float) -> Ratio:
    """Return the ratio of two sums of which the faster one's first part has this share."""
    value = share * first.value + (1 - share) * further.value
    interval = None
    if first.ci95 and further.ci95:
        below = math.hypot(share * (first.value - first.ci95.low), (1 - share) * (further.value - further.ci95.low))
        above = math.hypot(share * (first.ci95.high - first.value), (1 - share) * (further.ci95.high - further.value))
        interval = Interval(low=max(value - below, 1e-9), high=value + above)
    return Ratio(
        value=value,
        ci95=interval,
        paired=first.paired and further.paired,
        processes=min(first.processes, further.processes),
    )


def _pays_after(
    first: CellJudgement,
    step: CellJudgement,
    firsts: Mapping[str, CellJudgement],
    decode: ContestJudgement,
    totals: Mapping[str, float],
    speedup: Ratio | None,
    sizes: Mapping[str, int],
) -> int | None:
    """Return after how many tokens of whole generations building has paid, or None where that is not established."""
    if speedup is None or decode.baseline is None or step.is_baseline or relation(speedup) is not Relation.FASTER:
        return None
    base = next(cell for cell in decode.cells if cell.label == decode.baseline)
    behind_s = _setup_s(first) + _setup_s(step) - _setup_s(firsts[decode.baseline]) - _setup_s(base)
    gained_s = (totals[decode.baseline] - totals[step.label]) / 1e3
    generations = math.ceil(max(behind_s, 0.0) / gained_s)
    return generations * sizes["new_tokens"] * sizes["batch"]


def _setup_s(cell: CellJudgement) -> float:
    """Return the seconds until the first answer."""
    return cell.record.build_s + (cell.record.first_call_s or 0.0)


def _peak_bytes(contest: ContestJudgement, decodes: Sequence[ContestJudgement]) -> dict[int, dict[str, int]]:
    """Return the peak memory of each cell, for every context of the same model that was decoded."""
    peak_bytes: dict[int, dict[str, int]] = {}
    for decode in decodes:
        if _key(decode, without_context=True) == _key(contest, without_context=True):
            context = int(decode.cell.dimensions["prompt"]) + int(decode.cell.dimensions["new_tokens"])
            known = {cell.label: peak for cell in decode.ranked if (peak := _peak_of(cell.record)) is not None}
            peak_bytes.setdefault(context, {}).update(known)
    return dict(sorted(peak_bytes.items()))


def _peak_of(record: Record) -> int | None:
    memory = record.memory
    if memory is None:
        return None
    return memory.peak_resident_bytes if memory.peak_device_bytes is None else memory.peak_device_bytes


def _ms(cell: CellJudgement) -> float:
    assert cell.latency is not None, "a ranked cell has a latency"
    return cell.latency.median_ms


def _key(contest: ContestJudgement, without_context: bool = False) -> tuple[object, ...]:
    """Return what both contests of a generation have in common."""
    cell, left_out = contest.cell, ("prompt", "new_tokens") if without_context else ()
    sizes = tuple(sorted((name, value) for name, value in cell.dimensions.items() if name not in left_out))
    return (cell.model, sizes, cell.device, cell.precisions, cell.seed, contest.run_id)
