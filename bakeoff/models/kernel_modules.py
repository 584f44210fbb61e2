"""The modules of `bakeoff.models.kernel_workloads` in torch's own operators. This file imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class AddReluMul(nn.Module):
    """Computes relu(x + y) * z for x, y and z of one shape."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.relu(x + y) * z


class Copy(nn.Module):
    """Copies a tensor."""

    def forward(self, source: Tensor) -> Tensor:
        return source.clone()


class Product(nn.Module):
    """Multiplies left (m, k) and right (n, k) to left @ right.T (m, n)."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right.t()


class ScaledProduct(nn.Module):
    """Multiplies left (m, k) and right (n, k) in e4m3 to left @ right.T times both scales, by the vendor's library.

    The result has the type that the module was cast to, and in float64 the product is exact. The scales always stay
    float32, the only type that the library takes.
    """

    scale_left: Tensor
    scale_right: Tensor

    def __init__(self, scale_left: float, scale_right: float) -> None:
        super().__init__()
        self.register_buffer("scale_left", torch.tensor(scale_left))
        self.register_buffer("scale_right", torch.tensor(scale_right))
        self.result_type = torch.float32

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        if self.result_type == torch.float64:
            return (left.double() * self.scale_left) @ (right.double() * self.scale_right).t()
        return torch._scaled_mm(
            left,
            right.t(),
            scale_a=self.scale_left,
            scale_b=self.scale_right,
            out_dtype=self.result_type,
            use_fast_accum=True,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ScaledProduct:
        exact = self.scale_left, self.scale_right
        super()._apply(fn, recurse)
        moved = fn(torch.empty(0, dtype=self.result_type))
        self.result_type = moved.dtype
        self.scale_left, self.scale_right = (scale.to(moved.device) for scale in exact)
        return self
