"""Copies a matrix tile by tile, with a pointer for every element or with tensor descriptors.

A descriptor gives the GPU's copy engine (TMA, from compute capability 9.0) shape and strides once. A tile is then one
instruction, and no thread computes addresses or masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from bakeoff.backends.kernels import Launch, Variant, processors

VARIANTS: tuple[Variant, ...] = tuple(
    {"loads": loads, "rows": rows, "columns": columns, "warps": warps, "stages": stages}
    for loads in ("pointer", "descriptor")
    for rows, columns, warps, stages in ((16, 256, 4, 1), (64, 128, 4, 1), (64, 128, 4, 3), (64, 256, 8, 3))
)
"""With more than one stage, a program copies tile after tile, and loads the next ones in the meantime."""

PROGRAMS_PER_PROCESSOR = 4
"""Number of programs if each one copies several tiles."""


def prepare(module: torch.nn.Module, inputs: Sequence[torch.Tensor], variant: Variant) -> Launch:
    """Prepare the launch for one contiguous matrix with rows of a multiple of 16 bytes."""
    (source,) = inputs
    target = torch.empty_like(source)
    tile = [int(variant["rows"]), int(variant["columns"])]
    tiles = triton.cdiv(source.shape[0], tile[0]) * triton.cdiv(source.shape[1], tile[1])
    programs = tiles if variant["stages"] == 1 else min(tiles, processors(source) * PROGRAMS_PER_PROCESSOR)
    options = {"ROWS": tile[0], "COLUMNS": tile[1], "STAGES": variant["stages"], "num_warps": variant["warps"]}
    if variant["loads"] == "pointer":
        return Launch(lambda: _by_pointer[(programs,)](source, target, *source.shape, **options), (target,))
    ends = [TensorDescriptor.from_tensor(tensor, tile) for tensor in (source, target)]
    return Launch(lambda: _by_descriptor[(programs,)](*ends, *source.shape, **options), (target,))


@triton.jit
def _by_pointer(source, target, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    across = tl.cdiv(columns, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        row = tile // across * ROWS + tl.arange(0, ROWS)[:, None]
        column = tile % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = (row < rows) & (column < columns)
        offsets = row.to(tl.int64) * columns + column
        tl.store(target + offsets, tl.load(source + offsets, inside), inside)


@triton.jit
def _by_descriptor(source, target, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    across = tl.cdiv(columns, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        corner = [tile // across * ROWS, tile % across * COLUMNS]
        target.store(corner, source.load(corner))
