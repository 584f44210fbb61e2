"""What a contest answers beside the latency of a call, for every output, such as what it takes to start."""

from bakeoff.judging.contest import ContestJudgement
from bakeoff.reports import end_to_end, generation, load_report, precisions, start_report
from bakeoff.reports.blocks import Items, Section

_BY_HEADING = {
    "The fastest of each precision": precisions,
    "Whole requests": end_to_end,
    "Under load": load_report,
    "Whole generations": generation,
    "What it takes to start": start_report,
}


def further_answers(contest: ContestJudgement) -> list[Section]:
    """Return what the contest was asked beside the latency of a call."""
    return [
        Section(heading, [Items(said, bullet="= "), *answer.tables(contest)], level=3)
        for heading, answer in _BY_HEADING.items()
        if (said := answer.sentences(contest))
    ]
