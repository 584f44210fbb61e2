"""What a contest's sample holds, read without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy
from pydantic import Field, JsonValue, ValidationError

from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Frozen, Record
from bakeoff.records.store import Store

ACCEPTED_TIMES = 2
"""Outputs that only a metric accepts may be off by this many times the RMSE of the run: the sample is a part of it."""


class SampleOutput(Frozen):
    """An output, as eager gave it."""

    shape: tuple[int, ...]
    type: str = Field(pattern=r"^\w+$")  # torch's name
    allowed: float  # the largest RMSE that passes for right

    @property
    def numpy_type(self) -> str:
        """Return NumPy's name of the type. Raw words stand for bfloat16, which NumPy lacks."""
        return {"bfloat16": "uint16"}.get(self.type, self.type)


class Sample(Frozen):
    """What a contest's sample holds."""

    inputs: tuple[str, ...]  # torch's names of their types
    input_shapes: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[SampleOutput, ...]
    call: dict[str, JsonValue] = Field(default_factory=dict)  # its form: `bakeoff.records.call_form`
    sizes_vary: bool = False  # the sizes of outputs depend on the values in the inputs
    compares_all: bool = True  # False: of some output not all elements are kept, or not all are finite

    def allowing(self, rmse: float) -> Sample:
        """Return the sample where each output may have at least this RMSE."""
        outputs = [each.model_copy(update={"allowed": max(each.allowed, rmse)}) for each in self.outputs]
        return self.model_copy(update={"outputs": tuple(outputs)})

    @property
    def as_doubles(self) -> str:
        """Return the source that makes an array of doubles of a tensor `output`. Complex numbers become pairs."""
        if not any(output.type.startswith("complex") for output in self.outputs):
            return "output.double().cpu().numpy()"
        pairs = "torch.view_as_real(output.resolve_conj()) if output.is_complex() else output"
        return f"({pairs}).double().cpu().numpy()"

    def allowed_errors(self, width: int) -> str:
        """Return the source of a list of what is allowed of each output, on one line if that is not too long."""
        allowed = [repr(float(f"{output.allowed:.3g}")) for output in self.outputs]
        return list_source("allowed_errors", allowed, width)

    @classmethod
    def read(cls, path: Path) -> Sample:
        with numpy.load(path) as arrays:
            facts = json.loads(str(arrays["facts"]))
            whole = not any(name.startswith("places_") for name in arrays.files)
            finite = all(numpy.isfinite(arrays[f"output_{number}"]).all() for number in range(len(facts["outputs"])))
            shapes = tuple(arrays[f"input_{number}"].shape for number in range(len(facts["inputs"])))
            return cls(**facts, input_shapes=shapes, compares_all=whole and bool(finite))


def sample_file(record: Record, run: Path) -> Path:
    """Return the file with the sample of the record's contest."""
    return Store(run).sample(record.cell.reference_id)


def sample_of(record: Record, run: Path) -> Sample:
    """Return what the record's outputs are checked with. Raise UsageError if the run's folder does not have it."""
    file = sample_file(record, run)
    try:
        sample = Sample.read(file)
    except (OSError, KeyError, ValueError, ValidationError):
        raise UsageError(f"{file} is not there or cannot be read: export needs the folder of the run") from None
    if record.accuracy is not None and not record.accuracy.passed:  # a metric accepted it
        return sample.allowing(ACCEPTED_TIMES * record.accuracy.rmse)
    return sample


def list_source(name: str, elements: Sequence[str], width: int) -> str:
    """Return the source of a list, on one line if that is not too long."""
    line = f"{name} = [{', '.join(elements)}]"
    return line if len(line) <= width else "\n".join([f"{name} = [", *(f"    {element}," for element in elements), "]"])
