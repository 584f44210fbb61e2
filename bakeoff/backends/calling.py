"""Turns a model's arguments and outputs into flat tensors, for backends that know only positional tensors."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from bakeoff.models.base import Inputs


def flatten_outputs(outputs: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors in `outputs`, which may nest tuples, lists, dicts and Hugging Face outputs, in order.

    Raise TypeError if there is none.
    """
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    tensors = tuple(leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
    if not tensors:
        raise TypeError(f"the model returned {type(outputs).__name__} with no tensor in it")
    return tensors


def sampled(tensor: torch.Tensor, at_most: int) -> torch.Tensor:
    """Return a flat copy of the tensor, or `at_most` of its elements at random places that depend only on its size."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= at_most:
        return flat.clone()
    return flat[sampled_places(flat.numel(), at_most).to(flat.device)]


@lru_cache(maxsize=1)  # outputs of one size follow each other
def sampled_places(elements: int, at_most: int) -> torch.Tensor:
    """Return `at_most` random places in a flat tensor of so many elements, the same ones every time."""
    generator = torch.Generator().manual_seed(elements)
    return torch.randint(elements, (at_most,), generator=generator)


class FlatModule(torch.nn.Module):
    """Wraps `module` to take tensors and return a tuple of tensors. Its other arguments become constants."""

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
    """Name each tensor of `example` in the order of `Inputs.tensors`, after the parameter that it belongs to."""
    parameters: dict[str, Any] = dict(inspect.signature(module.forward).parameters)
    positional = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]
    names: list[str] = []
    for index, value in enumerate(example.args):
        names += _names_of(positional[index] if index < len(positional) else f"input_{index}", value)
    # pytree keeps a dict's insertion order, as this loop does
    for name, value in example.kwargs.items():
        names += _names_of(name, value)
    return names


def _names_of(name: str, value: object) -> list[str]:
    count = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    return [name] * count if count <= 1 else [f"{name}_{index}" for index in range(count)]
