"""Which doubts keep an answer from being sure, by what was asked: a doubt can be about one build, or about a call."""

from collections.abc import Collection, Mapping, Sequence

from bakeoff.judging.answer import Answer, Certainty
from bakeoff.judging.constraints import RequirementOpen
from bakeoff.judging.doubt import Doubt, OfRecords
from bakeoff.judging.doubts_of_winner import ModelChanges
from bakeoff.records.doubts import Effect, ProcessLost, Unsure

ByEffect = Mapping[Effect, Sequence[Doubt]]


def doubts_about_latency(answer: Answer, fastest: Answer, doubts: ByEffect) -> tuple[Sequence[Doubt], Sequence[Doubt]]:
    """Return what keeps an answer that rests on latencies from being sure, and what is said of any outcome.

    It is a doubt about the best build itself, or the one that keeps it from being a sure winner at single calls.
    """
    first = answer.first[:1]
    of_calls = doubts[Effect.WINNER][:1] if fastest.certainty is Certainty.DOUBTED else ()
    grave_doubts = (first == fastest.first[:1] and of_calls) or doubts_about(first, doubts)
    return grave_doubts, of_any_outcome(grave_doubts)


def doubts_about(labels: Collection[str], doubts: ByEffect) -> Sequence[Doubt]:
    """Return the weightiest doubt that keeps one of these builds from being a sure winner, whatever was asked."""
    grave_doubts = [doubt for effect in Effect for doubt in doubts.get(effect, ()) if _is_about(doubt, labels)]
    return grave_doubts[:1]


def of_any_outcome(doubts: Sequence[Doubt]) -> Sequence[Doubt]:
    """Return the doubts that are said of an answer of any certainty: that the model changes."""
    return [doubt for doubt in doubts if isinstance(doubt, ModelChanges)]


def is_open_requirement(doubt: Doubt, labels: Collection[str]) -> bool:
    """Return True for a doubt whether one of these cells meets a requirement."""
    return isinstance(doubt, RequirementOpen) and not set(labels).isdisjoint(doubt.labels)


def _is_about(doubt: Doubt, labels: Collection[str]) -> bool:
    if isinstance(doubt, ModelChanges):
        return True
    about = doubt.doubt if isinstance(doubt, OfRecords) else None
    is_unchecked = isinstance(about, ProcessLost) and about.rounds > 0
    is_of_kind = isinstance(doubt, RequirementOpen) or isinstance(about, Unsure) or is_unchecked
    return is_of_kind and not set(labels).isdisjoint(doubt.cells)
