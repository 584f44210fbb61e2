"""The user's own metrics of the best build, in a few words for the answer of a contest."""

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.metric_changes import MetricJudgement
from bakeoff.reports import number_format
from bakeoff.reports.number_format import NONE

MOST_NAMED = 2


def kept(contest: ContestJudgement) -> str:
    """Return `top1 0.9467 (+0.12 %)` of the first candidate: the required metrics, or else the first one."""
    best = contest.cell_of(next(iter(contest.answer.candidates), None))
    return of_cell(contest, best) if best else NONE


def of_cell(contest: ContestJudgement, cell: CellJudgement) -> str:
    names = [name for name in contest.required_metrics if name in cell.metrics] or list(cell.metrics)[:1]
    return ", ".join(beside_reference(cell.metrics[name]) for name in names[:MOST_NAMED]) or NONE


def beside_reference(metric: MetricJudgement) -> str:
    """Return `top1 0.9467 (+0.12 %)`: a metric, and how much it gains of the reference's value."""
    text = f"{metric.name} {number_format.metric(metric.value)}"
    if number_format.metric(metric.value) == number_format.metric(metric.reference):
        return f"{text} (unchanged)"
    share = metric.change / abs(metric.reference) if metric.reference else None
    return f"{text} ({number_format.change(metric.change) if share is None else number_format.change_percent(share)})"
