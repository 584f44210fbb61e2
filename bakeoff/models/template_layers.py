"""The modules of `bakeoff.models.templates`. This file imports torch, so only workers import it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.models.decoder_layers import RotaryEmbedding as RotaryEmbedding

E4M3 = torch.float8_e4m3fn
LARGEST_E4M3 = torch.finfo(E4M3).max
RANGE = 6.0
"""Standard normal values up to this are quantised. Larger ones, two in a billion, are clipped."""

Norm = TypeVar("Norm", nn.LayerNorm, nn.BatchNorm2d)


def in_e4m3(tensor: Tensor) -> Tensor:
    """Return the tensor in e4m3, with the scale that all input sets share, so that only the product is measured."""
    return (tensor * (LARGEST_E4M3 / RANGE)).clamp_(-LARGEST_E4M3, LARGEST_E4M3).to(E4M3)


def as_after_training(norm: Norm) -> Norm:
    """Draw weights and statistics as training leaves them: leaving out fresh ones, or folding them wrongly, would not
    show."""
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.0, 0.2)
        if isinstance(norm, nn.BatchNorm2d):
            norm.get_buffer("running_mean").normal_(0.0, 0.2)
            norm.get_buffer("running_var").uniform_(0.5, 1.5)
    return norm


def mlp(features: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, features)
    )


def conv(channels: int, width: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        as_after_training(nn.BatchNorm2d(width)),
        nn.ReLU(),
        nn.Conv2d(width, width, kernel_size=3, padding=1),
        as_after_training(nn.BatchNorm2d(width)),
        nn.ReLU(),
        nn.Conv2d(width, classes, kernel_size=1),
    )


class Chain(nn.Module):
    """Multiplies (batch, size) by one matrix after another. The variance of the result stays near 1."""

    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(size, size) / math.sqrt(size) for _ in range(length))

    def forward(self, rows: Tensor) -> Tensor:
        for matrix in self.matrices:
            rows = rows @ matrix
        return rows


class Naive(nn.Module):
    """softmax(queries keysᵀ / √width) values over the last two dimensions, written out. It stores all scores."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
        if self.is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(dim=-1) @ values


class Fused(Naive):
    """The same attention by scaled_dot_product_attention, which stores no scores."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if queries.dim() == 4:
            return functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        # torch's fused kernels need four dimensions
        queries, keys, values = (tensor.unsqueeze(1) for tensor in (queries, keys, values))
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal).squeeze(1)


ATTENTIONS = {"naive": Naive, "sdpa": Fused}


def attention(variant: str) -> nn.Module:
    return ATTENTIONS[variant]()


class WrittenOutAttention(nn.Module):
    """Maps (batch, seq, dim) to the same shape by softmax(QKᵀ / √d)V, without the fused operator."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, positions: Tensor) -> Tensor:
        query, key, value = (self._by_head(layer(positions)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        attended = torch.softmax(scores, dim=-1) @ value
        return attended.transpose(1, 2).reshape(positions.shape)

    def _by_head(self, projected: Tensor) -> Tensor:
        """Reshape (batch, seq, dim) to (batch, heads, seq, dim / heads)."""
        batch, seq, dim = projected.shape
        return projected.view(batch, seq, self.heads, dim // self.heads).transpose(1, 2)


def mixed_ops(features: int, rank: int, layers: int) -> nn.Module:
    return nn.Sequential(*(Mixed(features, rank) for _ in range(layers)))


class Mixed(nn.Module):
    """Mixes each row (batch, features) with its standardised form by a gate of two small products, and normalises
    it."""

    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(features, rank)
        self.up = nn.Linear(rank, features)
        self.norm = as_after_training(nn.LayerNorm(features))
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(features))

    def forward(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(dim=-1, keepdim=True)
        standardised = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
        gate = torch.sigmoid(self.up(torch.tanh(self.down(standardised))))
        mixed = gate * torch.relu(rows * self.scale) + (1 - gate) * standardised
        normalised: Tensor = self.norm(rows + mixed)
        return normalised


class Encoder(nn.Module):
    """`layers` encoder layers and a last normalisation: (batch, seq, dim) -> (batch, seq, dim)."""

    def __init__(self, layers: int, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        # Exporters do not take the fused eager path of `nn.TransformerEncoder`: cells would compute different graphs.
        self.layers = nn.Sequential(*(EncoderLayer(dim, heads, ffn) for _ in range(layers)))
        self.norm = as_after_training(nn.LayerNorm(dim))

    def forward(self, embeddings: Tensor) -> Tensor:
        normalised: Tensor = self.norm(self.layers(embeddings))
        return normalised


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.attention_norm = as_after_training(nn.LayerNorm(dim))
        self.attention = SelfAttention(dim, heads)
        self.feed_forward_norm = as_after_training(nn.LayerNorm(dim))
        self.feed_forward = nn.Sequential(nn.Linear(dim, ffn), nn.GELU(), nn.Linear(ffn, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.per_head = (heads, dim // heads)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # unlike view, unflatten and flatten put no batch or sequence length into the exported graph
        query, key, value = (
            part.unflatten(-1, self.per_head).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        projected: Tensor = self.output(attended.transpose(1, 2).flatten(start_dim=2))
        return projected


class AddReluMul(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.relu(x + y) * z


class Copy(nn.Module):
    def forward(self, source: Tensor) -> Tensor:
        return source.clone()


class Product(nn.Module):
    """Multiplies left (m, k) and right (n, k) to left @ right.T (m, n)."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right.t()


class ScaledProduct(nn.Module):
    """Multiplies left (m, k) and right (n, k) in e4m3 to left @ right.T times both scales, by the vendor's library. The
    result has the type that the module was cast to, and in float64 the product is exact."""

    # the scales stay float32, the only type that the library takes
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


def scaled_product() -> nn.Module:
    return ScaledProduct(RANGE / LARGEST_E4M3, RANGE / LARGEST_E4M3)
