"""Puts the two contests of a language model together: what a whole generation takes, from the prompt to its last token.

The prefill answers the prompt and gives the first token, and each further token is a decode step. A generation so takes
the one latency once, and the other once for each further token. How many times faster one backend is than another
follows from the two ratios, weighted by the share of the time that each part takes. Their intervals are independent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bakeoff.judging.contest import CellJudgement, ContestJudgement, GeneratingCell, Generation, PrecisionJudgement
from bakeoff.judging.decision import Relation, is_apart, relation
from bakeoff.judging.intervals import interval_of_sum
from bakeoff.judging.precisions import best_of_each, places_of, ranks_of, sharing_first_place
from bakeoff.records.schema import DECODE, PREFILL, Ratio


def with_generations(contests: Sequence[ContestJudgement]) -> list[ContestJudgement]:
    """Return the contests. Those of decode steps know the whole generation, if there is the contest of the prefill."""
    prefills = {_key(contest): contest for contest in contests if contest.cell.task == PREFILL}
    decodes = [contest for contest in contests if contest.cell.task == DECODE]

    def with_generation(contest: ContestJudgement) -> ContestJudgement:
        prefill = prefills.get(_key(contest)) if contest.cell.task == DECODE else None
        if prefill is None:
            return contest
        generation = generation_of(prefill, contest, _peak_bytes(contest, decodes))
        return replace(contest, generation=generation, of_precisions=generation.of_precisions)

    return [with_generation(contest) for contest in contests]


def generation_of(
    prefill: ContestJudgement, decode: ContestJudgement, peak_bytes: Mapping[int, Mapping[str, int]]
) -> Generation:
    """Judge the cells that are right in both contests. Ranked are those that are ranked in both.

    Cells of one precision that may not win are left out, and across precisions they keep their places.
    """
    sizes = {name: int(decode.cell.dimensions[name]) for name in ("prompt", "new_tokens", "batch")}
    further = sizes["new_tokens"] - 1
    firsts = {cell.label: cell for cell in prefill.cells if _is_judged(cell)}
    pairs = [(firsts[cell.label], cell) for cell in decode.cells if _is_judged(cell) and cell.label in firsts]
    totals = {step.label: _ms(first) + further * _ms(step) for first, step in pairs}
    pairs.sort(key=lambda pair: totals[pair[1].label])
    baseline = decode.baseline if decode.baseline in totals else None

    def ratio(fast: str, slow: str) -> Ratio:
        share = _ms(firsts[fast]) / totals[fast]
        return combined(prefill.fit.ratio(fast, slow), decode.fit.ratio(fast, slow), share)

    def is_beaten(fast: str, slow: str) -> bool:
        return relation(ratio(fast, slow)) is Relation.FASTER

    order = [step.label for first, step in pairs if first.rank is not None and step.rank is not None]
    tied = sharing_first_place(order, is_beaten)
    ranks = ranks_of(order, lambda *pair: is_apart(ratio(*pair)))
    places = places_of([step.cell for _, step in pairs], lambda *pair: is_apart(ratio(*pair)))
    cells = []
    for first, step in pairs:
        label = step.label
        speedup = ratio(label, baseline) if baseline else None
        cells.append(
            GeneratingCell(
                prefill=first,
                decode=step,
                total_ms=totals[label],
                tokens_per_s=sizes["batch"] * 1e3 / _ms(step),
                rank=ranks.get(label),
                place=places.get(label),
                speedup=speedup,
                pays_after_tokens=_pays_after(first, step, firsts, decode, totals, speedup, sizes),
            )
        )
    by_label = {cell.label: cell for cell in cells}
    of_precisions = tuple(
        PrecisionJudgement(
            precision, labels, best.decode, best.tokens_per_s, best.speedup, best.relative_rmse, best.rank is not None
        )
        for precision, labels in best_of_each([cell.decode.cell for cell in cells], order, is_beaten).items()
        for best in [by_label[labels[0]]]
    )
    cells.sort(key=lambda cell: cell.rank is None)  # which keeps the order otherwise
    return Generation(
        sizes["prompt"],
        sizes["new_tokens"],
        sizes["batch"],
        tuple(cells),
        baseline,
        peak_bytes,
        of_precisions,
        lead=ratio(order[0], order[len(tied)]) if order[len(tied) :] else None,
        tied=tuple(tied),
    )


def _is_judged(cell: CellJudgement) -> bool:
    return cell.rank is not None or cell.place is not None


def combined(first: Ratio, further: Ratio, share: float) -> Ratio:
    """Return the ratio of two sums of which the faster one's first part has this share."""
    value = share * first.value + (1 - share) * further.value
    return Ratio(
        value=value,
        ci95=interval_of_sum(value, [(share, first.value, first.ci95), (1 - share, further.value, further.ci95)]),
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
            known = {
                cell.label: peak
                for cell in decode.cells
                if _is_judged(cell) and (peak := cell.record.peak_bytes) is not None
            }
            peak_bytes.setdefault(context, {}).update(known)
    return dict(sorted(peak_bytes.items()))


def _ms(cell: CellJudgement) -> float:
    assert cell.latency is not None, "a ranked cell has a latency"
    return cell.latency.median_ms


def _key(contest: ContestJudgement, without_context: bool = False) -> tuple[object, ...]:
    """Return what both contests of a generation have in common."""
    cell, left_out = contest.cell, ("prompt", "new_tokens") if without_context else ()
    sizes = tuple(sorted((name, value) for name, value in cell.dimensions.items() if name not in left_out))
    return (cell.model, sizes, cell.device, cell.precisions, cell.seed, contest.run_id)
