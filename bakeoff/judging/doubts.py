"""Every doubt about a contest, in order of weight, and which of them keep an answer from being sure.

A doubt can be about one build, or about a call: then another question may have a sure answer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

from bakeoff.judging import doubts_of_cells as of_cells
from bakeoff.judging import doubts_of_machine as of_machine
from bakeoff.judging import doubts_of_winner as of_winner
from bakeoff.judging.answer import Answer, Certainty
from bakeoff.judging.constraints import RequirementOpen
from bakeoff.judging.doubt import Doubt, OfRecords
from bakeoff.judging.ranking import Evidence
from bakeoff.records.doubts import Effect, ProcessLost, RecordDoubt, Unsure

Find = Callable[[Evidence], Iterable[Doubt]]


def _in_records(evidence: Evidence, are_unsure: bool) -> Iterator[OfRecords]:
    """Yield the doubts that records carry, once for all cells that share one."""
    shared: dict[RecordDoubt, list[str]] = {}
    for record in evidence.ranking.ranked:
        for doubt in record.doubts:
            if isinstance(doubt, Unsure) is are_unsure:
                shared.setdefault(doubt, []).append(record.cell.label)
    in_order = get_args(get_args(RecordDoubt)[0])
    for doubt in sorted(shared, key=lambda doubt: in_order.index(type(doubt))):
        yield OfRecords(tuple(shared[doubt]), doubt)


IN_ORDER_OF_WEIGHT: tuple[Find, ...] = (
    partial(_in_records, are_unsure=True),
    of_winner.ModelChanges.find,
    of_winner.MachineBusy.find,
    of_winner.LastRunDiffers.find,
    of_winner.Undecided.find,
    of_winner.NotToldApart.find,
    of_winner.NarrowLead.find,
    of_winner.NoBaseline.find,
    of_winner.Unpaired.find,
    lambda evidence: evidence.ranking.open_requirements,
    of_cells.NotEvaluated.find,
    lambda evidence: (doubt for doubts in evidence.ranking.unmet.values() for doubt in doubts),
    of_cells.JudgedByCalibration.find,
    of_cells.EvaluationVaries.find,
    of_cells.WithoutInterval.find,
    of_cells.CoarseCheck.find,
    partial(_in_records, are_unsure=False),
    of_cells.SettledLate.find,
    of_cells.PartlyElsewhere.find,
    of_cells.BuildSpread.find,
    of_cells.ProcessSpread.find,
    of_cells.RoughLatency.find,
    of_cells.RoughLead.find,
    of_cells.TwoSpeeds.find,
    of_cells.ThroughputContradicted.find,
    of_cells.FreshMemory.find,
    of_machine.ClockFell.find,
    of_machine.ClockHeldDown.find,
    of_machine.CoresTaken.find,
    of_machine.AlwaysWaited.find,
    of_machine.CoresStolen.find,
    of_machine.SpeedDrifted.find,
    of_machine.GpuShared.find,
    of_winner.NotRanked.find,
)


def doubts_of(evidence: Evidence) -> dict[Effect, tuple[Doubt, ...]]:
    first = evidence.first
    doubts = [
        (doubt.effect(first) if first.labels else Effect.NONE, doubt)
        for find in IN_ORDER_OF_WEIGHT
        for doubt in find(evidence)
    ]
    return {effect: tuple(doubt for its_effect, doubt in doubts if its_effect is effect) for effect in Effect}


ByEffect = Mapping[Effect, Sequence[Doubt]]


def doubts_about_latency(answer: Answer, fastest: Answer, doubts: ByEffect) -> tuple[Sequence[Doubt], Sequence[Doubt]]:
    """Return what keeps an answer that rests on latencies from being sure, and what is said of any outcome: doubts
    about the best build itself, or the one that keeps it from being a sure winner at single calls."""
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
    return [doubt for doubt in doubts if isinstance(doubt, of_winner.ModelChanges)]


def is_open_requirement(doubt: Doubt, labels: Collection[str]) -> bool:
    """Return True for a doubt whether one of these cells meets a requirement."""
    return isinstance(doubt, RequirementOpen) and not set(labels).isdisjoint(doubt.labels)


def _is_about(doubt: Doubt, labels: Collection[str]) -> bool:
    if isinstance(doubt, of_winner.ModelChanges):
        return True
    about = doubt.doubt if isinstance(doubt, OfRecords) else None
    is_unchecked = isinstance(about, ProcessLost) and about.rounds > 0
    is_of_kind = isinstance(doubt, RequirementOpen) or isinstance(about, Unsure) or is_unchecked
    return is_of_kind and not set(labels).isdisjoint(doubt.cells)
