"""What a contest's cells are checked against: the model's outputs in float64, by eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.worker.placing import place, training_of
from models.base import Inputs, LoadedModel
from records.precision import Precision
from records.schema import INFERENCE, Cell

if TYPE_CHECKING:
    import torch

    from backends.training import Training

Outputs = tuple["torch.Tensor", ...]

COMPARED = 2**22
"""Of an output with more elements, so many are compared, at random places that are always the same."""


def widths(precision: Precision) -> tuple[str, ...]:
    """The types that a reference may be computed in, the best one first: float32 is as good as exact beside 16 bits."""
    return ("float64", "float32") if precision.is_16_bit else ("float64",)


def compute(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
    """The outputs of every input set in `dtype`. The model's module is not to be used again."""
    if not (model.is_layerwise and cell.task == INFERENCE):
        return run_eager(*place(model, cell, dtype), training_of(model, cell))
    module, sets = place(model, cell)
    with layer_by_layer(module, dtype):
        return run_eager(module, tuple(one.map(lambda tensor: _cast(tensor, dtype)) for one in sets))


def jolt(module: torch.nn.Module, sets: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
    """Move each weight of `module`, in place, and each input by up to one rounding of its type, at random, the same way
    each time. Returns the inputs.

    Where eager itself has to be the reference, by how much its outputs change is an estimate of its error to the exact
    ones: as each operation rounds once, so does this, and the model passes both on.
    """
    import torch

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator(tensor.device).manual_seed(tensor.numel())
        by = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
        return tensor + tensor * by * torch.finfo(tensor.dtype).eps

    with torch.no_grad():
        for weight in module.parameters():
            if _is_cast(weight):
                weight.copy_(moved(weight))
        return tuple(
            one.map(
                lambda tensor: (
                    moved(tensor.detach()).requires_grad_(tensor.requires_grad) if _is_cast(tensor) else tensor
                )
            )
            for one in sets
        )


def run_eager(module: Any, sets: tuple[Inputs, ...], training: Training | None = None) -> tuple[Outputs, ...]:
    """What is compared of the outputs for every set, each of a training task from the same beginning."""
    from backends.calling import flatten_outputs
    from backends.eager import Steps

    if training is None:
        return tuple(thinned(flatten_outputs(module(*one.args, **one.kwargs))) for one in sets)
    found = []
    with Steps(training) as steps:
        for one in sets:
            steps.restore()
            steps.bind(one)
            steps.run()
            found.append(steps.outputs())
        steps.restore()
    return tuple(found)


def thinned(outputs: Outputs) -> Outputs:
    """What is compared of a call's outputs: those of up to `COMPARED` elements, and so many elements of larger ones."""
    from backends.calling import sampled

    return tuple(sampled(tensor, COMPARED) if tensor.numel() > COMPARED else tensor for tensor in outputs)


@contextlib.contextmanager
def layer_by_layer(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Inside, each part of `module` computes in `dtype`, with weights that are widened for as long as it is called.

    So a model whose weights fill half of a device is computed exactly beside them. Its weights have to be used by the
    parts that own them.
    """

    def widen(part: torch.nn.Module, _: Any) -> None:
        for name, tensor in _own(part).items():
            part.__dict__[name] = _cast(tensor, dtype)  # which is found before the weight of that name

    def put_back(part: torch.nn.Module, *_: Any) -> None:
        for name in _own(part):
            part.__dict__.pop(name, None)

    hooks = []
    for part in module.modules():
        if _own(part):
            hooks += [part.register_forward_pre_hook(widen), part.register_forward_hook(put_back, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _own(part: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}


def _is_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1  # float8 is a model's own choice


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if _is_cast(tensor) else tensor
