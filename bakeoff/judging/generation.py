"""Puts the two contests of a language model together: what a whole generation takes, from the prompt to its last token.

The prefill answers the prompt and gives the first token, and each further token is a decode step. A generation so takes
the one latency once, and the other once for each further token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bakeoff.judging.answer import Question, Score, Term, rank
from bakeoff.judging.contest import CellJudgement, ContestJudgement, GeneratingCell, Generation
from bakeoff.judging.decision import Relation, relation
from bakeoff.judging.doubts import doubts_about_latency
from bakeoff.records.schema import DECODE, PREFILL, Ratio


def with_generations(contests: Sequence[ContestJudgement]) -> list[ContestJudgement]:
    """Return the contests. Those of decode steps know the whole generation, if there is the contest of the prefill."""
    prefills = {_key(contest): contest for contest in contests if contest.cell.task == PREFILL}
    decodes = [contest for contest in contests if contest.cell.task == DECODE]

    return [
        replace(contest, generation=generation_of(prefill, contest, _peak_bytes(contest, decodes)))
        if contest.cell.task == DECODE and (prefill := prefills.get(_key(contest)))
        else contest
        for contest in contests
    ]


@dataclass(frozen=True)
class GenerationScore(Score):
    """The milliseconds of a whole generation. Its value is the tokens per second in decode, of a batch."""

    sequences: int = 1

    def value(self, label: str) -> float:
        return self.sequences * 1e3 / self.terms[1].fit.latency_ms[label]

    def interval(self, label: str) -> None:
        return None


def generation_of(
    prefill: ContestJudgement, decode: ContestJudgement, peak_bytes: Mapping[int, Mapping[str, int]]
) -> Generation:
    """Judge the cells that are right in both contests. Those that are ranked in both are ranked. Cells of one precision
    that may not win are left out, and across precisions they keep their places."""
    sizes = {name: int(decode.cell.dimensions[name]) for name in ("prompt", "new_tokens", "batch")}
    firsts = {cell.label: cell for cell in prefill.cells if _is_judged(cell)}
    steps = {cell.label: cell for cell in decode.cells if _is_judged(cell) and cell.label in firsts}
    may_win = [label for label, step in steps.items() if firsts[label].rank is not None and step.rank is not None]
    score = GenerationScore(
        [Term(prefill.fit, left=prefill.left), Term(decode.fit, sizes["new_tokens"] - 1, decode.left)],
        sequences=sizes["batch"],
    )
    answer = rank(
        Question.GENERATION,
        score,
        may_win,
        [label for label in steps if label not in may_win],
        decode.baseline if decode.baseline in steps else None,
        unit="tokens/s",
        cells=[step.cell for step in steps.values()],
        processes={label: min(len(part.record.processes) for part in (firsts[label], steps[label])) for label in steps},
    )
    cells = [
        GeneratingCell(
            **vars(row),
            prefill=firsts[row.label],
            decode=steps[row.label],
            total_ms=score.ms(row.label),
            pays_after_tokens=_pays_after(row.label, row.speedup, firsts, steps, answer.baseline, score, sizes),
        )
        for row in answer.rows
    ]
    doubts = doubts_about_latency(answer, decode.fastest, decode.doubts_by_effect)
    return Generation(
        sizes["prompt"], sizes["new_tokens"], sizes["batch"], answer.doubted(*doubts), tuple(cells), peak_bytes
    )


def _is_judged(cell: CellJudgement) -> bool:
    return cell.rank is not None or cell.place is not None


def _pays_after(
    label: str,
    speedup: Ratio | None,
    firsts: Mapping[str, CellJudgement],
    steps: Mapping[str, CellJudgement],
    baseline: str | None,
    score: Score,
    sizes: Mapping[str, int],
) -> int | None:
    """Return after how many tokens of whole generations building has paid, or None where that is not established."""
    if speedup is None or baseline is None or label == baseline or relation(speedup) is not Relation.FASTER:
        return None
    ours_s, theirs_s = (_setup_s(firsts[name]) + _setup_s(steps[name]) for name in (label, baseline))
    gained_s = (score.ms(baseline) - score.ms(label)) / 1e3
    generations = math.ceil(max(ours_s - theirs_s, 0.0) / gained_s)
    return generations * sizes["new_tokens"] * sizes["batch"]


def _setup_s(cell: CellJudgement) -> float:
    return cell.record.build_s + (cell.record.first_call_s or 0.0)


def _peak_bytes(contest: ContestJudgement, decodes: Sequence[ContestJudgement]) -> dict[int, dict[str, int]]:
    """Return the peak memory of each cell, for every context of the same model that was decoded."""
    peak_bytes: dict[int, dict[str, int]] = {}
    for decode in decodes:
        if _key(decode, without_context=True) == _key(contest, without_context=True):
            context = int(decode.cell.dimensions["prompt"]) + int(decode.cell.dimensions["new_tokens"])
            peaks = {
                cell.label: peak
                for cell in decode.cells
                if _is_judged(cell) and (peak := cell.record.peak_bytes) is not None
            }
            peak_bytes.setdefault(context, {}).update(peaks)
    return dict(sorted(peak_bytes.items()))


def _key(contest: ContestJudgement, without_context: bool = False) -> tuple[object, ...]:
    cell, left_out = contest.cell, ("prompt", "new_tokens") if without_context else ()
    sizes = tuple(sorted((name, value) for name, value in cell.dimensions.items() if name not in left_out))
    return (cell.model, sizes, cell.device, cell.precisions, cell.seed, contest.run_id)
