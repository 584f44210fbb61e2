"""How cells compare by the rounds of one process, while an epoch goes on: which of them need further rounds.

What processes differ by comes on top, and no number of rounds shows it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bakeoff.judging import estimate
from bakeoff.judging.decision import NARROW_LEAD, TIE_MARGIN
from bakeoff.records.schema import Burst

MAX_STANDARD_ERROR_SHARE = 1 / 8
"""If the standard error is at most this share of a difference, three processes can show the difference."""

MAX_SHARE_OF_NARROW_LEAD = 1 / 5
"""The same for a lead under `NARROW_LEAD`, which needs five processes anyway. Student's t for its confidence is 8.6
over five, and 9.9 for a wide lead over three: the error may be 1.5 times as large a share."""

MAX_SHARE_BESIDE_NARROW_LEAD = 1 / 3
"""The same for a wide lead beside a narrow one, since the contest has five processes of each cell anyway. Student's t
for its confidence is 4.6 over five: the error may be 2.8 times as large a share."""

MIN_CALM_SHARE = 0.75
"""Minimum share of undisturbed rounds; below it, rounds are repeated."""


@dataclass(frozen=True)
class Gap:
    """How the latency of a cell compares with that of another one, by the rounds of one process that they shared."""

    log: float
    error: float  # the standard error of `log`
    is_calm: bool  # most of the rounds were undisturbed for both

    @property
    def is_wide(self) -> bool:
        return abs(self.log) >= math.log1p(NARROW_LEAD)


def gap(fast: Mapping[tuple[int, int], estimate.Turn], slow: Mapping[tuple[int, int], estimate.Turn]) -> Gap | None:
    """Return the logarithm of slow / fast, or None if the two shared no round."""
    logs = estimate.shared_logs(fast, slow)
    if not logs:
        return None
    shared, calm = estimate.common_rounds(fast, slow)
    (middle,), (error,) = estimate.medians_and_errors(np.array([logs]))
    return Gap(float(middle), float(error), len(calm) >= MIN_CALM_SHARE * len(shared))


def _gaps(cells: Sequence[Sequence[Burst]], bridge: int | None = None) -> tuple[int, dict[int, Gap | None]] | None:
    """Return the place of the fastest cell, or of the `bridge`, and the gap of each other cell with bursts to it.
    Return None while that one has no bursts."""
    turns = [next(iter(series.values()), {}) for series in map(estimate.series_of, cells)]
    if not (any(turns) if bridge is None else turns[bridge]):
        return None
    against = estimate.fastest(cells) if bridge is None else bridge
    others = {place: its_turns for place, its_turns in enumerate(turns) if its_turns and place != against}
    return against, {place: gap(turns[against], its_turns) for place, its_turns in others.items()}


def imprecise(cells: Sequence[Sequence[Burst]], bridge: int | None = None) -> set[int]:
    """Return the places of the cells whose rounds so far do not tell how they compare with the fastest, and of the
    fastest, or of the cell at `bridge` instead. Each cell has bursts of one process."""
    if (against_fastest := _gaps(cells, bridge)) is None:
        return set()
    against, gaps = against_fastest

    takes_five = any(gap and math.log1p(TIE_MARGIN) <= abs(gap.log) and not gap.is_wide for gap in gaps.values())
    share_of_wide = MAX_SHARE_BESIDE_NARROW_LEAD if takes_five else MAX_STANDARD_ERROR_SHARE

    def most_error(seen: Gap) -> float:
        share = share_of_wide if seen.is_wide else MAX_SHARE_OF_NARROW_LEAD
        # with `bridge` a large difference does not help, because its error is in other ratios, too
        return max(estimate.MAX_STANDARD_ERROR, abs(seen.log) * share if bridge is None else 0.0)

    open_ones = {place for place, gap in gaps.items() if gap and gap.error > most_error(gap)}
    return {against, *open_ones} if open_ones else set()


def unclear(cells: Sequence[Sequence[Burst]], most_error: float = math.inf) -> set[int]:
    """Return the places of the cells whose gap to the fastest is not clear yet (`is_clear`), and of the fastest with
    them. Each cell has bursts of one process. A cell alone is never clear."""
    if (against_fastest := _gaps(cells)) is None:
        return set()
    against, gaps = against_fastest
    open_ones = {place for place, gap in gaps.items() if gap is None or not is_clear(gap, most_error)}
    return {against, *open_ones} if open_ones or not gaps else set()


def is_clear(seen: Gap, most_error: float = math.inf) -> bool:
    """Return True if more rounds of this process would add little to what is known of the gap: its error is small
    beside it, and unless it is a wide lead, most rounds were undisturbed."""
    error = max(estimate.LEAST_ERROR, min(abs(seen.log) * MAX_STANDARD_ERROR_SHARE, most_error))
    return seen.error <= error and (seen.is_wide or seen.is_calm)
