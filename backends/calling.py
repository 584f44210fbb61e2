"""From a model's calling convention to flat tensors and back, for backends whose graphs know only positional ones."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from models.base import Inputs


def flatten_outputs(outputs: object) -> tuple[torch.Tensor, ...]:
    """The tensors in `outputs` (a tensor, or any nest of tuples, lists, dicts and Hugging Face outputs), in order.

    Raises TypeError where there is none.
    """
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    tensors = tuple(leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
    if not tensors:
        raise TypeError(f"the model returned {type(outputs).__name__} with no tensor in it")
    return tensors


def sampled(tensor: torch.Tensor, at_most: int) -> torch.Tensor:
    """A copy of the tensor's elements, flat; of one with more than `at_most`, so many at random places, which its size
    decides."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= at_most:
        return flat.clone()
    generator = torch.Generator().manual_seed(flat.numel())
    return flat[torch.randint(flat.numel(), (at_most,), generator=generator).to(flat.device)]


class FlatModule(torch.nn.Module):
    """`module` with tensors in and a tuple of tensors out; whatever else its arguments hold is a constant of it."""

    def __init__(self, module: torch.nn.Module, example: Inputs) -> None:
        super().__init__()
        self.module = module
        leaves, self._structure = pytree.tree_flatten((example.args, dict(example.kwargs)))
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.train(module.training)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)
        leaves = [
            next(remaining) if is_tensor else constant
            for is_tensor, constant in zip(self._is_tensor, self._constants, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return flatten_outputs(self.module(*args, **kwargs))


def tensor_names(module: torch.nn.Module, example: Inputs) -> list[str]:
    """A name for each tensor of `example`, in the order of `Inputs.tensors`: the parameter's if it holds just one."""
    parameters: dict[str, Any] = dict(inspect.signature(module.forward).parameters)
    positional = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]
    names: list[str] = []
    for index, value in enumerate(example.args):
        names += _names_of(positional[index] if index < len(positional) else f"input_{index}", value)
    # pytree sorts nothing: a dict's leaves come in insertion order, as they do here
    for name, value in example.kwargs.items():
        names += _names_of(name, value)
    return names


def _names_of(name: str, value: object) -> list[str]:
    count = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    return [name] * count if count <= 1 else [f"{name}_{index}" for index in range(count)]
