"""What a contest's sample holds, read without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from pydantic import Field, JsonValue

from bakeoff.records.schema import Frozen


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

    @classmethod
    def read(cls, path: Path) -> Sample:
        with numpy.load(path) as arrays:
            facts = json.loads(str(arrays["facts"]))
            whole = not any(name.startswith("places_") for name in arrays.files)
            finite = all(numpy.isfinite(arrays[f"output_{number}"]).all() for number in range(len(facts["outputs"])))
            shapes = tuple(arrays[f"input_{number}"].shape for number in range(len(facts["inputs"])))
            return cls(**facts, input_shapes=shapes, compares_all=whole and bool(finite))
