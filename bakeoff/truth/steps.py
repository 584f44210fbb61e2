"""Values that jump where rounding moves something over an edge: of a model that rounds itself, to decimals for example,
and of operators with several right answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from bakeoff.truth.calls import is_inexact
from bakeoff.truth.matching import Outputs, as_pairs, labels, with_structure_of
from bakeoff.truth.rounding_limits import VALUE_MARGIN
from bakeoff.truth.witnesses import RUNS_WITH_NOISE, STRONG_NOISE

OTHER_ROUNDINGS = 64.0
"""A value is another one if it is off by so many roundings of itself and of the output's size."""

TIMES_WITNESSES = 2.0
"""A build may differ so many times as much as a witness with noise."""

MOST_STEPS = 1.5
"""Where all other values of the witnesses are one step off, none may be off by so many steps."""


class _OtherValues(NamedTuple):
    """How far values of an output are others than the reference's, over all input sets."""

    places: list[torch.Tensor]  # where they are, for each input set
    number: int
    distance: float
    sorted_distance: float  # of the sorted absolute values, which other signs and another order do not change
    rounding: float  # of all values
    nearest: float  # the distance of the one that is least off
    farthest: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], rounding: float) -> _OtherValues:
        given = [[as_pairs(tensor).detach().cpu() for tensor in pair] for pair in pairs]
        values = [[tensor.double().nan_to_num(0.0, 0.0, 0.0) for tensor in pair] for pair in given]
        share = OTHER_ROUNDINGS * rounding if is_inexact(pairs[0][1]) else 0.0
        places = [
            ((ours - exact).abs() > share * (exact.abs() + root_mean_square(exact))) | _are_finite_otherwise(*own)
            for own, (ours, exact) in zip(given, values, strict=True)
        ]
        ours, theirs = (torch.cat([tensor.flatten() for tensor in one]) for one in zip(*values, strict=True))
        are_others = torch.cat([place.flatten() for place in places])
        distances = (ours - theirs).abs()[are_others] if are_others.any() else torch.zeros(1)
        return cls(
            places,
            sum(int(place.sum()) for place in places),
            float((ours - theirs).norm()),
            float((ours.abs().sort().values - theirs.abs().sort().values).norm()),
            OTHER_ROUNDINGS * rounding * float(theirs.norm()),
            float(distances.min()),
            float(distances.max()),
        )

    def is_as_of(self, witnesses: Sequence[_OtherValues]) -> bool:
        """Return True if the witnesses have about as many other values, as far off, and of such sizes."""
        step = max(each.farthest for each in witnesses)
        are_steps = all(each.nearest * MOST_STEPS > step for each in witnesses if each.number)
        if self.farthest > (MOST_STEPS if are_steps else VALUE_MARGIN) * step:
            return False
        most = [TIMES_WITNESSES * max(of_witnesses) for of_witnesses in list(zip(*witnesses, strict=True))[1:4]]
        return bool(
            self.number <= most[0] and self.distance <= most[1] and self.sorted_distance <= most[2] + self.rounding
        )


def _are_finite_otherwise(ours: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return where one is not finite, and the other one is something else."""
    is_same = (ours.double() == exact.double()) | (ours.isnan() & exact.isnan())
    return ~((ours.isfinite() & exact.isfinite()) | is_same)


def root_mean_square(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt()


def without_jumps(
    answers: Sequence[Outputs], reference: Sequence[Outputs], witnesses: Sequence[Sequence[Outputs]], rounding: float
) -> tuple[list[Outputs], dict[str, int]]:
    """Return these answers with the reference's values where they are others, and how many these are in each output.
    The witnesses are as right as the reference, the first with noise of one `rounding`, the others with more."""
    found = list(map(list, answers))
    counts = dict[str, int]()
    # an input set may have fewer outputs than another one
    if any(list(map(len, run)) != [len(reference[0])] * len(reference) for run in (reference, answers, *witnesses)):
        return list(answers), counts

    def values_at(place: int, of: Sequence[Outputs], roundings: int = 1) -> _OtherValues | None:
        """Return nothing if shapes differ."""
        pairs = [(ours[place], exact[place]) for ours, exact in zip(of, reference, strict=True)]
        are_alike = all(ours.shape == exact.shape for ours, exact in pairs)
        return _OtherValues.of(pairs, roundings * rounding) if are_alike else None

    def more_at(place: int, of: Sequence[Outputs]) -> int:
        return sum(abs(ours[place].numel() - exact[place].numel()) for ours, exact in zip(of, reference, strict=True))

    for place, label in enumerate(labels(reference[0])):
        ours = values_at(place, answers)
        theirs = [
            values_at(place, run, 1 if number < RUNS_WITH_NOISE else STRONG_NOISE)
            for number, run in enumerate(witnesses)
        ]
        known = [values for values in theirs if values is not None]
        if ours:
            is_explained = ours.number > 0 and bool(known) and ours.is_as_of(known)
        else:
            is_explained = (
                0 < more_at(place, answers) <= TIMES_WITNESSES * max(more_at(place, witness) for witness in witnesses)
            )
        # The witnesses differ less in this output than the answers do.
        if not is_explained:
            continue
        counts[label] = ours.number if ours else sum(exact[place].numel() for exact in reference)
        for number, exact in enumerate(reference):
            value = exact[place].to(answers[number][place])
            if ours:
                is_other = ours.places[number].to(value.device)
                is_other = is_other.any(-1) if is_other.dim() > value.dim() else is_other  # of complex numbers
                value = torch.where(is_other, value, answers[number][place])
            found[number][place] = value
    return list(map(with_structure_of, answers, found)), counts
