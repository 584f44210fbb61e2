"""Is it right? Each cell's outputs are compared with the reference: the same model and inputs in float64.

A cell passes when the error of every output is no more than rounding (`worker.rounding_limits`), or at most two to four
times that of eager in the same precision on the same device. That holds over all values, in each channel and row, for
the worst value, and for the values of each magnitude. A compiler may round differently. It may not be much worse than
what it compiles.

The types are those of eager's outputs in the cell's precision. A type of another kind is wrong, such as float32 in
place of int64, and one of another width is told.

Complex numbers are compared as pairs. Whole numbers and booleans are right or wrong: a cell may have as many wrong ones
as eager's own rounding explains, and usually that is none. What a build returns is first matched with what the model
returns (`worker.matching`).

Quantised precisions and training have one limit for all values of an output. It passes when every value is close by
torch.testing's tolerances, or when its RMSE is within a multiple of eager's.

For int8 and fp8, eager computes with rounded operands (`worker.simulation`): that works on every device and
depends on no library that is measured. Three times its RMSE is allowed, because backends choose ranges in different
ways, but never more than the precision's `max_relative_rmse`. So the rule stays meaningful for every
model.

The outputs of a training task are a loss, gradients, and changes of parameters. Gradients of a millionth are common,
and an absolute tolerance of 1e-5 would pass whatever they were: here it is a share of the output's own size. The limit
is also below the error of zeros, so that a missing gradient or an unchanged parameter is found. Changes that eager gets
as wrong as that are counted as unheld and left out of the error.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bakeoff.backends.training import TrainingOutput
from bakeoff.measuring.worker import rounding_limits
from bakeoff.measuring.worker.choices import Choice
from bakeoff.measuring.worker.generating import Greedy
from bakeoff.measuring.worker.magnitudes import EXPONENTS, EagerOctaves, errors_by_octave
from bakeoff.measuring.worker.matching import (
    Matched,
    OtherTypes,
    as_pairs,
    choices_of,
    labels,
    match,
    other_types,
    structure_of,
    type_name,
    with_choices,
    with_structure,
)
from bakeoff.records.errors import BakeoffError
from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision
from bakeoff.records.schema import Accuracy
from bakeoff.records.text import spell_times
from bakeoff.records.traits import NO_TRAITS, ModelTraits

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

MIN_SHOWN_SHARE = 0.05
"""Of the values that are far smaller than the output's size, the error of so large a share is shown."""

FAR_SMALLER = 1e-3

BESIDE_LARGER = "of the worst part; no more than rounding beside larger values"

PIECE_ELEMENTS_ON_GPU = 2**20
"""There each piece is a copy and a dozen kernels, and its intermediate results take 100 MB."""

Outputs = tuple["torch.Tensor", ...]
Region = Callable[["torch.Tensor"], "torch.Tensor"]
"""Returns which of the reference's values, as real numbers, decided the check of an output."""


@dataclass(frozen=True)
class ErrorSpread:
    """How eager's error of one output is spread: its largest one, and for the slices along each dimension two rows, the
    RMSE of each slice and the root mean square of its reference."""

    largest: float
    slices: Mapping[int, torch.Tensor]
    octaves: EagerOctaves | None = None  # None: whole numbers

    def or_larger(self, other: ErrorSpread) -> ErrorSpread:
        """Return the larger one of each error."""
        slices = {dimension: rows.maximum(other.slices[dimension]) for dimension, rows in self.slices.items()}
        octaves = self.octaves.or_larger(other.octaves) if self.octaves and other.octaves else self.octaves
        return ErrorSpread(max(self.largest, other.largest), slices, octaves)

    def off_by(self, share: float) -> ErrorSpread:
        """Return the same with errors of this share of each real number."""
        if self.octaves is None:
            return self
        slices = {dimension: torch.stack((share * sizes, sizes)) for dimension, (_, sizes) in self.slices.items()}
        return ErrorSpread(share * self.octaves.size, slices, self.octaves.off_by(share))

    def or_perturbed(self, perturbed: ErrorSpread) -> ErrorSpread:
        """Return the same with the larger error in each part, where the other one is that of a perturbed model."""
        if not (self.octaves and perturbed.octaves):
            return self
        most = rounding_limits.MAX_PERTURBED_SHARE
        slices = {
            dimension: torch.stack((eager.maximum(perturbed.slices[dimension][0].minimum(most * sizes)), sizes))
            for dimension, (eager, sizes) in self.slices.items()
        }
        return replace(self, slices=slices, octaves=self.octaves.or_perturbed(perturbed.octaves))


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
    types: tuple[tuple[torch.dtype, ...], ...] = ()  # for each input set those of eager's outputs; empty: not known
    first_greedy: Greedy | None = None  # those of a contest's first precision, if this is another one
    kept_at: str = ""  # date and time in ISO 8601, if the outputs are those of an earlier run

    def save(self, path: Path, outputs_at: Path | None = None) -> None:
        """Write it as safetensors. The file appears at `path` whole or not at all.

        The outputs are left out if the file `outputs_at` in the same folder holds them: that of another precision.
        """
        tensors, known = ({}, {"outputs_in": outputs_at.name}) if outputs_at else self._outputs_to_save()
        for number, spread in enumerate(self.eager_spread):
            tensors |= {f"slices.{number}.{dimension}": rows for dimension, rows in spread.slices.items()}
            tensors |= {f"octaves.{number}": torch.stack(spread.octaves)} if spread.octaves else {}
        known |= {
            "eager_rmse": json.dumps(self.eager_rmse),
            "eager_largest": json.dumps([spread.largest for spread in self.eager_spread]),
            "computed_in": self.computed_in,
            "in_float32": json.dumps(self.in_float32),
            "why_narrower": self.why_narrower,
            "kept_at": self.kept_at,
            "traits": self.traits.model_dump_json(),
            "types": json.dumps([list(map(type_name, each)) for each in self.types]),
        }
        generated = {"greedy": self.greedy, "first_greedy": self.first_greedy}
        known |= {name: each.to_json() for name, each in generated.items() if each}
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata=known)
        partial.replace(path)

    def _outputs_to_save(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return the tensors of all outputs, and what else is known of them."""
        tensors, complex_places = {}, []
        for index, outputs in enumerate(self.outputs):
            chosen = choices_of(outputs)
            for number, (label, tensor) in enumerate(zip(labels(outputs), outputs, strict=True)):
                place = f"{index}.{number}"
                # copied, because two outputs may share a tensor, which safetensors refuses
                tensors[place] = as_pairs(tensor).to("cpu", copy=True).contiguous()
                complex_places += [place] if tensor.is_complex() else []
                if (choice := chosen.get(label)) is not None:
                    tensors[f"source.{place}"] = choice.source.to("cpu", copy=True).contiguous()
                    tensors[f"rows.{place}"] = choice.rows.to("cpu", copy=True).contiguous()
        structures = json.dumps([structure_of(outputs) for outputs in self.outputs])
        return tensors, {"complex": json.dumps(complex_places), "structures": structures}

    @classmethod
    def load(cls, path: Path) -> Reference:
        with safe_open(path, framework="pt") as file:
            known = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        if other := known.get("outputs_in"):
            outputs = cls.load(path.with_name(other)).outputs
        else:
            outputs = _outputs_of(tensors, known)
        slices: dict[int, dict[int, torch.Tensor]] = {}
        for key, rows in tensors.items():
            kind, _, place = key.partition(".")
            if kind == "slices":
                number, _, dimension = place.partition(".")
                slices.setdefault(int(number), {})[int(dimension)] = rows
        octaves = {key: EagerOctaves(*rows) for key, rows in tensors.items() if key.startswith("octaves.")}
        return cls(
            outputs,
            tuple(json.loads(known["eager_rmse"])),
            tuple(
                ErrorSpread(error, slices.get(number, {}), octaves.get(f"octaves.{number}"))
                for number, error in enumerate(json.loads(known["eager_largest"]))
            ),
            known.get("computed_in", "float64"),
            tuple(json.loads(known.get("in_float32", "[]"))),
            _greedy(known, "greedy"),
            known.get("why_narrower", ""),
            _traits(known),
            tuple(tuple(getattr(torch, name) for name in each) for each in json.loads(known.get("types", "[]"))),
            _greedy(known, "first_greedy"),
            known.get("kept_at", ""),
        )


def _outputs_of(tensors: Mapping[str, torch.Tensor], known: Mapping[str, str]) -> tuple[Outputs, ...]:
    """Return the outputs of every input set from what a file holds."""
    complex_places, by_set = set(json.loads(known["complex"])), []
    for index, structure in enumerate(json.loads(known["structures"])):
        outputs, chosen = list[torch.Tensor](), {}
        while (place := f"{index}.{len(outputs)}") in tensors:
            if f"source.{place}" in tensors:
                chosen[len(outputs)] = Choice(tensors[f"source.{place}"], tensors[f"rows.{place}"])
            tensor = tensors[place]
            outputs.append(torch.view_as_complex(tensor) if place in complex_places else tensor)
        returned = with_structure(tuple(outputs), structure)
        by_set.append(with_choices(returned, chosen) if chosen else returned)
    return tuple(by_set)


def _greedy(metadata: Mapping[str, str], name: str) -> Greedy | None:
    return Greedy.from_json(metadata[name]) if name in metadata else None


def traits_in(path: Path) -> ModelTraits:
    """Return what the file of a reference says of the model, or no traits where there is no such file."""
    if not path.exists():
        return NO_TRAITS
    with safe_open(path, framework="pt") as file:
        return _traits(file.metadata())


def _traits(metadata: Mapping[str, str]) -> ModelTraits:
    return ModelTraits.model_validate_json(metadata["traits"]) if "traits" in metadata else NO_TRAITS


def with_answer(reference: Reference, answer: Outputs) -> Reference | None:
    """Return the reference of the first input set with a build's answer in place of the outputs, if they match."""
    first, *others = reference.outputs
    matched, problem = match([answer], [first], others)
    if problem:
        return None
    by_label = choices_of(first)
    values = (exact if own is None else own for own, exact in zip(matched[0], first, strict=True))
    choices = {number: by_label[label] for number, label in enumerate(labels(first)) if label in by_label}
    count = len(first) + len(choices)
    return replace(
        reference,
        outputs=(with_choices(with_structure(tuple(values), structure_of(first)), choices),),
        eager_rmse=reference.eager_rmse[:count],
        eager_spread=reference.eager_spread[:count],
        types=reference.types[:1],
    )


def check(
    outputs: Sequence[Outputs],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput] = (),
    left_out: Collection[str] = (),
    of_other_inputs: Sequence[Outputs] = (),
) -> Accuracy:
    """Compare the outputs of every input set with the reference's. `training_outputs` describe a training task's.

    Outputs whose labels are `left_out` may have any values, but not all of them may be left out. What the model returns
    `of_other_inputs` tells which numbers are constant.
    """
    matched, problem = match(outputs, reference.outputs, of_other_inputs)
    other = OtherTypes() if problem or training_outputs else other_types(matched, reference.outputs, reference.types)
    if other.kinds:
        problem = f"another type than eager's: {', '.join(other.kinds)}"
    if problem:
        return Accuracy(
            rmse=math.nan,
            relative_rmse=math.nan,
            max_abs_error=math.nan,
            eager_rmse=_worst(reference.eager_rmse),
            allclose=False,
            rtol=precision.rtol,
            atol=ABSOLUTE_TOLERANCE,
            passed=False,
            rule=problem,
            reference_kept_at=reference.kept_at,
        )
    errors = _errors(matched, reference.outputs, precision.rtol)
    checked = _checked_outputs(errors, reference, precision, training_outputs)
    if left_out:
        checked = [each for each in checked if not {each.errors.label, each.errors.of_indices} & set(left_out)]
        errors = [each.errors for each in checked]
    wrong = [each for each in checked if each.is_wrong]
    not_finite = _not_finite(errors)
    allclose = all(each.is_close for each in checked)
    # errors of whole numbers have no size, so they are shown only where there is nothing else
    shown = [each for each in checked if each.errors.values and not each.errors.is_whole] or checked
    judged = [each for each in shown if each.is_wrong or not each.is_unheld]
    passed = not not_finite and not wrong
    is_compared = any(each.values for each in errors) or not passed
    unchecked, others_compared = "" if is_compared else _why_nothing(reference), False
    lost = [each for each in judged if each.is_lost] if passed and not training_outputs else []
    if is_compared and lost:
        unchecked, others_compared = _why_lost(lost), len(lost) < len(judged)
        judged = [each for each in judged if not each.is_lost] or judged
    if unchecked:
        rule = f"{'not all' if others_compared else 'not'} compared: {unchecked}"
    elif passed:
        rule = f"at most {precision.max_times_eager_rmse:g}x eager's error"
        if allclose:  # of one that is rounding beside larger values only, its own share is told
            rule = max(shown, key=lambda each: each.worst_part).why_close
        choosing = [each.of_indices for each in errors if each.of_indices and each.values]
        rule += "".join(f"; other indices in {label}, which choose equal values" for label in choosing)
    elif not_finite:
        rule = not_finite
    else:
        worst = max(wrong, key=lambda each: each.excess)
        where = _worst_value(matched, reference.outputs, worst.errors.of_indices or worst.errors.label, worst.region)
        over = f" ({spell_times(worst.excess)} times the limit)" if math.isfinite(worst.excess) else ""
        rule = f"{worst.reason}; {where}{over}"
    return Accuracy(
        rmse=_worst([each.errors.rmse for each in shown]) if is_compared else math.nan,
        relative_rmse=max(each.relative_rmse for each in judged) if is_compared else math.nan,
        max_abs_error=max(each.errors.max_abs_error for each in shown) if is_compared else math.nan,
        eager_rmse=_worst([each.eager_rmse for each in shown]),
        eager_relative_rmse=max(each.eager_relative_rmse for each in judged) if is_compared else None,
        allclose=allclose,
        rtol=shown[0].rtol,
        atol=max(each.tolerance for each in shown),
        passed=passed,
        rule=rule,
        not_finite=sum(int((~torch.isfinite(each)).sum()) for outputs in reference.outputs for each in outputs),
        times_limit=max((each.excess for each in wrong), default=None),
        is_only_inexact=bool(wrong) and not not_finite,
        unchecked=unchecked,
        others_compared=others_compared,
        changes=sum(each.kind == "change" for each in training_outputs),
        changes_unheld=sum(each.is_unheld for each in checked),
        other_widths=list(other.widths),
        reference_kept_at=reference.kept_at,
    )


def _why_nothing(reference: Reference) -> str:
    has_elements = any(tensor.numel() for outputs in reference.outputs for tensor in outputs)
    return f"the model's own answers have no {'finite value' if has_elements else 'element'}"


def _why_lost(lost: Sequence[_CheckedOutput]) -> str:
    worst = max(lost, key=lambda each: each.eager_relative_rmse)
    error = f"{worst.eager_relative_rmse:.2g} times its own size off what float64 gives"
    return f"the answer depends on rounding, and eager's own {worst.errors.label} is {error}"


class EagerErrors(NamedTuple):
    """The RMSE of each of eager's outputs over all input sets, and how its error is spread."""

    rmse: tuple[float, ...]
    spread: tuple[ErrorSpread, ...]

    def or_larger(self, other: EagerErrors) -> EagerErrors:
        """Return the larger one of each error."""
        return EagerErrors(
            tuple(map(max, self.rmse, other.rmse)), tuple(map(ErrorSpread.or_larger, self.spread, other.spread))
        )

    def or_perturbed(self, perturbed: EagerErrors) -> EagerErrors:
        """Return the same with the larger error in each part, where the others are those of a perturbed model."""
        return self._replace(spread=tuple(map(ErrorSpread.or_perturbed, self.spread, perturbed.spread)))

    def or_of_sums(self, precision: Precision, length: int) -> EagerErrors:
        """Return the same, and at least the errors that sums of so many values count as having."""
        share = rounding_limits.error_of_sum(precision, length)
        spread = tuple(known.off_by(share) for known in self.spread)
        rmse = tuple(share * known.octaves.size if known.octaves else 0.0 for known in self.spread)
        return self.or_larger(EagerErrors(rmse, spread)) if share else self

    def differs_in_parts(self, precision: Precision) -> bool:
        """Return True if values of some magnitude or slice must be more exact than their output on the whole."""
        if precision not in rounding_limits.ROUNDING_UNITS:
            return False
        for rmse, spread in zip(self.rmse, self.spread, strict=True):
            if spread.octaves and (groups := spread.octaves.groups(spread.octaves.eager)):
                limit = rounding_limits.rmse_limit(precision, rmse, spread.octaves.size)
                of_parts = [groups.limits(precision, limit, rmse)]
                of_parts += [rounding_limits.usual_limits(precision, *rows) for rows in spread.slices.values()]
                if any(bool((limits < limit).any()) for limits in of_parts):
                    return True
        return False


def errors_of_eager(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> EagerErrors:
    """Compare eager's outputs of every input set with the reference's. Raise BakeoffError if they are not the same."""
    matched, problem = match(outputs, reference)
    if problem:
        raise BakeoffError(f"eager does not return the same in two types: {problem}")
    all_errors = _errors(matched, reference, 0.0)
    sizes = {errors.label: _SliceSums() for errors in all_errors}
    octaves = {errors.label: EagerOctaves.of(errors.by_octave) for errors in all_errors}
    for exact in reference:
        for label, tensor in zip(labels(exact), exact, strict=True):
            known = as_pairs(tensor).detach().to(torch.float64)
            known = torch.where(torch.isfinite(known), known, 0.0)
            octaves[label] = octaves[label].with_reference(known)
            sizes[label].add(known.square())
    spreads = []
    for errors in all_errors:
        slices = {
            dimension: torch.stack((rmse, sizes[errors.label].root_mean_squares[dimension])).cpu()
            for dimension, rmse in errors.slices.root_mean_squares.items()
        }
        of_output = None if errors.is_whole else octaves[errors.label]
        spreads.append(ErrorSpread(errors.max_abs_error, slices, of_output))
    return EagerErrors(tuple(errors.rmse for errors in all_errors), tuple(spreads))


class _SliceSums:
    """The sums of squares of the slices along each dimension, over all input sets. The last values of a dimension count
    for as many sets as have them."""

    def __init__(self) -> None:
        self._sums: dict[int, torch.Tensor] = {}
        self._counts: dict[int, torch.Tensor] = {}

    def add(self, squares: torch.Tensor, sets: int = 1) -> None:
        """Add the squares of an input set, or the sums over several sets of equal shapes."""
        # two passes over all values serve every dimension
        half = (squares.dim() + 1) // 2
        leading = squares.sum(list(range(half, squares.dim()))) if half < squares.dim() else squares
        trailing = squares.sum(list(range(half))) if half else squares
        for dimension, length in enumerate(squares.shape):
            if length < 2 or squares.numel() < MIN_SLICE_ELEMENTS * length:
                continue
            kept = leading if dimension < half else trailing
            place = dimension if dimension < half else dimension - half
            others = [each for each in range(kept.dim()) if each != place]
            sums = kept.sum(others) if others else kept
            counts = torch.full_like(sums, sets * squares.numel() / length)
            for known, new in ((self._sums, sums), (self._counts, counts)):
                known[dimension] = _added(known[dimension], new) if dimension in known else new

    @property
    def root_mean_squares(self) -> dict[int, torch.Tensor]:
        return {dimension: (sums / self._counts[dimension]).sqrt() for dimension, sums in self._sums.items()}


def _added(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the sum of two vectors, of which the shorter one ends in zeros."""
    longer, shorter = (first, second) if first.numel() >= second.numel() else (second, first)
    total = longer.clone()
    total[: shorter.numel()] += shorter
    return total


@dataclass
class _Errors:
    """The errors of one output over all input sets, in float64. Values that are not finite are counted apart.

    Complex numbers count as pairs. The error of a wrong whole number is 1, and so is the size of each.
    """

    label: str
    rtol: float
    is_whole: bool
    of_indices: str = ""  # the label of indices that choose these values
    values: int = 0
    squares: float = 0.0
    largest: float = 0.0
    largest_beyond_rtol: float = 0.0  # the largest excess of an error over what rtol allows: allclose bounds it
    reference_values: int = 0
    reference_squares: float = 0.0
    not_finite: int = 0  # infinite or NaN where the reference is finite
    not_finite_in_reference: int = 0  # finite where the reference is not
    not_finite_differently: int = 0  # neither is finite, and they differ
    slices: _SliceSums = field(default_factory=_SliceSums)
    by_octave: torch.Tensor = field(default_factory=lambda: torch.zeros((4, EXPONENTS), dtype=torch.float64))

    def add_all(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Compare the outputs of several input sets, small ones at once: that takes a fourth of the time."""
        pairs = [(as_pairs(ours).detach(), as_pairs(reference).detach()) for ours, reference in pairs]
        kinds = {(ours.shape, ours.dtype, reference.dtype) for ours, reference in pairs}
        if not self.is_whole and len(kinds) == 1 and 0 < sum(ours.numel() for ours, _ in pairs) <= PIECE_ELEMENTS:
            ours, reference = (torch.stack(each) for each in zip(*pairs, strict=True))
            self.slices.add(self._add_piece(ours, reference).sum(0), len(pairs))
            return
        for ours, reference in pairs:
            self.add(ours, reference)

    def add(self, ours: torch.Tensor, reference: torch.Tensor) -> None:
        """Compare on the device of `ours`, a piece at a time: outputs may fill most of it, and a host is slow."""
        ours, reference = as_pairs(ours).detach(), as_pairs(reference).detach()
        if self.is_whole:
            self._add_whole(ours, reference)
            return
        shape = ours.shape
        ours, reference = ours.reshape(-1), reference.reshape(-1)
        squares = torch.empty(ours.shape, dtype=torch.float64, device=ours.device)
        size = PIECE_ELEMENTS_ON_GPU if ours.is_cuda else PIECE_ELEMENTS
        for start in range(0, ours.numel(), size):
            piece = slice(start, start + size)
            squares[piece] = self._add_piece(ours[piece], reference[piece])
        self.slices.add(squares.view(shape))

    def _add_piece(self, ours: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """Add the errors of a piece, and return their squares."""
        reference = reference.to(ours.device, torch.float64)
        dtype, ours = ours.dtype, ours.to(torch.float64)
        is_known, is_finite = torch.isfinite(reference), torch.isfinite(ours)
        is_compared = is_known & is_finite
        error = torch.where(is_compared, ours - reference, 0.0).abs_()
        known = torch.where(is_known, reference, 0.0).abs_()
        is_same = is_compared | (ours == reference) | (torch.isnan(ours) & torch.isnan(reference))
        squared: torch.Tensor = error.square()
        self.by_octave = self.by_octave.to(ours.device) + errors_by_octave(known, error, dtype)
        sums = (
            is_compared.sum(),
            squared.sum(),
            error.max(),
            (error - self.rtol * known).max(),
            is_known.sum(),
            known.square().sum(),
            (is_known & ~is_finite).sum(),
            (is_finite & ~is_known).sum(),
            (~is_same).sum(),
        )
        # all in one transfer, because each transfer synchronises the device
        values, squares, largest, beyond, reference_values, reference_squares, ours_only, theirs_only, differing = (
            torch.stack([value.double() for value in sums]).tolist()
        )
        self.values += int(values)
        self.squares += squares
        self.largest = max(self.largest, largest)
        self.largest_beyond_rtol = max(self.largest_beyond_rtol, beyond)
        self.reference_values += int(reference_values)
        self.reference_squares += reference_squares
        self.not_finite += int(ours_only)
        self.not_finite_in_reference += int(theirs_only)
        self.not_finite_differently += int(differing - ours_only - theirs_only)
        return squared

    def _add_whole(self, ours: torch.Tensor, reference: torch.Tensor) -> None:
        exact = torch.float64 if ours.is_floating_point() else torch.int64
        wrong = int((ours.to(exact) != reference.to(ours.device, exact)).sum())
        self.values += ours.numel()
        self.reference_values += ours.numel()
        self.reference_squares += ours.numel()
        self.squares += wrong
        if wrong:
            self.largest, self.largest_beyond_rtol = 1.0, math.inf

    @property
    def is_finite_alike(self) -> bool:
        """True if what is not finite is the same in the output and in the reference."""
        return not (self.not_finite or self.not_finite_in_reference or self.not_finite_differently)

    @property
    def rmse(self) -> float:
        if not self.is_finite_alike:
            return math.inf
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    @property
    def reference_rms(self) -> float:
        """The root mean square of the reference."""
        return math.sqrt(self.reference_squares / self.reference_values) if self.reference_values else 0.0

    @property
    def max_abs_error(self) -> float:
        return self.largest if self.is_finite_alike else math.inf

    def are_close(self, atol: float) -> bool:
        """Return what torch.allclose says of all values."""
        return self.is_finite_alike and self.largest_beyond_rtol <= atol


def _errors(outputs: Sequence[Matched], reference: Sequence[Outputs], rtol: float) -> list[_Errors]:
    """Return the errors of each output. Input sets for which the model returns other outputs add their own."""
    by_label: dict[str, _Errors] = {}
    pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for ours, theirs in zip(outputs, reference, strict=True):
        chosen = choices_of(theirs)
        for label, value, expected in zip(labels(theirs), ours, theirs, strict=True):
            is_whole = not (expected.is_floating_point() or expected.is_complex())
            by_label.setdefault(label, _Errors(label, rtol, is_whole))
            if label in chosen:
                name = f"what {label} chooses"
                of_values = by_label.setdefault(name, _Errors(name, rtol, False, label))
                if value is not None and (pair := _chosen_values(chosen[label], value, expected)):
                    of_values.add(*pair)
                    value = expected
            if value is not None:
                pairs.setdefault(label, []).append((value, expected))
    for label, several in pairs.items():
        by_label[label].add_all(several)
    return list(by_label.values())


def _chosen_values(
    choice: Choice, ours: torch.Tensor, reference: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the values that our indices choose and those of the reference, if indices differ and all choose some."""
    is_whole = not (ours.is_floating_point() or ours.is_complex())
    if not is_whole or torch.equal(ours.cpu().to(torch.int64), reference.cpu().to(torch.int64)):
        return None
    values, expected = choice.values(ours, reference), choice.values(reference, reference)
    return None if values is None or expected is None else (values, expected)


def _not_finite(errors: Sequence[_Errors]) -> str:
    """Say how many values are not finite on one side only, or not in the same way, and on which side."""
    counts = {
        "value(s) not finite where the reference's are": sum(each.not_finite for each in errors),
        "value(s) finite where the reference's are infinite or NaN": sum(
            each.not_finite_in_reference for each in errors
        ),
        "value(s) infinite or NaN, but not as the reference's": sum(each.not_finite_differently for each in errors),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


@dataclass(frozen=True)
class _CheckedOutput:
    """One output with what it is measured by."""

    errors: _Errors
    eager_rmse: float
    yardstick: float  # the error is told relative to this
    excess: float  # how many times as large as its limit the error is; the largest such share if there are several
    reason: str  # why it is wrong, if it is
    is_close: bool  # as exact as the type can be expected to be
    why_close: str
    rtol: float
    tolerance: float  # the absolute one
    is_unheld: bool = False  # the type cannot hold the change, so nothing can be told of it
    worst_part: float = 0.0  # the relative RMSE of the worst slice, or of values that are far smaller than others
    region: Region | None = None  # that decided, if it is only a part

    @property
    def is_wrong(self) -> bool:
        return self.excess > 1

    @property
    def is_lost(self) -> bool:
        """Return True if zeros would pass, too, because eager's error is as large as the output."""
        return not self.is_close and self.eager_relative_rmse >= 1

    @property
    def relative_rmse(self) -> float:
        """The error that is shown: over all values, or in the worst channel or row, whichever is larger."""
        return max(self._relative(self.errors.rmse), self.worst_part)

    @property
    def eager_relative_rmse(self) -> float:
        return self._relative(self.eager_rmse)

    def _relative(self, rmse: float) -> float:
        return rmse / self.yardstick if self.yardstick else rmse


def _checked_outputs(
    errors: Sequence[_Errors], reference: Reference, precision: Precision, training_outputs: Sequence[TrainingOutput]
) -> list[_CheckedOutput]:
    if training_outputs or precision.is_quantised:
        return _checked_by_tolerances(errors, reference, precision, training_outputs)
    spreads = reference.eager_spread or [None] * len(errors)
    return [
        _checked_exactly(each, rmse, precision)
        if each.is_whole
        else _checked_by_rounding(each, rmse, spread, precision)
        for each, rmse, spread in zip(errors, reference.eager_rmse, spreads, strict=True)
    ]


def _checked_exactly(errors: _Errors, eager_rmse: float, precision: Precision) -> _CheckedOutput:
    """Check an output of whole numbers: as many may be wrong as of eager's, or some times as many."""
    # the square of whose RMSE is the share of wrong ones
    limit = min(math.sqrt(precision.max_times_eager_rmse) * eager_rmse, precision.max_relative_rmse)
    return _CheckedOutput(
        errors=errors,
        eager_rmse=eager_rmse,
        yardstick=1.0,
        excess=_share(errors.rmse, limit),
        reason=f"{errors.label}: {errors.squares:.0f} of {errors.values} whole numbers are wrong",
        is_close=not errors.squares,
        why_close="equal whole numbers",
        rtol=0.0,
        tolerance=0.0,
    )


def _checked_by_rounding(
    errors: _Errors, eager_rmse: float, spread: ErrorSpread | None, precision: Precision
) -> _CheckedOutput:
    """Check an output by the limits of rounding: over all, by slices, of the worst value, by magnitudes."""
    size = errors.reference_rms
    floor = rounding_limits.rounding_floor(precision, size)
    limit = rounding_limits.rmse_limit(precision, eager_rmse, size)
    times = f"{precision.max_times_eager_rmse:g}x"
    overall = f"rmse {errors.rmse:.2g}, eager's {eager_rmse:.2g}; neither rounding ({floor:.2g}) nor within {times}"
    checks: list[tuple[float, str, Region | None]] = [(_share(errors.rmse, limit), overall, None)]
    worst_part = 0.0
    if spread is not None:
        groups = spread.octaves.groups(errors.by_octave) if spread.octaves else None
        if groups is not None:
            limits = groups.limits(precision, limit, eager_rmse)
        for dimension, rmse in errors.slices.root_mean_squares.items():
            rmse = rmse.cpu()
            eager, sizes = spread.slices[dimension]
            as_large = groups.limits_at(sizes, limits, limit) if groups is not None else limit
            shares = rmse / rounding_limits.slice_limits(precision, as_large, eager, sizes)
            worst = int(shares.argmax())
            usual_sizes = sizes.clamp_min(float(sizes.median()))  # what is nearly zero may be far off by rounding
            worst_part = max(worst_part, float((rmse / usual_sizes)[usual_sizes > 0].max()) if size else 0.0)
            text = (
                f"rmse {rmse[worst]:.2g} at index {worst} of dimension {dimension}, "
                f"eager's {eager[worst]:.2g} there and {eager_rmse:.2g} overall"
            )
            checks.append((float(shares[worst]), text, partial(_in_slice, dimension, worst)))
        largest = _share(errors.largest, rounding_limits.value_limit(precision, limit, spread.largest))
        text = f"a value is off by {errors.largest:.2g}, eager's at most by {spread.largest:.2g}"
        checks.append((largest, text, None))
        if groups is not None:
            typical = groups.typical_ours / groups.typical_limits(precision, limit, eager_rmse)
            shares = groups.ours / limits
            for kind, those, ours, eager in (
                ("rmse", shares, groups.ours, groups.eager),
                ("typical error", typical, groups.typical_ours, groups.typical_eager),
            ):
                worst = int(those.argmax())
                text = (
                    f"{kind} {ours[worst]:.2g} of the values of {groups.range_of(worst)}, "
                    f"eager's {eager[worst]:.2g} there and {eager_rmse:.2g} overall"
                )
                checks.append((float(those[worst]), text, partial(_of_magnitude, *groups.ends_of(worst))))
            is_many = groups.counts >= MIN_SHOWN_SHARE * errors.reference_values
            is_shown = (shares > 1) | (typical > 1) | (is_many & (groups.sizes < FAR_SMALLER * size))
            worst_part = max(worst_part, *(groups.ours / groups.sizes)[is_shown].tolist(), 0.0)
    excess, reason, region = max(checks, key=lambda check: check[0])
    return _CheckedOutput(
        errors=errors,
        eager_rmse=eager_rmse,
        yardstick=size,
        excess=excess,
        reason=f"{errors.label}: {reason}",
        is_close=errors.rmse <= floor,
        why_close="no more than rounding" if worst_part <= rounding_limits.most_shown(precision) else BESIDE_LARGER,
        rtol=rounding_limits.ROUNDING_UNITS[precision] * precision.epsilon,
        tolerance=0.0 if size else floor,
        worst_part=worst_part,
        region=region,
    )


def _in_slice(dimension: int, index: int, exact: torch.Tensor) -> torch.Tensor:
    """Return where the slice of this index is. Another input set may have no such slice."""
    region = torch.zeros_like(exact, dtype=torch.bool)
    if index < exact.shape[dimension]:
        region.select(dimension, index).fill_(True)
    return region


def _of_magnitude(low: float, high: float, exact: torch.Tensor) -> torch.Tensor:
    return (exact.abs() >= low) & (exact.abs() < high)


def _share(error: float, limit: float) -> float:
    if limit > 0:
        return error / limit
    return math.inf if error > 0 else 0.0


def _checked_by_tolerances(
    errors: Sequence[_Errors], reference: Reference, precision: Precision, training_outputs: Sequence[TrainingOutput]
) -> list[_CheckedOutput]:
    """Check outputs of quantised precisions and of training: each value by tolerances, or the RMSE by eager's."""
    size_of_kind = _sizes_of_kinds(errors, training_outputs)
    checked = []
    for number, (each, eager_rmse) in enumerate(zip(errors, reference.eager_rmse, strict=True)):
        if each.is_whole:
            checked.append(_checked_exactly(each, eager_rmse, precision))
            continue
        label, yardstick, absolute = each.label, each.reference_rms, ABSOLUTE_TOLERANCE
        # an eager that overflows excuses nothing
        limit = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
        if each.reference_rms:  # zeros are no signal to compare noise with
            limit = min(limit, precision.max_relative_rmse * each.reference_rms)
        size, is_unheld = yardstick, False
        if training_outputs:
            output = training_outputs[number]
            label = str(output)
            yardstick = max(each.reference_rms, MIN_SIZE_SHARE * size_of_kind[output.kind])
            absolute = TRAINING_TOLERANCE * yardstick
            size = each.reference_rms if each.reference_rms > absolute else yardstick
            if eager_rmse < HELD_BELOW * size:
                limit = min(limit, MAX_TRAINING_ERROR * size)
            is_unheld = output.kind == "change" and 0 < HELD_BELOW * size <= eager_rmse < math.inf
        reason = (
            f"{label}: rmse {each.rmse:.2g}, eager's {eager_rmse:.2g}; "
            f"neither allclose nor within {precision.max_times_eager_rmse:g}x"
        )
        if limit < precision.max_times_eager_rmse * eager_rmse < math.inf:
            reason += f" and {limit / size:.2g} of the output"
        is_close = each.are_close(absolute)
        checked.append(
            _CheckedOutput(
                errors=each,
                eager_rmse=eager_rmse,
                yardstick=yardstick,
                excess=0.0 if is_close else _share(each.rmse, limit),
                reason=reason,
                is_close=is_close,
                why_close="allclose",
                rtol=precision.rtol,
                tolerance=absolute,
                is_unheld=is_unheld,
            )
        )
    return checked


def _worst_value(
    outputs: Sequence[Matched], reference: Sequence[Outputs], label: str, region: Region | None = None
) -> str:
    """Say where the output of this label is farthest from the reference, what came there and what was expected.

    Only a `region` counts, if it is given.
    """
    worst: tuple[float, str] = (-1.0, "")
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        pairs = {name: pair for name, *pair in zip(labels(theirs), ours, theirs, strict=True)}
        value, exact = pairs.get(label, (None, None))
        if value is None or exact is None or not value.numel():
            continue
        value, exact = as_pairs(value).detach().cpu(), as_pairs(exact).detach().cpu()
        error = (value.double() - exact.double()).abs().nan_to_num(0.0, 0.0)
        error = error if region is None else torch.where(region(exact), error, -1.0)
        place = torch.unravel_index(error.argmax(), error.shape)
        at = ", ".join(str(int(each)) for each in place)
        came, expected = (
            f"{each:.6g}" if isinstance(each, float) else each for each in (value[place].item(), exact[place].item())
        )
        text = f"worst at [{at}] of input set {index}: {came}, expected {expected}"
        if math.isclose(error[place].item(), math.tau, rel_tol=1e-4):
            text += ", which is 2π apart: if these are angles, they are the same"
        worst = max(worst, (float(error[place]), text), key=lambda each: each[0])
    return worst[1]


def _sizes_of_kinds(errors: Sequence[_Errors], training_outputs: Sequence[TrainingOutput]) -> dict[str, float]:
    """Return the root mean square over all outputs of each kind, each output counting once."""
    squares: dict[str, list[float]] = {}
    for each, output in zip(errors, training_outputs, strict=False):
        squares.setdefault(output.kind, []).append(each.reference_rms**2)
    return {kind: math.sqrt(statistics.fmean(each)) for kind, each in squares.items()}


def are_finite_alike(outputs: Sequence[Outputs], reference: Reference) -> bool:
    """Return True if outputs have no value that is not finite, or the reference has some, too."""

    def are_finite(sets: Sequence[Outputs]) -> bool:
        return all(bool(torch.isfinite(tensor).all()) for outputs in sets for tensor in outputs)

    return are_finite(outputs) or not are_finite(reference.outputs)


def _worst(rmses: Sequence[float]) -> float:
    """Return the largest, so that a large output's error does not hide a small one's."""
    return max(rmses, default=math.nan)
