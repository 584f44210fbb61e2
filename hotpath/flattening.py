"""From a module's call to flat tensors: weights and buffers first, then the arguments' tensors. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree


class Weights:
    """A module's parameters and buffers, each once, in a fixed order, as they stand when they are asked for."""

    def __init__(self, module: torch.nn.Module) -> None:
        named = [*module.named_parameters(), *module.named_buffers()]
        self.names = [name for name, _ in named]
        self._places = [_place_of(module, name) for name in self.names]
        self._known = [(tensor, tensor.data_ptr(), tensor.requires_grad) for _, tensor in named]
        self._kinds = [kind_of(tensor) for _, tensor in named]

    def current(self) -> list[torch.Tensor] | None:
        """The tensors; None when one of them is no longer of the kind that it was in the beginning.

        They may change in place (an optimiser's step) or be replaced by others of the same shape, type and device.
        """
        tensors = []
        for index, (owner, name) in enumerate(self._places):
            tensor = owner.get(name)
            known, address, requires_grad = self._known[index]
            # what is still the same tensor at the same address is of the same kind: three cheap questions
            if tensor is not known or tensor.data_ptr() != address or tensor.requires_grad is not requires_grad:
                if tensor is None or kind_of(tensor) != self._kinds[index]:
                    return None
                self._known[index] = (tensor, tensor.data_ptr(), requires_grad)
            tensors.append(tensor)
        return tensors


class Flat(torch.nn.Module):
    """`module` as a function of flat tensors, weights among them, to a tuple of tensors. It has no weights itself."""

    def __init__(
        self, module: torch.nn.Module, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__()
        # in a list, so that the weights are not found as this module's own
        self._held = [module]
        self._names = names
        self._leaves, self._structure = pytree.tree_flatten((args, kwargs))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = dict(zip(self._names, tensors, strict=False))
        given = iter(tensors[len(self._names) :])
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        outputs = torch.func.functional_call(self._held[0], weights, args, kwargs)
        return tuple(leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments' tensors, flat, in the order in which `Flat` takes them."""
    if not kwargs and all(type(arg) is torch.Tensor for arg in args):
        return list(args)  # what a tree would give, in a tenth of the time
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def rebuilder(outputs: Any) -> Callable[[list[torch.Tensor]], Any]:
    """Puts flat tensors into the structure of `outputs`; what is no tensor there stays as it is."""
    if isinstance(outputs, torch.Tensor):
        return lambda tensors: tensors[0]
    leaves, structure = pytree.tree_flatten(outputs)

    def rebuild(tensors: list[torch.Tensor]) -> Any:
        given = iter(tensors)
        return pytree.tree_unflatten(
            [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure
        )

    return rebuild


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What tells two calls apart that must not share a compiled version: kinds of tensors, and every other argument.

    None for a call that has no compiled version at all: an argument that can neither be flattened nor compared.
    """
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor:
        return kind_of(args[0])
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds = tuple(kind_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    try:
        hash(kinds)
    except TypeError:
        return None
    return kinds, str(structure)


def kind_of(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """All that code compiled for a tensor may rely on."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, tensor.data_ptr() % 16


def _place_of(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary that holds a parameter or buffer, and its key there."""
    prefix, _, last = name.rpartition(".")
    owner = module.get_submodule(prefix)
    return (owner._parameters if last in owner._parameters else owner._buffers), last
