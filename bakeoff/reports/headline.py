"""The first line of an answer in words: who, how good, how much better than eager, and how surely."""

from collections.abc import Sequence

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.doubts_of_cells import NotEvaluated
from bakeoff.judging.doubts_of_winner import MachineBusy
from bakeoff.judging.headline import Headline, Question, headline_of, of_single_calls, open_requirement
from bakeoff.judging.load import LatencyDrifted, NearCeiling, RequestsFailed, ShortWindows, SoakMissed
from bakeoff.judging.tolerance import Tolerance
from bakeoff.records.text import counted, first, listed, one_line
from bakeoff.reports import end_to_end, load, metrics, number_format
from bakeoff.reports.number_format import NONE


def candidates(contest: ContestJudgement) -> str:
    """Return who wins, or who may: `onnx`, `onnx or openvino`."""
    labels = headline_of(contest).candidates
    return listed(first(labels), "or") if labels else NONE


def value(contest: ContestJudgement) -> str:
    """Return how good the best one is: `0.0343 ms`, `15,177 requests/s at p99 < 5 ms`, `1.2 s for 1,000 calls`.

    Where several may be the best, their rates can be far apart: `15,177 requests/s (onnx)`.
    """
    asked = headline_of(contest)
    if asked.value is None:
        return NONE
    of_first = asked.question is Question.LOAD and asked.winner is None
    return f"{spell(contest, asked.question, asked.value)}{f' ({asked.candidates[0]})' if of_first else ''}"


def spell(contest: ContestJudgement, question: Question, value: float) -> str:
    """Return a value that answers the question, with its unit."""
    match question:
        case Question.LATENCY:
            return f"{number_format.milliseconds(value)} ms"
        case Question.LOAD:
            assert contest.load is not None
            return load.carried(contest.load, value)
        case Question.GENERATION:
            return f"{number_format.rate(value)} tokens/s in decode"
        case Question.CALLS:
            calls = contest.calls or 0
            return f"{number_format.seconds(value)} s for {counted(calls, 'call')}"


def condition(contest: ContestJudgement) -> str | None:
    """Return what the winner keeps, such as `within fp32's rounding`, in a contest that has several precisions."""
    return within(contest.tolerance) if contest.tolerance else None


def within(tolerance: Tolerance) -> str:
    """Return `within fp32's rounding`."""
    return f"within {tolerance.precision}'s rounding"


def speedup(contest: ContestJudgement) -> str:
    """Return `1.59x eager`, or that it is faster than eager where the ends are far apart.

    Generations are ranked by their whole time, with that of the prompt. So is their speed-up, which says it.
    """
    asked = headline_of(contest)
    if asked.gain is None:
        return NONE
    of = "whole generations " if asked.question is Question.GENERATION else ""
    return f"{of}{number_format.compared(asked.gain, one_line(asked.baseline or ''))}"


def certainty(contest: ContestJudgement, of: Headline | None = None) -> str:
    """Say how sure the answer is, and where its run was interrupted, that it is the one so far: `tie, so far`."""
    sure = how_sure(contest, of or headline_of(contest))
    return f"{sure}, so far" if contest.is_so_far else sure


def how_sure(contest: ContestJudgement, asked: Headline) -> str:
    """Say in a few words how sure it is who is best: `sure winner`, `tie`, `but the machine was busy`.

    A speed-up over the baseline beside it has an interval of its own, which may be wide.
    """
    match asked.certainty:
        case Certainty.NOTHING:
            if contest.ranked and asked.question is Question.LOAD:
                is_early = (
                    contest.is_so_far and contest.load and not any(each.load.turns for each in contest.load.cells)
                )
                nothing = "nothing under load yet" if is_early else "nothing could be ranked under load"
                return f"{nothing}; at single calls {_at_single_calls(contest)}" if contest.is_so_far else nothing
            if contest.ranked:
                return "nothing could be ranked in both graphs"
            failed = any(isinstance(each, NotEvaluated) and each.of_reference for each in contest.doubts)
            return f"nothing could be ranked ({'evaluate failed' if failed else endings(contest.cells)})"
        case Certainty.ALONE:
            if contest.tolerance and any(cell.beyond for cell in contest.cells):
                return f"only {asked.candidates[0]} is {condition(contest)}"
            alone = f"only {asked.candidates[0]} {'was measured' if contest.awaits_others else 'could be ranked'}"
            return f"{alone}, and {_brief(asked)}" if asked.doubt else alone
        case Certainty.DOUBTED:
            return f"but {_brief(asked)}"
        case Certainty.OPEN:
            busy = next((each for each in contest.doubts if isinstance(each, MachineBusy)), None)
            return f"undecided: {busy.brief}" if busy else f"undecided{_but(contest, asked)}"
        case Certainty.TIE:
            is_close = asked.question is Question.LATENCY and contest.tied_within
            return f"{f'within {number_format.percent(is_close)} %' if is_close else 'tie'}{_but(contest, asked)}"
        case Certainty.SURE if asked.processes < FEWEST_PROCESSES:
            return f"sure winner ({'one process' if asked.processes == 1 else f'{asked.processes} processes'})"
        case Certainty.SURE:
            return "sure winner"


def _at_single_calls(contest: ContestJudgement) -> str:
    """Return `onnx or eager, 0.82 ms, undecided`, where that is not what was asked."""
    asked = of_single_calls(contest)
    value = spell(contest, asked.question, asked.value) if asked.value else NONE
    return f"{listed(first(asked.candidates), 'or')}, {value}, {how_sure(contest, asked)}"


def is_unsure(contest: ContestJudgement) -> bool:
    """Return True where the answer is to be set apart from a sure one."""
    asked = headline_of(contest)
    return bool(asked.doubt) or asked.certainty in (Certainty.DOUBTED, Certainty.OPEN, Certainty.NOTHING)


def line(contest: ContestJudgement) -> str:
    """Return the whole line: `onnx, 15,177 requests/s at p99 < 5 ms, 1.59x eager, top1 0.9467 (+0.12 %), sure winner`.

    Where a request is more than the model: `onnx, 0.44 ms, sure winner; whole requests: tie between onnx and eager`.
    """
    sure = certainty(contest)
    kept = condition(contest) or NONE
    kept = NONE if sure.removesuffix(", so far").endswith(kept) else kept
    parts = (candidates(contest), value(contest), speedup(contest), metrics.kept(contest), kept, sure)
    answer = ", ".join(part for part in parts if part != NONE)
    return "; ".join(filter(None, (answer, end_to_end.brief(contest))))


def first_line(contest: ContestJudgement) -> str:
    """Return the line as a sentence that begins a report. A name at its beginning stays as it is written."""
    text = line(contest)
    return text if headline_of(contest).candidates else text[0].upper() + text[1:]


def endings(cells: Sequence[CellJudgement]) -> str:
    """Return `1 crash, 2 oom`. Cells that do not meet the requirements are counted apart."""
    counts: dict[str, int] = {}
    for cell in cells:
        ending = "not as required" if cell.unmet or cell.beyond else cell.record.status.value
        counts[ending] = counts.get(ending, 0) + 1
    return ", ".join(f"{count} {ending}" for ending, count in counts.items())


def _but(contest: ContestJudgement, asked: Headline) -> str:
    """Say what more there is to doubt where several cells may be the best."""
    doubts = (each for each in contest.doubts if open_requirement(each, asked.candidates))
    limit = f", and {_brief(asked)}" if asked.doubt else ""
    return next((f", and {each.brief}" for each in doubts), "") + limit


def _brief(asked: Headline) -> str:
    match asked.doubt:
        case NearCeiling():
            return f"the load generator may be the limit of {asked.doubt.label}"
        case SoakMissed():
            if held := asked.doubt.held:
                return f"it holds only {number_format.rate(held.rate)} requests/s for long"
            if asked.doubt.label in asked.candidates:
                lowest = min(soak.rate for soak in asked.doubt.missed)
                return f"it does not hold even {number_format.rate(lowest)} requests/s for long"
            return f"{asked.doubt.label} may carry more, at a rate that was not soaked"
        case LatencyDrifted():
            return "its latency drifted under load"
        case ShortWindows():
            return "its windows were short"
        case RequestsFailed():
            return "some of its requests failed"
        case None:
            raise ValueError("an answer that is doubted has a doubt")
        case doubt:
            return doubt.brief
