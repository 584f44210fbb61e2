"""The parts between a decoder's matrix products, as models' own files write them. This file imports torch.

Each part is a module, so that it can be compiled alone (`--surgical`) beside layers that a compiler cannot read.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_BASE = 10_000.0


class RotaryEmbedding(nn.Module):
    """Turns queries and keys, each (batch, seq, heads, width), by their positions, in pairs (i, i + width / 2) as
    Hugging Face's Llama does. Source: Su et al., "RoFormer", 2021."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, seq: int, width: int) -> None:
        super().__init__()
        frequencies = ROPE_BASE ** -(torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(seq), frequencies).repeat(1, 2)[:, None, :]
        self.register_buffer("cosines", angles.cos(), persistent=False)  # (seq, 1, width)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return turned(queries, self.cosines, self.sines), turned(keys, self.cosines, self.sines)


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class QkvSplit(nn.Module):
    """Splits (batch, seq, 3 * heads * width) into queries, keys and values, each (batch, seq, heads, width)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).unbind(dim=2)
        return queries, keys, values


class RMSNorm(nn.Module):
    """Normalises (..., dim), always in float32, as Hugging Face's `LlamaRMSNorm` does. Source: Zhang and Sennrich,
    "Root Mean Square Layer Normalization", 2019."""

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        nn.init.normal_(self.weight, mean=1.0, std=0.2)  # as after training, since leaving out ones would not show
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(precise.pow(2).mean(dim=-1, keepdim=True) + self.epsilon)
        return self.weight * (precise * scale).to(x.dtype)


class SwiGLU(nn.Module):
    """Maps (..., 2 * ffn) to (..., ffn): SiLU of the first half, times the second. Source: Shazeer, 2020."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up
