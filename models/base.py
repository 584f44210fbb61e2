"""What the harness asks of a model: named dimensions, and, for given ones, a module with several sets of inputs.

This file and the families import torch only inside functions: the parent process plans without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from records.device import Device
from records.errors import UsageError, unknown
from records.precision import Precision

if TYPE_CHECKING:
    import torch

Sizes = Mapping[str, int | str]
"""A value for each of a model's dimensions."""

INPUT_SETS = 4
"""Inputs are rotated over this many sets, so that no cell profits from one set's staying in a cache or a graph."""


@dataclass(frozen=True)
class Dimension:
    """A size a user may set with `--set NAME=VALUE`: a whole number, one of `choices`, or text where the default is."""

    default: int | str
    help: str
    minimum: int = 1
    choices: tuple[str, ...] = ()

    def parse(self, model: str, name: str, text: str | int) -> int | str:
        """The value that `text` stands for. Raises UsageError naming the model, the dimension and what it takes."""
        if self.choices:
            if str(text) in self.choices:
                return str(text)
            raise unknown(f"value for {model}'s dimension '{name}'", str(text), self.choices)
        if isinstance(self.default, str):
            return str(text)
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{model}: dimension '{name}' takes a whole number, not '{text}'") from None
        if value < self.minimum:
            raise UsageError(f"{model}: dimension '{name}' must be at least {self.minimum}, not {value}")
        return value


@dataclass(frozen=True)
class Inputs:
    """One call's arguments. Tensors may sit anywhere in them (tuples, dicts); other values are constants."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments, flat, in a stable order: positional ones first, then by keyword."""
        import torch
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves((self.args, dict(self.kwargs)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """The same arguments with `function` applied to every tensor."""
        import torch
        from torch.utils import _pytree as pytree

        args, kwargs = pytree.tree_map_only(torch.Tensor, function, (self.args, dict(self.kwargs)))
        return Inputs(args, kwargs)


def of_each_shape(sets: Sequence[Inputs]) -> list[Inputs]:
    """The first of `sets` of each combination of shapes."""
    found: dict[tuple[torch.Size, ...], Inputs] = {}
    for one in sets:
        found.setdefault(tuple(tensor.shape for tensor in one.tensors()), one)
    return list(found.values())


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode and float32 on the CPU, with `INPUT_SETS` sets of inputs of equal shapes and types.

    Floating-point weights and inputs are float32; the harness casts them to the cell's precision and moves them to its
    device. What is float8 already stays so: a model that quantises itself may have such inputs. Inputs are not constant
    and, as far as the batch allows (`models.user`), do not repeat one another.
    """

    module: torch.nn.Module
    inputs: tuple[Inputs, ...]
    loss: Callable[..., torch.Tensor] | None = None
    """For training: `loss(outputs, *args, **kwargs)` is a scalar of the module's outputs and the call's arguments. None
    stands for the mean of the squares of all floating-point outputs."""
    input_gradients: bool = False
    """Whether training makes gradients of the floating-point inputs, too."""
    is_layerwise: bool = False
    """Whether each weight is used by the part of the module that owns it and no other. Such a model is computed in
    float64 part by part, beside its weights as they are."""
    padded_axis: int | None = None
    """A dimension of every input and output along which zeros may be put behind an input without changing the outputs
    before them, as in a causal model. Such a model may have sets of inputs of unequal lengths along it: a stream."""
    surgical_targets: tuple[str, ...] = ()
    """What to compile where not the whole is compiled: patterns of module names, as `layers.*.rope`."""
    work: tuple[int, int] | None = None
    """Floating-point operations and bytes of one call, where counting cannot see them (another library's)."""


class Family(ABC):
    """A model with dimensions."""

    name: str
    description: str
    dimensions: Mapping[str, Dimension]
    products: Precision | None = None
    """The precision that its matrix products have whatever the cell's is: the machine's ceiling is that one's."""

    imports: tuple[str, ...] = ()
    """Modules that loading it waits for. Where no GPU is measured, fork servers import them once for all processes."""

    def precision_reason(self, precision: Precision) -> str:
        """Why this model makes no sense in `precision`, or an empty string. Pure."""
        return ""

    def resolve(self, given: Mapping[str, str | int]) -> dict[str, int | str]:
        """All dimensions of one cell: the defaults, with `given` over them.

        Raises UsageError for a dimension the model does not have, a value of the wrong kind or out of range, and for
        values that do not go together (`check`).
        """
        for key in given:
            if key not in self.dimensions:
                raise unknown(f"dimension of {self.name}", key, self.dimensions, "runner.py list")
        values = {
            name: dimension.parse(self.name, name, given.get(name, dimension.default))
            for name, dimension in self.dimensions.items()
        }
        self.check(values)
        return values

    def check(self, dimensions: Sizes) -> None:  # noqa: B027 - most families have nothing to check
        """Raise UsageError where dimensions that are fine alone do not go together."""

    @abstractmethod
    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Build the module and its inputs. The same dimensions and seed give the same weights and inputs, bit for bit.

        Called in a child process, with torch's global generator free to be seeded.
        """

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel | None:
        """The same, drawn on `device` in `dtype` at once: for models that a host cannot hold in float32, or would take
        minutes to draw. The weights drawn are then the model: in another type or on another device it is another one.
        None: there is only `load`.
        """
        return None
