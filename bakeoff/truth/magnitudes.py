"""Errors by the magnitude of the reference's values: a fault in small values does not show beside far larger ones.

Squares and logarithms of errors are added up in each octave, from a power of two to the next one. The logarithms give
the error of a usual value, which a few large ones do not hide. Neighbouring octaves count together where one has too
few values to tell anything.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision
from bakeoff.truth.rounding_limits import (
    LARGEST_GATED,
    MAX_ABSOLUTE_SHARE,
    MIN_CANCELLING,
    MIN_MAGNITUDE_VALUES,
    MOST_GATED,
    ROUNDING_UNITS,
    TYPICAL_MARGIN,
    UNIT_OF_ONE,
    VALUE_MARGIN,
)

EXPONENTS = 2**11
"""Float64 has as many. The first one is that of zeros, which have no magnitude."""

EXPONENT_OF_ONE = 1023

APART_OCTAVES, MIN_APART_VALUES = 6, 4
"""So few values are a magnitude of their own if the next smaller ones are so many octaves below, as in other units."""


def sums_by_octave(sizes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(EXPONENTS, dtype=torch.float64, device=values.device)
    return sums.index_add_(0, (sizes.view(torch.int64) >> 52).reshape(-1), values.reshape(-1))


LEAST_SHARE = 2.0**-25
"""An error counts as at least this share of its value: it may be zero by chance."""


def errors_by_octave(sizes: torch.Tensor, errors: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Add up squares of these errors, their logarithms to base 2, their number, and how many are more than the rounding
    of an exact value to `dtype`, in the octave of each size."""
    type_info = torch.finfo(dtype)
    logs = errors.maximum(LEAST_SHARE * sizes).log2_()
    is_inexact = errors > sizes.clamp_min(type_info.smallest_normal) * (type_info.eps / 2)
    added = (errors.square(), logs, torch.ones_like(errors), is_inexact.double())
    return torch.stack([sums_by_octave(sizes, values) for values in added])


class EagerOctaves(NamedTuple):
    """What eager and the reference have in each octave: vectors that start with zeros' and end with the largest."""

    counts: torch.Tensor
    reference_squares: torch.Tensor
    eager_squares: torch.Tensor
    eager_logs: torch.Tensor
    eager_inexact: torch.Tensor
    """How many of eager's values are not as exact as their type can be, and so tell what its rounding does."""

    @classmethod
    def of(cls, eager: torch.Tensor) -> EagerOctaves:
        """Return eager's errors by octave, to which each input set's values of the reference are to be added."""
        none = torch.zeros(EXPONENTS, dtype=torch.float64)
        squares, logs, _, inexact = eager.cpu()
        return cls(none, none, squares, logs, inexact)

    def with_reference(self, values: torch.Tensor) -> EagerOctaves:
        """Return the same with these values of the reference, which are finite and in float64."""
        sizes = values.abs()
        counts = self.counts + sums_by_octave(sizes, torch.ones_like(sizes)).cpu()
        squares = self.reference_squares + sums_by_octave(sizes, sizes.square()).cpu()
        return self._replace(counts=counts, reference_squares=squares)

    @property
    def size(self) -> float:
        return float((self.reference_squares.sum() / self.counts.sum()).sqrt())

    def off_by(self, share: float) -> EagerOctaves:
        """Return the same with errors of this share of each value."""
        squares = share**2 * self.reference_squares
        logs = self.counts * (squares / self.counts).log2().div(2).nan_to_num(0.0)
        return self._replace(eager_squares=squares, eager_logs=logs)

    @property
    def eager(self) -> torch.Tensor:
        return torch.stack([self.eager_squares, self.eager_logs, self.counts, self.eager_inexact])

    def groups(self, errors: torch.Tensor) -> Groups | None:
        """Return the groups of octaves with enough values, the largest first, beside a build's errors by octave."""
        ends, count, inexact = list[int](), 0.0, 0.0
        exponents = self.counts[1:].nonzero().flatten().add(1).flip(0).tolist()
        for exponent, following in itertools.zip_longest(exponents, exponents[1:], fillvalue=EXPONENTS):
            count += float(self.counts[exponent])
            inexact += float(self.eager_inexact[exponent])
            is_apart = count >= MIN_APART_VALUES and following < exponent - APART_OCTAVES
            # Where eager hands most values on, as rows of a cache, the few that it computes decide a group's error.
            is_known = inexact == 0 or inexact >= MIN_MAGNITUDE_VALUES
            if (count >= MIN_MAGNITUDE_VALUES and is_known) or is_apart:
                ends.append(exponent)
                count = inexact = 0.0
        if not ends:
            return None
        if count:  # the smallest ones count with those before them, unless they lie far below
            following = max(exponent for exponent in exponents if exponent < ends[-1])
            if count >= MIN_APART_VALUES and following < ends[-1] - APART_OCTAVES:
                ends.append(exponents[-1])
            else:
                ends[-1] = exponents[-1]
                while len(ends) > 1 and 0 < float(self.eager_inexact[ends[-1] : ends[-2]].sum()) < MIN_MAGNITUDE_VALUES:
                    del ends[-2]
        starts = [EXPONENTS, *ends[:-1]]

        def summed(sums: torch.Tensor) -> torch.Tensor:
            return torch.stack([sums[low:high].sum() for low, high in zip(ends, starts, strict=True)])

        counts = summed(self.counts)
        squares, logs, compared, _ = errors.cpu()  # perhaps of fewer input sets
        squared = (squares, self.eager_squares, self.reference_squares)
        ours, eager, sizes = (summed(sums).div(counts).sqrt() for sums in squared)
        typical_ours = summed(logs).div(summed(compared)).exp2().nan_to_num(0.0)
        typical_eager = summed(self.eager_logs).div(counts).exp2()
        largest = [max(exponent for exponent in exponents if exponent < start) for start in starts]
        return Groups(counts, ours, eager, sizes, typical_ours, typical_eager, tuple(zip(ends, largest, strict=True)))


class Groups(NamedTuple):
    """For each group of octaves the number of its values, two RMSEs, the root mean square of its reference, two
    geometric means of errors, and its first and last exponent."""

    counts: torch.Tensor
    ours: torch.Tensor
    eager: torch.Tensor
    sizes: torch.Tensor
    typical_ours: torch.Tensor
    typical_eager: torch.Tensor
    exponents: tuple[tuple[int, int], ...]

    def limits(self, precision: Precision, limit: float, eager_rmse: float) -> torch.Tensor:
        """Return the largest RMSE of each group, from the `limit` of the whole output and eager's RMSE of it."""
        # Where `limit` is a floor, it is another multiple of eager's error, which each group may have, too.
        allowed = _multiple(precision, limit, eager_rmse) * self.eager
        rounding = allowed.maximum(_floor(precision) * self.sizes)
        # Where large terms cancel, a small value has the error of large ones, up to one lost value of the group.
        cancelling = self._cancelling
        cancelling = torch.where(cancelling >= MIN_CANCELLING, cancelling, 0.0)
        cancelled = ((cancelling / self.counts[:, None]).clamp_max(1.0) @ allowed.square()).sqrt()
        rounding = rounding.maximum(cancelled.minimum(self.sizes / (VALUE_MARGIN * self.counts.sqrt())))
        return self._or_absolute(VALUE_MARGIN * rounding)

    def typical_limits(self, precision: Precision, limit: float, eager_rmse: float) -> torch.Tensor:
        """Return the largest geometric mean of the errors of each group, from that of eager's."""
        # A few lost values hardly move it, so that it shows where most are less exact than eager's, as in bfloat16.
        allowed = _multiple(precision, limit, eager_rmse) * self.typical_eager
        rounding = allowed.maximum(_floor(precision) * self.sizes)
        # This share of the values may be left from cancelling larger ones, and then has the error of these.
        shares = (self._cancelling / self.counts[:, None]).clamp_max(1.0)
        bits = torch.where(shares > 0, shares * (rounding / rounding[:, None]).log2(), 0.0)
        return self._or_absolute(TYPICAL_MARGIN * rounding * bits.clamp_min(0.0).amax(1).exp2())

    @property
    def _cancelling(self) -> torch.Tensor:
        """How many values of each group may be left from cancelling those of a larger one: a row for each that is."""
        expected = self.counts * (self.sizes[:, None] / self.sizes)
        return torch.where(self.sizes > self.sizes[:, None], expected, 0.0)

    def _or_absolute(self, limits: torch.Tensor) -> torch.Tensor:
        """Return these limits, or what is rounding whatever the magnitude if that is more."""
        absolute = (MAX_ABSOLUTE_SHARE * self.sizes).clamp_max(ABSOLUTE_TOLERANCE)
        largest = float(self.sizes[0])
        gated = MOST_GATED if largest <= LARGEST_GATED else 1.0
        return limits.maximum(absolute).clamp_min(UNIT_OF_ONE * min(largest, gated))

    def limits_at(self, sizes: torch.Tensor, limits: torch.Tensor, overall: float) -> torch.Tensor:
        """Return the limit for values of each of these sizes, from those of the groups, and at most `overall`."""
        growing = limits.flip(0).cummax(0).values.clamp_max(overall)
        place = torch.searchsorted(self.sizes.flip(0), sizes.clamp_max(float(self.sizes[0])))
        return torch.where(sizes < self.sizes[-1], overall, growing[place])

    def ends_of(self, number: int) -> tuple[float, float]:
        first, last = self.exponents[number]
        return math.ldexp(1, first - EXPONENT_OF_ONE), math.ldexp(1, last + 1 - EXPONENT_OF_ONE)

    def range_of(self, number: int) -> str:
        return "{:.2g} to {:.2g}".format(*self.ends_of(number))


def _multiple(precision: Precision, limit: float, eager_rmse: float) -> float:
    times = limit / eager_rmse if 0 < eager_rmse < math.inf else 0.0
    return max(precision.max_times_eager_rmse, min(times, ROUNDING_UNITS[precision]))


def _floor(precision: Precision) -> float:
    return ROUNDING_UNITS[precision] * precision.epsilon
