"""Is a pipeline with the winners in place faster than the original? Both were called in turn, in the same rounds."""

from __future__ import annotations

from dataclasses import dataclass

from bakeoff.judging.contest import judge_contest
from bakeoff.judging.decision import Relation, relation
from bakeoff.judging.ranking import ORIGINAL, WITH_WINNERS
from bakeoff.records.schema import Ratio, Record


@dataclass(frozen=True)
class WholePipeline:
    """How long one call of the pipeline takes, as it was and with the winners in place."""

    original_ms: float
    winners_ms: float
    speedup: Ratio  # of the winners over the original
    relation: Relation

    @property
    def loses(self) -> bool:
        return self.relation is Relation.SLOWER


def judge_whole(original: Record, winners: Record) -> WholePipeline:
    """Judge both by the rounds that they shared. They ran in one process, so that a lead must be over 4 %."""
    fit = judge_contest([original, winners]).fit
    ratio = fit.ratio(WITH_WINNERS, ORIGINAL)
    return WholePipeline(fit.latency_ms[ORIGINAL], fit.latency_ms[WITH_WINNERS], ratio, relation(ratio))
