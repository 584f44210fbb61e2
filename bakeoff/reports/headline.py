"""The first line of a contest: the answer to what it was asked, with the values that this question has."""

from collections.abc import Sequence

from bakeoff.judging.answer import Answer, Certainty, Question
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.doubts_of_cells import NotEvaluated
from bakeoff.judging.metric_changes import MetricJudgement
from bakeoff.judging.ranking import BASELINE, Tolerance
from bakeoff.records.text import counted
from bakeoff.reports import answers, end_to_end, load_report, number_format
from bakeoff.reports.number_format import NONE

METRICS_NAMED = 2


def value(contest: ContestJudgement) -> str:
    """Return how good the best one is: `0.0343 ms`, `15,177 requests/s at p99 < 5 ms`, `1.2 s for 1,000 calls`. Where
    several may be the best, it names one: `15,177 requests/s (onnx; 14,000 for long)`."""
    asked = contest.answer
    if asked.value is None:
        return NONE
    text = spell(contest, asked.question, asked.value)
    if asked.question is not Question.LOAD or asked.winner is not None or contest.load is None:
        return text
    first = next(cell for cell in contest.load.ranked if cell.label == asked.candidates[0])
    return f"{text} ({'; '.join([first.label, *load_report.held_for_long(contest.load, first)])})"


def spell(contest: ContestJudgement, question: Question, value: float) -> str:
    if question is Question.LOAD and contest.load:
        return load_report.carried(contest.load, value)
    if question is Question.GENERATION:
        return f"{number_format.rate(value)} tokens/s in decode"
    if question is Question.CALLS:
        return f"{number_format.seconds(value)} s for {counted(contest.calls or 0, 'call')}"
    return f"{number_format.milliseconds(value)} ms"


def kept(contest: ContestJudgement) -> str | None:
    """Return what the winner keeps, if there is one: `within fp32's rounding`."""
    return condition(contest) if contest.answer.candidates else None


def condition(contest: ContestJudgement) -> str | None:
    """Return what a winner must keep, such as `within fp32's rounding`, in a contest that has several precisions."""
    return within(contest.tolerance) if contest.tolerance else None


def within(tolerance: Tolerance) -> str:
    return f"within {tolerance.precision}'s rounding"


def certainty(contest: ContestJudgement, of: Answer | None = None) -> str:
    """Say how sure the answer is, and where its run was interrupted, that it is the one so far: `tie, so far`."""
    sure = how_sure(contest, of or contest.answer)
    return f"{sure}, so far" if contest.is_so_far else sure


def how_sure(contest: ContestJudgement, answer: Answer) -> str:
    if answer.certainty is Certainty.NOTHING:
        return _why_nothing(answer, contest)
    alone = "was measured" if contest.awaits_others else "could be ranked"
    if contest.tolerance and any(cell.beyond for cell in contest.cells):
        alone = f"is {condition(contest)}"
    return answers.how_sure(answer, contest.doubts, alone)


def _why_nothing(answer: Answer, contest: ContestJudgement) -> str:
    if contest.ranked and answer.question is Question.LOAD:
        is_early = contest.is_so_far and contest.load and not any(cell.load.turns for cell in contest.load.cells)
        nothing = "nothing under load yet" if is_early else "nothing could be ranked under load"
        fastest = contest.fastest
        text = answers.line(
            fastest, spell(contest, fastest.question, fastest.value or 0.0), sure=how_sure(contest, fastest)
        )
        return f"{nothing}; at single calls {text}" if contest.is_so_far else nothing
    if contest.ranked:
        return "nothing could be ranked in both graphs"
    failed = any(isinstance(doubt, NotEvaluated) and doubt.of_reference for doubt in contest.doubts)
    # why eager failed, which is the model itself, unless another precision of it works
    of_eager = [cell.record.failure for cell in contest.cells if cell.record.cell.backend == BASELINE]
    because = f"; {BASELINE}: {of_eager[0].text}" if of_eager and of_eager[0] and all(of_eager) else ""
    return f"nothing could be ranked ({'evaluate failed' if failed else endings(contest.cells)}{because})"


def is_unsure(contest: ContestJudgement) -> bool:
    asked = contest.answer
    return bool(asked.doubt) or asked.certainty in (Certainty.DOUBTED, Certainty.OPEN, Certainty.NOTHING)


def line(contest: ContestJudgement) -> str:
    """Return the whole line: `onnx, 15,177 requests/s at p99 < 5 ms, 1.59x eager, top1 0.9467 (+0.12 %), sure winner`.

    Where a request is more than the model: `onnx, 0.44 ms, sure winner; whole requests: onnx or eager, 21 ms, tie`.
    """
    sure = certainty(contest)
    rounding = kept(contest) or NONE
    rounding = NONE if sure.removesuffix(", so far").endswith(rounding) else rounding
    answer = answers.line(contest.answer, value(contest), metrics(contest), rounding, sure=sure)
    return "; ".join(filter(None, (answer, end_to_end.brief(contest))))


def first_line(contest: ContestJudgement) -> str:
    """Return the line as a sentence that begins a report. A name at its beginning stays as it is written."""
    text = line(contest)
    return text if contest.answer.candidates else text[0].upper() + text[1:]


def metrics(contest: ContestJudgement) -> str:
    """Return `top1 0.9467 (+0.12 %)` of the first candidate: the required metrics, or else the first one."""
    best = contest.cell_of(next(iter(contest.answer.candidates), None))
    return metrics_of(contest, best) if best else NONE


def metrics_of(contest: ContestJudgement, cell: CellJudgement) -> str:
    names = [name for name in contest.required_metrics if name in cell.metrics] or list(cell.metrics)[:1]
    return ", ".join(_beside_reference(cell.metrics[name]) for name in names[:METRICS_NAMED]) or NONE


def _beside_reference(metric: MetricJudgement) -> str:
    text = f"{metric.name} {number_format.metric(metric.value)}"
    if number_format.metric(metric.value) == number_format.metric(metric.reference):
        return f"{text} (unchanged)"
    if not metric.reference:
        return f"{text} ({number_format.change(metric.change)})"
    percent = 100 * metric.change / abs(metric.reference)
    return f"{text} ({percent:+.2g} %)" if abs(percent) < 99.5 else f"{text} ({percent:+,.0f} %)"


def endings(cells: Sequence[CellJudgement]) -> str:
    """Return `1 crash, 2 oom`. Cells that do not meet the requirements are counted apart."""
    counts: dict[str, int] = {}
    for cell in cells:
        ending = "not as required" if cell.unmet or cell.beyond else cell.record.status.value
        counts[ending] = counts.get(ending, 0) + 1
    return ", ".join(f"{count} {ending}" for ending, count in counts.items())
