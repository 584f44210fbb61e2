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
        ranking = self.ranking
        return FirstPlace(
            tuple(record.cell.label for record in ranking.sharing_first_place()),
            {other.cell.label: lead for other, lead in ranking.leads()},
            ranking.baseline.cell.label if ranking.baseline else None,
        )

    @property
    def is_live(self) -> bool:
        """Return True if the model lived in a program, so that `resume` cannot go on."""
        return any(record.cell.is_live for record in self.ranking.records)
