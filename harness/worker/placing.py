"""A cell's model as it is called: loaded, on its device, in its precision, in the mode of its task."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from harness import precision
from models.base import Inputs, LoadedModel
from records.schema import INFERENCE, Cell

if TYPE_CHECKING:
    from backends.training import Training


def load(cell: Cell, cwd: Path | None = None) -> LoadedModel:
    """The cell's model, found from the folder that the user stood in."""
    if cwd is not None:
        os.chdir(cwd)
    family = models.find(cell.model)
    drawn = family.load_on(cell.dimensions, cell.seed, cell.device, precision.dtype_of(cell.precision))
    if drawn is not None and cell.device.is_cuda:
        import torch

        torch.cuda.synchronize(cell.device)  # what is read on the cell's own stream was drawn on another
    return drawn or family.load(cell.dimensions, cell.seed)


def place(model: LoadedModel, cell: Cell, dtype: Any = None) -> tuple[Any, tuple[Inputs, ...]]:
    """Module and inputs on the cell's device, floating-point tensors in `dtype` (default: the cell's precision).

    The module is in eval mode for inference, else in train mode.
    """
    wanted = dtype or precision.dtype_of(cell.precision)
    trained = cell.task != INFERENCE

    def moved(tensor: Any) -> Any:
        is_cast = tensor.is_floating_point() and tensor.element_size() > 1  # float8 is a model's own choice
        tensor = tensor.detach().to(cell.device, wanted if is_cast else tensor.dtype)
        return tensor.requires_grad_(trained and model.input_gradients and tensor.is_floating_point())

    return model.module.to(cell.device, wanted).train(trained), tuple(one.map(moved) for one in model.inputs)


def training_of(model: LoadedModel, cell: Cell) -> Training | None:
    """A training task's step of a model that was placed; None for inference. Called where gradients are on."""
    if cell.task == INFERENCE:
        return None
    from backends.training import Training, without_dropout

    without_dropout(model.module)
    return Training(model.module, model.loss, cell.task)


def gradients(task: str) -> AbstractContextManager[object]:
    """What `task` runs under: inference mode, or with gradients."""
    import torch

    return torch.inference_mode(task == INFERENCE)
