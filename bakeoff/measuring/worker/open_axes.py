"""Finds the axes of a model's inputs that vary with its dynamic dimensions: inputs are made at two sizes and compared.

Nobody writes them down. The weights are compared as well, since one build has one set of them.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils import _pytree as pytree

from bakeoff import models
from bakeoff.backends.calling import sampled
from bakeoff.backends.ranges import OpenAxis
from bakeoff.measuring.messages import AxesFound
from bakeoff.measuring.worker.cell_model import load
from bakeoff.models.base import of_each_shape
from bakeoff.records.errors import BakeoffError, UsageError, first_line
from bakeoff.records.schema import Cell

COMPARED_ELEMENTS = 1000
"""So many elements of each weight are compared."""


@dataclass(frozen=True)
class Made:
    shapes: tuple[tuple[int, ...], ...]
    constants: str
    weights: dict[str, tuple[tuple[int, ...], Any]]


def find(cell: Cell, cwd: Path) -> AxesFound:
    """Return the open axes of a cell that is built for a range. Raises UsageError, in one line, for a range that the
    model refuses."""
    base = _made(cell.as_built, cwd)
    low = _made(_at(cell, {name: span.low for name, span in cell.dynamic.items()}), cwd)
    high = _made(_at(cell, {name: span.high for name, span in cell.dynamic.items()}), cwd)
    alone = {
        name: _made(_at(cell, {name: span.low if span.built_at != span.low else span.high}), cwd)
        for name, span in cell.dynamic.items()
        if len(cell.dynamic) > 1
    } or dict.fromkeys(cell.dynamic, low if low.shapes != base.shapes else high)
    for name, made in [*alone.items(), *((", ".join(cell.dynamic), end) for end in (low, high))]:
        _require_one_model(cell.model, name, base, made)
    for name, made in alone.items():
        if made.shapes == base.shapes:
            raise UsageError(f"no input of {cell.model} changes its shape with {name}")
    axes = open_axes(base.shapes, low.shapes, high.shapes, {name: made.shapes for name, made in alone.items()})
    others = (low, high, *alone.values())
    alike = all(sample.equal(made.weights[name][1]) for made in others for name, (_, sample) in base.weights.items())
    return AxesFound(axes=axes, weights_vary=not alike)


Shapes = tuple[tuple[int, ...], ...]


def open_axes(base: Shapes, low: Shapes, high: Shapes, alone: dict[str, Shapes]) -> tuple[OpenAxis, ...]:
    """Return the axes that differ between the lowest and the highest sizes, with the dimensions that change them.
    `alone` has the shapes with one dimension changed from those of `base`."""
    return tuple(
        OpenAxis(
            tensor=tensor,
            axis=axis,
            dimensions=tuple(name for name, shapes in alone.items() if shapes[tensor][axis] != base[tensor][axis]),
            low=min(low[tensor][axis], high[tensor][axis]),
            high=max(low[tensor][axis], high[tensor][axis]),
        )
        for tensor, shape in enumerate(base)
        for axis in range(len(shape))
        if low[tensor][axis] != high[tensor][axis]
    )


def _require_one_model(model: str, name: str, base: Made, other: Made) -> None:
    if list(map(len, base.shapes)) != list(map(len, other.shapes)) or base.constants != other.constants:
        raise UsageError(f"{model} is called with other arguments when {name} changes, and one build takes one kind")
    if base.weights.keys() != other.weights.keys():
        raise UsageError(f"{model} has other weights when {name} changes, and one build has one set of them")
    for weight, (shape, _) in base.weights.items():
        if shape != other.weights[weight][0]:
            raise UsageError(
                f"the shape of '{weight}' of {model} changes with {name}, and one build has one set of weights"
            )


def _at(cell: Cell, sizes: dict[str, int]) -> Cell:
    return cell.but(dimensions=cell.as_built.dimensions | sizes)


def _made(cell: Cell, cwd: Path) -> Made:
    dimensions = models.find(cell.model).resolve(cell.dimensions)
    try:
        model = load(cell.but(dimensions=dimensions), cwd)
    except Exception as error:
        sizes = ", ".join(f"{name} {cell.dimensions[name]}" for name in cell.dynamic)
        kind = "" if isinstance(error, BakeoffError) else f"{type(error).__name__}: "
        raise UsageError(f"{cell.model} does not load with {sizes}: {kind}{first_line(error)}") from error
    os.chdir(cwd)
    if len(of_each_shape(model.inputs)) > 1:
        raise UsageError("its inputs have several shapes already, and a range is of inputs of one shape")
    first = model.inputs[0]
    leaves, structure = pytree.tree_flatten((first.args, dict(first.kwargs)))
    constants = [leaf for leaf in leaves if not hasattr(leaf, "shape")]
    weights = {
        name: (tuple(tensor.shape), sampled(tensor.detach(), COMPARED_ELEMENTS).cpu())
        for name, tensor in model.module.state_dict().items()
    }
    shapes = tuple(tuple(tensor.shape) for tensor in first.tensors())
    return Made(shapes, f"{constants} {structure}", weights)
