"""What a whole request takes, in words and as a table, where more than the model belongs to it."""

from typing import Any

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES, MARGIN
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.records.text import first, listed, percent, spell_ms
from bakeoff.reports import number_format
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Table, text_table


def brief(contest: ContestJudgement) -> str:
    """Return `whole requests: tie between onnx and eager (21.40 ms, 93 % of it before())`, or nothing without stages.

    There is nothing to add to rates under load, which are of whole requests.
    """
    judged = contest.end_to_end
    if judged is None or contest.load:
        return ""
    if not judged.rows:
        return "whole requests: not known"
    longest = f"{percent(judged.longest.share)} of it {judged.longest.name}"
    return f"whole requests: {_verdict(judged)} ({spell_ms(judged.best.ms)}, {longest})"


def _verdict(judged: EndToEnd) -> str:
    """Return `tie between onnx and eager`, `undecided between onnx and eager`, or `onnx, 1.50x eager`."""
    between = listed(first(judged.candidates))
    match judged.certainty:
        case Certainty.TIE:
            return f"tie between {between}"
        case Certainty.OPEN:
            return f"undecided between {between}"
    over = judged.best.speedup if judged.best.label != judged.baseline else None
    return f"{judged.best.label}, {number_format.compared(over, judged.baseline or '')}" if over else judged.best.label


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
    texts = [f"Whole requests: {_verdict(judged)}. With {judged.best.label} a request is {steps}"]
    if judged.certainty is Certainty.OPEN:
        processes = min(judged.leads[label].processes for label in judged.open_labels)
        texts.append(_what_decides(processes))
    return texts


def _what_decides(processes: int) -> str:
    """Say why whole requests are undecided, and what to do."""
    if processes < FEWEST_PROCESSES:
        measured = "One process" if processes == 1 else f"{processes} processes"
        return (
            f"{measured} of each cannot show how whole requests compare, because equal processes can be "
            f"{percent(MARGIN)} apart. Measure more of them: --processes {FEWEST_PROCESSES}"
        )
    return f"Whole requests vary too much to be compared: raise --processes over {processes}, or use a quieter machine"


def tables(contest: ContestJudgement) -> list[Table[Any]]:
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
    headings = ["backend", "rank", "a request (ms)", f"over {judged.baseline or 'the baseline'} (x)"]
    return [text_table(headings, rows, "lrrr", "Whole requests: before, the model and after")]
