"""The form of a call: where its tensors and constants stand among the arguments, and in what it answers.

A form is data that JSON holds. With it, an exported folder is called like the model, though what was built knows only
flat tensors. Nothing here imports torch, because some folders are used without it.
"""

import dataclasses
import importlib
import inspect
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bakeoff.records.errors import NotServed

Form = dict[str, Any]
"""One of `tensor`, `value`, `torch`, `class`, `text`, `list`, `tuple`, `named`, `sequence`, `mapping`, `fields` and
`object`, with what belongs to it."""

IsTensor = Callable[[object], bool]
CallForm = tuple[Form, list[Any]]

TENSOR = "tensor"
LITERALS = (type(None), bool, int, float, str)
DEVICE, TYPE = "device", "dtype"


class HasNoForm(Exception):
    """A value cannot be taken apart, or be made again from its parts. The message says which one."""


# --- from values to forms


class Describer:
    """Makes forms. It numbers tensors in the order in which it meets them."""

    def __init__(self, is_tensor: IsTensor) -> None:
        self._is_tensor = is_tensor
        self._open: set[int] = set()
        self.tensors: list[Any] = []

    def form(self, value: Any) -> Form:
        """Return the form of a value. Raise HasNoForm if there is none."""
        if self._is_tensor(value):
            self.tensors.append(value)
            return {TENSOR: len(self.tensors) - 1}
        if isinstance(value, LITERALS) and type(value) in LITERALS:
            return {"value": value}
        if isinstance(value, type):
            return {"class": _place_of(value)}
        if type(value).__module__ == "torch" and type(value).__name__ in (DEVICE, TYPE):
            return {"torch": [type(value).__name__, str(value).removeprefix("torch.")]}
        if id(value) in self._open:
            raise HasNoForm(f"a {type(value).__name__} contains itself")
        self._open.add(id(value))
        try:
            return self._form_of_container(value)
        finally:
            self._open.discard(id(value))

    def _form_of_container(self, value: Any) -> Form:
        if isinstance(value, tuple) and (names := field_names(value)):
            kind = "named" if hasattr(value, "_fields") else "sequence"
            return {kind: _place_of(type(value)), "items": self._items(zip(names, value, strict=True))}
        if isinstance(value, list | tuple):
            return {"list" if isinstance(value, list) else "tuple": [self.form(element) for element in value]}
        if isinstance(value, Mapping):
            if not all(isinstance(key, LITERALS) for key in value):
                raise HasNoForm(f"a {type(value).__name__} has keys that are neither texts nor numbers")
            items = self._items(value.items())
            if dataclasses.is_dataclass(value):
                return {"fields": _place_of(type(value)), "items": items}
            plain = next((kind for kind in (OrderedDict, dict) if isinstance(value, kind)), type(value))
            return {"mapping": _place_of(plain), "items": items}
        if callable(value):
            return {"text": f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"}
        if not hasattr(value, "__dict__") and not hasattr(type(value), "__slots__"):
            return {"text": repr(value)}
        return {"object": _place_of(type(value)), "items": self._items(attributes(value))}

    def _items(self, items: Any) -> list[list[Any]]:
        return [[key, self.form(value)] for key, value in items]


def field_names(value: tuple[object, ...]) -> tuple[str, ...]:
    """Return the names of a named tuple's fields, and of such results as those of torch.topk."""
    names = getattr(value, "_fields", ()) or getattr(type(value), "__match_args__", ())
    return tuple(names) if len(names) == len(value) else ()


def attributes(value: object) -> list[tuple[str, object]]:
    """Return the attributes that an object holds itself, by name: those of a dataclass in the order of its fields."""
    names: dict[str, None] = {}
    if dataclasses.is_dataclass(value):
        names.update((field.name, None) for field in dataclasses.fields(value))
    names.update(dict.fromkeys(getattr(value, "__dict__", {})))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    missing = object()
    held = [(name, getattr(value, name, missing)) for name in names if name not in ("__dict__", "__weakref__")]
    return [(name, default) for name, default in held if default is not missing and not isinstance(default, Iterator)]


def _place_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def form_of_call(
    function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: IsTensor
) -> CallForm:
    """Return the form of a call of `function`, and the tensors in its arguments in the order of their numbers. Raise
    HasNoForm for arguments that cannot be taken apart."""
    describer = Describer(is_tensor)
    form = {
        "parameters": parameters_of(function),
        "args": [describer.form(argument) for argument in args],
        "kwargs": {name: describer.form(argument) for name, argument in kwargs.items()},
    }
    return form, describer.tensors


def parameters_of(function: Callable[..., object]) -> list[list[Any]]:
    """Return the name, the kind and, if it has one, the form of the default of each parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some callables of C++ have no signature
        if schema := getattr(function, "schema", None):  # of TorchScript, whose first argument is the module
            return [
                [
                    argument.name,
                    "POSITIONAL_OR_KEYWORD",
                    *([_form_of_default(argument.default_value)] if argument.has_default_value() else []),
                ]
                for argument in schema.arguments[1:]
            ]
        return [["args", "VAR_POSITIONAL"], ["kwargs", "VAR_KEYWORD"]]
    described: list[list[Any]] = []
    for parameter in parameters:
        default = [] if parameter.default is parameter.empty else [_form_of_default(parameter.default)]
        described.append([parameter.name, parameter.kind.name, *default])
    return described


def _form_of_default(value: object) -> Form:
    try:
        return Describer(lambda value: False).form(value)
    except HasNoForm:
        return {"text": repr(value)}


# --- from forms to values


class Fields(dict[str, Any]):
    """Stands for an answer whose class cannot be imported here. Its parts are had by name, by key and by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the answer has no {name}, only {', '.join(self)}") from None

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)


Leaves = Sequence[Any]
Make = Callable[[Leaves], Any]


def maker(form: Form) -> Make:
    """Return a function that makes the value of this form from flat tensors. A class that cannot be imported here is
    replaced by `Fields`. Raise HasNoForm for what only has a text."""
    match form:
        case {"tensor": number}:
            return lambda leaves: leaves[number]
        case {"value": constant}:
            return lambda leaves: constant
        case {"class": place}:
            kind = _imported(place)
            return lambda leaves: kind
        case {"torch": [name, text]}:
            of_torch = _of_torch(name, text)
            return lambda leaves: of_torch
        case {"list": elements}:
            makers = [maker(element) for element in elements]
            return lambda leaves: [make(leaves) for make in makers]
        case {"tuple": members} if [member.get(TENSOR) for member in members] == list(range(len(members))):
            return tuple
        case {"tuple": members}:
            makers = [maker(member) for member in members]
            return lambda leaves: tuple([make(leaves) for make in makers])
        case {"text": text}:
            raise HasNoForm(f"it holds {text}, which cannot be made again")
    return _maker_of_items(form)


def _maker_of_items(form: Form) -> Make:
    names = [name for name, _ in form["items"]]
    makers = [maker(item) for _, item in form["items"]]
    what = next(name for name in form if name != "items")
    kind = _imported(form[what]) or Fields
    if what == "mapping" or kind is Fields:
        return lambda leaves: kind(zip(names, [make(leaves) for make in makers], strict=True))
    if what == "named":
        return lambda leaves: kind(*[make(leaves) for make in makers])
    if what == "sequence":
        return lambda leaves: kind([make(leaves) for make in makers])
    if what == "fields":
        return lambda leaves: kind(**dict(zip(names, [make(leaves) for make in makers], strict=True)))

    def make_object(leaves: Leaves) -> object:
        value = kind.__new__(kind)
        for name, make in zip(names, makers, strict=True):
            object.__setattr__(value, name, make(leaves))
        return value

    return make_object


def _of_torch(kind: str, text: str) -> object:
    torch = sys.modules.get("torch")
    if torch is None:
        return text
    return getattr(torch, text) if kind == TYPE else torch.device(text)


def _imported(place: str) -> Any:
    """Return the class at `module:name`, or None if it cannot be imported here."""
    module, _, name = place.partition(":")
    try:
        attribute: Any = importlib.import_module(module)
        for part in name.split("."):
            attribute = getattr(attribute, part)
    except (ImportError, AttributeError):
        return None
    return attribute if isinstance(attribute, type) else None


Take = Callable[[Any, list[Any]], None]


def taker(form: Form, name: str) -> Take:
    """Return a function that puts the tensors of a value of this form into a list, each at its number. It raises
    NotServed for a value of another form. `name` says where the value stands."""
    if TENSOR in form:
        number = form[TENSOR]

        def take_tensor(value: Any, leaves: list[Any]) -> None:
            leaves[number] = value

        return take_tensor
    if not has_tensors(form):
        wanted = constant_of(form)

        def compare(value: Any, leaves: list[Any]) -> None:
            if value is not wanted and not is_constant(value, form):
                raise NotServed(f"'{name}' is {_short(value)}, and the build has {_short(wanted)} in it")

        return compare
    if "list" in form or "tuple" in form:
        members = [taker(member, f"{name}[{index}]") for index, member in enumerate(parts(form))]

        def take_members(value: Any, leaves: list[Any]) -> None:
            if not isinstance(value, Sequence) or len(value) != len(members):
                raise NotServed(f"'{name}' is not a list or tuple of {len(members)}")
            for take, element in zip(members, value, strict=True):
                take(element, leaves)

        return take_members
    by_key = "mapping" in form or "fields" in form
    takes = [
        (key, taker(part, f"{name}[{key!r}]" if by_key else f"{name}.{key}")) for key, part in form.get("items", [])
    ]

    def take_parts(value: Any, leaves: list[Any]) -> None:
        if by_key and (not isinstance(value, Mapping) or len(value) != len(takes)):
            raise NotServed(f"'{name}' is not a mapping with {', '.join(str(key) for key, _ in takes)}")
        for key, take in takes:
            try:
                part = value[key] if by_key else getattr(value, key)
            except (KeyError, AttributeError):
                raise NotServed(f"'{name}' has no {key}") from None
            take(part, leaves)

    return take_parts


def has_tensors(form: Form) -> bool:
    return TENSOR in form or any(map(has_tensors, parts(form)))


def constant_of(form: Form) -> Any:
    return form["text"] if "text" in form else maker(form)(())


def is_constant(value: object, form: Form) -> bool:
    try:
        return bool(Describer(lambda leaf: False).form(value) == form)
    except HasNoForm:
        return False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- from arguments to tensors


class Arguments:
    """Finds the tensors in the arguments of a call, as the form of an example call says where they stand."""

    def __init__(self, form: Form) -> None:
        self.signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect._ParameterKind[kind], default=_default(default))
                for name, kind, *default in form["parameters"]
            ]
        )
        bound = self.signature.bind(*form["args"], **form["kwargs"])
        self._slots: dict[str, Form] = bound.arguments
        kinds = {name: kind for name, kind, *_ in form["parameters"]}
        self._several = {name for name in self._slots if kinds[name].startswith("VAR_")}
        self._defaults = {name: default[0] for name, _, *default in form["parameters"] if default}
        self._takes = {
            name: self._taker_of_several(name) if name in self._several else taker(slot, name)
            for name, slot in self._slots.items()
        }
        forms = [*form["args"], *form["kwargs"].values()]
        self.tensors = sum(map(_count, forms))
        # the common case: each argument is a tensor
        is_plain = not self._several and all(TENSOR in form for form in forms)
        self._plain_names = sorted(self._slots, key=lambda name: self._slots[name][TENSOR]) if is_plain else []
        positional = [name for name, kind, *_ in form["parameters"] if kind.startswith("POSITIONAL")]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self._plain_names, positional, strict=False))
        self._by_position = len(list(same))
        self._all_by_position = self.tensors if is_plain and self._by_position == self.tensors else -1

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tensors by number. Raise NotServed where the build does not serve such arguments, and TypeError
        where the model itself would not take them."""
        if not kwargs and len(args) == self._all_by_position:
            return args
        if self._plain_names and len(args) + len(kwargs) == self.tensors and len(args) <= self._by_position:
            try:
                return [*args, *[kwargs[name] for name in self._plain_names[len(args) :]]]
            except KeyError:
                pass  # another parameter, which is looked at below
        return self._bound(self.signature.bind(*args, **kwargs).arguments)

    def _bound(self, given: Mapping[str, Any]) -> list[Any]:
        leaves: list[Any] = [None] * self.tensors
        for name, take in self._takes.items():
            if name in given:
                take(given[name], leaves)
            elif name in self._several or self._defaults.get(name) != self._slots[name]:
                raise NotServed(f"the build was made with '{name}', which this call leaves out")
        for name, value in given.items():
            if name not in self._takes and not (name in self._defaults and is_constant(value, self._defaults[name])):
                raise NotServed(f"the build was made without '{name}'")
        return leaves

    def _taker_of_several(self, name: str) -> Take:
        several: Any = self._slots[name]
        if isinstance(several, tuple):
            return taker({"tuple": list(several)}, name)
        return taker({"mapping": "builtins:dict", "items": list(several.items())}, name)


def _default(default: Sequence[Form]) -> Any:
    return constant_of(default[0]) if default else inspect.Parameter.empty


def _count(form: Form) -> int:
    return (TENSOR in form) + sum(map(_count, parts(form)))


def parts(form: Form) -> list[Form]:
    return [*form.get("list", []), *form.get("tuple", []), *(item for _, item in form.get("items", []))]
