"""Every doubt about a contest, in order of weight."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import get_args

from bakeoff.judging import doubts_of_cells as of_cells
from bakeoff.judging import doubts_of_machine as of_machine
from bakeoff.judging import doubts_of_winner as of_winner
from bakeoff.judging.doubt import Doubt, OfRecords
from bakeoff.judging.ranking import Evidence
from bakeoff.records.doubts import Effect, RecordDoubt, Unsure

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
        yield OfRecords(doubt, tuple(shared[doubt]))


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
