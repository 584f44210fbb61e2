"""Single operations to compare hand-written kernels with: one pass over memory, a copy, and two products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bakeoff.models.base import Dimension, Drawn, Inputs, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs_on
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision

if TYPE_CHECKING:
    import torch

MULTIPLE = 16
"""Sizes of a float8 product, and the bytes of a tensor descriptor's rows, are multiples of this."""

RANGE = 6.0
"""Standard normal values up to this are quantised. Larger ones, two in a billion, are clipped."""


class FusedAddReluMul(Drawn):
    """relu(x + y) * z of x, y and z, each (elements,)."""

    name = "fused_add_relu_mul"
    description = "relu(x + y) * z of long vectors: three kernels in eager, one pass over memory when fused"
    dimensions: Mapping[str, Dimension] = {"elements": Dimension(10_000_000, "length of each vector")}

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        from bakeoff.models.kernel_modules import AddReluMul

        shape = (int(dimensions["elements"]),)
        return LoadedModel(AddReluMul().eval(), normal_inputs_on(device, dtype, seed, shape, shape, shape))


class TmaCopy(Drawn):
    """A copy of a matrix (rows, columns)."""

    name = "tma_copy"
    description = "a copy of a matrix: how fast do tiles come in by pointers, and by tensor descriptors (TMA)?"
    dimensions: Mapping[str, Dimension] = {
        "rows": Dimension(8192, "rows of the matrix"),
        "columns": Dimension(8192, f"columns of the matrix, a multiple of {MULTIPLE}"),
    }

    def check(self, dimensions: Sizes) -> None:
        _check_multiples(self.name, {"columns": dimensions["columns"]})

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        from bakeoff.models.kernel_modules import Copy

        shape = (int(dimensions["rows"]), int(dimensions["columns"]))
        return LoadedModel(Copy().eval(), normal_inputs_on(device, dtype, seed, shape))


class MatmulFp16(Drawn):
    """left @ right.T (m, n) of left (m, k) and right (n, k)."""

    name = "matmul_fp16"
    description = "a product of two matrices in float16; right is stored transposed, as a linear layer's weight is"
    dimensions: Mapping[str, Dimension] = {
        "m": Dimension(8192, "rows of the result"),
        "n": Dimension(8192, "columns of the result"),
        "k": Dimension(8192, "what is summed over"),
    }

    def precision_reason(self, precision: Precision) -> str:
        return "" if precision is Precision.FP16 else f"{self.name} multiplies float16: use --precision fp16"

    def check(self, dimensions: Sizes) -> None:
        _check_multiples(self.name, dimensions)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        from bakeoff.models.kernel_modules import Product

        return LoadedModel(Product().eval(), _matrices(dimensions, seed, device, dtype))


class MatmulFp8(Drawn):
    """left @ right.T (m, n), in the cell's precision, of left (m, k) and right (n, k) in e4m3 with a scale each.

    Both are quantised beforehand, with scales that all input sets share, so that only the product is measured.
    """

    name = "matmul_fp8"
    description = "a product of two float8 (e4m3) matrices with a scale each; the result is in the cell's precision"
    dimensions: Mapping[str, Dimension] = MatmulFp16.dimensions
    products = Precision.FP8

    def precision_reason(self, precision: Precision) -> str:
        if precision not in (Precision.FP32, Precision.BF16, Precision.FP16):
            return f"{self.name} multiplies float8 already: its precision is the result's, use --precision bf16"
        return ""

    def check(self, dimensions: Sizes) -> None:
        _check_multiples(self.name, dimensions)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        import torch

        from bakeoff.models.kernel_modules import ScaledProduct

        largest = torch.finfo(torch.float8_e4m3fn).max
        scale = RANGE / largest

        def quantised(tensor: torch.Tensor) -> torch.Tensor:
            return (tensor / scale).clamp_(-largest, largest).to(torch.float8_e4m3fn)

        sets = tuple(inputs.map(quantised) for inputs in _matrices(dimensions, seed, device, torch.float32))
        return LoadedModel(ScaledProduct(scale, scale).eval(), sets)


def _matrices(dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> tuple[Inputs, ...]:
    m, n, k = (int(dimensions[name]) for name in ("m", "n", "k"))
    return normal_inputs_on(device, dtype, seed, (m, k), (n, k))


def _check_multiples(model: str, dimensions: Sizes) -> None:
    for name, size in dimensions.items():
        if int(size) % MULTIPLE:
            raise UsageError(f"{model}: {name} must be a multiple of {MULTIPLE}, not {size}")
