"""What a cell computes in, with everything that depends on it (docs/method.md, Precision).

The names that one library or one GPU has for a precision stand with the code that talks to it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

ABSOLUTE_TOLERANCE = 1e-5
"""`atol` of torch.testing.assert_close, the same for every precision."""

GROUP_WEIGHTS = 32
"""So many weights of 4 bits, along the inputs of a layer, share a scale."""


class Precision(StrEnum):
    """A precision. It is a string, and JSON keeps it as one."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    FP8 = "fp8"
    W8A16 = "w8a16"
    W4A16 = "w4a16"
    W8A32 = "w8a32"
    W4A32 = "w4a32"

    @property
    def input_type(self) -> str:
        """Torch's name for the type of weights and inputs. TF32 multiplies float32. A quantised model is cast first:
        torchao's float8 with a scale per row takes bfloat16 only, and nobody ships float8 inside a float32 model."""
        return _TABLE[self].input_type

    @property
    def rtol(self) -> float:
        """`rtol` of torch.testing.assert_close. TF32 has the mantissa of fp16. int8 takes bf16's, which has the same 8
        bits of significand, and fp8 one unit in the last place of e4m3 (2**-3), as do weights of 4 bits."""
        return _TABLE[self].rtol

    @property
    def max_times_eager_rmse(self) -> float:
        """An output that is not close may have this many times the RMSE of eager in the same precision."""
        return _TABLE[self].max_times_eager_rmse

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number in the type of the operands of products: a unit in the last place."""
        return {"fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7, "fp16": 2.0**-10, "int8": 2.0**-7, "fp8": 2.0**-3}[
            self.products
        ]

    @property
    def max_relative_rmse(self) -> float:
        """The largest RMSE relative to the reference's root mean square, at which all zeros would be 1. For int8 and
        fp8 it is noise of a tenth of the signal's power (10 dB)."""
        return _TABLE[self].max_relative_rmse

    @property
    def reason_against_cpu(self) -> str:
        """Why no CPU computes in it; empty where one does."""
        return _TABLE[self].reason_against_cpu

    @property
    def is_quantised(self) -> bool:
        """True where casting weights and inputs is not enough, and a backend has to quantise layers."""
        return self in (Precision.INT8, Precision.FP8) or self.is_weight_only

    @property
    def is_weight_only(self) -> bool:
        """True where the weights of linear layers alone are rounded, and inputs have the type in the name."""
        return _TABLE[self].products is not None

    @property
    def has_4_bit_weights(self) -> bool:
        return self in (Precision.W4A16, Precision.W4A32)

    @property
    def products(self) -> Precision:
        """The precision of matrix products. Rounded weights are widened to the type of what they are multiplied by."""
        return _TABLE[self].products or self

    @property
    def weight_bytes(self) -> float | None:
        """The least bytes of a weight; None for those of its type. With 4 bits, 32 weights share a scale of 16."""
        return _TABLE[self].weight_bytes

    @property
    def is_16_bit(self) -> bool:
        """True where weights, inputs and products all have 16 bits."""
        return self in (Precision.BF16, Precision.FP16)

    @property
    def allows_tf32(self) -> bool:
        return self is Precision.TF32


class _Row(NamedTuple):
    input_type: str
    rtol: float
    max_times_eager_rmse: float
    max_relative_rmse: float
    reason_against_cpu: str = ""
    weight_bytes: float | None = None
    products: Precision | None = None


ONLY_NVIDIA = " NVIDIA's matrix units, and this is the CPU"

_TABLE = {
    Precision.FP32: _Row("float32", 1.3e-6, 4.0, math.inf),
    Precision.TF32: _Row("float32", 1e-3, 2.0, math.inf, "TF32 is a mode of" + ONLY_NVIDIA),
    Precision.BF16: _Row("bfloat16", 1.6e-2, 3.0, math.inf),
    Precision.FP16: _Row("float16", 1e-3, 3.0, math.inf),
    Precision.INT8: _Row("float32", 1.6e-2, 3.0, 10**-0.5, "", 1),
    Precision.FP8: _Row("bfloat16", 1.25e-1, 3.0, 10**-0.5, "float8 products are done by" + ONLY_NVIDIA, 1),
    # weights of 8 bits alone must keep 20 dB, as torchao's own tests ask of one or two layers
    Precision.W8A16: _Row("bfloat16", 1.6e-2, 3.0, 0.1, "", 1, Precision.BF16),
    Precision.W4A16: _Row("bfloat16", 1.25e-1, 3.0, 10**-0.5, "", 0.5 + 2 / GROUP_WEIGHTS, Precision.BF16),
    Precision.W8A32: _Row("float32", 1.6e-2, 3.0, 0.1, "", 1, Precision.FP32),
    Precision.W4A32: _Row("float32", 1.25e-1, 3.0, 10**-0.5, "", 0.5 + 2 / GROUP_WEIGHTS, Precision.FP32),
}
