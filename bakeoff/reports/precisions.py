"""The best of each precision, in a contest across several, as sentences that every output prints unescaped."""

from bakeoff.judging.answer import Question
from bakeoff.judging.constraints import RequirementOpen
from bakeoff.judging.contest import ContestJudgement, PrecisionJudgement
from bakeoff.judging.doubts_of_cells import is_coarse
from bakeoff.records.schema import Generated
from bakeoff.records.text import first, listed
from bakeoff.reports import headline, number_format
from bakeoff.reports.number_format import NONE

OTHERS_ALLOWED = "To let a precision win that rounds more, require what your task needs, such as --require '{}'"


def sentences(contest: ContestJudgement) -> list[str]:
    texts = {judged.precision: _of_precision(judged, contest) for judged in contest.of_precisions}
    for precision in contest.cell.compared:
        endings = headline.endings([cell for cell in contest.cells if cell.cell.precision is precision])
        texts.setdefault(precision, f"{precision}: nothing that is right was measured ({endings})")
    sentences = [texts[precision] for precision in contest.cell.compared]
    if contest.tolerance and not all(judged.may_win for judged in contest.of_precisions):
        sentences.append(OTHERS_ALLOWED.format(_example(contest)))
    return sentences


def _of_precision(judged: PrecisionJudgement, contest: ContestJudgement) -> str:
    """Return `int8: onnx int8, 0.12 ms, 3.1x eager fp32, error 2.1e-02, not within fp32's rounding`."""
    best, question = judged.best, contest.answer_of_builds.question
    parts = [
        f"{judged.precision}: {listed(first(judged.candidates), 'or')}",
        headline.spell(contest, question, judged.value),
    ]
    is_known = judged.speedup and number_format.times(judged.speedup) != number_format.UNKNOWN
    if judged.speedup and is_known and best.label != contest.baseline:
        parts.append(number_format.compared(judged.speedup, contest.baseline or ""))
    if (metric := headline.metrics_of(contest, best)) != NONE:
        parts.append(metric)
    if judged.relative_rmse is not None:
        coarse = number_format.AS_EAGERS if best.record.accuracy and is_coarse(best.record.accuracy) else ""
        parts.append(f"error {number_format.error(judged.relative_rmse)}{coarse}")
    if (accuracy := best.record.accuracy) and accuracy.changes_unheld:
        parts.append(f"{accuracy.changes_unheld} of {accuracy.changes} parameters do not move as they should")
    if question is Question.GENERATION and (generated := best.record.generated):
        parts.append(_tokens(generated))
    if not judged.may_win:
        missed = "; ".join(doubt.unmet for doubt in best.unmet)
        is_beyond = contest.tolerance is not None and not missed
        parts.append(
            f"not {headline.condition(contest)}" if is_beyond else f"not as required{missed and f' ({missed})'}"
        )
    parts += [
        f"may miss {doubt.asked}"
        for doubt in contest.doubts
        if isinstance(doubt, RequirementOpen) and best.label in doubt.labels
    ]
    return ", ".join(parts)


def _tokens(generated: Generated) -> str:
    if generated.first is None or generated.agreed_with_first is None:
        return f"{generated.agreed} of {generated.tokens} tokens as eager's"
    return f"{generated.agreed_with_first} of {generated.tokens} tokens as eager's in {generated.first}"


def _example(contest: ContestJudgement) -> str:
    for cell in contest.cells:
        for name, metric in cell.metrics.items():
            return f"{name}<1%" if metric.higher_is_better is False else f"{name}>-1%"
    return "relative_rmse<1e-2"
