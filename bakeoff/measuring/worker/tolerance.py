"""How large may an error be before it is more than rounding? Pure functions from numbers to limits.

An output passes when three errors are within their limits: the RMSE over all values, the RMSE in each slice along each
dimension (each channel, each row), and the largest error of a single value. The last two find a fault in one channel or
in one row, which the RMSE over a large output hides. Where some values are far larger than all the others, such as -1e9
in masked logits, the others have a limit of their own.

Each limit is the larger of two: some times the same error of eager, and a floor of some units in the last place of the
precision's type. The floor is relative to the size of the output, because outputs of 1e-5 and of 1e5 are as well known.

- Multiples of eager's error are torch's own rule (`torch._dynamo.utils.same` with `fp64_ref`). It allows twice eager's
  RMSE in float32, three times in 16 bits, and up to ten times where normalisations are folded into convolutions. Ours
  are twice in TF32, three times in 16 bits, and four times in float32. There, folding and the order of sums gave up to
  2.3 times eager's error in RepVGG and 4 times in Mamba2, and the smallest planted fault was above 100 times.
- torch adds a floor to it: a tenth of its tolerance, which is 1e-5 or more, whatever the size of the output. Ours is
  16 units in float32 (1.9e-6). The rounding errors of a sum of n products grow as sqrt(n) units (Higham and Mary, 2019,
  "A new approach to probabilistic rounding error analysis"), so 16 units are a chain of 256 additions in one order.
  Compilers order sums in other ways, fold normalisations into weights, and use Winograd's convolutions.
- In 16 bits and in TF32, sums are accumulated in float32, so depth does not count. The floor is two units, which is
  torch.testing's `rtol` for bfloat16.
"""

import math

import torch

from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision

ROUNDING_UNITS = {Precision.FP32: 16.0, Precision.TF32: 2.0, Precision.BF16: 2.0, Precision.FP16: 2.0}
"""An error of so many units in the last place, relative to the size of the output, is rounding whatever eager's is."""

SLICE_MARGIN = 2.0
"""A slice may have this many times the share of error that is allowed overall, because errors vary between slices."""

VALUE_MARGIN = 4.0
"""A single value may have this many times eager's largest error times the allowed multiple: tails are heavy."""

USUAL_QUANTILE = 0.05
"""The size that this share of the values stays below is a usual one: of masked logits most may be masked."""

OUTLYING_TIMES = 1000.0
"""An output whose root mean square is more than so many times a usual size has outlying values."""

USUAL_TIMES = 100.0
"""Values of at most so many times the usual size are not outlying. It is six standard deviations of a normal one."""


def rounding_floor(precision: Precision, size: float) -> float:
    """Return the RMSE that rounding alone may cause in an output of this root mean square, whatever eager's is.

    An output of zeros has no size to compare with. There the absolute tolerance of torch.testing holds.
    """
    return ROUNDING_UNITS[precision] * precision.epsilon * size if size else ABSOLUTE_TOLERANCE


def rmse_limit(precision: Precision, eager_rmse: float, size: float) -> float:
    """Return the largest RMSE of an output whose reference has the root mean square `size`.

    An eager that overflows excuses nothing.
    """
    near_eager = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
    return max(near_eager, rounding_floor(precision, size))


def slice_limits(precision: Precision, limit: float, eager_rmse: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return the largest RMSE of each slice: from `limit` for the whole output, eager's RMSE in the same slice, and the
    root mean square of the slice."""
    near_eager = precision.max_times_eager_rmse * eager_rmse
    floor = ROUNDING_UNITS[precision] * precision.epsilon * sizes
    return SLICE_MARGIN * near_eager.maximum(floor).clamp_min(limit)


def value_limit(precision: Precision, limit: float, eager_largest: float) -> float:
    """Return the largest error of a single value of an output, from `limit` for its RMSE and eager's largest error."""
    return VALUE_MARGIN * max(precision.max_times_eager_rmse * eager_largest, limit)


def usual_limit(precision: Precision, eager_rmse: float, size: float) -> float:
    """Return the largest RMSE of the usual values of an output with outlying ones, if theirs has this root mean square.

    Tails of a softmax that come out as zeros are right by the absolute tolerance.
    """
    return max(VALUE_MARGIN * rmse_limit(precision, eager_rmse, size), ABSOLUTE_TOLERANCE)


MOST_EXCUSED_UNITS = {Precision.FP32: 256.0, Precision.TF32: 8.0, Precision.BF16: 8.0, Precision.FP16: 8.0}
"""Eager's error excuses a part of a model up to so many units in the last place. An eager that is worse has lost
precision itself, as where a model casts to a narrower type."""


def blame_limit(precision: Precision, eager_rmse: float, size: float) -> float:
    """Return the largest RMSE of a part of a model that is rounding in its precision, for an output of this size."""
    if precision not in ROUNDING_UNITS:
        return precision.max_relative_rmse * size
    excused = MOST_EXCUSED_UNITS[precision] * precision.epsilon * size
    return rmse_limit(precision, min(eager_rmse, excused / precision.max_times_eager_rmse), size)
