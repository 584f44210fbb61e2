"""A module's call as flat tensors: weights and buffers first, then the arguments' tensors. Imports torch."""

import enum
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

REPEATABLE = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)
"""The types that a call may take or return beside tensors. Each is known by its value, and cannot change."""

PLAIN = (bool, int, float, str)
"""The types of attributes that compiled code holds as constants."""


_A_TENSOR = object()


class Weights:
    """A module's parameters and buffers, each once, in a fixed order.

    An object of this class also remembers what compiled code takes for granted: the submodules, the names that share a
    tensor, the empty names, and the plain attributes, with tensors among them, that are constants of the code.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.modules = list(module.modules())
        self.names: list[str] = []
        self.are_fit = not any(isinstance(part, torch.jit.ScriptModule) for part in self.modules)
        """False if compiled code cannot take these weights at all."""
        self._places: list[tuple[dict[str, Any], str]] = []
        self._known: list[tuple[torch.Tensor, int, bool, torch.Size, tuple[int, ...], torch.dtype]] = []
        self._kinds: list[tuple[Hashable, ...]] = []
        self._tied: list[tuple[dict[str, Any], str, int]] = []
        self._fixed: list[tuple[dict[str, Any], str, object]] = []
        """The submodules, the empty places, and the tensors that are plain attributes."""
        self._children = [(part._modules, len(part._modules)) for part in self.modules]
        self._versions: list[tuple[torch.Tensor, int | None]] = []
        self._constants: list[tuple[dict[str, Any], str, object]] = []
        if self.are_fit:
            self._find(module)

    def _find(self, module: torch.nn.Module) -> None:
        numbers: dict[int, int] = {}
        named = list(module.named_modules())
        for prefix, part in named:
            self._add(prefix, part._parameters, numbers)
        for prefix, part in named:
            self._add(prefix, part._buffers, numbers)
        for part in self.modules:
            self._fixed += [(part._modules, name, child) for name, child in part._modules.items()]
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor):
                    self._fixed.append((vars(part), name, value))
                    self._versions.append((value, _version_of(value)))
                elif type(value) in PLAIN and name != "training":  # `modes` holds that, since it may change back
                    self._constants.append((vars(part), name, value))

    def _add(self, prefix: str, owner: dict[str, Any], numbers: dict[int, int]) -> None:
        """Add the tensors that `owner` holds. `numbers` holds those added before, by their ids."""
        for name, tensor in owner.items():
            if tensor is None:
                self._fixed.append((owner, name, None))
                continue
            if id(tensor) in numbers:
                self._tied.append((owner, name, numbers[id(tensor)]))
                continue
            kind = kind_of(tensor)
            if kind is None:
                self.are_fit = False
                continue
            numbers[id(tensor)] = len(self.names)
            self.names.append(f"{prefix}.{name}" if prefix else name)
            self._places.append((owner, name))
            self._known.append(_known(tensor))
            self._kinds.append(kind)

    @property
    def modes(self) -> list[bool]:
        """The modules in training mode, as they stand now."""
        return [part.training for part in self.modules]

    @property
    def kinds(self) -> list[tuple[str, Hashable]]:
        """By name, all that compiled code relies on, gradients included."""
        return list(zip(self.names, self._kinds, strict=True))

    def current(self) -> list[torch.Tensor] | None:
        """Return the tensors, or None if one of them, or what compiled code takes for granted, has changed.

        Tensors may change in place (an optimiser's step) or be replaced by others of the same shape, type and device.
        """
        if not self.are_fit or not self._is_as_found():
            return None
        tensors = []
        for index, (owner, name) in enumerate(self._places):
            tensor = owner.get(name)
            known, address, requires_grad, shape, stride, dtype = self._known[index]
            # the same tensor of the same layout at the same address is of the same kind, and that is cheap to ask
            if (
                tensor is not known
                or tensor.data_ptr() != address
                or tensor.requires_grad is not requires_grad
                or tensor.shape != shape
                or tensor.stride() != stride
                or tensor.dtype is not dtype
            ):
                if tensor is None or kind_of(tensor) != self._kinds[index]:
                    return None
                self._known[index] = _known(tensor)
            tensors.append(tensor)
        for owner, name, number in self._tied:
            if owner.get(name) is not tensors[number]:
                return None
        return tensors

    def _is_as_found(self) -> bool:
        for held, name, value in self._fixed:
            if held.get(name) is not value:
                return False
        for held, name, value in self._constants:
            now = held.get(name)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for children, count in self._children:
            if len(children) != count:
                return False
        return all(_version_of(tensor) == version for tensor, version in self._versions)


class Flat(torch.nn.Module):
    """A module as a function of flat tensors, weights among them, to a tuple of tensors. It has no weights itself."""

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
    """Return the arguments' tensors in the order in which `Flat` takes them."""
    if not kwargs and all(type(arg) is torch.Tensor for arg in args):
        return list(args)  # the same as below, in a tenth of the time
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def rebuilder(outputs: Any) -> Callable[[list[torch.Tensor]], Any]:
    """Return a function that puts flat tensors into the structure of `outputs`. All other values stay."""
    if isinstance(outputs, torch.Tensor):
        return lambda tensors: tensors[0]
    leaves, structure = pytree.tree_flatten(outputs)
    # without the tensors, which would stay in memory, and in training all that their gradients need
    leaves = [_A_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def rebuild(tensors: list[torch.Tensor]) -> Any:
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if leaf is _A_TENSOR else leaf for leaf in leaves], structure)

    return rebuild


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return a key that differs for calls that must not share a compiled version: kinds of tensors, other arguments.

    It is None for a call without any compiled version: an argument is neither known by its value nor can be flattened,
    or a tensor has no kind.
    """
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor:
        return kind_of(args[0])
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds: list[Hashable] = []
    for leaf in leaves:
        kind: Hashable
        if isinstance(leaf, torch.Tensor):
            kind = kind_of(leaf)
        else:  # with its type, since 1, 1.0 and True are equal
            kind = (type(leaf), leaf) if isinstance(leaf, REPEATABLE) else None
        if kind is None:
            return None
        kinds.append(kind)
    key = tuple(kinds), str(structure)
    try:
        hash(key)
    except TypeError:  # an enumeration of dataclasses, or a text of a class that compares by itself
        return None
    return key


def shapeless(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return a call's key with tensors of any shape taken as the same. The call must have a key (`key_of`)."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds = tuple(
        (leaf.dim(), leaf.dtype, leaf.device, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf)
        for leaf in leaves
    )
    return kinds, str(structure)


def kind_of(tensor: torch.Tensor) -> tuple[Hashable, ...] | None:
    """Return all that compiled code may rely on, or None for a tensor that such code cannot take.

    It cannot take a tensor of a class of its own, a sparse or nested one, or one without memory, as there are inside
    `torch.vmap` and on the device "meta".
    """
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return None
    try:
        address = tensor.data_ptr()
        if not address and tensor.numel():
            return None
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, address % 16
    except RuntimeError:  # torch offers no question to ask first: "Cannot access data pointer", "doesn't support sizes"
        return None


def _known(tensor: torch.Tensor) -> tuple[torch.Tensor, int, bool, torch.Size, tuple[int, ...], torch.dtype]:
    return tensor, tensor.data_ptr(), tensor.requires_grad, tensor.shape, tensor.stride(), tensor.dtype


def _version_of(tensor: torch.Tensor) -> int | None:
    """Return the count of writes into a tensor, or None in inference mode, where tensors have none."""
    return None if tensor.is_inference() else tensor._version
