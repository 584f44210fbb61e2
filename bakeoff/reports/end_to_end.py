"""What a whole request takes, in words and as a table, where more than the model belongs to it."""

from bakeoff.judging.answer import Certainty, Row
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES, MARGIN
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.records.text import percent, spell_ms
from bakeoff.reports import answers
from bakeoff.reports.tables import Column, Table


def brief(contest: ContestJudgement) -> str:
    """Return `whole requests: onnx or eager, 21.40 ms (93 % of it before()), tie`, or nothing without stages, and for
    rates under load, which are of whole requests."""
    judged = contest.end_to_end
    if judged is None or contest.load:
        return ""
    if judged.answer.value is None:
        return "whole requests: not known"
    longest = f"{percent(judged.longest.share)} of it {judged.longest.name}"
    return f"whole requests: {answers.line(judged.answer, f'{spell_ms(judged.answer.value)} ({longest})')}"


def sentences(judged: EndToEnd) -> list[str]:
    if judged.failures:
        return [f"a whole request could not be judged: {failure}" for failure in judged.failures]
    answer = judged.answer
    if answer.value is None:
        return ["a whole request could not be judged: no cell was ranked"]
    steps = " + ".join(f"{step.name} {spell_ms(step.ms)} ({percent(step.share)})" for step in judged.steps)
    said = answers.line(answer, spell_ms(answer.value))
    texts = [f"Whole requests: {said}. With {answer.candidates[0]} a request is {steps}"]
    if answer.certainty is Certainty.OPEN:
        texts.append(_what_decides(min(answer.leads[label].processes for label in answer.open_labels)))
    return texts


def _what_decides(processes: int) -> str:
    if processes < FEWEST_PROCESSES:
        measured = "One process" if processes == 1 else f"{processes} processes"
        return (
            f"{measured} of each cannot show how whole requests compare, because equal processes can be "
            f"{percent(MARGIN)} apart. Measure more of them: --processes {FEWEST_PROCESSES}"
        )
    return f"Whole requests vary too much to be compared: raise --processes over {processes}, or use a quieter machine"


def table(judged: EndToEnd) -> Table[Row]:
    columns: list[Column[Row]] = [
        Column("backend", lambda row: row.label, is_text=True, is_label=True),
        Column("rank", lambda row: row.rank),
        Column("a request", lambda row: row.value, "ms", interval=lambda row: row.interval),
        Column(f"over {judged.answer.baseline or 'the baseline'}", answers.speedup, "x"),
    ]
    return Table(columns, judged.answer.rows, "Whole requests: before, the model and after")
