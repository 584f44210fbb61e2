"""Is a pipeline with the winners in place faster than the original? Both were called in turn, in the same rounds."""

from dataclasses import dataclass

from bakeoff.judging.constraints import RequirementMissed
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import Relation, relation
from bakeoff.records.schema import ORIGINAL, WITH_WINNERS, Ratio


@dataclass(frozen=True)
class WholePipeline:
    """How long one call of the pipeline takes, as it was and with the winners in place."""

    original_ms: float
    winners_ms: float
    speedup: Ratio  # of the winners over the original
    relation: Relation
    missed: tuple[RequirementMissed, ...] = ()  # of what is required of the metrics, with the winners

    @property
    def loses(self) -> bool:
        return self.relation is Relation.SLOWER


def judge_whole(contest: ContestJudgement) -> WholePipeline | None:
    """Read both sides of a contest; None without winners. They ran in one process: a lead must be over 4 %."""
    winners = contest.cell_of(WITH_WINNERS)
    if winners is None:
        return None
    ratio, latency_ms = contest.fit.ratio(WITH_WINNERS, ORIGINAL), contest.fit.latency_ms
    return WholePipeline(latency_ms[ORIGINAL], latency_ms[WITH_WINNERS], ratio, relation(ratio), missed=winners.unmet)
