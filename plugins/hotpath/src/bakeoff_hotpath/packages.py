"""Compiled packages as functions of flat tensors, and how their results are compared. Imports torch, no compiler.

Loading a package takes milliseconds.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable

FORWARD, BACKWARD = "forward.pt2", "backward.pt2"

MAX_RELATIVE_ERROR = 0.02
"""A version with a larger error has computed something else. 16-bit types lose up to one per cent."""

Tensors = list[torch.Tensor]


def load(folder: Path, account: dict[str, Any], tensors: Tensors) -> Callable[[Tensors], Tensors]:
    """Return the compiled version in `folder` as a function of flat tensors, differentiable if it was compiled so.

    `tensors` are those of a call, and show the device. Raises FileNotFoundError for a missing package, RuntimeError for
    one that does not load.
    """
    forward = _function(folder / FORWARD, tensors)
    if not account["gradients"]:
        return forward
    function = differentiable(forward, _function(folder / BACKWARD, tensors), account)
    return lambda given: list(function(*given))


def _function(file: Path, tensors: Tensors) -> Callable[[Tensors], Tensors]:
    if not file.is_file():  # the loader would say no more than that something went wrong
        raise FileNotFoundError(f"{file} is gone")
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    # the loader that aoti_load_package wraps: the wrapper's module imports the compiler, which takes seconds
    loader = torch._C._aoti.AOTIModelPackageLoader(
        str(file),
        "model",
        True,  # single-threaded, since a call holds Python's lock; otherwise each waits for the one before on the GPU
        1,  # runner
        -1 if device is None else device.index or 0,
    )
    run: Callable[[Tensors], Tensors] = loader.run
    if device is None or torch.cuda.device_count() == 1:
        return run

    def run_on_device(given: Tensors) -> Tensors:
        # the loader takes the current stream of the current device, which may be another one than the tensors'
        with torch.cuda.device(device):
            return run(given)

    return run_on_device


def differentiable(
    forward: Callable[[Tensors], Tensors], backward: Callable[[Tensors], Tensors], account: dict[str, Any]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return two packages as one function that autograd differentiates, once."""
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
            by_input: list[torch.Tensor | None] = [None] * ctx.inputs
            for place, gradient in zip(places, backward([*ctx.saved_tensors, *tangents]), strict=True):
                by_input[place] = gradient
            return tuple(by_input)

    apply: Callable[..., tuple[torch.Tensor, ...]] = Compiled.apply
    return apply


def _laid_out(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return the same values in the strides that the code was compiled for."""
    if tensor.stride() == stride:
        return tensor
    laid_out = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(tensor)


def results_of(call: Callable[..., Any], tensors: Tensors, is_training: bool) -> Tensors:
    """Return the outputs of a function of flat tensors and, for training, their gradients."""
    if not is_training:
        with torch.no_grad():
            return list(call(*tensors))
    outputs = list(call(*tensors))
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    ones = [torch.ones_like(output) for output in outputs]
    gradients = torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
    return [*(output.detach() for output in outputs), *(each for each in gradients if each is not None)]


def difference(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """Return how the tensors differ by more than rounding. The text is empty where they do not."""
    if len(results) != len(expected):
        return f"{len(results)} tensors instead of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"tensor {number} is {ours.dtype} {list(ours.shape)} instead of {theirs.dtype} {list(theirs.shape)}"
        if not theirs.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                return f"tensor {number} has other values"
            continue
        exact, near = theirs.double(), ours.double()
        error = torch.linalg.vector_norm(torch.nan_to_num(near - exact))
        if error > MAX_RELATIVE_ERROR * torch.linalg.vector_norm(torch.nan_to_num(exact)) + 1e-6:
            return f"tensor {number} is off by {float(error):.2g} (norm)"
        if not torch.equal(near.isnan(), exact.isnan()):
            return f"tensor {number} has other NaNs"
    return ""
