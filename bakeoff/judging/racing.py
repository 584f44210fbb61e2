"""Finds the cells of a contest that are surely beaten, so that no further process of theirs is worth its time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bakeoff.judging.estimate import Series, Turn
from bakeoff.records.schema import LeftEarly

BEATEN_BY = 1.3
"""A cell is beaten if another one was this many times faster in every round. Equal processes of one cell are seldom so
far apart in all rounds, and a cell comes back where it may share the first place."""

FEWEST_ROUNDS = 4
"""Fewer undisturbed rounds than this prove nothing."""


def beaten(cells: Mapping[str, Series], rivals: Sequence[str], baseline: str) -> dict[str, LeftEarly]:
    """Return the cells that one of the `rivals` beats in every undisturbed round that the two shared, by label.

    All processes so far count. Two cells that shared no round are compared through a third one, by the worst of its
    rounds with each. The baseline itself is never beaten, because speed-ups are taken to it.
    """
    found = {}
    for label, series in cells.items():
        leads = {rival: _least_lead(cells[rival], series, list(cells.values())) for rival in rivals if rival != label}
        than = max(leads, key=lambda rival: leads[rival], default=None)
        if than is not None and label != baseline and leads[than] >= BEATEN_BY:
            found[label] = LeftEarly(after_process=len(series), ratio=leads[than], than=than)
    return found


def _least_lead(fast: Series, slow: Series, thirds: Sequence[Series]) -> float:
    """Return how many times faster `fast` was in the round that was worst for it, or 0 if too few rounds tell."""
    logs = _shared_logs(fast, slow)
    if logs:
        return math.exp(min(logs)) if len(logs) >= FEWEST_ROUNDS else 0.0
    found = [0.0]
    for third in thirds:
        to_fast, to_slow = _shared_logs(fast, third), _shared_logs(third, slow)
        if min(len(to_fast), len(to_slow)) >= FEWEST_ROUNDS:
            found.append(math.exp(min(to_fast) + min(to_slow)))
    return max(found)


def _shared_logs(fast: Series, slow: Series) -> list[float]:
    """Return the logarithms of slow / fast in the rounds that both took part in and that were undisturbed for both."""
    found = []
    for process in fast.keys() & slow.keys():
        ours, theirs = _undisturbed_ms(fast[process]), _undisturbed_ms(slow[process])
        found += [math.log(theirs[key] / ours[key]) for key in ours.keys() & theirs.keys()]
    return found


def _undisturbed_ms(turns: Mapping[tuple[int, int], Turn]) -> dict[tuple[int, int], float]:
    return {key: turn.ms for key, turn in turns.items() if not turn.disturbed}
