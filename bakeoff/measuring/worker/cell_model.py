"""A cell's model, ready to be called: loaded, on its device, in its precision, in the mode of its task."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from bakeoff import models
from bakeoff.backends.training import Training, without_dropout
from bakeoff.measuring.worker import precision
from bakeoff.models import streams
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.calibration import with_calibration, without_calibrating_calls
from bakeoff.models.generation import Generating
from bakeoff.models.input_sets import by_memory, copied, is_strided
from bakeoff.models.unwrapping import completed
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import GENERATION, TRAINED, Cell
from bakeoff.truth.global_settings import few_threads
from bakeoff.truth.user_code import count_as_users
from bakeoff.truth.witnesses import type_in


def load(cell: Cell, cwd: Path | None = None, weights_at: Mapping[str, int] | None = None) -> LoadedModel:
    """Load the cell's model, whose path is relative to the folder `cwd`. With `weights_at`, it has the weights that it
    would have at these sizes."""
    if cwd is not None:
        os.chdir(cwd)
    with few_threads():
        if not weights_at or weights_at.items() <= cell.dimensions.items():
            return _load(cell)
        # first the weights: a user's file may be imported anew, and pickling needs the classes of the last import
        weights = _load(cell.but(dimensions={**cell.dimensions, **weights_at})).module.state_dict()
        model = _load(cell)
        model.module.load_state_dict(weights)
        return model


def _load(cell: Cell) -> LoadedModel:
    sizes = streams.each_size(cell.dimensions)
    if len(sizes) == 1:
        return _load_one_size(cell)
    return streams.join_streams((_load_one_size(cell.but(dimensions=size)) for size in sizes), cell.model)


def drawn_type(cell: Cell) -> torch.dtype:
    """Return the type that large random weights are drawn in: all precisions of a contest have the same weights."""
    types = {precision.dtype_of(compared) for compared in cell.compared or (cell.precision,)}
    return types.pop() if len(types) == 1 else precision.dtype_of(Precision.FP32)


def _load_one_size(cell: Cell) -> LoadedModel:
    dtype = drawn_type(cell)
    if cell.task in GENERATION:
        family = models.find(cell.model)
        generating = Generating(family)
        drawn: LoadedModel | None = generating.load_graph(cell.task, cell.dimensions, cell.seed, cell.device, dtype)
    else:
        family = models.find_for(cell.model, cell.task, cell.recorded.file if cell.recorded else "")
        drawn = family.load_on(cell.dimensions, cell.seed, cell.device, dtype)
    if drawn is not None and cell.device.is_cuda:
        torch.cuda.synchronize(cell.device)  # weights are drawn on another stream than the cell's own
    model = drawn or family.load(cell.dimensions, cell.seed)
    if not model.inputs:
        raise UsageError(
            f"{cell.model} gives a module alone: return (nn.Module, example inputs), or name --inputs FILE"
        )
    model = completed(model, cell.seed)
    count_as_users(model.module)
    if cell.task in GENERATION or Precision.INT8 not in (cell.precision, *cell.compared):
        return model
    return with_calibration(model) if cell.precision is Precision.INT8 else without_calibrating_calls(model)


def move_to_device(model: LoadedModel, cell: Cell, dtype: Any = None) -> tuple[Any, tuple[Inputs, ...]]:
    """Return module and inputs on the cell's device, with floating-point tensors in `dtype` or the cell's precision.
    The module is in train mode for training, and otherwise in eval mode."""
    wanted, keeps_types = dtype or precision.dtype_of(cell.precision), model.traits.keeps_types and dtype is None
    trained = cell.is_trained
    # What input sets share stays shared: a decoder's caches in float64 fill a device if each set has its own.
    copies_by_id: dict[int, Any] = {}

    def moved(given: Any) -> Any:
        if (tensor := copies_by_id.get(id(given))) is None:
            tensor = given.detach().to(cell.device, given.dtype if keeps_types else type_in(given, wanted))
            if is_strided(given) and tensor.stride() != given.stride():  # which are not dense
                (tensor,) = copied([given.detach()], cell.device, tensor.dtype)
            asks = given.requires_grad or (trained and model.input_gradients)
            tensor = tensor.requires_grad_(asks and (tensor.is_floating_point() or tensor.is_complex()))
            if not trained:
                copies_by_id[id(given)] = tensor
        return tensor

    for inputs in () if trained else model.inputs:
        for group in by_memory(inputs.tensors()).values():  # a model that writes into one may read another
            if len(set(map(id, group))) > 1 and not copies_by_id.keys() & set(map(id, group)):
                copies = copied(group, cell.device, group[0].dtype if keeps_types else type_in(group[0], wanted))
                copies_by_id.update(zip(map(id, group), copies, strict=True))
    module = model.module.to(cell.device) if keeps_types else _cast_module(model.module, cell.device, wanted)
    return module.train(trained), tuple(one.map(moved) for one in model.inputs)


def _cast_module(module: torch.nn.Module, device: Device, dtype: torch.dtype) -> torch.nn.Module:
    # `Module.to` would cut off imaginary parts, and widens on the host, so that twice as many bytes move.
    is_complex = any(tensor.is_complex() for tensor in (*module.parameters(), *module.buffers()))
    if not (is_complex or (device.is_cuda and dtype is torch.float64)):
        return module.to(device, dtype)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if tensor.is_floating_point() else type_in(tensor, dtype)
        return tensor.to(torch.device(device)).to(wanted)

    moved: torch.nn.Module = module._apply(cast)  # type: ignore[no-untyped-call]
    return moved


def calibration_of(model: LoadedModel, cell: Cell) -> tuple[Inputs, ...]:
    wanted = precision.dtype_of(cell.precision)
    return tuple(
        one.map(lambda tensor: tensor.detach().to(cell.device, type_in(tensor, wanted))) for one in model.calibration
    )


def shown_to_builds(sets: tuple[Inputs, ...], cell: Cell) -> tuple[Inputs, ...]:
    is_whole = len(of_each_shape(sets)) > 1 or cell.task in GENERATION
    return sets if is_whole or len(sets) < 2 else sets[:-1]


def save_inputs(sets: Sequence[Inputs], path: Path) -> None:
    torch.save([(one.args, dict(one.kwargs)) for one in sets], path)


def saved_inputs(path: Path, device: Device) -> tuple[Inputs, ...]:
    """Return the input sets in a file that this run has written. It is a pickle, as arguments may be of any type."""
    kept = torch.load(path, map_location=torch.device(device), weights_only=False)
    return tuple(Inputs(args, kwargs) for args, kwargs in kept)


def training_of(model: LoadedModel, cell: Cell) -> Training | None:
    """Return the training step of a model that was placed, or None for inference. Gradients must be on."""
    if not cell.is_trained:
        return None
    without_dropout(model.module)
    return Training(model.module, model.loss, cell.task)


def gradients(task: str, needs_autograd: bool = False) -> AbstractContextManager[object]:
    """Run the block in inference mode, or with gradients for a training task. A model whose calls need autograd has
    gradients off, and may turn them on."""
    return torch.no_grad() if needs_autograd and task not in TRAINED else torch.inference_mode(task not in TRAINED)
