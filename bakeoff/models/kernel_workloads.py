"""Single operations to compare hand-written kernels with: one pass over memory, RoPE, a copy, and two products."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bakeoff.models.base import Dimension, Drawn, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs_on
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision

if TYPE_CHECKING:
    import torch
    from torch import nn

MULTIPLE = 16
"""Sizes of a float8 product, and the bytes of a tensor descriptor's rows, are multiples of this."""

RANGE = 6.0
"""Standard normal values up to this are quantised. Larger ones, two in a billion, are clipped."""


class Workload(Drawn):
    """One operation on standard normal tensors. The modules are in models/template_layers.py."""

    multiples: tuple[str, ...] = ()
    """Dimensions that must be multiples of `MULTIPLE`."""

    @abstractmethod
    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        """Return the shape of each argument."""

    @abstractmethod
    def module(self, sizes: dict[str, int]) -> nn.Module: ...

    def check(self, dimensions: Sizes) -> None:
        for name in self.multiples:
            if int(dimensions[name]) % MULTIPLE:
                raise UsageError(f"{self.name}: {name} must be a multiple of {MULTIPLE}, not {dimensions[name]}")

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        sizes = {name: int(size) for name, size in dimensions.items()}
        return LoadedModel(self.module(sizes).eval(), normal_inputs_on(device, dtype, seed, *self.shapes(sizes)))


class FusedAddReluMul(Workload):
    """relu(x + y) * z of x, y and z, each (elements,)."""

    name = "fused_add_relu_mul"
    description = "relu(x + y) * z of long vectors: three kernels in eager, one pass over memory when fused"
    dimensions: Mapping[str, Dimension] = {"elements": Dimension(10_000_000, "length of each vector")}

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        return [(sizes["elements"],)] * 3

    def module(self, sizes: dict[str, int]) -> nn.Module:
        from bakeoff.models.template_layers import AddReluMul

        return AddReluMul()


class Rope(Workload):
    """Queries and keys, each (batch, seq, heads, width), turned by their positions. It hardly computes."""

    name = "rope"
    description = "rotary embedding (RoPE) of queries and keys"
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(2048, "positions of a sequence"),
        "heads": Dimension(16, "attention heads"),
        "width": Dimension(128, "width of a head, an even number"),
    }

    def check(self, dimensions: Sizes) -> None:
        if int(dimensions["width"]) % 2:
            raise UsageError(
                f"{self.name}: width={dimensions['width']} is odd, and is turned in pairs: set an even one"
            )

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        return [tuple(sizes[name] for name in self.dimensions)] * 2

    def module(self, sizes: dict[str, int]) -> nn.Module:
        from bakeoff.models.decoder_layers import RotaryEmbedding

        return RotaryEmbedding(sizes["seq"], sizes["width"])


class TmaCopy(Workload):
    """A copy of a matrix (rows, columns)."""

    name = "tma_copy"
    description = "a copy of a matrix: how fast do tiles come in by pointers, and by tensor descriptors (TMA)?"
    multiples = ("columns",)
    dimensions: Mapping[str, Dimension] = {
        "rows": Dimension(8192, "rows of the matrix"),
        "columns": Dimension(8192, f"columns of the matrix, a multiple of {MULTIPLE}"),
    }

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        return [(sizes["rows"], sizes["columns"])]

    def module(self, sizes: dict[str, int]) -> nn.Module:
        from bakeoff.models.template_layers import Copy

        return Copy()


class MatmulFp16(Workload):
    """left @ right.T (m, n) of left (m, k) and right (n, k)."""

    name = "matmul_fp16"
    description = "a product of two matrices in float16; right is stored transposed, as a linear layer's weight is"
    multiples = ("m", "n", "k")
    dimensions: Mapping[str, Dimension] = {
        "m": Dimension(8192, "rows of the result"),
        "n": Dimension(8192, "columns of the result"),
        "k": Dimension(8192, "what is summed over"),
    }

    def precision_reason(self, precision: Precision) -> str:
        return "" if precision is Precision.FP16 else f"{self.name} multiplies float16: use --precision fp16"

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        return [(sizes["m"], sizes["k"]), (sizes["n"], sizes["k"])]

    def module(self, sizes: dict[str, int]) -> nn.Module:
        from bakeoff.models.template_layers import Product

        return Product()


class MatmulFp8(MatmulFp16):
    """left @ right.T (m, n), in the cell's precision, of left (m, k) and right (n, k) in e4m3 with a scale each.

    Both are quantised beforehand, with scales that all input sets share, so that only the product is measured.
    """

    name = "matmul_fp8"
    description = "a product of two float8 (e4m3) matrices with a scale each; the result is in the cell's precision"
    products = Precision.FP8

    def precision_reason(self, precision: Precision) -> str:
        if precision not in (Precision.FP32, Precision.BF16, Precision.FP16):
            return f"{self.name} multiplies float8 already: its precision is the result's, use --precision bf16"
        return ""

    def module(self, sizes: dict[str, int]) -> nn.Module:
        from bakeoff.models.template_layers import LARGEST_E4M3, ScaledProduct

        return ScaledProduct(RANGE / LARGEST_E4M3, RANGE / LARGEST_E4M3)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        import torch

        from bakeoff.models.template_layers import E4M3, LARGEST_E4M3

        def quantised(tensor: torch.Tensor) -> torch.Tensor:
            return (tensor * (LARGEST_E4M3 / RANGE)).clamp_(-LARGEST_E4M3, LARGEST_E4M3).to(E4M3)

        model = super().load_on(dimensions, seed, device, torch.float32)
        return replace(model, inputs=tuple(inputs.map(quantised) for inputs in model.inputs))
