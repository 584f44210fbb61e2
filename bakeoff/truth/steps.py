"""Real numbers that a model has rounded itself, such as to decimals: rounding moves a few of them over an edge."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch

from bakeoff.truth.errors import MAX_FLIPPED_SHARE, MIN_WHOLE_NUMBERS
from bakeoff.truth.matching import Matched, Outputs, labels

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

    `error_of` gives the error before the model rounds, of values of a root mean square. It takes values of an even
    spread over an edge with a chance of error per step. If more of them are off, all of them stay as they are.
    """
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
        values = torch.cat([exact.detach().cpu().double().flatten() for _, exact in pairs if is_plain(exact)] or [NONE])
        step = step_of(values)
        if not step or not all(ours is not None and is_plain(ours) and is_plain(exact) for ours, exact in pairs):
            continue
        flips = [_flips(ours, exact, step) for ours, exact in pairs if ours is not None]
        count = sum(int(each.sum()) for each in flips)
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
    """Return where a value is one step off."""
    distance = (ours.detach().double() - exact.to(ours.device).double()).abs()
    return (distance - step).abs() < ON_STEP * step
