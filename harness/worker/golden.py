"""A contest's golden: the child that computes it, with what eager in the cells' own precision is off by."""

from __future__ import annotations

import gc
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import precision
from harness.messages import ComputeReference, ReferenceComputed
from harness.worker import accuracy, reference, simulation
from harness.worker.clock import Clock
from harness.worker.ending import explain
from harness.worker.placing import gradients, load, place, training_of
from harness.worker.reference import run_eager
from models.base import Inputs, LoadedModel, of_each_shape
from records.precision import Precision
from records.schema import TRAIN_STEP, Cell, Status, Work

if TYPE_CHECKING:
    from backends.training import Training


def compute(job: ComputeReference, cwd: Path, workspace: Path) -> ReferenceComputed:
    """Compute a contest's outputs in float64, and eager's error to them in the contest's precision, into a file."""
    cell = job.cell
    precision.apply(cell.precision)
    clock = Clock(cell.device)
    with clock.on_stream(), gradients(cell.task):
        exact, computed_in = exact_outputs(cell, cwd, workspace)
        # that module was cast in place: a fresh one has the weights that every cell starts from
        model = _load_in(cell, cwd, workspace)
        module, sets = place(model, cell)
        training = training_of(model, cell)
        with simulation.rounded(cell.precision, module, sets):
            eager = run_eager(module, sets, training)
        work, uncounted = count_work(model, module, sets, cell.precision, training)
        if exact is None:
            exact = eager
            sets = reference.jolt(module, sets)
            eager = run_eager(module, sets, training_of(model, cell))
        clock.synchronise()
    known = accuracy.Golden(exact, accuracy.rmse_per_output(eager, exact), computed_in)
    known.save(job.reference)
    return ReferenceComputed(work=work, uncounted=uncounted)


def exact_outputs(cell: Cell, cwd: Path, workspace: Path) -> tuple[tuple[accuracy.Outputs, ...] | None, str]:
    """The outputs in the widest type that there is memory for, and that type's name. Without any that is wider than the
    cell's own: None, and the name of its precision.

    Not for `train_step`: how a weight's type rounds a step is in both of two runs, and their difference does not tell.
    """
    import torch

    names = reference.widths(cell.precision)
    for name in names:
        try:
            return reference.compute(_load_in(cell, cwd, workspace), cell, getattr(torch, name)), name
        except Exception as error:
            if explain(error)[0] is not Status.OOM or (cell.task == TRAIN_STEP and name == names[-1]):
                raise
            traceback.print_exc()
    return None, cell.precision


def _load_in(cell: Cell, cwd: Path, workspace: Path) -> LoadedModel:
    """The model, in the memory that the one before it has left: a large one does not fit beside another."""
    import torch

    gc.collect()
    if cell.device.is_cuda:
        torch.cuda.empty_cache()
    model = load(cell, cwd)
    os.chdir(workspace)
    return model


def count_work(
    model: LoadedModel, module: Any, sets: tuple[Inputs, ...], cell_precision: Precision, training: Training | None
) -> tuple[Work | None, str]:
    """What is timed as one call takes, all lengths of a stream together. Or why that cannot be counted: a model whose
    golden there is can be compared without."""
    from harness.worker import counting

    if model.work is not None:
        flops, bytes_moved = model.work
        return Work(flops=flops, bytes_moved=bytes_moved), ""
    try:
        called = sets if len(of_each_shape(sets)) > 1 else sets[:1]
        return counting.total(counting.count(module, one, cell_precision, training) for one in called), ""
    except Exception as error:
        traceback.print_exc()
        return None, explain(error)[1]
