"""The rotary embedding of queries and keys in one launch, which reads and writes each of them once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from bakeoff.backends.kernels import Launch, Variant
from bakeoff.records.errors import Unsupported

VARIANTS: tuple[Variant, ...] = tuple(
    {"loads": "pointer", "positions": positions, "warps": warps} for positions, warps in ((1, 4), (1, 8), (4, 8))
)


def prepare(module: torch.nn.Module, inputs: Sequence[torch.Tensor], variant: Variant) -> Launch:
    """Prepare the launch for contiguous queries and keys (batch, seq, heads, width), and the module's tables of shape
    (seq, 1, width). Raise Unsupported if heads or width are not powers of two."""
    queries, keys = inputs
    batch, seq, heads, width = queries.shape
    if heads & (heads - 1) or width & (width - 1):
        raise Unsupported(f"the kernel takes heads and a width that are powers of two, not {heads} and {width}")
    results = torch.empty_like(queries), torch.empty_like(keys)
    grid = (triton.cdiv(batch * seq, int(variant["positions"])), 2)
    return Launch(
        lambda: _rope[grid](
            queries,
            keys,
            *results,
            module.cosines,
            module.sines,
            batch * seq,
            seq,
            HEADS=heads,
            WIDTH=width,
            POSITIONS=variant["positions"],
            num_warps=variant["warps"],
        ),
        results,
    )


@triton.jit
def _rope(
    queries,
    keys,
    rotated_queries,
    rotated_keys,
    cosines,
    sines,
    rows,
    seq,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Rotate queries or keys, by the grid's second axis."""
    if tl.program_id(1) == 0:
        source, target = queries, rotated_queries
    else:
        source, target = keys, rotated_keys
    HALF: tl.constexpr = WIDTH // 2
    row = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    column = tl.arange(0, HALF)
    in_table = (row % seq)[:, None, None] * WIDTH + column[None, None, :]
    inside = (row < rows)[:, None, None]
    cosine = tl.load(cosines + in_table, inside).to(tl.float32)
    sine = tl.load(sines + in_table, inside).to(tl.float32)
    head = tl.arange(0, HEADS)[None, :, None]
    offsets = (row.to(tl.int64)[:, None, None] * HEADS + head) * WIDTH + column[None, None, :]
    first = tl.load(source + offsets, inside).to(tl.float32)
    second = tl.load(source + offsets + HALF, inside).to(tl.float32)
    kind = target.dtype.element_ty
    tl.store(target + offsets, (first * cosine - second * sine).to(kind), inside)
    tl.store(target + offsets + HALF, (second * cosine + first * sine).to(kind), inside)
