"""Attention of one query for each head, as products and sums that a compiler generates kernels of.

PyTorch's fused kernels share their work out over sequences and heads, which are few with one sequence. Here the rows
of the cache can be in blocks, and each block is work of its own. That makes more kernels, and pays where they overlap.
This file imports torch, so only workers import it.
Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 64
"""Maximum number of rows of one block. On an H100, 128 were neither faster nor slower."""

LEAST_BLOCK = 16
"""Rows that only divide into smaller blocks stay together, so that there are not too many blocks."""


@contextmanager
def attention_as_products(in_blocks: bool = False) -> Iterator[None]:
    """Have models that call `torch.nn.functional.scaled_dot_product_attention` compute it by `products`, or by
    `products_in_blocks`."""
    fused = functional.scaled_dot_product_attention
    compute = products_in_blocks if in_blocks else products

    def attend(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p or is_causal or enable_gqa:
            return fused(queries, keys, values, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return compute(queries, keys, values, attn_mask, scale)

    functional.scaled_dot_product_attention = attend  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


def products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Return softmax(queries · keys · scale + mask) · values, computed in float32 or wider. Queries are (batch, heads,
    queries, width), keys and values (batch, heads, rows, width)."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    scores = (queries.to(wide).unsqueeze(-2) * keys.to(wide).unsqueeze(-3)).sum(-1) * scale
    # a boolean mask holds False where a row is not seen; any other mask is added
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    shares = scores.softmax(-1)
    return (shares.unsqueeze(-1) * values.to(wide).unsqueeze(-3)).sum(-2).to(queries.dtype)


def products_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Return what `products` returns, computed over blocks of rows. Each query must see at least one row."""
    rows, width = keys.shape[-2:]
    block = math.gcd(rows, BLOCK)
    if block < LEAST_BLOCK:
        return products(queries, keys, values, mask, scale)
    wide = torch.promote_types(queries.dtype, torch.float32)
    keys, values = (torch.unflatten(tensor.to(wide), -2, (-1, block)).unsqueeze(-4) for tensor in (keys, values))
    scores = (queries.to(wide)[..., None, None, :] * keys).sum(-1) * (width**-0.5 if scale is None else scale)
    if mask is not None:
        mask = torch.unflatten(mask.expand(*mask.shape[:-1], rows), -1, (-1, block))
        # the lowest number and not -inf: where a whole block is not seen, -inf - -inf would not be a number
        lowest = torch.finfo(wide).min
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else (scores + mask).clamp(min=lowest)
    largest = scores.amax(-1)
    shares = (scores - largest[..., None]).exp()
    sums = (shares[..., None] * values).sum(-2)
    weights = (largest - largest.amax(-1, keepdim=True)).exp()
    total = (weights * shares.sum(-1)).sum(-1, keepdim=True)
    return ((weights[..., None] * sums).sum(-2) / total).to(queries.dtype)
