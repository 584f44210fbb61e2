"""Compares how random outputs are distributed: those of several calls of a build with those of as many of eager.

Both sets of calls are one set if the build draws from the same distribution. So each way of dealing all calls into two
halves is as likely as the one that was seen. The differences between the halves in the mean and in the spread, over all
elements and in the worst one, are compared with those of random halves. Whatever the distribution is, a right build is
blamed with a probability of at most `FALSE_ALARM`.
"""

from collections.abc import Collection, Mapping, Sequence

import torch

from bakeoff.backends.calling import sampled
from bakeoff.records.precision import Precision
from bakeoff.truth import rounding_limits
from bakeoff.truth.matching import Matched, as_pairs

CALLS = 16
"""So many calls of each are compared, with the same inputs."""

MIN_CALLS = 8
"""With fewer calls there are too few ways of dealing them into halves."""

MAX_SECONDS = 30.0
"""A slow model is called less often: no further call begins after this time, once there are `MIN_CALLS`."""

FALSE_ALARM = 1e-3
"""The probability with which a right build is told to be distributed otherwise, for each output."""

MAX_ELEMENTS = 1024
"""Of a larger output so many elements are compared."""

DEALS = 9999
"""So often all calls are dealt into random halves."""

STILL = 4.0
"""An element that varies by at most so many times the rounding of its type does not vary."""

Draws = Mapping[str, torch.Tensor]
"""For each output a row for each call."""


def draws_of(calls: Sequence[Matched], labels: Sequence[str], varying: Collection[str]) -> Draws:
    """Return what the calls have drawn. Outputs whose size varies, or that are not finite everywhere, are absent."""
    found = {}
    for number, label in enumerate(labels):
        if label not in varying:
            continue
        tensors = [tensor for call in calls if (tensor := call[number]) is not None]
        if len(tensors) < len(calls) or len({tensor.shape for tensor in tensors}) > 1 or not tensors[0].numel():
            continue
        rows = torch.stack([sampled(as_pairs(tensor), MAX_ELEMENTS).double().cpu() for tensor in tensors])
        if bool(rows.isfinite().all()):
            found[label] = rows
    return found


def difference(ours: Draws, eagers: Draws, precision: Precision) -> str:
    for label, theirs in eagers.items():
        if label not in ours or ours[label].shape != theirs.shape:
            return f"{label} is not finite, or of another size, in some calls"
        if found := _difference(ours[label], theirs, precision):
            return f"{label} {found}, over {len(theirs)} calls of each"
    return ""


def _difference(ours: torch.Tensor, theirs: torch.Tensor, precision: Precision) -> str:
    is_whole = all(bool((draws == draws.round()).all()) for draws in (ours, theirs))
    size = float(theirs.square().mean().sqrt())
    rounding = 0.0 if is_whole else STILL * rounding_limits.rounding_floor(precision, size)
    spread = theirs.std(0)
    varies = (spread > rounding) | (ours.std(0) > rounding)
    off = (ours.mean(0) - theirs.mean(0)).abs()
    if bool((off[~varies] > 2 * rounding).any()):
        return "has another value where eager's does not vary"
    if not bool(varies.any()):
        return ""
    pooled = torch.cat((ours, theirs))[:, varies]
    scale = pooled.std(0).clamp_min(torch.finfo(torch.float64).tiny)
    centred = ((pooled - pooled.mean(0)) / scale).float()
    for name, values in (("mean", centred), ("spread", centred.square())):
        if _chance(values) < FALSE_ALARM / 4:
            ratio = float(ours[:, varies].std(0).mean() / spread[varies].mean().clamp_min(1e-300))
            return f"has another {name} than eager's" + (f" ({ratio:.2g} times as wide)" if name == "spread" else "")
    return ""


def _chance(values: torch.Tensor) -> float:
    """Return the probability of halves that differ as much, over all elements or in the worst one: the smaller one."""
    calls = len(values) // 2
    generator = torch.Generator().manual_seed(calls)
    order = torch.rand(DEALS, 2 * calls, generator=generator).argsort(1)
    deals = torch.cat((torch.arange(2 * calls)[None], order))
    sides = torch.where(deals < calls, 1.0, -1.0)
    totals, largest = [], []
    for some in torch.split(sides, 1000):
        apart = some @ values
        totals.append(apart.square().sum(1))
        largest.append(apart.abs().amax(1))
    chances = []
    for statistic in (torch.cat(totals), torch.cat(largest)):
        as_far = statistic >= statistic[0] * (1 - 1e-5)
        chances.append(float(as_far.double().mean()))
    return min(chances)
