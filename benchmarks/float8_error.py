#!/usr/bin/env python3
"""Where the error of `fp8_transformer` comes from: float8's linear layers, or the precision around them?

    python benchmarks/float8_error.py --device cpu --set batch=1,seq=512,dim=1024,heads=8,ffn=2048
    python3 benchmarks/float8_error.py --device cuda

The same weights and inputs, with linear layers in float8 and in bfloat16, what lies around them in bfloat16 and in
float32, by eager and by compilers: each against float64, where linear layers multiply weights that were never rounded.
The last rows hold correct float8 runs against one another. Each line is printed when it is known.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import backends
import models
from backends.base import BuildContext
from backends.calling import flatten_outputs
from harness import config
from harness import precision as precisions
from harness.worker import placing
from records.schema import Cell

ROWS = {
    "float8, bfloat16 around, eager": ("torch", "bf16", "eager", "default"),
    "float8, bfloat16 around, inductor/surgical": ("torch", "bf16", "inductor", "surgical"),
    "float8, bfloat16 around, inductor": ("torch", "bf16", "inductor", "default"),
    "float8, float32 around, eager": ("torch", "fp32", "eager", "default"),
    "bfloat16, bfloat16 around, eager": ("plain", "bf16", "eager", "default"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", default="", help="dimensions as NAME=VALUE, separated by commas")
    given = parser.parse_args()
    sizes = {
        key: values[0] for key, values in config.parse_dimensions(tuple(filter(None, given.set.split(",")))).items()
    }
    with torch.inference_mode():
        exact = in_float64(sizes, given.device)
        say(f"torch {torch.__version__} on {given.device}, {sizes or 'the usual sizes'}; RMS of the exact outputs "
            f"{float(exact.square().mean().sqrt()):.3f}, the largest {float(exact.abs().max()):.2f}")  # fmt: skip
        say(f"{'':46} {'relative RMSE':>13} {'largest':>9}")
        found: dict[str, torch.Tensor] = {}
        for name, (linears, precision, backend, mode) in ROWS.items():
            cell = cell_of({**sizes, "linears": linears}, given.device, precision, backend, mode)
            found[name] = outputs_of(cell)
            tell(name, found[name], exact)
        first, *others = [name for name in found if name.startswith("float8")]
        for name in others:
            tell(f"{name}, to the first", found[name], found[first])


def cell_of(sizes: Mapping[str, str], device: str, precision: str, backend: str, mode: str) -> Cell:
    dimensions = models.find("fp8_transformer").resolve(sizes)
    return Cell(
        model="fp8_transformer", dimensions=dimensions, device=device, precision=precision, backend=backend, mode=mode
    )


def in_float64(sizes: Mapping[str, str], device: str) -> torch.Tensor:
    cell = cell_of({**sizes, "linears": "torch"}, device, "fp32", "eager", "default")
    model = placing.load(cell)
    single = type(model)(copy.deepcopy(model.module), model.inputs[:1])
    module, (inputs,) = placing.place(single, cell, torch.float64)
    return flatten_outputs(module(*inputs.args, **inputs.kwargs))[0].double()


def outputs_of(cell: Cell) -> torch.Tensor:
    precisions.apply(cell.precision)
    model = placing.load(cell)
    module, sets = placing.place(model, cell)
    with tempfile.TemporaryDirectory() as folder:
        context = BuildContext(
            cell, lambda _: nullcontext(), Path(folder), torch.get_num_threads(), sets, targets=model.surgical_targets
        )
        with backends.create(cell.backend).build(module, sets[0], context) as compiled:
            compiled.bind(sets[0])
            compiled.run()
            return compiled.outputs()[0].double()


def tell(name: str, ours: torch.Tensor, truth: torch.Tensor) -> None:
    error = ours - truth
    relative = float(error.square().mean().sqrt() / truth.square().mean().sqrt())
    say(f"{name:46} {relative:13.2e} {float(error.abs().max()):9.3f}")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a script's output


if __name__ == "__main__":
    main()
