"""A program that torch.export.save wrote: `pt2:FILE`.

Its dimensions are the axes that the program leaves open. Inputs are the example that it was exported with, repeated or
cut to the size asked for. What the file pickles is loaded as weights only, so that it cannot run code.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.models.base import Dimension, Family, Inputs, LoadedModel, Sizes, axis_name
from bakeoff.models.example_inputs import input_sets
from bakeoff.models.lazily import pytree, torch
from bakeoff.models.libraries import Facts, facts_of
from bakeoff.models.seeding import seeded
from bakeoff.models.unwrapping import with_modes
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError, first_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Without this variable, torch.export.load unpickles anything when loading weights only has failed."""


class ExportedFile(Family):
    imports = ("torch.export",)

    def __init__(self, file: str) -> None:
        """Ask torch for the program's open axes. Raises UsageError if this torch cannot read the file."""
        self.name = f"pt2:{file}"
        self.path = Path(file).expanduser()
        if not self.path.is_file():
            raise UsageError(f"{self.name}: no file {self.path}: pt2: takes what torch.export.save wrote")
        self.description = f"the program exported to {self.path}"
        self._bounds = facts_of(__name__, str(self.path))
        self.dimensions = {
            name: Dimension(default, "an axis that the program leaves open", lowest)
            for name, (default, lowest, _) in self._bounds.items()
        }

    def check(self, dimensions: Sizes) -> None:
        for name, (_, _, highest) in self._bounds.items():
            if highest is not None and int(dimensions[name]) > highest:
                raise UsageError(f"{self.name}: {name} must be at most {highest}, not {dimensions[name]}")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        return _loaded(_read(self.path), dimensions, seed)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel | None:
        """Put the program on a GPU here, because its graph names the device of every tensor that it makes."""
        if not device.is_cuda:
            return None
        from torch.export.passes import move_to_device_pass

        return _loaded(move_to_device_pass(_read(self.path), str(device)), dimensions, seed)


def describe(file: str) -> Facts:
    """Return the default, the lowest and the highest size of each open axis. None stands for no limit."""
    program = _read(Path(file))
    bounds: Facts = {}
    for symbol, (name, default) in _open_axes(program).items():
        limits = program.range_constraints.get(symbol)
        highest = int(limits.upper) if limits is not None and limits.upper.is_Integer else None
        bounds[name] = (default, int(limits.lower) if limits is not None else 1, highest)
    return bounds


def _loaded(program: ExportedProgram, dimensions: Sizes, seed: int) -> LoadedModel:
    module = with_modes(program.module())
    sizes = {symbol: int(dimensions[name]) for symbol, (name, _) in _open_axes(program).items()}
    with seeded(seed):
        example = _example(program, sizes)
        return LoadedModel(module.eval(), input_sets(example), bolder_inputs=partial(input_sets, example))


def _example(program: ExportedProgram, sizes: dict[Any, int]) -> Inputs:
    """Return the program's example with open axes at these sizes. Without an example, draw ones, zeros and normals."""
    shapes = [
        [axis if isinstance(axis, int) else int(axis.node.expr.subs(sizes)) for axis in fake.shape]
        for _, fake in _tensors(program)
    ]
    if program.example_inputs is None:
        drawn = [_drawn(fake, shape) for (_, fake), shape in zip(_tensors(program), shapes, strict=True)]
        return Inputs(tuple(drawn))
    remaining = iter(shapes)

    def fitted(tensor: torch.Tensor) -> torch.Tensor:
        for axis, size in enumerate(next(remaining)):
            tensor = tensor.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])
        return tensor.detach().to("cpu", copy=True)

    args, kwargs = program.example_inputs
    return Inputs(tuple(args), kwargs).map(fitted)


def _drawn(fake: torch.Tensor, shape: list[int]) -> torch.Tensor:
    if fake.is_floating_point():
        return torch.randn(shape, dtype=fake.dtype)
    return (
        torch.ones(shape, dtype=fake.dtype) if fake.dtype is torch.bool else torch.randint(2, shape, dtype=fake.dtype)
    )


def _tensors(program: ExportedProgram) -> list[tuple[str, torch.Tensor]]:
    wanted = set(program.graph_signature.user_inputs)
    tensors = [(node.name, node.meta.get("val")) for node in program.graph.nodes if node.op == "placeholder"]
    return [(name, fake) for name, fake in tensors if name in wanted and isinstance(fake, torch.Tensor)]


def _open_axes(program: ExportedProgram) -> dict[Any, tuple[str, int]]:
    """Return a name and the example's size for each symbol among the shapes of the inputs."""
    leaves = pytree.tree_leaves(program.example_inputs)
    examples = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    open_axes: dict[Any, tuple[str, int]] = {}
    for number, (name, fake) in enumerate(_tensors(program)):
        for axis, size in enumerate(fake.shape):
            if isinstance(size, int) or not (symbol := size.node.expr).is_Symbol or symbol in open_axes:
                continue
            taken = {name for name, _ in open_axes.values()}
            default = examples[number].shape[axis] if number < len(examples) else size.node.hint or 4
            open_axes[symbol] = (axis_name(name, axis, fake.dim(), fake.is_floating_point(), taken), int(default))
    return open_axes


def _read(path: Path) -> ExportedProgram:
    try:
        with _only_weights():
            return torch.export.load(path)
    except Exception as error:  # of zipfile, json, pickle or torch, by what is wrong
        raise UsageError(
            f"pt2:{path} cannot be read by torch {torch.__version__}{_writer(path)}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


@contextmanager
def _only_weights() -> Iterator[None]:
    before = os.environ.get(ONLY_WEIGHTS)
    os.environ[ONLY_WEIGHTS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ONLY_WEIGHTS]
        else:
            os.environ[ONLY_WEIGHTS] = before


def _writer(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("models/model.json"))
            content = json.loads(archive.read(name))
            schema = content["schema_version"]
            return f" (torch {content['torch_version']} wrote it, in schema {schema['major']}.{schema['minor']})"
    except (OSError, ValueError, KeyError, TypeError, StopIteration, zipfile.BadZipFile):
        return ""
