"""The check of outputs finds faults that are planted in eager, and passes eager itself."""

import itertools

import pytest
import torch

from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth import accuracy
from bakeoff.truth.calls import Outputs, run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference
from tests.support.cells import CASES, cell_of
from tests.support.plugin import planted_faults as faults

MODELS: dict[str, dict[str, str | int]] = {
    "transformer": {"batch": 1, "seq": 64, "dim": 64, "layers": 2, "heads": 4, "ffn": 128},
    "conv": {"batch": 1, "size": 32},
    "mlp": {"batch": 4, "features": 64, "hidden": 64},
}

MANY_MAGNITUDES = f"{CASES}/many_magnitudes.py:factory"

IN_MAGNITUDES = {fault for fault in faults.IN_OUTPUTS if fault.startswith("zeros-at-")}

TOO_SMALL_FOR_BF16 = {"epsilon-tenfold", "epsilon-1e-3", "tanh-gelu", "bf16", "tf32", *IN_MAGNITUDES}
"""These change less than bfloat16 rounds, or nothing at all."""


@pytest.mark.parametrize(
    ("model", "precision"), [*itertools.product(MODELS, ("fp32", "bf16")), (MANY_MAGNITUDES, "fp32")]
)
def test_planted_faults_are_found(model: str, precision: str) -> None:
    cell = cell_of(model, "planted", MODELS.get(model), precision=precision)
    with torch.inference_mode():
        exact = run_eager(*move_to_device(load(cell), cell, torch.float64))
        eager = run_eager(*move_to_device(load(cell), cell))
        reference = Reference(exact, *errors_of_eager(eager, exact))
        assert accuracy.check(eager, reference, cell.precision).passed
        planted = [
            fault for fault in (*faults.IN_OUTPUTS, *faults.IN_MODULE) if found_in(fault, cell, reference, eager)
        ]
    if precision == "bf16":
        planted = [fault for fault in planted if fault not in TOO_SMALL_FOR_BF16]
    else:
        magnitudes = [fault for fault in planted if fault in IN_MAGNITUDES]
        assert len(magnitudes) >= (12 if model == MANY_MAGNITUDES else 2)
    assert len(planted) >= 3 and {"one-channel", "one-row", "zeros"} <= set(planted)


def found_in(fault: str, cell: Cell, reference: Reference, eager: tuple[Outputs, ...]) -> bool:
    """Return False where the fault cannot be planted. It must be found, unless it is smaller than the type rounds."""
    try:
        if fault in faults.IN_OUTPUTS:
            wrong = tuple(faults.IN_OUTPUTS[fault](outputs) for outputs in eager)
        else:
            module, sets = move_to_device(load(cell), cell)
            faults.IN_MODULE[fault](module)
            wrong = run_eager(module, sets)
    except Unsupported:
        return False
    found = accuracy.check(wrong, reference, cell.precision)
    is_too_small = cell.precision is Precision.BF16 and fault in TOO_SMALL_FOR_BF16
    assert is_too_small or not found.passed, (fault, found)
    return True
