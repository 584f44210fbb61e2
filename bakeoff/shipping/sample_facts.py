"""What a contest's sample holds, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy
from pydantic import Field, JsonValue, ValidationError

from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Frozen, Record
from bakeoff.records.store import Store

ACCEPTED_TIMES = 2
"""Outputs that only a metric accepts may be off by this many times the RMSE of the run: the sample is a part of it."""


@dataclass(frozen=True)
class TypeNames:
    """The names of a type elsewhere. One that is empty is not there."""

    torch: str  # in C++
    triton: str = ""
    cpp: str = ""
    onnx: int = 0  # TensorProto.DataType
    openvino: str = ""
    size_bytes: int = 0


TYPES = {
    "float32": TypeNames("kFloat", "TYPE_FP32", "float", 1, "F32", 4),
    "float64": TypeNames("kDouble", "TYPE_FP64", "double", 11, "F64", 8),
    "float16": TypeNames("kHalf", "TYPE_FP16"),
    "bfloat16": TypeNames("kBFloat16", "TYPE_BF16"),
    "int8": TypeNames("kChar", "TYPE_INT8", "int8_t", 3, "I8", 1),
    "int16": TypeNames("kShort", "TYPE_INT16", "int16_t", 5, "I16", 2),
    "int32": TypeNames("kInt", "TYPE_INT32", "int32_t", 6, "I32", 4),
    "int64": TypeNames("kLong", "TYPE_INT64", "int64_t", 7, "I64", 8),
    "uint8": TypeNames("kByte", "TYPE_UINT8", "uint8_t", 2, "U8", 1),
    "bool": TypeNames("kBool", "TYPE_BOOL", "bool", 9, "BOOLEAN", 1),
    "complex64": TypeNames("kComplexFloat"),
}
"""By torch's names in Python."""


class SampleOutput(Frozen):
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
        rmse = ACCEPTED_TIMES * record.accuracy.rmse
        outputs = [output.but(allowed=max(output.allowed, rmse)) for output in sample.outputs]
        return sample.but(outputs=tuple(outputs))
    return sample
