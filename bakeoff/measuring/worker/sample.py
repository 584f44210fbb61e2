"""One input of a contest with the outputs that it must give, in a file that NumPy reads without torch.

What is exported is checked with it. Types that NumPy lacks are kept as raw words: bfloat16 as uint16, float8 as uint8.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy
import torch

from bakeoff.backends.calling import Returned, call_form, comparable, sampled_places
from bakeoff.backends.runtime.folder import errors_of
from bakeoff.backends.runtime.torch_streams import as_tensor
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError
from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision
from bakeoff.truth import rounding_limits
from bakeoff.truth.calls import MAX_COMPARED_ELEMENTS
from bakeoff.truth.matching import Outputs, as_pairs, places_of_tensors, type_name, without_numbers


@dataclass(frozen=True)
class Sample:
    """An input, and what eager says of its outputs. It holds nothing on the device."""

    inputs: tuple[numpy.ndarray[Any, Any], ...]
    input_types: tuple[str, ...]  # torch's names
    output_types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the outputs
    call: Mapping[str, Any]  # the form of the call, and of its answer under `answer` (`bakeoff.records.call_form`)
    sizes_vary: bool = False  # the sizes of outputs depend on the values in the inputs

    @classmethod
    def of(cls, module: torch.nn.Module, inputs: Inputs, answer: Outputs) -> Self:
        """Return the sample of a call with this answer. Numbers are left out, since graphs return tensors."""
        given, found = inputs.tensors(), without_numbers(comparable(answer))
        form = answer.form if isinstance(answer, Returned) else {"unknown": "the parts of its answer are not known"}
        return cls(
            inputs=tuple(map(words, given)),
            input_types=tuple(type_name(tensor.dtype) for tensor in given),
            output_types=tuple(type_name(tensor.dtype) for tensor in found),
            shapes=tuple(tuple(tensor.shape) for tensor in found),
            call={**call_form(module, inputs), "answer": dict(form)},
        )

    def save(self, path: Path, exact: Outputs, eager_rmse: Sequence[float], precision: Precision) -> None:
        """Write the sample with its `exact` outputs, of which large ones have some elements only. The file appears at
        `path` whole or not at all."""
        eager_rmse = [eager_rmse[number] for number in places_of_tensors(exact)]
        exact = without_numbers(exact)
        arrays = {f"input_{number}": array for number, array in enumerate(self.inputs)}
        for number, (shape, wanted) in enumerate(zip(self.shapes, exact, strict=True)):
            elements = wanted.detach() if wanted.shape == shape else wanted.detach()[:MAX_COMPARED_ELEMENTS]
            arrays[f"output_{number}"] = as_pairs(elements).double().cpu().numpy()
            if elements.numel() < math.prod(shape):
                arrays[f"places_{number}"] = sampled_places(math.prod(shape), elements.numel()).numpy()
        outputs = [
            {"shape": shape, "type": name, "allowed": allowed_rmse(wanted, rmse, precision)}
            for shape, name, wanted, rmse in zip(self.shapes, self.output_types, exact, eager_rmse, strict=True)
        ]
        facts = json.dumps(
            {"inputs": self.input_types, "outputs": outputs, "call": self.call, "sizes_vary": self.sizes_vary}
        )
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            numpy.savez(file, facts=numpy.array(facts), **arrays)  # type: ignore[arg-type]  # these are no options
        partial.replace(path)


def require_outputs(path: Path, program: Callable[..., Sequence[torch.Tensor]], device: str) -> None:
    """Raise BakeoffError unless a program gives the outputs of the sample at `path`, up to the allowed errors."""
    with numpy.load(path) as arrays:
        facts = json.loads(str(arrays["facts"]))
        given = [as_tensor(arrays[f"input_{n}"], getattr(torch, name)) for n, name in enumerate(facts["inputs"])]
    found = program(*(tensor.to(device) for tensor in given))
    # Numbers that it returns as tensors are not in the sample, so that no output has a known place.
    if len(found) != len(facts["outputs"]):
        return
    for number, (rmse, allowed) in enumerate(errors_of(found, facts["outputs"], path)):
        if not rmse <= allowed:
            raise BakeoffError(
                f"the model does not compute what was measured: the RMSE of output {number} is {rmse:.2g}, "
                f"and {allowed:.2g} is allowed"
            )


def sizes_depend_on_values(sets: Sequence[Inputs], answers: Sequence[Outputs]) -> bool:
    found: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    for inputs, answer in zip(sets, answers, strict=False):  # more answers may follow those of the sets
        shapes = tuple(tensor.shape for tensor in without_numbers(answer))
        found.setdefault(tuple(tensor.shape for tensor in inputs.tensors()), set()).add(shapes)
    return any(len(shapes) > 1 for shapes in found.values())


def allowed_rmse(exact: torch.Tensor, eager_rmse: float, precision: Precision) -> float:
    """Return the largest RMSE that passes for right: the one that `truth.accuracy` lets pass by any rule."""
    finite = as_pairs(exact.detach()).double()
    finite = finite[torch.isfinite(finite)]
    size = math.sqrt(finite.square().mean().item()) if finite.numel() else 0.0
    if not precision.is_quantised:
        return rounding_limits.rmse_limit(precision, eager_rmse, size)
    close = ABSOLUTE_TOLERANCE + precision.rtol * size
    near_eager = min(precision.max_times_eager_rmse * eager_rmse, precision.max_relative_rmse * size)
    return max(close, near_eager) if math.isfinite(near_eager) else close


def words(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    if tensor.is_nested:
        tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor.resolve_conj().contiguous()
    types = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
    return tensor.view(types.get(tensor.dtype, tensor.dtype)).numpy()
