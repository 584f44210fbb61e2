"""A user's own model: `path/to/file.py:factory`.

The factory is a top-level function of the file that returns `(module, example_inputs)`:

    def factory(batch: int = 8, seq: int = 128, activation: str = "gelu"):
        return Net(activation), torch.randn(batch, seq)

- Its parameters are the model's named dimensions. Each needs a default that is written as a whole number or a string. A
  parameter named `seed` is not a dimension: it receives the cell's seed and needs no default.
- Torch's generator for the CPU is seeded before the file is imported. A factory that only draws from it can ignore
seeds. - The module is put into eval mode, on the CPU. Floating-point weights and inputs become float32. - If the module
has an attribute `surgical_targets`, it is a list of patterns of its parts' names. Inductor's mode
  `surgical` compiles these parts.
- The example inputs are a tensor, a tuple or list of positional arguments, or a dict of keyword arguments. Nested
tuples,
  lists and dicts may hold tensors. Numbers, booleans, strings and None are constants of the call.
- For the other sets of inputs, the rows of every batched tensor are rolled by 1, 2, and so on. A tensor is batched if
its
  first dimension is as long as that of the first tensor that has one. Unbatched tensors keep their values, and so does
  a batch of one. Every set has its own memory.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.seeding import seeded
from bakeoff.models.unwrapping import require_weights
from bakeoff.records.errors import UsageError, unknown

if TYPE_CHECKING:
    import torch

OWN_PACKAGES = ("backends", "doctor", "harness", "hotpath", "judging", "models", "records", "reports", "runner")
"""Bakeoff's own names. A user's file cannot import siblings with these names."""


class UserModel(Family):
    """A model made by a function in a user's file. The file is only parsed at first, and runs in `load`."""

    def __init__(self, path: str, factory: str) -> None:
        """Parse the file. Raise UsageError if the file or the function is missing, or cannot be a factory."""
        self.name = f"{path}:{factory}"
        self.path = Path(path).expanduser()
        self.factory = factory
        function = _find_function(self.path, factory)
        docstring = ast.get_docstring(function) or "a model of your own"
        self.description = docstring.splitlines()[0]
        self.dimensions = _dimensions(self.name, function)
        self.takes_seed = "seed" in {parameter.arg for parameter, _ in _parameters(function)}

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Run the factory. Raise UsageError if it does not return a model; its own exceptions pass through."""
        arguments: dict[str, int | str] = {**dimensions, **({"seed": seed} if self.takes_seed else {})}
        # the factory runs with its folder importable, too, since it may import siblings only when called
        with seeded(seed), _importable(self.path.parent):
            returned = getattr(self._import(), self.factory)(**arguments)
        module, example = _unpack(self.name, returned)
        require_weights(module)
        sets = input_sets(_inputs(self.name, example))
        return LoadedModel(module.to("cpu").float().eval(), sets, surgical_targets=_targets(self.name, module))

    def _import(self) -> Any:
        module_name = f"bakeoff_user_{self.path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, self.path)
        assert spec is not None and spec.loader is not None  # the path ends in .py and was read before
        module = importlib.util.module_from_spec(spec)
        # as an import does, because dataclasses and pickle look up a class's module by name
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            taken = (error.name or "").partition(".")[0]
            if taken not in OWN_PACKAGES:
                raise
            raise UsageError(f"{self.path}: '{taken}' is a package of Bakeoff: give yours another name") from error
        return module


def likely_factory(path: Path) -> str:
    """Return the name of the function in the file that most likely is the factory, or `factory` if there is none."""
    try:
        names = [name for name in _functions(path) if not name.startswith("_")]
    except UsageError:
        names = []
    return "factory" if "factory" in names or not names else names[-1]


def _find_function(path: Path, name: str) -> ast.FunctionDef:
    """Return the top-level function `name` of the file."""
    functions = _functions(path)
    if name not in functions:
        raise unknown(f"top-level function of {path}", name, functions)
    return functions[name]


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Parse the file without running it, and return its top-level functions by name."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError:
        raise UsageError(f"no file {path}: a model of your own is path/to/file.py:FACTORY") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:  # before Python 3.12 a null byte raises ValueError
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}{f', line {line}' if line else ''}: {getattr(error, 'msg', error)}") from None
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield each parameter that can be given by keyword, with its default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    by_position = list(zip(positional, defaults, strict=True))
    yield from by_position[len(arguments.posonlyargs) :]
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _dimensions(model: str, function: ast.FunctionDef) -> dict[str, Dimension]:
    if function.args.posonlyargs:
        parameter = function.args.posonlyargs[0].arg
        raise UsageError(f"{model}: parameter '{parameter}' is positional-only: remove the '/' after it")
    return {
        parameter.arg: _dimension(model, parameter.arg, default)
        for parameter, default in _parameters(function)
        if parameter.arg != "seed"
    }


def _dimension(model: str, parameter: str, default: ast.expr | None) -> Dimension:
    remedy = f"give it a whole number or a string, like {parameter}=8"
    if default is None:
        raise UsageError(f"{model}: parameter '{parameter}' has no default: {remedy}")
    try:
        value = ast.literal_eval(default)
    except (ValueError, TypeError):  # TypeError for a set or dict with unhashable items
        value = None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{model}: parameter '{parameter}' has the default {ast.unparse(default)}: {remedy}")
    # a count such as that of extra layers may be 0; a parameter whose default is no count may be anything
    minimum = 0 if isinstance(value, str) or value >= 1 else -sys.maxsize
    return Dimension(value, "parameter of the factory", minimum)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def _unpack(model: str, returned: object) -> tuple[torch.nn.Module, object]:
    from torch import nn

    if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], nn.Module):
        raise UsageError(f"{model} returned {_describe(returned)}: expected (nn.Module, example inputs)")
    return returned[0], returned[1]


def _targets(model: str, module: torch.nn.Module) -> tuple[str, ...]:
    """Return the module's `surgical_targets`. Raise UsageError if they are not a list of patterns."""
    named = getattr(module, "surgical_targets", ())
    if not isinstance(named, tuple | list) or not all(isinstance(pattern, str) for pattern in named):
        raise UsageError(f"{model}: surgical_targets is {_describe(named)}: expected names like ['layers.*.rope']")
    return tuple(named)


def _inputs(model: str, example: object) -> Inputs:
    """Return `example` as the arguments of one call, with tensors on the CPU and floating-point ones in float32."""
    import torch
    from torch.utils import _pytree as pytree

    if isinstance(example, torch.Tensor):
        inputs = Inputs((example,))
    elif isinstance(example, tuple | list):
        inputs = Inputs(tuple(example))
    elif isinstance(example, Mapping) and all(isinstance(key, str) for key in example):  # includes a tokenizer's result
        inputs = Inputs((), dict(example))
    else:
        raise UsageError(
            f"{model} returned {_describe(example)} as example inputs: "
            "expected a tensor, a tuple of positional arguments, or a dict of keyword arguments"
        )
    for leaf in pytree.tree_leaves((inputs.args, dict(inputs.kwargs))):
        if not isinstance(leaf, torch.Tensor | int | float | str | None):
            raise UsageError(f"{model}: {_describe(leaf)} among the example inputs: expected tensors and plain values")
    if not inputs.tensors():
        raise UsageError(f"{model}: no tensor among the example inputs: expected at least one")
    if not any(tensor.numel() for tensor in inputs.tensors()):
        raise UsageError(f"{model}: the example inputs have no elements: is a dimension 0 that is a size?")
    return inputs.map(_to_float32_on_cpu)


def _to_float32_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    tensor = tensor.detach().to("cpu")
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def input_sets(inputs: Inputs) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets. The rows of all batched tensors are rolled together, by 0, 1 and so on."""
    rows = next((tensor.shape[0] for tensor in inputs.tensors() if tensor.dim()), None)

    def rolled(by: int) -> Inputs:
        return inputs.map(lambda tensor: tensor.roll(by, dims=0) if _is_batched(tensor, rows) else tensor.clone())

    return tuple(rolled(by) for by in range(INPUT_SETS))


def _is_batched(tensor: torch.Tensor, rows: int | None) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == rows


def _describe(value: object) -> str:
    """Describe `value` by its type, and a tuple or list also by the types in it."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of ({', '.join(type(item).__name__ for item in value)})"
    return f"a value of type {type(value).__name__}"
