"""Values that jump where rounding moves something over an edge: of a model that rounds itself, to decimals for example,
and of operators with several right answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch

from bakeoff.truth.calls import MAX_COMPARED_ELEMENTS
from bakeoff.truth.errors import MAX_FLIPPED_SHARE, MIN_WHOLE_NUMBERS, is_whole
from bakeoff.truth.matching import Matched, Outputs, as_pairs, labels
from bakeoff.truth.witnesses import RUNS_WITH_NOISE, STRONG_NOISE

MAX_EXAMINED = 2**24
"""The values of larger outputs are not sorted."""

MIN_VALUES_PER_STEP = 8
"""So many values lie on one step on average."""

ON_STEP = 1e-3
"""Values lie on steps if they are no farther from them than this share of one."""

CHANCE = 4.0
"""By so many standard deviations there may be more values on an edge than expected."""


def without_flips(
    outputs: Sequence[Matched], reference: Sequence[Outputs], names: Collection[str], error_of: Callable[[float], float]
) -> tuple[list[Matched], dict[str, int]]:
    """Return these outputs with the reference's values where theirs are one step off by rounding, and their numbers.
    `error_of` gives the error, before the model rounds, of values of a root mean square."""
    found = list(map(list, outputs))
    counts = dict[str, int]()
    for name in names:
        places = [
            (number, place)
            for number, exact in enumerate(reference)
            for place, label in enumerate(labels(exact))
            if label == name and outputs[number][place] is not None
        ]
        pairs = [(found[number][place], reference[number][place]) for number, place in places]
        # without the digests of a larger output
        flat = [
            exact.detach().flatten()[:MAX_COMPARED_ELEMENTS].cpu().double() for _, exact in pairs if is_plain(exact)
        ]
        values = torch.cat(flat or [NONE])
        step = step_of(values)
        if not step or not all(ours is not None and is_plain(ours) and is_plain(exact) for ours, exact in pairs):
            continue
        flips = [_flips(ours, exact, step) for ours, exact in pairs if ours is not None]
        count = sum(int(flip.sum()) for flip in flips)
        # Evenly spread values cross an edge with a chance of error per step. If more are off, all stay as they are.
        expected = values.numel() * min(error_of(float(values.square().mean().sqrt())) / step, MAX_FLIPPED_SHARE)
        if not 0 < count <= min(int(expected + CHANCE * math.sqrt(expected)), MAX_FLIPPED_SHARE * values.numel()):
            continue
        for (number, place), (ours, exact), is_flipped in zip(places, pairs, flips, strict=True):
            assert ours is not None
            found[number][place] = torch.where(is_flipped, exact.to(ours), ours)
        counts[name] = count
    return list(map(tuple, found)), counts


NONE = torch.empty(0, dtype=torch.float64)


def step_of(values: torch.Tensor) -> float:
    """Return the distance of the equal steps that many values lie on, or 0 if they do not."""
    if not MIN_WHOLE_NUMBERS <= values.numel() <= MAX_EXAMINED or not bool(values.isfinite().all()):
        return 0.0
    steps = torch.unique(values)
    distances = steps.diff()
    distances = distances[distances > torch.finfo(torch.float32).eps * float(steps.abs().max())]
    if not distances.numel() or distances.numel() * MIN_VALUES_PER_STEP > values.numel():
        return 0.0
    step = float(distances.min())
    places = (steps - steps[0]) / step
    return step if bool(((places - places.round()).abs() < ON_STEP).all()) else 0.0


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested


def _flips(ours: torch.Tensor, exact: torch.Tensor, step: float) -> torch.Tensor:
    distance = (ours.detach().double() - exact.to(ours.device).double()).abs()
    return (distance - step).abs() < ON_STEP * step


OTHER_ROUNDINGS = 64.0
"""A value is another one if it is off by so many roundings of itself and of the output's size."""

TIMES_WITNESSES = 2.0
"""A build may differ so many times as much as a witness with noise."""


class _OtherValues(NamedTuple):
    """How far values of an output are others than the reference's, over all input sets."""

    places: list[torch.Tensor]  # where they are, for each input set
    number: int
    distance: float
    sorted_distance: float  # of the sorted absolute values, which other signs and another order do not change
    rounding: float  # of all values

    @classmethod
    def of(cls, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], rounding: float) -> _OtherValues:
        given = [[as_pairs(tensor).detach().cpu() for tensor in pair] for pair in pairs]
        values = [[tensor.double().nan_to_num(0.0, 0.0, 0.0) for tensor in pair] for pair in given]
        share = 0.0 if is_whole(pairs[0][1]) else OTHER_ROUNDINGS * rounding
        places = [
            ((ours - exact).abs() > share * (exact.abs() + root_mean_square(exact))) | _are_finite_otherwise(*own)
            for own, (ours, exact) in zip(given, values, strict=True)
        ]
        ours, theirs = (torch.cat([tensor.flatten() for tensor in one]) for one in zip(*values, strict=True))
        return cls(
            places,
            sum(int(place.sum()) for place in places),
            float((ours - theirs).norm()),
            float((ours.abs().sort().values - theirs.abs().sort().values).norm()),
            OTHER_ROUNDINGS * rounding * float(theirs.norm()),
        )

    def is_as_of(self, witnesses: Sequence[_OtherValues]) -> bool:
        """Return True if the witnesses have about as many other values, as far off, and of such sizes."""
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
        are_alike = all(ours.shape == exact.shape and is_dense(ours) and is_dense(exact) for ours, exact in pairs)
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
    return list(map(tuple, found)), counts


def is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
