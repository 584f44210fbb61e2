"""Inputs from a file, for any model: recorded calls (`calls.pt`), or arrays by the names of parameters (`sample.npz`).

The model has a dimension `call` then, with a value for each size in the file. Its other dimensions are those that were
set: the rest shapes inputs that are not used.
"""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.models.base import Call, Dimension, Family, LoadedModel, Sizes, ends_of_stream
from bakeoff.models.calibration import second_half
from bakeoff.models.calls_file import Leaf, SizeInFile, labels_of, load_calls, sizes_in
from bakeoff.models.example_inputs import input_sets, sets_of_calls
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.precision import Precision
from bakeoff.records.schema import RecordedSize

CALL = "call"
"""The dimension that names a size in the file."""

MOST_SIZES = 8
"""So many sizes are measured, the most frequent ones, unless `--set call=...` names others."""


class WithInputs(Family):
    """A model of any source that is called with the inputs in a file."""

    def __init__(self, family: Family, file: str) -> None:
        """Read the table of the file, without torch. Raises UsageError for a file that holds no inputs."""
        if CALL in family.dimensions:
            raise UsageError(f"{family.name} has a dimension '{CALL}', which names the size with --inputs: rename it")
        self.name, self.description, self.imports = family.name, family.description, family.imports
        self.products, self.may_convolve = family.products, family.may_convolve
        self._written, self.file = file, Path(file).expanduser()
        self.sizes = table_of(self.file)
        labels = tuple(size.label for size in self.with_values)
        self.dimensions = {CALL: Dimension(labels[0], "a size in the file of inputs", choices=labels)}
        self.dimensions |= family.dimensions
        self._family = family

    @property
    def with_values(self) -> list[SizeInFile]:
        return [size for size in self.sizes if size.kept]

    def size_of(self, dimensions: Sizes) -> RecordedSize:
        counts = {size.label: size.count for size in self.sizes}
        calls = counts[str(dimensions[CALL])]
        return RecordedSize(file=self._written, calls=calls, of_calls=sum(counts.values()))

    def precision_reason(self, precision: Precision) -> str:
        return self._family.precision_reason(precision)

    def resolve(self, given: Mapping[str, str | int]) -> dict[str, int | str]:
        values = super().resolve(given)
        if streams := [f"{name}={value}" for name, value in values.items() if ends_of_stream(value)]:
            raise UsageError(f"{streams[0]}: with --inputs, sizes are those of the file")
        return {name: value for name, value in values.items() if name == CALL or name in given}

    def check(self, dimensions: Sizes) -> None:
        self._family.check(self._own(dimensions))

    def prepare(self) -> None:
        self._family.prepare()

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        return self._with_inputs(self._family.load(self._resolved(dimensions), seed), dimensions)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel | None:
        drawn = self._family.load_on(self._resolved(dimensions), seed, device, dtype)
        return None if drawn is None else self._with_inputs(drawn, dimensions)

    def _own(self, dimensions: Sizes) -> dict[str, int | str]:
        return {name: value for name, value in dimensions.items() if name != CALL}

    def _resolved(self, dimensions: Sizes) -> dict[str, int | str]:
        return self._family.resolve(self._own(dimensions))

    def _with_inputs(self, model: LoadedModel, dimensions: Sizes) -> LoadedModel:
        calls = calls_in(self.file, str(dimensions[CALL]))
        for call in calls:
            _require_parameters(model.module, call, self.file)
        # what a family knows of its own inputs does not hold for these
        sets = sets_of_calls(str(self.file), calls)
        bolder = None if len(calls) > 1 else partial(input_sets, sets[0])
        model = replace(model, inputs=sets, bolder_inputs=bolder, spared_bytes=0, work=None)
        if model.calibrate is not None or len(calls) < 2:
            return model
        recorded = f"the recorded calls in {self.file}"
        return replace(model, calibrate=partial(second_half, sets), calibrates_with=recorded)


def table_of(file: Path) -> list[SizeInFile]:
    """Return the sizes in a file of inputs, the most frequent first. Raises UsageError where none has values."""
    sizes = sizes_in(file) if file.suffix != ".npz" else [_size_of_arrays(_arrays_in(file))]
    if not any(size.kept for size in sizes):
        raise UsageError(f"no call in {file} has values: {'; '.join(dict.fromkeys(size.reason for size in sizes))}")
    return sizes


def calls_in(file: Path, label: str) -> list[Call]:
    if file.suffix != ".npz":
        return load_calls(file).of_size(label)
    try:
        return [Call((), {name: torch.from_numpy(array) for name, array in _arrays_in(file).items()})]
    except TypeError as error:
        raise UsageError(f"{file}: {error}") from None


def _arrays_in(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            contiguous = {name: np.ascontiguousarray(arrays[name]) for name in arrays.files}
    except FileNotFoundError:
        raise UsageError(f"no file {file}: numpy.savez('sample.npz', NAME=array) writes one") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    if not contiguous:
        raise UsageError(f"{file} holds no array: numpy.savez('sample.npz', NAME=array) writes one by its name")
    return contiguous


def _size_of_arrays(arrays: Mapping[str, Any]) -> SizeInFile:
    leaves = [
        Leaf(f"kwargs['{name}']", "x".join(map(str, array.shape)) or "scalar", str(array.dtype))
        for name, array in arrays.items()
    ]
    return SizeInFile(labels_of([tuple(leaves)])[0], 1, 1, "")


def _require_parameters(module: torch.nn.Module, call: Call, file: Path) -> None:
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return  # compiled or scripted code may have no signature, and says itself what it takes
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    by_name = [name for name, parameter in parameters.items() if parameter.kind is not parameter.POSITIONAL_ONLY]
    for name in call.kwargs:
        if name not in by_name:
            raise unknown(f"parameter of {type(module).__name__}.forward in {file}", name, by_name)
