"""What the doubts about a contest are found in."""

from dataclasses import dataclass

from bakeoff.judging.doubt import FirstPlace, Stop
from bakeoff.judging.ranking import Ranking
from bakeoff.records.schema import Verdict


@dataclass(frozen=True)
class Evidence:
    """A contest's ranking, why measuring stopped, and the verdict of its last run."""

    ranking: Ranking
    stop: Stop = Stop.TIME_LIMIT
    last: Verdict | None = None  # of the last run of this contest

    @property
    def first(self) -> FirstPlace:
        answer = self.ranking.answer
        return FirstPlace(answer.first, answer.leads, answer.baseline)

    @property
    def is_live(self) -> bool:
        """Return True if the model lived in a program, so that `resume` cannot go on."""
        return any(record.cell.is_live for record in self.ranking.records)
