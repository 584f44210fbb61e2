"""Is it right? Each cell's outputs are compared with the reference: the same model and inputs in float64.

A cell passes when every output is close to the reference by torch.testing's tolerances for its precision, or when its
RMSE is at most two or three times that of eager in the same precision on the same device. A compiler may round
differently. It may not be much worse than what it compiles.

For int8 and fp8, eager computes with rounded operands (`worker.simulation`): that works on every device and
depends on no library that is measured. Three times its RMSE is allowed, because backends choose ranges in different
ways, but never more than the precision's `max_relative_rmse`. So the rule can fail for every model.

The outputs of a training task are a loss, gradients, and changes of parameters. Gradients of a millionth are common,
and an absolute tolerance of 1e-5 would pass whatever they were: here it is a share of the output's own size. The limit
is also below the error of zeros, so that a missing gradient or an unchanged parameter is found. Changes that eager gets
as wrong as that are counted as unheld and left out of the error.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.measuring.worker.generating import Greedy
from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision
from bakeoff.records.schema import Accuracy
from bakeoff.records.traits import NO_TRAITS, ModelTraits

if TYPE_CHECKING:
    import torch

    from bakeoff.backends.training import TrainingOutput

TRAINING_TOLERANCE = 1e-4
"""The absolute tolerance of a training task, relative to the root mean square of the reference's output."""

MIN_SIZE_SHARE = 1e-2
"""A training output counts as at least this share of the size of all outputs of its kind. Without that, a gradient that
is zero but for rounding could not be measured by anything, such as that of a bias that a normalisation cancels."""

HELD_BELOW = 0.9
"""A type holds a parameter's change where eager's error is less than this share of the change. Elsewhere what is right
cannot be told from doing nothing: a weight near 1 does not move in bfloat16, and float16 squares small gradients to
zero. In bfloat16 eager's errors are below 0.8 or above 0.95 in all our models."""

MAX_TRAINING_ERROR = 0.95
"""The largest error of a training output relative to its size, where eager's is below `HELD_BELOW`."""

PIECE_ELEMENTS = 2**18
"""So many elements are compared at once: the intermediate results then stay in a CPU's cache, which is four times as
fast."""

PIECE_ELEMENTS_ON_GPU = 2**20
"""There each piece is a copy and a dozen kernels, and its intermediate results take 100 MB."""

Outputs = tuple["torch.Tensor", ...]


@dataclass(frozen=True)
class Reference:
    """For each input set the outputs in float64, and for each output the RMSE of eager in the cells' precision."""

    outputs: tuple[Outputs, ...]
    eager_rmse: tuple[float, ...]
    computed_in: str = "float64"  # a narrower type where float64 could not be had
    in_float32: tuple[str, ...] = ()  # operators that lack float64 and ran in float32
    greedy: Greedy | None = None  # the tokens that eager generates in the cells' precision
    why_narrower: str = ""  # how float64 failed
    traits: ModelTraits = NO_TRAITS

    def save(self, path: Path) -> None:
        """Write it as safetensors. The file appears at `path` whole or not at all."""
        from safetensors.torch import save_file

        tensors = {
            # copied, because two outputs may share a tensor, which safetensors refuses
            f"{index}.{number}": tensor.to("cpu", copy=True).contiguous()
            for index, outputs in enumerate(self.outputs)
            for number, tensor in enumerate(outputs)
        }
        partial = path.with_suffix(".partial")
        known = {
            "eager_rmse": json.dumps(self.eager_rmse),
            "computed_in": self.computed_in,
            "in_float32": json.dumps(self.in_float32),
            "why_narrower": self.why_narrower,
            "traits": self.traits.model_dump_json(),
        }
        if self.greedy:
            known["greedy"] = self.greedy.to_json()
        save_file(tensors, partial, metadata=known)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Reference:
        from safetensors import safe_open

        sets: dict[int, dict[int, torch.Tensor]] = {}
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                index, number = map(int, key.split("."))
                sets.setdefault(index, {})[number] = file.get_tensor(key)
            known = file.metadata()
        outputs = tuple(tuple(sets[index][number] for number in sorted(sets[index])) for index in sorted(sets))
        return cls(
            outputs,
            tuple(json.loads(known["eager_rmse"])),
            known.get("computed_in", "float64"),
            tuple(json.loads(known.get("in_float32", "[]"))),
            Greedy.from_json(known["greedy"]) if "greedy" in known else None,
            known.get("why_narrower", ""),
            _traits(known),
        )


def traits_in(path: Path) -> ModelTraits:
    """Return what the file of a reference says of the model, or no traits where there is no such file."""
    from safetensors import safe_open

    if not path.exists():
        return NO_TRAITS
    with safe_open(path, framework="pt") as file:
        return _traits(file.metadata())


def _traits(metadata: Mapping[str, str]) -> ModelTraits:
    return ModelTraits.model_validate_json(metadata["traits"]) if "traits" in metadata else NO_TRAITS


def check(
    outputs: Sequence[Outputs],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput] = (),
    piece_elements: int | None = None,
) -> Accuracy:
    """Compare the outputs of every input set with the reference's. `training_outputs` describe a training task's."""
    eager_rmse = _worst(reference.eager_rmse)
    if problem := _shape_problem(outputs, reference):
        return Accuracy(
            rmse=math.nan,
            relative_rmse=math.nan,
            max_abs_error=math.nan,
            eager_rmse=eager_rmse,
            allclose=False,
            rtol=precision.rtol,
            atol=ABSOLUTE_TOLERANCE,
            passed=False,
            rule=problem,
        )
    checked = _checked_outputs(
        _errors(outputs, reference.outputs, precision.rtol, piece_elements), reference, precision, training_outputs
    )
    wrong = [one for one in checked if one.is_wrong]
    not_finite = sum(one.errors.not_finite for one in checked)
    allclose = all(one.is_close for one in checked)
    if not_finite:
        rule = f"{not_finite} value(s) not finite where the reference's are"
    elif wrong:
        rule = max(wrong, key=lambda one: one.excess).reason
    else:
        rule = "allclose" if allclose else f"rmse <= {precision.max_times_eager_rmse:g}x eager"
    return Accuracy(
        rmse=_worst([one.errors.rmse for one in checked]),
        relative_rmse=max(one.relative_rmse for one in checked if one.is_wrong or not one.is_unheld),
        max_abs_error=max(one.errors.max_abs_error for one in checked),
        eager_rmse=eager_rmse,
        allclose=allclose,
        rtol=precision.rtol,
        atol=max(one.tolerance for one in checked),
        passed=not not_finite and not wrong,
        rule=rule,
        changes=sum(one.kind == "change" for one in training_outputs),
        changes_unheld=sum(one.is_unheld for one in checked),
    )


def rmse_per_output(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[float, ...]:
    """Return the RMSE of each output over all input sets."""
    return tuple(errors.rmse for errors in _errors(outputs, reference, 0.0))


@dataclass
class _Errors:
    """The errors of one output over all input sets, in float64. Values that are not finite are counted apart."""

    rtol: float
    values: int = 0
    squares: float = 0.0
    largest: float = 0.0
    largest_beyond_rtol: float = 0.0  # the largest excess of an error over what rtol allows: allclose bounds it
    reference_values: int = 0
    reference_squares: float = 0.0
    not_finite: int = 0  # NaN or infinite where the reference is not, or not in the same way

    def add(self, ours: torch.Tensor, reference: torch.Tensor, piece_elements: int | None) -> None:
        """Compare on the device of `ours`, a piece at a time: outputs may fill most of it, and a host is slow."""
        ours, reference = ours.detach().reshape(-1), reference.detach().reshape(-1)
        size = piece_elements or (PIECE_ELEMENTS_ON_GPU if ours.is_cuda else PIECE_ELEMENTS)
        for start in range(0, ours.numel(), size):
            self._add_piece(ours[start : start + size], reference[start : start + size])

    def _add_piece(self, ours: torch.Tensor, reference: torch.Tensor) -> None:
        import torch

        reference = reference.to(ours.device, torch.float64)
        ours = ours.to(torch.float64)
        is_known = torch.isfinite(reference)
        is_compared = is_known & torch.isfinite(ours)
        error = torch.where(is_compared, ours - reference, 0.0).abs_()
        known = torch.where(is_known, reference, 0.0).abs_()
        is_same = is_compared | (ours == reference) | (torch.isnan(ours) & torch.isnan(reference))
        found = (
            is_compared.sum(),
            error.square().sum(),
            error.max(),
            (error - self.rtol * known).max(),
            is_known.sum(),
            known.square().sum(),
            (~is_same).sum(),
        )
        # all in one transfer, because each transfer synchronises the device
        values, squares, largest, beyond, reference_values, reference_squares, not_finite = torch.stack(
            [value.double() for value in found]
        ).tolist()
        self.values += int(values)
        self.squares += squares
        self.largest = max(self.largest, largest)
        self.largest_beyond_rtol = max(self.largest_beyond_rtol, beyond)
        self.reference_values += int(reference_values)
        self.reference_squares += reference_squares
        self.not_finite += int(not_finite)

    @property
    def rmse(self) -> float:
        if self.not_finite:
            return math.inf
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    @property
    def reference_rms(self) -> float:
        """The root mean square of the reference."""
        return math.sqrt(self.reference_squares / self.reference_values) if self.reference_values else 0.0

    @property
    def max_abs_error(self) -> float:
        return math.inf if self.not_finite else self.largest

    def are_close(self, atol: float) -> bool:
        """Return what torch.allclose says of all values."""
        return not self.not_finite and self.largest_beyond_rtol <= atol


def _errors(
    outputs: Sequence[Outputs], reference: Sequence[Outputs], rtol: float, piece_elements: int | None = None
) -> list[_Errors]:
    found = [_Errors(rtol) for _ in reference[0]]
    for ours, theirs in zip(outputs, reference, strict=True):
        for errors, one, other in zip(found, ours, theirs, strict=True):
            errors.add(one, other, piece_elements)
    return found


@dataclass(frozen=True)
class _CheckedOutput:
    """One output with what it is measured by."""

    errors: _Errors
    label: str
    eager_rmse: float
    max_times_eager: float
    yardstick: float  # the error is told relative to this
    size: float  # the error of an output of zeros; the yardstick where zeros are right
    limit: float  # the largest RMSE without being close
    tolerance: float  # the absolute one
    is_unheld: bool  # the type cannot hold the change, so nothing can be told of it

    @property
    def is_close(self) -> bool:
        return self.errors.are_close(self.tolerance)

    @property
    def is_wrong(self) -> bool:
        return not (self.is_close or self.errors.rmse <= self.limit)

    @property
    def excess(self) -> float:
        if self.limit > 0:
            return self.errors.rmse / self.limit
        return math.inf if self.errors.rmse > 0 else 0.0

    @property
    def relative_rmse(self) -> float:
        return self.errors.rmse / self.yardstick if self.yardstick else self.errors.rmse

    @property
    def reason(self) -> str:
        """Why it is wrong."""
        reason = (
            f"{self.label}: rmse {self.errors.rmse:.2g}, eager's {self.eager_rmse:.2g}; "
            f"neither allclose nor within {self.max_times_eager:g}x"
        )
        if self.limit < self.max_times_eager * self.eager_rmse < math.inf:
            reason += f" and {self.limit / self.size:.2g} of the output"
        return reason


def _checked_outputs(
    errors: Sequence[_Errors],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput],
) -> list[_CheckedOutput]:
    size_of_kind = _sizes_of_kinds(errors, training_outputs)
    checked = []
    for number, (one, eager_rmse) in enumerate(zip(errors, reference.eager_rmse, strict=True)):
        label, yardstick, tolerance = f"output {number}", one.reference_rms, ABSOLUTE_TOLERANCE
        # an eager that overflows excuses nothing
        limit = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
        if one.reference_rms:  # zeros are no signal to compare noise with
            limit = min(limit, precision.max_relative_rmse * one.reference_rms)
        size, is_unheld = yardstick, False
        if training_outputs:
            output = training_outputs[number]
            label = str(output)
            yardstick = max(one.reference_rms, MIN_SIZE_SHARE * size_of_kind[output.kind])
            tolerance = TRAINING_TOLERANCE * yardstick
            size = one.reference_rms if one.reference_rms > tolerance else yardstick
            if eager_rmse < HELD_BELOW * size:
                limit = min(limit, MAX_TRAINING_ERROR * size)
            is_unheld = output.kind == "change" and 0 < HELD_BELOW * size <= eager_rmse < math.inf
        checked.append(
            _CheckedOutput(
                errors=one,
                label=label,
                eager_rmse=eager_rmse,
                max_times_eager=precision.max_times_eager_rmse,
                yardstick=yardstick,
                size=size,
                limit=limit,
                tolerance=tolerance,
                is_unheld=is_unheld,
            )
        )
    return checked


def _sizes_of_kinds(errors: Sequence[_Errors], training_outputs: Sequence[TrainingOutput]) -> dict[str, float]:
    """Return the root mean square over all outputs of each kind, each output counting once."""
    squares: dict[str, list[float]] = {}
    for one, output in zip(errors, training_outputs, strict=False):
        squares.setdefault(output.kind, []).append(one.reference_rms**2)
    return {kind: math.sqrt(statistics.fmean(each)) for kind, each in squares.items()}


def _shape_problem(outputs: Sequence[Outputs], reference: Reference) -> str:
    for index, (ours, theirs) in enumerate(zip(outputs, reference.outputs, strict=True)):
        if len(ours) != len(theirs):
            return f"{len(ours)} output(s) where the model has {len(theirs)}"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one.shape != other.shape:
                return f"output {number} of input set {index} has shape {tuple(one.shape)}, not {tuple(other.shape)}"
    return ""


def _worst(rmses: Sequence[float]) -> float:
    """Return the largest, so that a large output's error does not hide a small one's."""
    return max(rmses, default=math.nan)
