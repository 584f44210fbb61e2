"""The contract between the harness and a model: named dimensions, and a module with several sets of inputs for them.

This file and the families import torch only when they use it, because the controller plans without torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bakeoff.models.lazily import pytree, torch
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.precision import Precision
from bakeoff.records.traits import NO_TRAITS, ModelTraits

Sizes = Mapping[str, int | str]
"""A value for each of a model's dimensions."""

LIVE_MODEL = "BAKEOFF_LIVE_MODEL"
"""Environment variable with the folder of the model that a program has handed to `bakeoff.compare`."""

INPUT_SETS = 4
"""Calls rotate over this many sets of inputs, so that no cell gains from one set that stays in a cache or a graph."""


_STREAM = re.compile(r"stream:(\d+):(\d+)", re.ASCII)


def ends_of_stream(value: str | int) -> tuple[int, int] | None:
    """Return the lowest and the highest size of a stream such as `stream:16:512`, or None for any other value."""
    match = _STREAM.fullmatch(str(value))
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Dimension:
    """A size that a user sets with `--set NAME=VALUE`: a whole number, one of `choices`, or text if the default is
    text. In place of a whole number, `stream:LOW:HIGH` stands for several sizes that take turns (`models.streams`)."""

    default: int | str
    help: str
    minimum: int = 1
    choices: tuple[str, ...] = ()

    def parse(self, model: str, name: str, text: str | int) -> int | str:
        """Return the value of `text`. Raise UsageError with the model, the dimension and what it takes."""
        if self.choices:
            if str(text) in self.choices:
                return str(text)
            raise unknown(f"value for {model}'s dimension '{name}'", str(text), self.choices)
        if isinstance(self.default, str):
            return str(text)
        if ends := ends_of_stream(text):
            if not self.minimum <= ends[0] < ends[1]:
                raise UsageError(f"{model}: {name}={text}: the sizes of a stream rise, from {self.minimum} or more")
            return "stream:{}:{}".format(*ends)
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{model}: dimension '{name}' takes a whole number, not '{text}'") from None
        if value < self.minimum:
            raise UsageError(f"{model}: dimension '{name}' must be at least {self.minimum}, not {value}")
        return value


def axis_name(name: str, axis: int, rank: int, is_float: bool, taken: Collection[str]) -> str:
    """Return a name for an axis that a file leaves open: `batch`, `seq`, `height` or `width` where it is most likely
    that, or else the input and the axis."""
    if axis == 0:
        likely = "batch"
    elif axis == 1 and rank == 2 and not is_float:
        likely = "seq"
    else:
        likely = {2: "height", 3: "width"}.get(axis, "") if rank == 4 else ""
    return likely if likely and likely not in taken else f"{name}_{axis}"


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call. They may hold tensors anywhere, in tuples or dicts. Other values are constants."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors among the arguments, flat and in a stable order: positional ones first, then keywords."""
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        args, kwargs = pytree.tree_map_only(torch.Tensor, function, (self.args, dict(self.kwargs)))
        return Inputs(args, kwargs)

    def in_own_containers(self) -> Inputs:
        """Return the same tensors in new lists and dicts: a model may put its results into a dict that it is given, or
        take something out of it."""
        values = (*self.args, *self.kwargs.values())
        is_flat = all(value is None or isinstance(value, torch.Tensor | int | float | str) for value in values)
        return self if is_flat else self.map(lambda tensor: tensor)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a function with these arguments, in lists and dicts that are its own."""
        own = self.in_own_containers()
        return function(*own.args, **own.kwargs)


@dataclass(frozen=True)
class Call:
    """An example call of a user's model: `Call((image, text), {"scale": 2.0})`. A single argument needs no tuple."""

    args: Any = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def call_of(example: object) -> Call:
    """Return an example as a call with a tuple of arguments.

    It is a `Call`, a dict of keyword arguments, a tuple or list of positional ones, or a single argument.
    """
    args, kwargs = example, {}
    if isinstance(example, Call):
        args, kwargs = example.args, dict(example.kwargs)
    elif isinstance(example, Mapping) and all(isinstance(key, str) for key in example):  # includes a tokenizer's result
        args, kwargs = (), dict(example)
    return Call(tuple(args) if isinstance(args, tuple | list) else (args,), kwargs)


def of_each_shape(sets: Sequence[Inputs]) -> list[Inputs]:
    by_shapes: dict[tuple[torch.Size, ...], Inputs] = {}
    for inputs in sets:
        by_shapes.setdefault(tuple(tensor.shape for tensor in inputs.tensors()), inputs)
    return list(by_shapes.values())


@dataclass(frozen=True)
class Pipeline:
    """A model with what a request does around it: `after(model(*before(raw example)))`. Either may be missing.

    `before` returns the arguments of a call, as a factory gives its example inputs. `after` takes what the model
    returns.
    """

    before: Callable[[Any], Any] | None
    model: torch.nn.Module
    after: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Around:
    """What a request does before and after the model, and the raw example that it begins with."""

    before: Callable[[Any], Any] | None
    after: Callable[[Any], Any] | None
    raw: Any = None


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode and float32 on the CPU, with `INPUT_SETS` sets of inputs of equal shapes and types. The
    harness casts floating-point weights and inputs, but float8 tensors stay so."""

    module: torch.nn.Module
    inputs: tuple[Inputs, ...]
    loss: Callable[..., torch.Tensor] | None = None
    """The loss for training: `loss(outputs, *args, **kwargs)` returns a scalar. None stands for the mean of the squares
    of all floating-point outputs."""
    input_gradients: bool = False
    """True if training makes gradients of the floating-point inputs, too."""
    is_layerwise: bool = False
    """True if each weight is used only by the part of the module that owns it. Such a model is computed in float64 part
    by part, beside its own weights."""
    surgical_targets: tuple[str, ...] = ()
    """Patterns of module names, such as `layers.*.rope`, that the mode `surgical` compiles."""
    spared_bytes: int = 0
    """Bytes of inputs and outputs that a call need not move, such as rows of a cache that hold no token yet."""
    work: tuple[int, int] | None = None
    """Floating-point operations and bytes of one call, if counting cannot see them because another library runs
    them."""
    unwrapped: tuple[str, ...] = ()
    """What was taken off the module, such as `torch.compile` (`bakeoff.models.unwrapping`)."""
    forms: tuple[str, ...] = ()
    """What the module is beside a plain module, such as `is a ScriptModule`."""
    code: str = ""
    """Digest of the model's code that lies in no file, such as that of a notebook."""
    traits: ModelTraits = NO_TRAITS
    """What is known of how the model answers, once it was understood."""
    bolder_inputs: Callable[[tuple[str, ...]], tuple[Inputs, ...]] | None = None
    """Makes input sets in which such kinds of values differ, too, as the model may not take (`models.input_sets`)."""

    calibrate: Callable[[], Sequence[Inputs]] | None = None
    """Returns inputs that int8 may fix its ranges with. It is called only for that precision (`models.calibration`)."""
    calibrates_with: str = ""
    """Where these inputs come from, such as `calibrate() in net.py`."""
    calibration: tuple[Inputs, ...] = ()
    """What `calibrate` returned, without what is among `inputs`."""
    around: Around | None = None
    """What a request does before and after the model. None where the model alone is a request."""

    def understood(self, traits: ModelTraits) -> LoadedModel:
        """Return the model with these traits, and with the input sets that belong to them."""
        if self.bolder_inputs is None or not traits.changed_kinds:
            return replace(self, traits=traits)
        return replace(self, traits=traits, inputs=self.bolder_inputs(traits.changed_kinds))


@dataclass(frozen=True)
class Decoder:
    prefill: torch.nn.Module
    step: torch.nn.Module
    tokens: torch.Tensor  # ordinary ones, of which prompts are made
    is_recurrent: bool = False  # its states have no rows for positions, and a step replaces them


class Family(ABC):
    """A model with dimensions."""

    name: str
    description: str
    dimensions: Mapping[str, Dimension]
    dimensions_stand_in: ClassVar[str] = ""  # what a message says of where they come from
    products: Precision | None = None
    """The precision of its matrix products, if that does not follow the cell's. The roofline then uses this one."""

    may_convolve: bool = True
    """False if it surely has no 2-D convolution, so that modes for images make no sense. Planning loads no model."""

    imports: tuple[str, ...] = ()
    """Modules that loading the model imports. Fork servers import them once for all workers."""

    evaluated_by: str = ""
    """Where a function stands that says how good the model is at its task, such as `net.py:evaluate`, or nothing."""

    def precision_reason(self, precision: Precision) -> str:
        """Return why this model makes no sense in `precision`, or an empty string. This is pure."""
        return ""

    def resolve(self, given: Mapping[str, str | int]) -> dict[str, int | str]:
        """Return all dimensions of one cell: `given`, and defaults for the rest. Raise UsageError for an unknown
        dimension, for a value of the wrong kind or out of range, and for values that do not fit together."""
        for key in given:
            if key not in self.dimensions:
                raise unknown(f"dimension of {self.name}", key, self.dimensions, self.dimensions_stand_in)
        values = {
            name: dimension.parse(self.name, name, given.get(name, dimension.default))
            for name, dimension in self.dimensions.items()
        }
        streams = {name: ends for name, value in values.items() if (ends := ends_of_stream(value))}
        for end in (0, 1) if streams else (0,):
            self.check({**values, **{name: ends[end] for name, ends in streams.items()}})
        return values

    def check(self, dimensions: Sizes) -> None:  # noqa: B027 - most families have nothing to check
        """Raise UsageError if dimensions that are valid alone do not fit together."""

    def prepare(self) -> None:  # noqa: B027 - most families have all that they need
        """Fetch what `load` needs. The controller calls this once, and workers have no network."""

    def make_importable(self) -> None:  # noqa: B027 - most families take inputs of known types
        """Let this process import the classes of a user's own that inputs may have."""

    @abstractmethod
    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Build the module and its inputs. The same dimensions and seed give the same weights and inputs, bit for bit.
        A worker calls this, and torch's global generator may be seeded."""

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel | None:
        """Build the model on `device` and in `dtype` directly, or return None if there is only `load`. A host could not
        hold the model in float32, or would take minutes to draw it. Another type or device gives other weights."""
        return None

    def decoder_dimensions(self) -> Mapping[str, Dimension] | None:
        """Return the model's own dimensions for `--task generate`, or None if it generates no text."""
        return None

    def max_positions(self) -> int | None:
        """Return the longest sequence that the model can generate, or None without a limit."""
        return None

    def load_decoder(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> Decoder:
        """Build the two graphs of `bakeoff.models.generation` on `device` in `dtype`."""
        raise UsageError(f"{self.name} generates no text")


class Drawn(Family):
    """A family of large weights or inputs. They are drawn on the cell's device, in its precision."""

    may_convolve = False

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        return self.load_on(dimensions, seed, CPU, torch.float32)

    @abstractmethod
    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        """Build the model on every device, never None."""
