"""What a contest's sample holds, read without torch."""

from __future__ import annotations

import json
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


class Sample(Frozen):
    """What a contest's sample holds."""

    inputs: tuple[str, ...]  # torch's names of their types
    input_shapes: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[SampleOutput, ...]
    call: dict[str, JsonValue] = Field(default_factory=dict)  # its form: `bakeoff.records.call_form`
    sizes_vary: bool = False  # the sizes of outputs depend on the values in the inputs

    def allowing(self, rmse: float) -> Sample:
        """Return the sample where each output may have at least this RMSE."""
        outputs = [output.model_copy(update={"allowed": max(output.allowed, rmse)}) for output in self.outputs]
        return self.model_copy(update={"outputs": tuple(outputs)})

    @classmethod
    def read(cls, path: Path) -> Sample:
        with numpy.load(path) as arrays:
            facts = json.loads(str(arrays["facts"]))
            shapes = tuple(arrays[f"input_{number}"].shape for number in range(len(facts["inputs"])))
            return cls(**facts, input_shapes=shapes)


def sample_file(record: Record, run: Path) -> Path:
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
