"""Compiled packages as functions of flat tensors. Loading one takes milliseconds, and imports no compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hotpath.child import BACKWARD, FORWARD

Tensors = list[torch.Tensor]


def load(folder: Path, account: dict[str, Any], tensors: Tensors) -> Callable[[Tensors], Tensors]:
    """The compiled version in `folder`: flat tensors in, its outputs out. With gradients where it was compiled so.

    `tensors` are those of a call, and tell the device. Raises FileNotFoundError for one that is gone, RuntimeError for
    one that does not load.
    """
    forward = _function(folder / FORWARD, tensors)
    if not account["gradients"]:
        return forward
    backward = _function(folder / BACKWARD, tensors)
    function = _differentiable(forward, backward, account)

    def call(given: Tensors) -> Tensors:
        return list(function(*given))

    return call


def _function(file: Path, tensors: Tensors) -> Callable[[Tensors], Tensors]:
    if not file.is_file():  # of which the loader would say no more than that something went wrong
        raise FileNotFoundError(f"{file} is gone")
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    # the loader that aoti_load_package wraps: the wrapper's module imports the compiler, which takes seconds
    loader = torch._C._aoti.AOTIModelPackageLoader(
        str(file),
        "model",
        True,  # single-threaded, as Python's lock is held in a call: else each waits for the one before it on the GPU
        1,  # runner
        -1 if device is None else device.index or 0,
    )
    run: Callable[[Tensors], Tensors] = loader.run
    if device is None or torch.cuda.device_count() == 1:
        return run

    def run_on_device(given: Tensors) -> Tensors:
        # it takes the current stream of the current device, which need not be the one that the tensors are on
        with torch.cuda.device(device):
            return run(given)

    return run_on_device


def _differentiable(
    forward: Callable[[Tensors], Tensors], backward: Callable[[Tensors], Tensors], account: dict[str, Any]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The two packages as one function that autograd differentiates, once."""
    outputs: int = account["outputs"]
    places: list[int] = account["gradients"]
    strides = [tuple(stride) for stride in account["tangents"]]

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = forward(list(tensors))
            ctx.inputs = len(tensors)
            ctx.save_for_backward(*results[outputs:])
            return tuple(results[:outputs])

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            tangents = [_laid_out(given, stride) for given, stride in zip(gradients, strides, strict=True)]
            found: list[torch.Tensor | None] = [None] * ctx.inputs
            for place, gradient in zip(places, backward([*ctx.saved_tensors, *tangents]), strict=True):
                found[place] = gradient
            return tuple(found)

    apply: Callable[..., tuple[torch.Tensor, ...]] = Compiled.apply
    return apply


def _laid_out(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values in the strides that the code was compiled for."""
    if tensor.stride() == stride:
        return tensor
    laid_out = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(tensor)
