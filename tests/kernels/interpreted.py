"""Every variant of every hand-written kernel in Triton's interpreter, against the model in float64; prints JSON.

A script, because TRITON_INTERPRET=1 has to be set before Triton is imported, and holds for a whole process.
"""

import copy
import importlib
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from bakeoff import models
from bakeoff.backends import kernels
from bakeoff.backends.calling import flatten_outputs
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell

# no multiples of any block, and several blocks along each dimension where a kernel goes from one to the next
SIZES: dict[str, dict[str, int | str]] = {
    "fused_add_relu_mul": {"elements": 5003},
    "matmul_fp16": {"m": 272, "n": 304, "k": 80},
    "matmul_fp8": {"m": 272, "n": 304, "k": 144},
    "rope": {"batch": 3, "seq": 7, "heads": 2, "width": 16},
    "tma_copy": {"rows": 150, "columns": 272},
}
PRECISIONS = {"matmul_fp16": ("fp16",), "matmul_fp8": ("bf16", "fp16")}


def main() -> None:
    errors = {
        f"{model} {precision} {dict(variant)}": relative_error(model, precision, variant)
        for model in kernels.TABLE
        for precision in PRECISIONS.get(model, ("fp32", "bf16"))
        for variant in importlib.import_module(kernels.TABLE[model].module).VARIANTS
    }
    sys.stdout.write(json.dumps(errors))


def relative_error(name: str, precision: str, variant: kernels.Variant) -> float:
    """RMSE of the kernel's outputs relative to the exact ones' root mean square, the largest one of all outputs."""
    kernel = importlib.import_module(kernels.TABLE[name].module)
    cell = Cell(
        model=name,
        dimensions=models.find(name).resolve(SIZES[name]),
        device="cpu",
        precision=precision,
        backend="triton",
    )
    with torch.inference_mode():
        loaded = load(cell)
        exact_module, exact_sets = move_to_device(
            type(loaded)(copy.deepcopy(loaded.module), loaded.inputs), cell, torch.float64
        )
        exact = flatten_outputs(exact_module(*exact_sets[0].args))
        module, sets = move_to_device(loaded, cell)
        launch = kernel.prepare(module, sets[0].tensors(), variant)
        launch.run()
    assert all(output.dtype == dtype_of(Precision(precision)) for output in launch.outputs)
    return max(
        float((ours.double() - truth).square().mean().sqrt() / truth.square().mean().sqrt())
        for ours, truth in zip(launch.outputs, exact, strict=True)
    )


if __name__ == "__main__":
    main()
