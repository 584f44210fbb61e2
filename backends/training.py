"""One step of training, for the tasks that are not inference: what a backend runs, and how it is checked.

Imports torch, so only a child process imports it. No autocast: weights and inputs are of the cell's type, and so are
gradients and moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from backends.base import FORWARD_BACKWARD, TRAIN_STEP, Compiled, Settings
from backends.calling import flatten_outputs, sampled
from records.errors import Unsupported
from records.schema import Extent, Placement

if TYPE_CHECKING:
    from models.base import Inputs

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-6
"""Not torch's 1e-8, which is zero in float16 and makes a parameter without a gradient 0 / 0."""
WEIGHT_DECAY = 0.1

STEPS_BEFORE = 10
"""A checked step is the eleventh, with the moments still zero. In a first step Adam's corrections cancel both betas, so
that a wrong one would not show."""

SAMPLED = 2**14
"""Of a gradient or an update with more elements, so many are compared, at random places that are always the same."""


NOTICEABLE = 1e-2
"""A gradient this large, relative to the root mean square of all of a model's, is one and no rounding."""


class Training:
    """A module in train mode with its loss and, for `train_step`, its optimiser.

    `step` is the whole of a call; `forward`, `backward` and `optimise` are its parts, in that order, after
    `forget_gradients`. Any of them may be compiled. Every call does the same work: gradients are made anew, never
    added up. Parameters, moments and step count stay the same tensors from one call to the next, so that a step can be
    captured, and `restore` puts their first values back in place.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor] | None, task: str) -> None:
        """`loss(outputs, *args, **kwargs)` is a scalar of the module's outputs and the call's inputs; None stands for
        `mean_square`. The module is on its device, in its type and in train mode. Raises Unsupported where there is
        nothing for an optimiser to change."""
        self.module = module
        self.task = task
        self._loss = loss or mean_square
        self._parameters = {name: one for name, one in module.named_parameters() if one.requires_grad}
        changing = [*module.buffers(), *(self._parameters.values() if task == TRAIN_STEP else ())]
        self._initial = [(tensor, _set_aside(tensor)) for tensor in changing]
        self._samples = [sampled(one, SAMPLED) for one in self._parameters.values()] if task == TRAIN_STEP else []
        self.optimiser = self._new_optimiser() if task == TRAIN_STEP else None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss, ready for `backward`."""
        return self._loss(self.module(*args, **kwargs), *args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Leaves each parameter's gradient in its `grad`, and that of an input that asks for one in the input's."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimise(self) -> None:
        """One step of AdamW with the gradients there are; nothing where the task has no optimiser."""
        if self.optimiser is not None:
            self.optimiser.step()

    def forget_gradients(self, inputs: Inputs | None = None) -> None:
        """Drop the parameters' gradients, and those of `inputs`: the next backward makes new ones."""
        for tensor in (*self._parameters.values(), *(inputs.tensors() if inputs else ())):
            tensor.grad = None

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One whole call. Returns the loss."""
        self.forget_gradients()
        loss = self.forward(*args, **kwargs)
        self.backward(loss)
        self.optimise()
        return loss.detach()

    def restore(self) -> None:
        """Put parameters, buffers, moments and step count back to where they began, in place."""
        self._put_back(self.optimiser)

    def names(self, inputs: Inputs) -> tuple[str, ...]:
        """What each of `results` is, the kind of it first: `loss`, `gradient of layers.0.weight`."""
        kinds = ("gradient",) if self.optimiser is None else ("gradient", "change")
        asking = (f"gradient of input {index}" for index, _ in enumerate(_asking(inputs)))
        return ("loss", *(f"{kind} of {name}" for kind in kinds for name in self._parameters), *asking)

    @torch.no_grad()
    def results(self, loss: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """What a call is checked by, as tensors of their own: the loss; each parameter's gradient; for `train_step` by
        how much each parameter has changed; the gradients of the inputs that ask for one. Of a large tensor `SAMPLED`
        elements stand for all.

        Adam divides a gradient by its own size, so that one of nothing but rounding moves its parameter by as much as
        any other: changes are weighed down where the gradient is small beside the model's.
        """
        gradients = [sampled(_gradient(parameter), SAMPLED) for parameter in self._parameters.values()]
        asked = [sampled(_gradient(tensor), SAMPLED) for tensor in _asking(inputs)]
        changes = []
        if self.optimiser is not None:
            noticeable = NOTICEABLE * _root_mean_square(gradients)
            for parameter, before, gradient in zip(self._parameters.values(), self._samples, gradients, strict=True):
                weight = (gradient.double().abs() / noticeable).clamp(max=1) if noticeable else 1.0
                changes.append((sampled(parameter, SAMPLED).double() - before.double()) * weight)
        return (loss.clone(), *gradients, *changes, *asked)

    def make_capturable(self) -> None:
        """Have the optimiser keep its step count on the device, which a CUDA graph needs. To be called before capture;
        it holds for every later step."""
        if self.optimiser is None:
            return
        for group in self.optimiser.param_groups:
            group["capturable"] = True
        for parameter, state in self.optimiser.state.items():
            state["step"] = state["step"].to(parameter.device)

    def settings(self) -> Settings:
        """The hyperparameters, for the record."""
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
        """AdamW in the implementation that torch takes by default, with its state in place."""
        if not self._parameters:
            raise Unsupported(f"the model has no parameter to train: use --task {FORWARD_BACKWARD}")
        optimiser = torch.optim.AdamW(
            self._parameters.values(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
        )
        # the state appears in a first step, and must be there before a step is captured or restored
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


class Steps(Compiled):
    """Calls of a training step in its parts: eager's, or with `forward` or `optimise` in their compiled form."""

    def __init__(
        self,
        training: Training,
        forward: Callable[..., Tensor] | None = None,
        optimise: Callable[[], None] | None = None,
    ) -> None:
        self._training = training
        self._forward = forward or training.forward
        self._optimise = optimise or training.optimise
        self._bound: Inputs | None = None
        self._called_with: Inputs | None = None
        self._loss: Tensor | None = None

    def bind(self, inputs: Inputs) -> None:
        self._bound = inputs

    def run(self) -> None:
        self._run_forward()
        self._run_backward()
        self._optimise()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        parts = (("forward", self._run_forward), ("backward", self._run_backward))
        return (*parts, ("optimizer", self._optimise)) if self._training.optimiser is not None else parts

    def outputs(self) -> tuple[Tensor, ...]:
        assert self._loss is not None and self._called_with is not None
        return self._training.results(self._loss.detach(), self._called_with)

    def restore(self) -> None:
        self._training.restore()

    def placement(self) -> Placement | None:
        return Placement(extent=Extent.FULL)

    def settings(self) -> Settings:
        return self._training.settings()

    def close(self) -> None:
        self._training.forget_gradients(self._called_with)
        self._loss = None

    def _run_forward(self) -> None:
        assert self._bound is not None
        # the sets take turns: gradients of the last one's inputs would stay, beside this one's
        self._training.forget_gradients(self._called_with)
        self._called_with = self._bound
        self._loss = self._forward(*self._bound.args, **self._bound.kwargs)

    def _run_backward(self) -> None:
        assert self._loss is not None
        self._training.backward(self._loss)


def mean_square(outputs: object, *_: Any, **__: Any) -> Tensor:
    """The mean of the squares of all floating-point outputs, computed in float32 or what is wider."""
    floating = [tensor for tensor in flatten_outputs(outputs) if tensor.is_floating_point()]
    if not floating:
        raise TypeError("the model has no floating-point output to train it by: give LoadedModel a loss")
    elements = sum(tensor.numel() for tensor in floating)
    wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in floating]
    return torch.stack([tensor.square().sum() for tensor in wide]).sum() / elements


def without_dropout(module: nn.Module) -> int:
    """Set the share that the module's dropout layers drop to zero, since what is random cannot be checked. Returns how
    many layers dropped anything."""
    dropping = [part for part in module.modules() if isinstance(part, nn.modules.dropout._DropoutNd) and part.p]
    for part in dropping:
        part.p = 0.0
    return len(dropping)


def _asking(inputs: Inputs) -> list[Tensor]:
    return [tensor for tensor in inputs.tensors() if tensor.requires_grad]


def _root_mean_square(tensors: Sequence[Tensor]) -> float:
    elements = sum(tensor.numel() for tensor in tensors)
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors) / max(1, elements))


def _gradient(tensor: Tensor) -> Tensor:
    """A tensor that the loss does not depend on has none, which means zero."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _set_aside(tensor: Tensor) -> Tensor:
    """A copy on the host, so that it takes none of the device's memory; pinned, so that it is back soon."""
    host = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
    return host.copy_(tensor.detach())
