"""Says what each doubt does to the answer of a contest."""

from enum import IntEnum

from bakeoff.judging.decision import MARGIN_UNPAIRED
from bakeoff.judging.disturbance import MAX_WAIT_SHARE
from bakeoff.judging.doubts import (
    AlwaysWaited,
    BuildSpread,
    CoresStolen,
    CoresTaken,
    Doubt,
    EvaluationVaries,
    GpuShared,
    JudgedByCalibration,
    LastRunDiffers,
    MachineBusy,
    ModelChanges,
    NarrowLead,
    NotEvaluated,
    NotRanked,
    NotToldApart,
    OfRecords,
    RequirementMissed,
    RequirementOpen,
    SettledLate,
    TwoSpeeds,
    Undecided,
    WithoutInterval,
    cells_of,
)
from bakeoff.judging.ranking import Ranking
from bakeoff.records.doubts import (
    UNSURE,
    Accepted,
    BuiltAnew,
    DecidedByRounding,
    NarrowReference,
    OtherWidths,
    ProcessLost,
    RecordDoubt,
    WarmUpNoise,
)
from bakeoff.records.schema import Status


class Effect(IntEnum):
    """What a doubt does to the answer of its contest, the worst first."""

    WINNER = 0  # another cell may be the one that wins
    NUMBER = 1  # the winner's latency or speed-up may be another
    NONE = 2


def effect_of(doubt: Doubt, ranking: Ranking) -> Effect:
    """Return what the doubt does to the answer of its contest."""
    if not ranking.ranked:
        return Effect.NONE
    if _could_change_the_winner(doubt, ranking):
        return Effect.WINNER
    match doubt:
        case SettledLate() | NotRanked() | RequirementMissed() | CoresTaken() | CoresStolen():
            return Effect.NONE
        case RequirementOpen() | NotEvaluated() | WithoutInterval() | JudgedByCalibration() | EvaluationVaries():
            return Effect.NONE
        case OfRecords(doubt=Accepted() | NarrowReference() | DecidedByRounding()):
            return Effect.NONE
        case OfRecords(doubt=OtherWidths() | WarmUpNoise() | BuiltAnew()):
            return Effect.NONE
    shown = {record.cell.label for record in (*ranking.sharing_first_place(), ranking.baseline) if record}
    about = cells_of(doubt)
    return Effect.NUMBER if not about or shown & set(about) else Effect.NONE


def close_rivals(ranking: Ranking) -> list[str]:
    """Return the labels of the cells that a machine that changes could put before the winner."""
    return [other.cell.label for other, lead in ranking.leads() if lead.value < 1 + MARGIN_UNPAIRED]


def _could_change_the_winner(doubt: Doubt, ranking: Ranking) -> bool:
    """Return True if another cell may be the fastest: with more time, on a quiet machine, or with other builds."""
    match doubt:
        case Undecided() | MachineBusy() | NotToldApart() | NarrowLead() | ModelChanges():
            return True
        case NotRanked():
            return doubt.status is Status.NOT_REACHED
        case RequirementOpen() | NotEvaluated() | JudgedByCalibration():
            return bool(set(cells_of(doubt)) & {record.cell.label for record in ranking.sharing_first_place()})
        case OfRecords(doubt=about) if isinstance(about, UNSURE) or _is_lost_to_rounding(about):
            return bool(set(doubt.labels) & {record.cell.label for record in ranking.sharing_first_place()})
        case OfRecords(doubt=ProcessLost(rounds=rounds)):  # whose outputs were not checked after them
            return rounds > 0 and bool(set(doubt.labels) & {cell.cell.label for cell in ranking.sharing_first_place()})
        case CoresTaken() | CoresStolen():
            return doubt.is_counted
        case LastRunDiffers():
            return doubt.is_opposite and not {record.cell.label for record in ranking.sharing_first_place()}.isdisjoint(
                (doubt.label, doubt.other)
            )
        case GpuShared():
            return bool(close_rivals(ranking))
        case BuildSpread():
            spread = {record.cell.label: 1 + doubt.spreads.get(record.cell.label, 0.0) for record in ranking.ranked}
            best = ranking.ranked[0].cell.label
            return any(lead.value < spread[best] * spread[other.cell.label] for other, lead in ranking.leads())
        case TwoSpeeds():
            return any(lead.value < doubt.factors.get(other.cell.label, 0.0) for other, lead in ranking.leads())
        case AlwaysWaited():  # without waiting, a rival takes at most so much less
            shares = {record.cell.label: doubt.shares.get(record.cell.label, 0.0) for record in ranking.ranked}
            return max(shares.values()) >= MAX_WAIT_SHARE or any(
                lead.value * (1 - shares[other.cell.label]) < 1 for other, lead in ranking.leads()
            )
    return False


def _is_lost_to_rounding(doubt: RecordDoubt) -> bool:
    return isinstance(doubt, DecidedByRounding) and doubt.computed_in == "float64"
