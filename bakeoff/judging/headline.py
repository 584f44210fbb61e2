"""What answers the question that a contest was asked: a latency, a rate, tokens, or the cost of many calls."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.constraints import RequirementOpen
from bakeoff.judging.contest import ContestJudgement, Generation
from bakeoff.judging.doubt import Doubt, OfRecords
from bakeoff.judging.doubts_of_winner import ModelChanges
from bakeoff.judging.load import LoadDoubt, LoadJudgement, NearCeiling, SoakMissed
from bakeoff.records.doubts import Effect, ProcessLost, Unsure
from bakeoff.records.schema import Ratio


class Question(StrEnum):
    """What was asked."""

    LATENCY = "latency"
    LOAD = "load"
    GENERATION = "generation"
    CALLS = "calls"


@dataclass(frozen=True)
class Headline:
    """Who is best at what was asked, how good that is, how much better than others, and how surely."""

    question: Question
    candidates: tuple[str, ...]  # the best first, then those that may prove as good
    certainty: Certainty
    value: float | None = None  # of the first candidate
    processes: int = 0  # in which the first candidate was measured
    speedup: Ratio | None = None  # of the first candidate over the baseline
    baseline: str | None = None
    tied: tuple[str, ...] = ()  # share the first place, if there are several
    open_labels: tuple[str, ...] = ()  # measuring ended before it was decided whether they are as good as the best one
    runner_up: str | None = None  # the best one that is surely no candidate
    lead: Ratio | None = None  # of the first candidate over the runner-up
    doubts: tuple[Doubt | LoadDoubt, ...] = ()
    """The weightiest one, where the certainty is DOUBTED. Under load all of them, also of the only cell. Rates near the
    ceiling of the load generator, and cells that held no soak but may carry more, are doubts of any outcome."""

    @property
    def doubt(self) -> Doubt | LoadDoubt | None:
        """Return the weightiest doubt, if there is one."""
        return next(iter(self.doubts), None)

    @property
    def winner(self) -> str | None:
        """Return the only candidate, or None."""
        return self.candidates[0] if len(self.candidates) == 1 else None

    @property
    def gain(self) -> Ratio | None:
        """Return the speed-up, or None where the baseline may be as good itself."""
        return None if self.baseline in self.candidates else self.speedup


def headline_of(contest: ContestJudgement) -> Headline:
    """Return the answer to what the contest was asked."""
    if contest.load:
        return _of_load(contest, contest.load)
    if contest.generation:
        return _of_generation(contest, contest.generation)
    if contest.calls and (of_calls := _of_calls(contest, contest.calls)):
        return of_calls
    return of_single_calls(contest)


def unit_of(question: Question, contest: ContestJudgement) -> str:
    """Return the unit of a value that answers this question."""
    if question is Question.LOAD and contest.load:
        return contest.load.scenario.spec.unit
    return {Question.GENERATION: "tokens/s", Question.CALLS: "s"}.get(question, "ms")


def question_of_precisions(contest: ContestJudgement) -> Question:
    """Return what the best of each precision is the best at. It is not chosen by a number of calls."""
    if contest.load:
        return Question.LOAD
    return Question.GENERATION if contest.generation else Question.LATENCY


def of_single_calls(contest: ContestJudgement) -> Headline:
    """Return the answer to which build answers a call fastest, whatever was asked."""
    best = contest.best
    return Headline(
        Question.LATENCY,
        tuple(contest.candidates),
        contest.certainty,
        value=best.latency.median_ms if best and best.latency else None,
        processes=len(best.record.processes) if best else 0,
        speedup=best.speedup if best else None,
        baseline=contest.baseline,
        tied=contest.tied,
        open_labels=contest.open_labels,
        runner_up=contest.runner_up,
        lead=contest.lead,
        doubts=_told(contest.doubts_by_effect[Effect.WINNER][:1], contest.certainty),
    )


def _doubt_about(contest: ContestJudgement, label: str) -> Doubt | None:
    """Return a doubt that keeps a build from being a sure winner, whatever was asked."""
    for each in contest.doubts:
        if isinstance(each, ModelChanges):
            return each
        about = each.doubt if isinstance(each, OfRecords) else None
        is_unchecked = isinstance(about, ProcessLost) and about.rounds > 0
        is_of_kind = isinstance(each, RequirementOpen) or isinstance(about, Unsure) or is_unchecked
        if is_of_kind and label in each.cells:
            return each
    return None


def _told(doubts: tuple[Doubt, ...], certainty: Certainty) -> tuple[Doubt, ...]:
    """Return what the headline tells of these doubts. That the model changes is told of an answer of any certainty."""
    return tuple(each for each in doubts if certainty is Certainty.DOUBTED or isinstance(each, ModelChanges))


def doubts_by_effect(contest: ContestJudgement) -> dict[Effect, tuple[Doubt, ...]]:
    """Return the doubts by what they do to the answer. Over many calls another build may win than at single ones."""
    answer, at_single_calls = headline_of(contest), contest.doubts_by_effect
    of_winner = at_single_calls[Effect.WINNER]
    moved = [each for each in contest.doubts if each == answer.doubt or open_requirement(each, answer.candidates)]
    if contest.load or all(each in of_winner for each in moved):
        return dict(at_single_calls)
    others = {effect: tuple(each for each in doubts if each not in moved) for effect, doubts in at_single_calls.items()}
    return others | {Effect.WINNER: tuple(each for each in contest.doubts if each in of_winner or each in moved)}


def open_requirement(doubt: Doubt, labels: Collection[str]) -> bool:
    """Return True for a doubt whether one of these cells meets a requirement."""
    return isinstance(doubt, RequirementOpen) and not set(labels).isdisjoint(doubt.labels)


def _doubt_of_latency(contest: ContestJudgement, label: str) -> Doubt | None:
    """Return such a doubt, or the one that keeps the fastest build of single calls from being a sure winner."""
    is_first = contest.best is not None and contest.best.label == label
    of_calls = contest.doubts_by_effect[Effect.WINNER] if is_first and contest.certainty is Certainty.DOUBTED else ()
    return next(iter(of_calls), _doubt_about(contest, label))


def _of_one(ranked: int, doubt: Doubt | LoadDoubt | None) -> Certainty:
    """Return how sure an answer with one candidate is, of so many cells that are ranked."""
    if ranked == 1:
        return Certainty.ALONE
    return Certainty.DOUBTED if doubt else Certainty.SURE


def _of_load(contest: ContestJudgement, load: LoadJudgement) -> Headline:
    if not load.ranked:
        return Headline(Question.LOAD, (), Certainty.NOTHING, baseline=contest.baseline)
    best = load.ranked[0]
    candidates = load.tied or (best.label,)
    ranked = {cell.label for cell in load.ranked}
    of_any = [each for each in load.doubts if _is_of_any_outcome(each, ranked, best.value or 0)]
    of_load = dict.fromkeys([*(each for each in load.doubts if each.label == best.label), *of_any])
    doubts = tuple(each for each in (_doubt_about(contest, best.label), *of_load) if each)
    shared = Certainty.OPEN if load.is_open else Certainty.TIE if load.tied else None
    certainty = shared or _of_one(len(load.ranked), next(iter(doubts), None))
    return Headline(
        Question.LOAD,
        candidates,
        certainty,
        value=best.value,
        processes=len({turn.process for turn in best.load.turns}),
        speedup=best.speedup,
        baseline=contest.baseline,
        tied=load.tied,
        open_labels=candidates[1:] if load.is_open else (),
        runner_up=next((cell.label for cell in load.ranked if cell.label not in candidates), None),
        lead=load.lead,
        doubts=tuple(of_any) if shared else doubts,
    )


def _is_of_any_outcome(doubt: LoadDoubt, ranked: Collection[str], best: float) -> bool:
    """Return True for a rate near the load generator's ceiling, and for a cell without one that may carry the most."""
    match doubt:
        case NearCeiling():
            return doubt.label in ranked
        case SoakMissed(held=None):
            return min(soak.rate for soak in doubt.missed) > best
    return False


def _of_generation(contest: ContestJudgement, generation: Generation) -> Headline:
    if not generation.ranked:
        return Headline(Question.GENERATION, (), Certainty.NOTHING, baseline=generation.baseline)
    best, tied = generation.cells[0], generation.tied
    doubt = _doubt_of_latency(contest, best.label)
    shared = Certainty.TIE if contest.certainty is Certainty.TIE else Certainty.OPEN
    certainty = shared if len(tied) > 1 else _of_one(len(generation.ranked), doubt)
    return Headline(
        Question.GENERATION,
        tied,
        certainty,
        value=best.tokens_per_s,
        processes=min(len(part.record.processes) for part in (best.prefill, best.decode)),
        speedup=best.speedup,
        baseline=generation.baseline,
        tied=tied if len(tied) > 1 else (),
        open_labels=tied[1:] if certainty is Certainty.OPEN else (),
        runner_up=next((cell.label for cell in generation.ranked if cell.label not in tied), None),
        lead=generation.lead,
        doubts=_told((doubt,) if doubt else (), certainty),
    )


def _of_calls(contest: ContestJudgement, calls: int) -> Headline | None:
    """Return who costs least over so many calls from a cold start, or None if nothing has costs."""
    costs = contest.costs
    cheapest = costs.cheapest(calls, "cold", contest.contenders)
    if cheapest is None:
        return None
    label, doubt = cheapest.line.label, _doubt_of_latency(contest, cheapest.line.label)
    candidates = (label, *(line.label for line in cheapest.rivals))
    others = [line for line in costs.lines("cold") if line.label in contest.contenders and line.label not in candidates]
    runner_up = min(others, key=lambda line: line.total_s(calls)).label if others else None
    certainty = Certainty.OPEN if cheapest.rivals else _of_one(len(contest.ranked), doubt)
    return Headline(
        Question.CALLS,
        candidates,
        certainty,
        value=cheapest.line.total_s(calls),
        processes=next(len(cell.record.processes) for cell in contest.cells if cell.label == label),
        speedup=costs.total_speedup(label, contest.baseline, calls) if contest.baseline else None,
        baseline=contest.baseline,
        open_labels=candidates[1:],
        runner_up=runner_up,
        lead=costs.total_speedup(label, runner_up, calls) if runner_up else None,
        doubts=_told((doubt,) if doubt else (), certainty),
    )
