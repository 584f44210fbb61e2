"""Turns a model's arguments and outputs into flat tensors, for backends that know only positional tensors."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.models.base import Inputs
from bakeoff.models.input_sets import copied
from bakeoff.records.call_form import Describer, Form, HasNoForm, attributes, field_names, form_of_call, parameters_of


class Returned(tuple[torch.Tensor, ...]):
    """What a call returned: a flat tuple of its tensors and numbers (as tensors without dimensions), with `places` such
    as `[1].boxes`. `numbers` are the places of numbers, and `constants` holds what is neither by place."""

    places: tuple[str, ...]
    numbers: frozenset[str]
    constants: Mapping[str, str]
    choices: Mapping[str, Any] = MappingProxyType({})
    """What indices among the outputs chose from, by their places (`bakeoff.truth.choices`)."""
    form: Mapping[str, Any] = MappingProxyType({})
    """The form of the answer (`bakeoff.records.call_form`), or why it has none under `unknown`."""

    @classmethod
    def of(
        cls,
        tensors: Iterable[torch.Tensor],
        places: Iterable[str],
        numbers: Iterable[str] = (),
        constants: Mapping[str, str] | None = None,
    ) -> Returned:
        returned = cls(tensors)
        returned.places, returned.numbers, returned.constants = tuple(places), frozenset(numbers), dict(constants or {})
        assert len(returned) == len(returned.places)
        return returned

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Returned:
        returned = Returned.of(map(function, self), self.places, self.numbers, self.constants)
        returned.choices, returned.form = self.choices, self.form
        return returned


def mapped(
    outputs: tuple[torch.Tensor, ...], function: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    return outputs.map(function) if isinstance(outputs, Returned) else tuple(map(function, outputs))


def flatten_outputs(outputs: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors in `outputs` in order, whatever holds them (`_leaves`), without numbers. Raise TypeError if
    there is none."""
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    if isinstance(outputs, tuple | list) and outputs and all(isinstance(output, torch.Tensor) for output in outputs):
        return tuple(outputs)
    tensors = tuple(leaf for _, leaf in _leaves(outputs) if isinstance(leaf, torch.Tensor))
    if not tensors:
        raise _holds_no_tensor(outputs)
    return tensors


def _holds_no_tensor(outputs: object) -> TypeError:
    if outputs is None or (isinstance(outputs, tuple) and len(outputs) == 1 and outputs[0] is None):  # as graphs do
        return TypeError("the model returned None: does its forward end without a return?")
    return TypeError(f"the model returned {type(outputs).__name__} with no tensor in it")


def graph_outputs(outputs: object) -> tuple[torch.Tensor, ...]:
    """Return the same, and as tensors the numbers that an exported graph computes from its inputs."""
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    tensors = tuple(
        leaf if isinstance(leaf, torch.Tensor) else _tensor_of(leaf)
        for _, leaf in _leaves(outputs)
        if isinstance(leaf, (torch.Tensor, *TRACED_NUMBERS))
    )
    return tensors or flatten_outputs(outputs)


def returned_by_call(outputs: object) -> Returned:
    """Return everything in `outputs` that can be compared. Raise TypeError if there is neither tensor nor number."""
    tensors, numbers, constants = {}, [], {}
    for place, leaf in _leaves(outputs):
        if isinstance(leaf, torch.Tensor):
            tensors[place] = leaf
        elif isinstance(leaf, NUMBERS):
            tensors[place] = torch.tensor(leaf, dtype=_type_of(leaf))
            numbers.append(place)
        elif isinstance(leaf, CONSTANTS):
            constants[place] = VARIES if place in VARYING_TEXTS else _text_of(leaf)
    if not tensors:
        raise _holds_no_tensor(outputs)
    returned = Returned.of(tensors.values(), tensors, numbers, constants)
    returned.form = _form_of_answer(outputs)
    return returned


def _text_of(constant: object) -> str:
    """Return the text by which a constant is compared, without the device and the width of numeric types, in which a
    reference differs from a build."""
    if isinstance(constant, torch.device):
        return "a device"
    if isinstance(constant, torch.dtype) and (constant.is_complex or constant.is_floating_point):
        return f"a type of {'complex' if constant.is_complex else 'real'} numbers"
    return repr(constant)


def _form_of_answer(outputs: object) -> Form:
    describer = Describer(is_tensor)
    try:
        form = describer.form(outputs)
    except HasNoForm as error:
        return {"unknown": str(error)}
    tensors = [leaf for _, leaf in _leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if list(map(id, describer.tensors)) != list(map(id, tensors)):
        return {"unknown": f"a {type(outputs).__name__} holds tensors that are not found by its parts alone"}
    return form


def call_form(module: torch.nn.Module, inputs: Inputs) -> Form:
    """Return the form of a call of `module` with such inputs, or why it has none under `unknown`."""
    try:
        form, tensors = form_of_call(module.forward, inputs.args, inputs.kwargs, is_tensor)
    except HasNoForm as error:
        return {"unknown": str(error)}
    if list(map(id, tensors)) != list(map(id, inputs.tensors())):
        return {"unknown": "its arguments hold tensors that are not found by their parts alone"}
    return {**form, "names": tensor_names(module, inputs)}


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def comparable(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the outputs as dense plain tensors without gradients, in types that torch compares. A nested one becomes
    its values and their shapes."""
    if not any(output.is_nested for output in outputs):
        return mapped(outputs, _dense)
    places = outputs.places if isinstance(outputs, Returned) else tuple(f"[{n}]" for n in range(len(outputs)))
    by_place: dict[str, torch.Tensor] = {}
    for place, output in zip(places, outputs, strict=True):
        if output.is_nested:
            parts = output.detach().unbind()
            by_place[f"{place}.values()"] = torch.cat([part.reshape(-1) for part in parts])
            by_place[f"{place}.shapes"] = torch.tensor([list(part.shape) for part in parts])
        else:
            by_place[place] = _dense(output)
    if isinstance(outputs, Returned):
        dense = Returned.of(by_place.values(), by_place, outputs.numbers, outputs.constants)
        dense.choices = outputs.choices
        return dense
    return tuple(by_place.values())


def is_named_anew(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of a class that only has another name or methods, and may be known to one process."""
    kind = type(tensor)
    return kind is not torch.Tensor and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return True for a tensor that keeps its values in another way than by strides, such as COO or CSR."""
    return tensor.layout is not torch.strided and not tensor.is_nested


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    tensor = tensor.as_subclass(torch.Tensor) if is_named_anew(tensor) else tensor
    if is_sparse(tensor):
        return tensor.to_dense()
    if tensor.is_floating_point() and tensor.element_size() == 1:  # float8
        return tensor.float()
    tensor = tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor
    return tensor.dequantize() if tensor.is_quantized else tensor


NUMBERS = (bool, int, float, complex)
TRACED_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers of an exported graph that are computed from its inputs."""

CONSTANTS = (type(None), str, bytes, Enum, torch.dtype, torch.device, range, slice)
"""What is compared by its text."""

VARYING_TEXTS: set[str] = set()
"""Places of texts that differ from call to call, such as an id. The process that makes the reference finds them."""

VARIES = "a text of each call"
"""What stands for such a text."""

LEAVES = (torch.Tensor, *NUMBERS, *TRACED_NUMBERS, *CONSTANTS)

NOT_OPENED = (type, ModuleType, FunctionType, MethodType, torch.nn.Module, torch.Generator)
"""Objects whose attributes are no outputs."""


_TRACED_TYPES = {torch.SymInt: torch.int64, torch.SymFloat: torch.float32, torch.SymBool: torch.bool}


def _tensor_of(number: Any) -> torch.Tensor:
    return torch.scalar_tensor(number, dtype=_TRACED_TYPES[type(number)])


def _type_of(number: complex) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64 if abs(number) < 2**63 else torch.float64
    return torch.float64 if isinstance(number, float) else torch.complex128


def _leaves(outputs: object) -> list[tuple[str, Any]]:
    """Return tensors, numbers and constants in `outputs`, each with its place, in order and each object once. Raise
    TypeError for what has no order."""
    leaves: list[tuple[str, Any]] = []
    _collect(outputs, "", leaves, set())
    return leaves


def _collect(value: object, place: str, leaves: list[tuple[str, Any]], opened: set[int]) -> None:
    if isinstance(value, LEAVES):
        leaves.append((place, value))
        return
    if (tensor := _from_numpy(value)) is not None:
        leaves.append((place, tensor))
        return
    if isinstance(value, NOT_OPENED):
        return
    if isinstance(value, Iterator):
        raise TypeError(f"the model returned a {type(value).__name__}, which can be read once only: return a list")
    if isinstance(value, set | frozenset):
        if any(isinstance(part, torch.Tensor) for part in value):
            raise TypeError("the model returned a set of tensors, which has no order: return a list or a dict")
        value = sorted(value, key=repr)
    if id(value) in opened:
        return
    opened.add(id(value))
    if isinstance(value, Mapping):
        fields: list[str] = [slot.name for slot in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        for key, part in value.items():
            _collect(part, f"{place}.{key}" if key in fields else f"{place}[{key!r}]", leaves, opened)
    elif isinstance(value, tuple) and (names := field_names(value)):
        for name, part in zip(names, value, strict=True):
            _collect(part, f"{place}.{name}", leaves, opened)
    elif isinstance(value, Sequence):
        for index, part in enumerate(value):
            _collect(part, f"{place}[{index}]", leaves, opened)
    else:
        inner: list[tuple[str, Any]] = []
        for name, part in attributes(value):
            _collect(part, f"{place}.{name}", inner, opened)
        if dataclasses.is_dataclass(value) or any(isinstance(leaf, torch.Tensor) for _, leaf in inner):
            leaves += inner
    if isinstance(value, Mapping | Sequence):
        opened.discard(id(value))  # a list that is returned twice counts twice, as a tensor does


def _from_numpy(value: object) -> torch.Tensor | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic) or value.dtype.kind not in "biufc":
        return None
    return torch.as_tensor(value)


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


def as_called(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Return copies of the tensors to export with, in the layouts that calls have: strides that are not dense, too."""
    # each has memory of its own: of two inputs that are one tensor, a trace would leave out one
    return tuple(copied([tensor])[0] for tensor in inputs.tensors())


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Make ordinary tensors and no gradients in the block, because exporters, compilers and calibration refuse tensors
    that were made in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class FlatModule(torch.nn.Module):
    """Wraps `module` to take tensors and return a tuple of tensors: all of them, or those at the places in `kept`. Its
    other arguments become constants. Numbers that an exported graph computes are outputs, too."""

    def __init__(self, module: torch.nn.Module, example: Inputs, kept: Sequence[int] = ()) -> None:
        super().__init__()
        self.module = module
        self._kept = tuple(kept)
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
        tensors = graph_outputs(self.module(*args, **kwargs))
        return tuple(tensors[place] for place in self._kept) if self._kept else tensors


def tensor_names(module: torch.nn.Module, example: Inputs) -> list[str]:
    """Name each tensor of `example` in the order of `Inputs.tensors`, after the parameter that it belongs to."""
    positional = [name for name, kind, *_ in parameters_of(module.forward) if not kind.startswith("VAR_")]
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
