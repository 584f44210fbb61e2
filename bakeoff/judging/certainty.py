"""Says how sure the answer of a contest is, and what its doubts are found in."""

from dataclasses import dataclass
from enum import StrEnum

from bakeoff.judging.doubt import FirstPlace, Stop
from bakeoff.judging.ranking import Ranking
from bakeoff.records.schema import Verdict


class Certainty(StrEnum):
    """The certainty of a contest's answer."""

    SURE = "sure"
    DOUBTED = "doubted"  # there is a winner, but a doubt could change who it is
    TIE = "tie"
    OPEN = "open"  # measuring ended before it was decided
    ALONE = "alone"  # only one cell could be ranked
    NOTHING = "nothing ranked"


def certainty_of(ranking: Ranking, is_doubted: bool) -> Certainty:
    """Return how sure the answer is. `is_doubted` says that a doubt could change who wins."""
    tied = ranking.sharing_first_place()
    if not tied:
        return Certainty.NOTHING
    if ranking.open_pairs():
        return Certainty.OPEN
    if len(tied) > 1:
        return Certainty.TIE
    if len(ranking.ranked) == 1:
        return Certainty.ALONE
    return Certainty.DOUBTED if is_doubted else Certainty.SURE


@dataclass(frozen=True)
class Evidence:
    """What the doubts about a contest are found in."""

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
