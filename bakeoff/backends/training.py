"""One step of training: what a backend runs for a task that is not inference, and what of it is checked.

This module imports torch, so only workers import it. There is no autocast: weights, inputs, gradients and moments all
have the cell's type.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bakeoff.backends.calling import flatten_outputs, sampled
from bakeoff.models.base import Inputs
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import FORWARD_BACKWARD, TRAIN_STEP

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-6
"""Torch's default of 1e-8 is zero in float16. A parameter without a gradient would then become 0 / 0."""
WEIGHT_DECAY = 0.1

STEPS_BEFORE = 10
"""The checked step is the eleventh, with moments of zero. In a first step Adam's corrections cancel both betas, so a
wrong beta would not show."""

MAX_COMPARED_ELEMENTS = 2**14
"""Larger gradients and updates are compared at this many random places, which are always the same."""

MIN_NOTICEABLE_GRADIENT = 1e-2
"""Relative to the root mean square of all gradients of the model. A smaller gradient may be nothing but rounding."""


class TrainingOutput(NamedTuple):
    kind: Literal["loss", "gradient", "change"]
    of: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.of}" if self.of else self.kind


class Training:
    """A module in train mode with its loss and, for `train_step`, its optimiser.

    `step` is a whole call. Its parts are `forget_gradients`, `forward`, `backward` and `optimise`, in that order, and
    each of them may be compiled. Every call does the same work: it makes new gradients and never adds them up.
    Parameters, moments and the step count stay the same tensors from call to call, so that a step can be captured.
    `restore` puts their first values back in place.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor] | None, task: str) -> None:
        """Take a module that is on its device, in its type and in train mode. `loss(outputs, *args, **kwargs)` returns
        a scalar; None stands for `mean_square`. Raise Unsupported if there is nothing for an optimiser to change."""
        self.module = module
        self.task = task
        self._loss = loss or mean_square
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        changing = [*module.buffers(), *(self._parameters.values() if task == TRAIN_STEP else ())]
        self._initial = [(tensor, _set_aside(tensor)) for tensor in changing]
        self._samples = (
            [sampled(parameter, MAX_COMPARED_ELEMENTS) for parameter in self._parameters.values()]
            if task == TRAIN_STEP
            else []
        )
        self.optimiser = self._new_optimiser() if task == TRAIN_STEP else None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._loss(self.module(*args, **kwargs), *args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Leave a gradient in the `grad` of each parameter, and of each input that asks for one."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimise(self) -> None:
        if self.optimiser is not None:
            self.optimiser.step()

    def forget_gradients(self, inputs: Inputs | None = None) -> None:
        """Drop the gradients of the parameters and of `inputs`, so that the next backward makes new ones."""
        for tensor in (*self._parameters.values(), *(inputs.tensors() if inputs else ())):
            tensor.grad = None

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        self.forget_gradients()
        loss = self.forward(*args, **kwargs)
        self.backward(loss)
        self.optimise()
        return loss.detach()

    def restore(self) -> None:
        self._put_back(self.optimiser)

    def describe_outputs(self, inputs: Inputs) -> tuple[TrainingOutput, ...]:
        gradients = [TrainingOutput("gradient", name) for name in self._parameters]
        changes = [TrainingOutput("change", name) for name in self._parameters] if self.optimiser is not None else []
        asking = [TrainingOutput("gradient", f"input {index}") for index, _ in enumerate(_asking(inputs))]
        return (TrainingOutput("loss"), *gradients, *changes, *asking)

    @torch.no_grad()
    def results(self, loss: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return what a call is checked by, as new tensors: the loss, each parameter's gradient, its change for
        `train_step`, and the gradients of inputs that ask for one. Large tensors are sampled."""
        gradients = [_sampled_gradient(parameter) for parameter in self._parameters.values()]
        asked = [_sampled_gradient(tensor) for tensor in _asking(inputs)]
        changes = []
        if self.optimiser is not None:
            elements = max(1, sum(gradient.numel() for gradient in gradients))
            squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
            noticeable = MIN_NOTICEABLE_GRADIENT * math.sqrt(squares / elements)
            for parameter, before, gradient in zip(self._parameters.values(), self._samples, gradients, strict=True):
                # Adam moves a parameter as far for a gradient that is only rounding, so its change gets a low weight
                weight = (gradient.double().abs() / noticeable).clamp(max=1) if noticeable else 1.0
                after = sampled(parameter, MAX_COMPARED_ELEMENTS).double()
                changes.append((after - before.double()) * weight)
        return (loss.clone(), *gradients, *changes, *asked)

    def make_capturable(self) -> None:
        """Keep the optimiser's step count on the device, as a CUDA graph needs. Call this once, before the capture."""
        if self.optimiser is None:
            return
        for group in self.optimiser.param_groups:
            group["capturable"] = True
        for parameter, state in self.optimiser.state.items():
            state["step"] = state["step"].to(parameter.device)

    def settings(self) -> dict[str, str | float]:
        if self.optimiser is None:
            return {}
        return {
            "optimizer": "AdamW",
            "lr": LEARNING_RATE,
            "betas": ", ".join(map(str, BETAS)),
            "eps": EPSILON,
            "weight_decay": WEIGHT_DECAY,
        }

    def _new_optimiser(self) -> torch.optim.AdamW:
        if not self._parameters:
            raise Unsupported(f"the model has no parameter to train: use --task {FORWARD_BACKWARD}")
        optimiser = torch.optim.AdamW(
            self._parameters.values(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
        )
        # the first step creates the state, which must exist before a step is captured or restored
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        self.forget_gradients()
        self._put_back(optimiser)
        return optimiser

    @torch.no_grad()
    def _put_back(self, optimiser: torch.optim.AdamW | None) -> None:
        for tensor, initial in self._initial:
            tensor.copy_(initial, non_blocking=True)
        for state in optimiser.state.values() if optimiser is not None else ():
            for name, tensor in state.items():
                tensor.fill_(STEPS_BEFORE if name == "step" else 0)


def mean_square(outputs: object, *_: Any, **__: Any) -> Tensor:
    """Return the mean of the squares of all floating-point outputs, computed in float32 or wider."""
    floating = [tensor for tensor in flatten_outputs(outputs) if tensor.is_floating_point()]
    if not floating:
        raise TypeError("the model has no floating-point output to train it by: give LoadedModel a loss")
    elements = sum(tensor.numel() for tensor in floating)
    wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in floating]
    return torch.stack([tensor.square().sum() for tensor in wide]).sum() / elements


def without_dropout(module: nn.Module) -> int:
    """Switch off the module's dropout layers, since random results cannot be checked. Return how many there were."""
    dropping = [part for part in module.modules() if isinstance(part, nn.modules.dropout._DropoutNd) and part.p]
    for part in dropping:
        part.p = 0.0
    return len(dropping)


def _asking(inputs: Inputs) -> list[Tensor]:
    return [tensor for tensor in inputs.tensors() if tensor.requires_grad]


def _sampled_gradient(tensor: Tensor) -> Tensor:
    """Return the gradient. It is zero for a tensor that the loss does not depend on."""
    return sampled(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad, MAX_COMPARED_ELEMENTS)


def _set_aside(tensor: Tensor) -> Tensor:
    """Return a copy on the host, which takes no memory of the device. It is pinned, so that copying back is fast."""
    host = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
    return host.copy_(tensor.detach())
