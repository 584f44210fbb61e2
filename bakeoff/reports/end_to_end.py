"""What a whole request takes, in words and as a table, where more than the model belongs to it."""

from __future__ import annotations

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.records.text import spell_ms
from bakeoff.reports import number_format
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Table
from bakeoff.reports.words import first, listed, percent


def brief(contest: ContestJudgement) -> str:
    """Return `tie end to end (21.40 ms a request): 93 % of it is before()`, or nothing without stages.

    There is nothing to add to rates under load, which are of whole requests.
    """
    judged = contest.end_to_end
    if judged is None or contest.load:
        return ""
    if not judged.rows:
        return "end to end not known"
    return f"{_verdict(judged)} ({spell_ms(judged.best.ms)} a request): {where(judged)}"


def _verdict(judged: EndToEnd) -> str:
    match judged.certainty:
        case Certainty.TIE:
            return "tie end to end"
        case Certainty.OPEN:
            return "undecided end to end"
    over = judged.best.speedup if judged.best.label != judged.baseline else None
    return f"end to end {number_format.ratio(over.value)}x {judged.baseline}" if over else "end to end"


def where(judged: EndToEnd) -> str:
    """Return `93 % of it is before()`."""
    return f"{percent(judged.longest.share)} of it is {judged.longest.name}"


def sentences(contest: ContestJudgement) -> list[str]:
    """Say who answers a whole request fastest, and what its stages take."""
    judged = contest.end_to_end
    if judged is None:
        return []
    if judged.failures:
        return [f"a whole request could not be judged: {failure}" for failure in judged.failures]
    if not judged.rows:
        return ["a whole request could not be judged: no cell was ranked"]
    steps = " + ".join(f"{step.name} {spell_ms(step.ms)} ({percent(step.share)})" for step in judged.steps)
    sharing = listed(first(judged.candidates))
    match judged.certainty:
        case Certainty.TIE:
            text = f"tie end to end between {sharing}"
        case Certainty.OPEN:
            text = f"end to end, no winner yet between {sharing}"
        case _:
            text = f"end to end, {judged.best.label} takes {spell_ms(judged.best.ms)} a request"
    over = judged.best.speedup
    if over and judged.baseline not in judged.candidates:
        text += f", {number_format.ratio(over.value)}x as fast as {judged.baseline}"
    return [f"{text}: with {judged.best.label} a request is {steps}"]


def tables(contest: ContestJudgement) -> list[Table]:
    """Return whole requests by backend, or nothing without stages."""
    judged = contest.end_to_end
    if judged is None or not judged.rows:
        return []
    rows = [
        [
            row.label,
            str(row.rank),
            f"{number_format.milliseconds(row.ms)} {number_format.milliseconds_interval(row.ci95_ms)}".strip(),
            number_format.ratio(row.speedup.value) if row.speedup else NONE,
        ]
        for row in judged.rows
    ]
    headings = ["rank", "a request (ms)", f"over {judged.baseline or 'the baseline'} (x)"]
    return [Table("Whole requests: before, the model and after", ("backend",), tuple(headings), rows)]
