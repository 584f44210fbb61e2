"""left @ right.T of float8 or 16-bit matrices with tensor descriptors, accumulated in float32.

The scheme is that of Triton's tutorial 09 (persistent matmul). There are as many programs as the GPU has
multiprocessors. Each one computes tile after tile, in an order that keeps the tiles in flight within a few rows and
columns of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from bakeoff.backends.kernels import Launch, Variant, processors


def _variant(m: int, n: int, stages: int, warps: int, store: str, group: int, per_processor: int = 1) -> Variant:
    return {
        "loads": "descriptor",
        "block_m": m,
        "block_n": n,
        "stages": stages,
        "warps": warps,
        "store": store,
        "group": group,
        "per_processor": per_processor,
    }


VARIANTS: tuple[Variant, ...] = (
    _variant(128, 256, 3, 8, store="whole", group=16),
    _variant(128, 256, 3, 8, store="halves", group=8),
    _variant(128, 256, 4, 8, store="halves", group=8),
    _variant(128, 256, 4, 8, store="halves", group=16),
    _variant(128, 256, 4, 8, store="pointer", group=16),
    _variant(256, 128, 4, 8, store="halves", group=8),
    _variant(128, 128, 3, 4, store="halves", group=16, per_processor=2),
)
"""`group` rows of tiles are computed together, so that their part of the right matrix is still in the L2. Tiles in
flight touch least memory if they cover a square. `per_processor` programs share a multiprocessor, so that one stores
while another multiplies.

No variant has separate warps for loading (`warp_specialize`). Triton 3.6 compiles them for Hopper, but on an H200 they
did not end (four variants, 40 s each, 2026-11-21)."""

BLOCK_K_BYTES = 128
"""Depth of a tile. Its rows are as long as the widest swizzle of shared memory."""


def prepare(module: torch.nn.Module, inputs: Sequence[torch.Tensor], variant: Variant) -> Launch:
    """Prepare the launch for left (m, k) and right (n, k), both contiguous. Float8 matrices have scales in
    `module.scale_left` and `module.scale_right`, and a result of `module.result_type`."""
    left, right = inputs
    is_scaled = left.element_size() == 1
    result_type: Any = module.result_type if is_scaled else left.dtype
    result = left.new_empty(left.shape[0], right.shape[0], dtype=result_type)
    block_m, block_n = int(variant["block_m"]), int(variant["block_n"])
    block_k = BLOCK_K_BYTES // left.element_size()
    stored = [block_m, block_n // 2 if variant["store"] == "halves" else block_n]
    tiles = triton.cdiv(left.shape[0], block_m) * triton.cdiv(right.shape[0], block_n)
    arguments = (
        TensorDescriptor.from_tensor(left, [block_m, block_k]),
        TensorDescriptor.from_tensor(right, [block_n, block_k]),
        result if variant["store"] == "pointer" else TensorDescriptor.from_tensor(result, stored),
        module.scale_left if is_scaled else None,
        module.scale_right if is_scaled else None,
        left.shape[0],
        right.shape[0],
        left.shape[1],
    )
    grid = (min(tiles, processors(left) * int(variant["per_processor"])),)
    return Launch(
        lambda: _matmul[grid](
            *arguments,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP=variant["group"],
            STORE=variant["store"],
            num_stages=variant["stages"],
            num_warps=variant["warps"],
        ),
        (result,),
    )


@triton.jit
def _matmul(
    left,
    right,
    result,
    scale_left,
    scale_right,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STORE: tl.constexpr,
):
    down, across = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        first_row = tile // (GROUP * across) * GROUP
        group_rows = min(down - first_row, GROUP)
        row = (first_row + tile % group_rows) * BLOCK_M
        column = tile % (GROUP * across) // group_rows * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            sums = tl.dot(left.load([row, step * BLOCK_K]), right.load([column, step * BLOCK_K]).T, sums)
        if scale_left is not None:
            sums *= tl.load(scale_left) * tl.load(scale_right)
        if STORE == "pointer":
            rows = row.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
            columns = column + tl.arange(0, BLOCK_N)[None, :]
            inside = (rows < m) & (columns < n)
            tl.store(result + rows * n + columns, sums.to(result.dtype.element_ty), inside)
        elif STORE == "halves":
            # storing halves needs half the shared memory, and leaves room for another stage of loads
            parts = tl.permute(tl.reshape(sums, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            lower, upper = tl.split(parts)
            result.store([row, column], lower.to(result.dtype))
            result.store([row, column + BLOCK_N // 2], upper.to(result.dtype))
        else:
            result.store([row, column], sums.to(result.dtype))
