"""Is it right? Each cell's outputs are compared with the reference: the same model and inputs in float64.

A cell passes when the error of every output is no more than rounding (`worker.tolerance`), or at most two or three
times that of eager in the same precision on the same device. That holds over all values, in each channel and row, and
for the worst value. A compiler may round differently. It may not be much worse than what it compiles.

Quantised precisions and training have one limit for all values of an output. It passes when every value is close by
torch.testing's tolerances, or when its RMSE is within a multiple of eager's.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bakeoff.measuring.worker import tolerance
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

MIN_SLICE_ELEMENTS = 4
"""The RMSE of a slice of fewer values means no more than the largest error does."""

PIECE_ELEMENTS = 2**18
"""So many elements are compared at once: the intermediate results then stay in a CPU's cache, which is four times as
fast."""

PIECE_ELEMENTS_ON_GPU = 2**20
"""There each piece is a copy and a dozen kernels, and its intermediate results take 100 MB."""

Outputs = tuple["torch.Tensor", ...]


@dataclass(frozen=True)
class ErrorSpread:
    """How eager's error of one output is spread: its largest one, and for the slices along each dimension two rows, the
    RMSE of each slice and the root mean square of its reference."""

    largest: float
    slices: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """For each input set the outputs in float64, and for each output the RMSE of eager in the cells' precision."""

    outputs: tuple[Outputs, ...]
    eager_rmse: tuple[float, ...]
    eager_spread: tuple[ErrorSpread, ...] = ()  # for each output; empty: only its RMSE is known
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
        for number, spread in enumerate(self.eager_spread):
            tensors |= {f"slices.{number}.{dimension}": rows for dimension, rows in spread.slices.items()}
        partial = path.with_suffix(".partial")
        known = {
            "eager_rmse": json.dumps(self.eager_rmse),
            "eager_largest": json.dumps([spread.largest for spread in self.eager_spread]),
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
        slices: dict[int, dict[int, torch.Tensor]] = {}
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                *kind, index, number = key.split(".")
                (slices if kind else sets).setdefault(int(index), {})[int(number)] = file.get_tensor(key)
            known = file.metadata()
        largest = json.loads(known["eager_largest"])
        outputs = tuple(tuple(sets[index][number] for number in sorted(sets[index])) for index in sorted(sets))
        return cls(
            outputs,
            tuple(json.loads(known["eager_rmse"])),
            tuple(ErrorSpread(error, slices.get(number, {})) for number, error in enumerate(largest)),
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
        worst = max(wrong, key=lambda one: one.excess)
        rule = f"{worst.reason}; {_worst_value(outputs, reference.outputs, worst.number)}"
    else:
        rule = checked[0].why_close if allclose else f"at most {precision.max_times_eager_rmse:g}x eager's error"
    return Accuracy(
        rmse=_worst([one.errors.rmse for one in checked]),
        relative_rmse=max(one.relative_rmse for one in checked if one.is_wrong or not one.is_unheld),
        max_abs_error=max(one.errors.max_abs_error for one in checked),
        eager_rmse=eager_rmse,
        allclose=allclose,
        rtol=checked[0].rtol,
        atol=max(one.tolerance for one in checked),
        passed=not not_finite and not wrong,
        rule=rule,
        changes=sum(one.kind == "change" for one in training_outputs),
        changes_unheld=sum(one.is_unheld for one in checked),
    )


class EagerErrors(NamedTuple):
    """The RMSE of each of eager's outputs over all input sets, and how its error is spread."""

    rmse: tuple[float, ...]
    spread: tuple[ErrorSpread, ...]


def errors_of_eager(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> EagerErrors:
    """Compare eager's outputs of every input set with the reference's."""
    import torch

    found = _errors(outputs, reference, 0.0)
    spreads = []
    for number, errors in enumerate(found):
        sizes = _SliceSums()
        for exact in reference:
            known = exact[number].detach().to(torch.float64)
            sizes.add(torch.where(torch.isfinite(known), known, 0.0).square())
        slices = {
            dimension: torch.stack((rmse, sizes.root_mean_squares[dimension])).cpu()
            for dimension, rmse in errors.slices.root_mean_squares.items()
        }
        spreads.append(ErrorSpread(errors.max_abs_error, slices))
    return EagerErrors(tuple(errors.rmse for errors in found), tuple(spreads))


class _SliceSums:
    """The sums of squares of the slices along each dimension, over all input sets. The last values of a dimension count
    for as many sets as have them."""

    def __init__(self) -> None:
        self._sums: dict[int, torch.Tensor] = {}
        self._counts: dict[int, torch.Tensor] = {}

    def add(self, squares: torch.Tensor) -> None:
        import torch

        for dimension, length in enumerate(squares.shape):
            if length < 2 or squares.numel() < MIN_SLICE_ELEMENTS * length:
                continue
            others = [one for one in range(squares.dim()) if one != dimension]
            sums = squares.sum(others) if others else squares
            counts = torch.full_like(sums, squares.numel() / length)
            for known, new in ((self._sums, sums), (self._counts, counts)):
                known[dimension] = _added(known[dimension], new) if dimension in known else new

    @property
    def root_mean_squares(self) -> dict[int, torch.Tensor]:
        return {dimension: (sums / self._counts[dimension]).sqrt() for dimension, sums in self._sums.items()}


def _added(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the sum of two vectors, of which the shorter one ends in zeros."""
    longer, shorter = (one, other) if one.numel() >= other.numel() else (other, one)
    total = longer.clone()
    total[: shorter.numel()] += shorter
    return total


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
    slices: _SliceSums = field(default_factory=_SliceSums)

    def add(self, ours: torch.Tensor, reference: torch.Tensor, piece_elements: int | None) -> None:
        """Compare on the device of `ours`, a piece at a time: outputs may fill most of it, and a host is slow."""
        import torch

        shape = ours.shape
        ours, reference = ours.detach().reshape(-1), reference.detach().reshape(-1)
        squares = torch.empty(ours.shape, dtype=torch.float64, device=ours.device)
        size = piece_elements or (PIECE_ELEMENTS_ON_GPU if ours.is_cuda else PIECE_ELEMENTS)
        for start in range(0, ours.numel(), size):
            piece = slice(start, start + size)
            squares[piece] = self._add_piece(ours[piece], reference[piece])
        self.slices.add(squares.view(shape))

    def _add_piece(self, ours: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """Add the errors of a piece, and return their squares."""
        import torch

        reference = reference.to(ours.device, torch.float64)
        ours = ours.to(torch.float64)
        is_known = torch.isfinite(reference)
        is_compared = is_known & torch.isfinite(ours)
        error = torch.where(is_compared, ours - reference, 0.0).abs_()
        known = torch.where(is_known, reference, 0.0).abs_()
        is_same = is_compared | (ours == reference) | (torch.isnan(ours) & torch.isnan(reference))
        squared: torch.Tensor = error.square()
        found = (
            is_compared.sum(),
            squared.sum(),
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
        return squared

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

    number: int
    errors: _Errors
    yardstick: float  # the error is told relative to this
    excess: float  # how many times as large as its limit the error is; the largest such share if there are several
    reason: str  # why it is wrong, if it is
    is_close: bool  # as exact as the type can be expected to be
    why_close: str
    rtol: float
    tolerance: float  # the absolute one
    is_unheld: bool = False  # the type cannot hold the change, so nothing can be told of it

    @property
    def is_wrong(self) -> bool:
        return self.excess > 1

    @property
    def relative_rmse(self) -> float:
        return self.errors.rmse / self.yardstick if self.yardstick else self.errors.rmse


def _checked_outputs(
    errors: Sequence[_Errors],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput],
) -> list[_CheckedOutput]:
    if training_outputs or precision.is_quantised:
        return _checked_by_tolerances(errors, reference, precision, training_outputs)
    spreads = reference.eager_spread or [None] * len(errors)
    return [
        _checked_by_rounding(number, *known, precision)
        for number, known in enumerate(zip(errors, reference.eager_rmse, spreads, strict=True))
    ]


def _checked_by_rounding(
    number: int, errors: _Errors, eager_rmse: float, spread: ErrorSpread | None, precision: Precision
) -> _CheckedOutput:
    """Check an output by the limits of `worker.tolerance`: over all values, in each slice, and of the worst value."""
    size = errors.reference_rms
    floor = tolerance.rounding_floor(precision, size)
    limit = tolerance.rmse_limit(precision, eager_rmse, size)
    times = f"{precision.max_times_eager_rmse:g}x"
    overall = f"rmse {errors.rmse:.2g}, eager's {eager_rmse:.2g}; neither rounding ({floor:.2g}) nor within {times}"
    found = [(_share(errors.rmse, limit), overall)]
    if spread is not None:
        for dimension, rmse in errors.slices.root_mean_squares.items():
            rmse = rmse.cpu()
            eager, sizes = spread.slices[dimension]
            shares = rmse / tolerance.slice_limits(precision, limit, eager, sizes)
            worst = int(shares.argmax())
            told = (
                f"rmse {rmse[worst]:.2g} at index {worst} of dimension {dimension}, "
                f"eager's {eager[worst]:.2g} there and {eager_rmse:.2g} overall"
            )
            found.append((float(shares[worst]), told))
        largest = _share(errors.largest, tolerance.value_limit(precision, limit, spread.largest))
        found.append((largest, f"a value is off by {errors.largest:.2g}, eager's at most by {spread.largest:.2g}"))
    excess, reason = next((one for one in found if one[0] > 1), found[0])
    return _CheckedOutput(
        number=number,
        errors=errors,
        yardstick=size,
        excess=excess,
        reason=f"output {number}: {reason}",
        is_close=errors.rmse <= floor,
        why_close="no more than rounding",
        rtol=tolerance.ROUNDING_UNITS[precision] * precision.epsilon,
        tolerance=0.0 if size else floor,
    )


def _share(error: float, limit: float) -> float:
    if limit > 0:
        return error / limit
    return math.inf if error > 0 else 0.0


def _checked_by_tolerances(
    errors: Sequence[_Errors],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput],
) -> list[_CheckedOutput]:
    """Check outputs of quantised precisions and of training: each value by tolerances, or the RMSE by eager's."""
    size_of_kind = _sizes_of_kinds(errors, training_outputs)
    checked = []
    for number, (one, eager_rmse) in enumerate(zip(errors, reference.eager_rmse, strict=True)):
        label, yardstick, absolute = f"output {number}", one.reference_rms, ABSOLUTE_TOLERANCE
        # an eager that overflows excuses nothing
        limit = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
        if one.reference_rms:  # zeros are no signal to compare noise with
            limit = min(limit, precision.max_relative_rmse * one.reference_rms)
        size, is_unheld = yardstick, False
        if training_outputs:
            output = training_outputs[number]
            label = str(output)
            yardstick = max(one.reference_rms, MIN_SIZE_SHARE * size_of_kind[output.kind])
            absolute = TRAINING_TOLERANCE * yardstick
            size = one.reference_rms if one.reference_rms > absolute else yardstick
            if eager_rmse < HELD_BELOW * size:
                limit = min(limit, MAX_TRAINING_ERROR * size)
            is_unheld = output.kind == "change" and 0 < HELD_BELOW * size <= eager_rmse < math.inf
        reason = (
            f"{label}: rmse {one.rmse:.2g}, eager's {eager_rmse:.2g}; "
            f"neither allclose nor within {precision.max_times_eager_rmse:g}x"
        )
        if limit < precision.max_times_eager_rmse * eager_rmse < math.inf:
            reason += f" and {limit / size:.2g} of the output"
        is_close = one.are_close(absolute)
        checked.append(
            _CheckedOutput(
                number=number,
                errors=one,
                yardstick=yardstick,
                excess=0.0 if is_close else _share(one.rmse, limit),
                reason=reason,
                is_close=is_close,
                why_close="allclose",
                rtol=precision.rtol,
                tolerance=absolute,
                is_unheld=is_unheld,
            )
        )
    return checked


def _worst_value(outputs: Sequence[Outputs], reference: Sequence[Outputs], number: int) -> str:
    """Say where output `number` is farthest from the reference, what came there and what was expected."""
    import torch

    worst: tuple[float, str] = (-1.0, "")
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        one, other = ours[number].detach().double().cpu(), theirs[number].detach().double().cpu()
        if not one.numel():
            continue
        error = (one - other).abs().nan_to_num(0.0, 0.0)
        place = torch.unravel_index(error.argmax(), error.shape)
        at = ", ".join(str(int(each)) for each in place)
        told = f"worst at [{at}] of input set {index}: {one[place].item():.6g}, expected {other[place].item():.6g}"
        worst = max(worst, (float(error[place]), told), key=lambda found: found[0])
    return worst[1]


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
