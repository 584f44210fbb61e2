"""What a contest answers beside the latency of a call, for every output, such as what it takes to start."""

from dataclasses import dataclass
from typing import Any

from bakeoff.judging.contest import ContestJudgement
from bakeoff.reports import end_to_end, generation, load, precisions, starts
from bakeoff.reports.tables import Table

_BY_HEADING = {
    "The fastest of each precision": precisions,
    "Whole requests": end_to_end,
    "Under load": load,
    "Whole generations": generation,
    "What it takes to start": starts,
}


@dataclass(frozen=True)
class FurtherAnswer:
    heading: str
    sentences: list[str]
    tables: list[Table[Any]]


def further_answers(contest: ContestJudgement) -> list[FurtherAnswer]:
    """Return what the contest was asked beside the latency of a call."""
    answers = (
        FurtherAnswer(heading, each.sentences(contest), each.tables(contest)) for heading, each in _BY_HEADING.items()
    )
    return [each for each in answers if each.sentences]
