"""What a module and the variables of its file keep beside inputs, copied so that what calls change can be undone."""

from __future__ import annotations

import ast
import copyreg
import itertools
import math
import pickle
import queue
import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from bakeoff.truth.user_code import is_users_file

MAX_DEPTH = 6
"""Attributes are followed through so many lists, dicts and objects."""

MAX_ENTRIES = 2000
"""A longer list or dict is known by its length only."""

MAX_COPIED_WEIGHTS = 2**24
"""The weights of a larger model are watched alike. Few models change them in a call."""

MAX_KEY_CHARACTERS = 40
"""A longer key of a dict is named by its type and its place."""

MAX_COPIED_ELEMENTS = 2**26
"""Of a larger tensor or array some elements are watched, and it cannot be restored."""

WATCHED_ELEMENTS = 4096

_OWN_TO_TORCH = frozenset(vars(nn.Module())) - {"_buffers", "_parameters"}
"""Attributes with which torch keeps account of a module. They hold no state of the model's."""

_HOOKS = tuple(sorted(name for name, value in vars(nn.Module()).items() if "hook" in name and isinstance(value, dict)))
"""Those that hold functions. A model may register some in its first call, and note in an attribute that it has."""

_SCALARS = (int, float, complex, bool, str, bytes, type(None))
_FOLLOWED_NEVER = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    nn.Module,
    torch.dtype,
    torch.device,
    Executor,  # how many threads it has by now is no state
    threading.Thread,
    threading.Condition,
    threading.Event,
    threading.Semaphore,
)

_CHANGING = (list, dict, set, deque, itertools.count, queue.Queue, queue.SimpleQueue, threading.local, ContextVar)

_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

GENERATOR = "random generator"
BUFFER = "buffer "
PARAMETER = "parameter "
LENGTH = "'s length"

Leaf = tuple[str, Any]
"""A value in comparable form, with the kind of thing that it is."""

PutBack = Callable[[], Any]
"""Gives a value the content that it had, and returns it."""


class ModuleState:
    def __init__(self, module: nn.Module, copies_weights: bool = True) -> None:
        self._module, self._copies_weights = module, copies_weights
        self._leaves, self._put_back = _content(module, copies_weights)

    def changed(self) -> tuple[str, ...]:
        """Return the names of what is not as it was, such as `buffer past` or `attribute cache[0]`."""
        now, _ = _content(self._module, self._copies_weights)
        names = dict.fromkeys((*self._leaves, *now))
        return tuple(name for name in names if not is_same(self._leaves.get(name), now.get(name)))

    def grown(self, before: ModuleState) -> tuple[str, ...]:
        """Return the names of lists and dicts that are longer than in the state `before`."""
        return tuple(
            name.removesuffix(LENGTH)
            for name, leaf in self._leaves.items()
            if name.endswith(LENGTH) and name in before._leaves and leaf[1] > before._leaves[name][1]
        )

    def restore(self) -> None:
        """Put everything back in place. Tensors keep their identity and their memory."""
        with torch.inference_mode():
            for put_back in self._put_back:
                put_back()


def some_of_weights(module: nn.Module) -> dict[str, Leaf]:
    """Return some values of each weight, on the host, where no memory is measured."""
    leaves = {name: _leaf(weight, whole=False) for name, weight in module.named_parameters()}
    return {
        name: (kind, pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, leaf))
        for name, (kind, leaf) in leaves.items()
    }


def _content(module: nn.Module, copies_weights: bool) -> tuple[dict[str, Leaf], list[PutBack]]:
    """Return every value that a module and the variables of its file hold, by name, and what puts all of them back.
    Without `copies_weights` some values of each weight are watched, and weights are not put back."""
    leaves: dict[str, Leaf] = {}
    seen = {id(part) for part in module.modules()}
    steps: list[PutBack] = []
    # uninitialised ones of a lazy module have no number
    are_few = sum(weight.numel() for weight in module.parameters() if not is_lazy(weight)) <= MAX_COPIED_WEIGHTS
    for prefix, part in module.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, weight in part._parameters.items():
            if weight is not None:
                leaves[f"{PARAMETER}{start}{name}"] = leaf = _leaf(weight, whole=copies_weights and are_few)
                if copies_weights:
                    steps.append(partial(_with_content, weight, leaf))
        steps.append(_kept_part(part, start, seen, leaves))
    for name, variable in _variables(module).items():
        steps.append(partial(_put, variable, _kept(f"variable {name}", variable.value, 0, seen, leaves)))
    return leaves, steps


def _put(variable: _Variable, put_back: PutBack) -> None:
    variable.put(put_back())


def _kept_part(part: nn.Module, start: str, seen: set[int], leaves: dict[str, Leaf]) -> PutBack:
    """Note a module's own buffers and attributes, without those of the modules in it, and return what puts them back
    with its hooks."""
    hooks = [(held, dict(held)) for name in _HOOKS if isinstance(held := vars(part).get(name), dict)]
    modules = dict(part._modules) if isinstance(part._modules, dict) else {}  # a call may exchange two of them
    buffers = {name: _kept(f"{BUFFER}{start}{name}", buffer, 0, seen, leaves) for name, buffer in part._buffers.items()}
    attributes = {
        name: _kept(f"attribute {start}{name}", value, 0, seen, leaves)
        for name, value in _plain_attributes(part).items()
    }

    def put_back() -> None:
        for held, before in hooks:
            _refilled(held, before)
        for name, module in modules.items():
            part._modules[name] = module
        for name, buffer in buffers.items():
            part._buffers[name] = buffer()
        for name in [name for name in _plain_attributes(part) if name not in attributes]:
            del vars(part)[name]
        is_script = isinstance(part, torch.jit.ScriptModule)
        put = partial(setattr, part) if is_script else vars(part).__setitem__
        for name, attribute in attributes.items():
            put(name, attribute())

    return put_back


def _plain_attributes(part: nn.Module) -> dict[str, Any]:
    """Return what a module holds by name. Of a ScriptModule that is what its code assigns."""
    hidden = (*_OWN_TO_TORCH, "_buffers", "_parameters")
    if not isinstance(part, torch.jit.ScriptModule):
        return {name: value for name, value in vars(part).items() if name not in hidden}
    graphs = [part._c._get_method(name).graph for name in part._c._method_names()]
    assigned = {node.s("name") for graph in graphs for node in graph.findAllNodes("prim::SetAttr", True)}
    return {name: getattr(part, name) for name in sorted(assigned) if name not in part._buffers}


class _Variable(NamedTuple):
    value: Any
    put: Callable[[Any], None]


def _variables(module: nn.Module) -> dict[str, _Variable]:
    found: dict[str, _Variable] = {}
    seen: set[Any] = set()
    for kind in dict.fromkeys(base for part in module.modules() for base in type(part).__mro__):
        found.update(_of_class(kind, seen))
    for held in _functions_held(module):
        found.update(_reached(held, seen))
    return found


def _of_class(kind: type, seen: set[Any]) -> Iterator[tuple[str, _Variable]]:
    """Yield the data that a class of the user's own holds, and what its methods can change."""
    methods = [member for member in vars(kind).values() if isinstance(member, FunctionType)]
    is_users = _is_of_users_file(kind) or any(is_users_file(method.__code__.co_filename) for method in methods)
    if kind in seen or not is_users:
        return
    seen.add(kind)
    yield from _attributes(kind)
    for method in methods:
        yield from _reached(method, seen)


def _attributes(holder: FunctionType | type) -> Iterator[tuple[str, _Variable]]:
    """Yield the data in attributes of a function or a class. Those that a call has added are taken away again."""
    known = {name: value for name, value in vars(holder).items() if not name.startswith("__")}

    def take_away(_: None) -> None:
        for name in [name for name in vars(holder) if not (name in known or name.startswith("__"))]:
            delattr(holder, name)

    yield f"attributes of {id(holder)}", _Variable(None, take_away)
    for name, value in known.items():
        if _is_data(value, holder.__module__):
            yield f"{holder.__name__}.{name}", _Variable(value, partial(setattr, holder, name))


def _reached(function: FunctionType, seen: set[Any]) -> Iterator[tuple[str, _Variable]]:
    """Yield the data that a function of the user's own can change: by its variables, closure, defaults and attributes.
    Functions and classes that it names are followed, so that a helper may count calls."""
    if function in seen or not is_users_file(function.__code__.co_filename):
        return
    seen.add(function)
    of, variables = f" of {function.__name__}", function.__globals__
    reached = [variables[name] for name in _names(function.__code__) if name in variables]
    for name in _names(function.__code__):
        if name in variables and _is_data(variables[name], function.__module__):
            yield name, _Variable(variables[name], partial(variables.__setitem__, name))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # of a cell that is empty still
            reached.append(cell.cell_contents)
            if _is_data(cell.cell_contents, function.__module__):
                yield f"{name}{of}", _Variable(cell.cell_contents, partial(setattr, cell, "cell_contents"))
    for place, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        if isinstance(value, (torch.Tensor, np.ndarray, *_CHANGING)):
            yield f"default {place}{of}", _Variable(value, lambda _: None)  # its content alone can change
    yield from _attributes(function)
    for value in map(_called_by, reached):
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, FunctionType):
            yield from _reached(value, seen)
        elif type(kind) is type:  # an Enum, for example, lets nobody set its members
            yield from _of_class(kind, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions_held(module: nn.Module) -> Iterator[FunctionType]:
    """Yield the hooks and the functions in attributes of a module's parts, whose closures may hold state."""
    for part in module.modules():
        held = (*part._forward_hooks.values(), *part._forward_pre_hooks.values(), *vars(part).values())
        yield from (member for member in map(_called_by, held) if isinstance(member, FunctionType))


def _called_by(value: Any) -> Any:
    """Return the function of a bound method or of a `partial`, or else the value."""
    while isinstance(value, MethodType | partial):
        value = value.func if isinstance(value, partial) else value.__func__
    return value


def _is_data(value: Any, module: str) -> bool:
    """Return True for a value, a container, or an object of a class of this Python module: not for a logger. What a
    method or a `partial` holds may be such an object."""
    if isinstance(value, MethodType):
        return _is_data(value.__self__, module)
    if isinstance(value, partial):
        return True
    is_known = isinstance(value, (*_SCALARS, torch.Tensor, *_GENERATORS, np.ndarray, *_CHANGING))
    return is_known or (_is_plain_object(value) and type(value).__module__ == module)


def _kept(name: str, value: Any, depth: int, seen: set[int], leaves: dict[str, Leaf]) -> PutBack:
    """Note every tensor, number and length within a value by its name, and return what puts them back. Each object is
    followed once."""
    if isinstance(value, torch.Tensor):
        leaves[name] = leaf = _leaf(value)
        return partial(_with_content, value, leaf)
    if isinstance(value, _GENERATORS):
        content, put_back = _state_of_generator(value)
        leaves[f"{GENERATOR} {name}"] = GENERATOR, content
        return _returning(value, put_back)
    if isinstance(value, np.ndarray):
        return _kept_array(name, value, leaves)
    if isinstance(value, ContextVar):
        with suppress(LookupError):  # of one that has no value
            content_of = _kept(name, value.get(), depth, seen, leaves)
            return _returning(value, lambda: value.set(content_of()))
        return lambda: value
    if isinstance(value, MethodType):
        return _returning(value, _kept(name, value.__self__, depth, seen, leaves))
    if isinstance(value, partial):
        parts = SimpleNamespace(args=value.args, keywords=value.keywords, func=value.func)
        return _returning(value, _kept(name, parts, depth, seen, leaves))
    if isinstance(value, itertools.count):  # such as `count(3, 2)`, which nothing sets back
        leaves[name] = "count", repr(value)
        return partial(itertools.count, *ast.literal_eval(f"({repr(value).removeprefix('count(').removesuffix(')')},)"))
    if isinstance(value, _SCALARS):
        leaves[name] = type(value).__name__, value
    elif isinstance(value, queue.SimpleQueue):
        leaves[f"{name}{LENGTH}"] = "length", value.qsize()
    elif depth < MAX_DEPTH and id(value) not in seen:
        seen.add(id(value))
        is_container = isinstance(value, list | tuple | deque | set | frozenset | dict)
        if is_container and not (isinstance(value, deque) and value.maxlen):  # a ring does not grow for ever
            leaves[f"{name}{LENGTH}"] = "length", len(value)
        entries = {
            key: _kept(name + _place_name(key, place, is_container), entry, depth + 1, seen, leaves)
            for place, (key, entry) in enumerate(_entries(value).items())
        }
        if isinstance(value, set):
            return partial(_refilled, value, set(value))
        is_followed = len(entries) == len(value) if is_container else _is_plain_object(value)
        if is_followed:
            return lambda: _refilled(value, {key: entry() for key, entry in entries.items()})
    return lambda: value


def _returning(value: Any, put_back: Callable[[], object]) -> PutBack:
    """Return what puts the content of a value back, and returns the value."""

    def put() -> Any:
        put_back()
        return value

    return put


def _place_name(key: Any, place: int, is_container: bool) -> str:
    """Return a short name, which stays the same if what a key holds changes, as a weight does in an optimizer."""
    text = repr(key) if isinstance(key, _SCALARS) else ""
    is_short = 0 < len(text) <= MAX_KEY_CHARACTERS
    return f"[{text if is_short else f'{type(key).__name__} {place}'}]" if is_container else f".{key}"


def _state_of_generator(value: Any) -> tuple[bytes, PutBack]:
    """Return the state of a random generator in comparable form, and what sets it again."""
    state: Any
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return state.numpy().tobytes(), partial(value.set_state, state)
    if isinstance(value, random.SystemRandom):  # which has none
        return b"", lambda: None
    if isinstance(value, random.Random):
        return pickle.dumps(state := value.getstate()), partial(value.setstate, state)
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(state := value.get_state(legacy=False)), partial(value.set_state, state)
    bits = value.bit_generator
    return pickle.dumps(state := bits.state), partial(setattr, bits, "state", state)


def _entries(value: Any) -> dict[Any, Any]:
    """Return what is followed within a value: entries, or attributes of an object. Members of a set have no keys."""
    if isinstance(value, list | tuple | deque | dict):
        entries = value if isinstance(value, dict) else dict(enumerate(value))
        return entries if len(entries) <= MAX_ENTRIES else {}
    if isinstance(value, set | frozenset) or not _is_plain_object(value):
        return {}
    in_slots = {name: getattr(value, name) for name in _slots(value) if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **in_slots}


def _is_plain_object(value: Any) -> bool:
    has_attributes = isinstance(getattr(value, "__dict__", None), dict) or bool(_slots(value))
    return not isinstance(value, _FOLLOWED_NEVER) and has_attributes


def _slots(value: Any) -> list[str]:
    return copyreg._slotnames(type(value)) if _is_of_users_file(type(value)) else []  # type: ignore[attr-defined]


def _is_of_users_file(kind: type) -> bool:
    return is_users_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _leaf(tensor: torch.Tensor, whole: bool = True) -> Leaf:
    """Return a copy of a tensor, or of some elements of a large one, with what else must stay as it is."""
    about = (tensor.dtype, str(tensor.device), str(tensor.layout))
    if is_lazy(tensor) or tensor.is_meta:
        return "tensor", (about, None, None)
    plain = tensor.detach()
    # a subclass, such as a quantised weight of torchao, does not take each operator
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer) and not plain.is_nested
    if not is_plain or plain.layout is not torch.strided or plain.is_quantized:
        return "tensor", (about, tuple(plain.shape), None)
    if not whole or plain.numel() > MAX_COPIED_ELEMENTS:
        flat = plain.reshape(-1)
        plain = flat[:: max(1, math.ceil(flat.numel() / WATCHED_ELEMENTS))]
    return "tensor", (about, tuple(tensor.shape), plain.clone())


def is_same(one: Leaf | None, other: Leaf | None) -> bool:
    if one is None or other is None or one[0] != other[0]:
        return False
    if one[0] != "tensor":
        return bool(one[1] == other[1]) or bool(one[1] != one[1] and other[1] != other[1])
    (about, shape, ours), (about_other, shape_other, theirs) = one[1], other[1]
    if (about, shape) != (about_other, shape_other) or (ours is None) != (theirs is None):
        return False
    return ours is None or is_equal(ours, theirs)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors of one type. Values that are not numbers are equal to themselves."""
    if one.shape != other.shape:
        return False
    if one.is_floating_point() and one.element_size() == 1:  # float8 cannot be compared on each device
        return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    if torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True).all())


def _refilled(value: Any, content: Any) -> Any:
    if isinstance(value, list | deque):
        value.clear()
        value.extend(content.values())
    elif isinstance(value, set):
        value.clear()
        value.update(content)
    elif isinstance(value, dict):
        # by the built-in methods, since a library's class may refuse changes, as diffusers' FrozenDict does
        plain = OrderedDict if isinstance(value, OrderedDict) else dict
        plain.clear(value)
        for key, entry in content.items():
            plain.__setitem__(value, key, entry)
    elif not isinstance(value, tuple | frozenset):  # which stay, with what they hold put back
        slots, own = _slots(value), getattr(value, "__dict__", {})
        for key in own.keys() - content.keys():
            del own[key]
        own.update({key: attribute for key, attribute in content.items() if key not in slots})
        for name in content.keys() & set(slots):
            object.__setattr__(value, name, content[name])
    return value


def _kept_array(name: str, array: np.ndarray, leaves: dict[str, Leaf]) -> PutBack:
    is_small = array.size <= MAX_COPIED_ELEMENTS
    step = 1 if is_small else math.ceil(array.size / WATCHED_ELEMENTS)
    leaves[name] = "array", (array.shape, str(array.dtype), array.reshape(-1)[::step].tobytes())
    kept = array.copy() if is_small else None

    def put_back() -> np.ndarray:
        if kept is not None and array.flags.writeable:
            np.copyto(array, kept)
        return array

    return put_back


def _with_content(tensor: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    _, (_, shape, kept) = leaf
    is_whole = kept is not None and tuple(kept.shape) == shape  # not sparse, on meta, or too large
    if is_whole and not is_same(leaf, _leaf(tensor)):
        if tensor.shape != kept.shape:
            tensor.resize_(kept.shape)
        tensor.copy_(kept)
    return tensor
