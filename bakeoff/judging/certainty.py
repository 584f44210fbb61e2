"""Says how sure the answer of a contest is, and what each doubt does to it."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from bakeoff.judging.decision import MARGIN_UNPAIRED
from bakeoff.judging.ranking import Ranking
from bakeoff.records.schema import Doubt, DoubtKind, Status


class Effect(IntEnum):
    """What a doubt does to the answer of its contest, the worst first."""

    WINNER = 0  # another cell may be the one that wins
    NUMBER = 1  # the winner's latency or speed-up may be another
    NONE = 2


class Certainty(StrEnum):
    """How sure the answer of a contest is."""

    SURE = "sure"
    DOUBTED = "doubted"  # there is a winner, but a doubt could change who it is
    TIE = "tie"
    OPEN = "open"  # measuring ended before it was decided
    ALONE = "alone"  # only one cell could be ranked
    NOTHING = "nothing ranked"


LEFT_OUT = (DoubtKind.WAITED, DoubtKind.STOLEN)
"""What disturbs single rounds. A comparison leaves these rounds out, unless they are too many."""

COUNTED = "counted"
"""The value of a doubt of these kinds that tells that such rounds are part of the winner's comparison."""

_ABOUT_THE_WINNER = (DoubtKind.UNDECIDED, DoubtKind.NOT_TOLD_APART, DoubtKind.NARROW_LEAD)

_HARMLESS = (DoubtKind.REFERENCE, DoubtKind.WARM_UP_NOISE, DoubtKind.SETTLED_LATE, DoubtKind.NOT_RANKED)


def certainty_of(ranking: Ranking, is_doubted: bool) -> Certainty:
    """Return how sure the answer is. `is_doubted` tells that a doubt could change who wins."""
    tied = ranking.sharing_first_place()
    if not tied:
        return Certainty.NOTHING
    if ranking.open_pairs():
        return Certainty.OPEN
    if len(tied) > 1:
        return Certainty.TIE
    if len(ranking.ranked) == 1:
        return Certainty.ALONE
    return Certainty.DOUBTED if is_doubted else Certainty.SURE


def effect_of(doubt: Doubt, ranking: Ranking) -> Effect:
    """Return what the doubt does to the answer of its contest."""
    if not ranking.ranked:
        return Effect.NONE
    if doubt.kind in _ABOUT_THE_WINNER or _is_not_reached(doubt) or _disturbs_the_winner(doubt, ranking):
        return Effect.WINNER
    if doubt.kind in (*_HARMLESS, *LEFT_OUT):
        return Effect.NONE
    shown = {record.cell.label for record in (*ranking.sharing_first_place(), ranking.baseline) if record}
    is_about_them = not doubt.labels or doubt.kind in (DoubtKind.NO_BASELINE, DoubtKind.REQUIREMENT)
    return Effect.NUMBER if is_about_them or shown & set(doubt.labels) else Effect.NONE


def close_rivals(ranking: Ranking) -> list[str]:
    """Return the labels of the cells that a machine that changes could put before the winner."""
    return [other.cell.label for other, lead in ranking.leads() if lead.value < 1 + MARGIN_UNPAIRED]


def _is_not_reached(doubt: Doubt) -> bool:
    return doubt.kind is DoubtKind.NOT_RANKED and doubt.details[0] == Status.NOT_REACHED


def _disturbs_the_winner(doubt: Doubt, ranking: Ranking) -> bool:
    """Return True if another cell may be the fastest on a quiet machine, or with other builds."""
    if doubt.kind in LEFT_OUT:
        return COUNTED in doubt.values
    if doubt.kind is DoubtKind.GPU_SHARED:
        return bool(close_rivals(ranking))
    if doubt.kind is DoubtKind.BUILD_SPREAD:
        spread = {record.cell.label: 1 + doubt.values.get(record.cell.label, 0.0) for record in ranking.ranked}
        best = ranking.ranked[0].cell.label
        return any(lead.value < spread[best] * spread[other.cell.label] for other, lead in ranking.leads())
    if doubt.kind is DoubtKind.ALWAYS_WAITED:  # without waiting, a rival takes at most so much less
        shares = {other.cell.label: doubt.values.get(other.cell.label, 0.0) for other, _ in ranking.leads()}
        return any(lead.value * (1 - shares[other.cell.label]) < 1 for other, lead in ranking.leads())
    return False
