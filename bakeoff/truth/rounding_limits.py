"""How large may an error be before it is more than rounding? Pure functions from numbers to limits.

Slices and single values show a fault in one channel or row, which the RMSE over a large output hides. Magnitudes show
one in small values beside far larger ones, such as -1e9 in masked logits. Each limit is the larger of some times
eager's error, which is torch's own rule (`torch._dynamo.utils.same` with `fp64_ref`), and a floor relative to the
output's size. Float32 has four times where torch has two: folding and the order of sums gave up to 2.3 times eager's
error in RepVGG and 4 times in Mamba2, and the smallest planted fault was above 100 times.
"""

import math

import torch

from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision

ROUNDING_UNITS = {Precision.FP32: 16.0, Precision.TF32: 2.0, Precision.BF16: 2.0, Precision.FP16: 2.0}
"""An error of so many units in the last place, relative to the size of the output, is rounding whatever eager's is.

Errors of a sum of n products grow as sqrt(n) units (Higham and Mary, 2019, "A new approach to probabilistic rounding
error analysis"), so that 16 are a chain of 256 additions. In 16 bits and TF32, sums are accumulated in float32, so
that depth does not count. Two units are torch.testing's `rtol` for bfloat16."""

SLICE_MARGIN = 2.0
"""A slice may have this many times the share of error that is allowed overall, because errors vary between slices."""

EXCUSED_TIMES = 64.0
"""A slice may be excused by eager's error in others up to so many times what half of the slices allow."""

VALUE_MARGIN = 4.0
"""A single value may have this many times eager's largest error times the allowed multiple: tails are heavy."""

TYPICAL_MARGIN = VALUE_MARGIN**2
"""The geometric mean of a magnitude's errors may be this many times rounding. In float32 that is 256 units, and half of
what TF32's operands make of a product."""

MIN_MAGNITUDE_VALUES = 16
"""So many values make a magnitude. Of as many Gaussian errors, eager's RMSE is nearly never an eighth of a build's."""

MAX_ABSOLUTE_SHARE = 0.25
"""The absolute tolerance of torch.testing excuses an error up to this share of a magnitude's own size."""

MAX_PERTURBED_SHARE = 2.0**-8
"""What perturbed weights and inputs change in a magnitude counts as eager's error up to this share of its size. At most
64 times eager's error is allowed there, and so a fourth of the size."""

MIN_CANCELLING = 0.01
"""If fewer values of a magnitude are expected to be left from cancelling larger ones, there are none."""

UNIT_OF_ONE = 2.0**-23
"""A function with values up to 1, such as ONNX Runtime's sigmoid, may be only as exact as float32 is at 1."""

MOST_GATED, LARGEST_GATED = 16.0, 2.0**24
"""SiLU and GELU multiply such a function by their input, and below -16 little is left of it. Beside larger outputs, in
which float32 has no fractions, small values are of another kind, as beside -1e9 in masked logits."""


UNITS_OF_SUM, MOST_UNITS_OF_SUM = 0.5, 256.0
"""Rounding in one order moves a sum of n positive values by a sixth of sqrt(n) units, and a sum of squares by nearly
half of it, as the partial sums grow. A sum of 100,000 values from which a few are missing is still found."""


def error_of_sum(precision: Precision, length: int) -> float:
    """Return the error, relative to the sum, that eager counts as having where it adds so many values up."""
    # Eager adds up in pairs, far more exactly than others. A chain of as many additions decides in float32.
    units = min(UNITS_OF_SUM * math.sqrt(length), MOST_UNITS_OF_SUM)
    if precision is not Precision.FP32 or units <= ROUNDING_UNITS[precision]:
        return 0.0
    return units * precision.epsilon / precision.max_times_eager_rmse


def rounding_floor(precision: Precision, size: float) -> float:
    """Return the RMSE that rounding alone may cause in an output of this root mean square, whatever eager's is."""
    # An output of zeros has no size to compare with. There the absolute tolerance of torch.testing holds.
    return ROUNDING_UNITS[precision] * precision.epsilon * size if size else ABSOLUTE_TOLERANCE


def rmse_limit(precision: Precision, eager_rmse: float, size: float) -> float:
    """Return the largest RMSE of an output whose reference has the root mean square `size`."""
    # An eager that overflows excuses nothing.
    near_eager = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
    return max(near_eager, rounding_floor(precision, size))


def slice_limits(
    precision: Precision, limits: torch.Tensor | float, eager_rmse: torch.Tensor, sizes: torch.Tensor
) -> torch.Tensor:
    """Return the largest RMSE of each slice, from the `limits` for values as large as the slice, and from eager's RMSE
    and the root mean square (`sizes`) of the slice."""
    near_eager = precision.max_times_eager_rmse * eager_rmse
    floor = ROUNDING_UNITS[precision] * precision.epsilon * sizes
    # A few slices in which eager is far off, such as an ill-conditioned column, do not excuse the others.
    as_large = torch.as_tensor(limits, dtype=sizes.dtype).minimum(usual_limits(precision, eager_rmse, sizes))
    return SLICE_MARGIN * near_eager.maximum(floor).maximum(as_large)


def usual_limits(precision: Precision, eager_rmse: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return what a slice of each size may be off if eager is as exact there as in half of the slices."""
    # What is smaller than the output on the whole counts as that large.
    sizes = sizes.clamp_min(float(sizes.square().mean().sqrt()))
    share = precision.max_times_eager_rmse * float((eager_rmse / sizes).nan_to_num(0.0).median())
    return EXCUSED_TIMES * max(share, ROUNDING_UNITS[precision] * precision.epsilon) * sizes


def value_limit(precision: Precision, limit: float, eager_largest: float) -> float:
    """Return the largest error of a single value of an output, from `limit` for its RMSE and eager's largest error."""
    return VALUE_MARGIN * max(precision.max_times_eager_rmse * eager_largest, limit)


MOST_EXCUSED_UNITS = {Precision.FP32: 256.0, Precision.TF32: 8.0, Precision.BF16: 8.0, Precision.FP16: 8.0}
"""Eager's error excuses a part of a model up to so many units in the last place. An eager that is worse has lost
precision itself, as where a model casts to a narrower type."""


def blame_limit(precision: Precision, eager_rmse: float, size: float) -> float:
    """Return the largest RMSE of a part of a model that is rounding in its precision, for an output of this size."""
    if precision not in ROUNDING_UNITS:
        return precision.max_relative_rmse * size
    excused = MOST_EXCUSED_UNITS[precision] * precision.epsilon * size
    return rmse_limit(precision, min(eager_rmse, excused / precision.max_times_eager_rmse), size)
