#!/usr/bin/env python3
"""Loads alone, from memory into registers: by a pointer for every element, against tensor descriptors (TMA).

    python3 benchmarks/tile_loads.py                       # on a GPU from compute capability 9.0 on
    python3 benchmarks/tile_loads.py --rows 8192 --columns 8192

`tma_copy` times loads together with the stores of a copy. Here a matrix is read once and nearly nothing is written:
each program adds its tiles up in registers and writes one number. Both ways get every combination of tile, warps,
stages and programs for each multiprocessor; times are the device's, of calls in a row replayed from a CUDA graph
(`triton.testing.do_bench_cudagraph`), over matrices that take turns so that the L2 cache holds none of the next one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources, PTXASError
from triton.tools.tensor_descriptor import TensorDescriptor

TILES = ((16, 256), (64, 128), (64, 256))
WARPS = 4, 8
STAGES = 1, 3
PER_PROCESSOR = 2, 4, 8
SHOWN = 3
MATRICES = 4
TRIED_MS = 10


@dataclass(frozen=True)
class Variant:
    loads: str
    tile: tuple[int, int]
    warps: int
    stages: int
    per_processor: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=8192)
    given = parser.parse_args()
    matrices = [torch.rand(given.rows, given.columns, device="cuda", dtype=torch.bfloat16) for _ in range(MATRICES)]
    moved = matrices[0].nbytes
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}: {moved / 1e6:.0f} MB")
    target = torch.empty_like(matrices[0])
    copy_ms = timed_ms([lambda source=source: target.copy_(source) for source in matrices])
    say(f"{copy_ms:9.4f} ms {2 * moved / copy_ms / 1e6:7.0f} GB/s  copy_, which also writes")
    for loads in ("pointer", "descriptor"):
        found: list[tuple[float, Variant]] = []
        for parts in itertools.product(TILES, WARPS, STAGES, PER_PROCESSOR):
            variant = Variant(loads, *parts)
            try:
                found.append((time_of(variant, matrices), variant))
            except (OutOfResources, PTXASError) as error:
                say(f"{variant}: {type(error).__name__}")
        for milliseconds, variant in sorted(found, key=lambda pair: pair[0])[:SHOWN]:
            say(f"{milliseconds:9.4f} ms {moved / milliseconds / 1e6:7.0f} GB/s  {variant}")


def time_of(variant: Variant, matrices: Sequence[torch.Tensor]) -> float:
    """Milliseconds of the device for one matrix. Raises ValueError where the sums are wrong."""
    processors = torch.cuda.get_device_properties(matrices[0].device).multi_processor_count
    sums = torch.empty(processors * variant.per_processor, device=matrices[0].device)
    launches = [lambda source=source: add_up(source, sums, variant) for source in matrices]
    launches[-1]()
    exact = matrices[-1].double().sum()  # of numbers that are not negative: one tile less is one part in thousands
    if (sums.double().sum() - exact).abs() > 1e-5 * exact:
        raise ValueError(f"{variant} adds up to {float(sums.double().sum())} instead of {float(exact)}")
    return timed_ms(launches)


def timed_ms(launches: Sequence[object]) -> float:
    torch.cuda.synchronize()
    taken = triton.testing.do_bench_cudagraph(
        lambda: [launch() for launch in launches],  # type: ignore[operator]
        rep=TRIED_MS,
        return_mode="median",
    )
    return float(taken) / len(launches)


def add_up(source: torch.Tensor, sums: torch.Tensor, variant: Variant) -> None:
    """The sum of what each program loads, one number for each: as many programs as `sums` has places."""
    options = {"ROWS": variant.tile[0], "COLUMNS": variant.tile[1], "STAGES": variant.stages}
    if variant.loads == "pointer":
        _by_pointer[(len(sums),)](source, sums, *source.shape, **options, num_warps=variant.warps)
    else:
        described = TensorDescriptor.from_tensor(source, list(variant.tile))
        _by_descriptor[(len(sums),)](described, sums, *source.shape, **options, num_warps=variant.warps)


@triton.jit
def _by_pointer(source, sums, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    across = tl.cdiv(columns, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0), num_stages=STAGES):
        row = tile // across * ROWS + tl.arange(0, ROWS)[:, None]
        column = tile % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = (row < rows) & (column < columns)
        total += tl.load(source + row.to(tl.int64) * columns + column, inside, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(total))


@triton.jit
def _by_descriptor(source, sums, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    across = tl.cdiv(columns, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0), num_stages=STAGES):
        total += source.load([tile // across * ROWS, tile % across * COLUMNS]).to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(total))


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a script's output


if __name__ == "__main__":
    main()
