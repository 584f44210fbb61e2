"""Measures errors of outputs, those of builds and eager's own, and whether rounding explains how far eager is off.

An error is known over all values, in slices along each dimension, by magnitude, and as the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from bakeoff.records.errors import BakeoffError
from bakeoff.records.precision import Precision
from bakeoff.records.text import counted
from bakeoff.truth import matching, rounding_limits
from bakeoff.truth.calls import is_inexact
from bakeoff.truth.choices import Choice
from bakeoff.truth.magnitudes import EXPONENTS, EagerOctaves, errors_by_octave
from bakeoff.truth.matching import Outputs, as_pairs, labels

UNUSUAL_ERRORS = {Precision.FP32: 1e-4, Precision.BF16: 0.1, Precision.FP16: 0.1}
"""A larger error of eager relative to float64 must be explained. In float32 it is 1e3 times that of one operation."""

MAX_ROUNDING = 1e-2
"""An error of float32 relative to float64 with which the answer is told to be lost to rounding."""

MIN_EXPLAINED_SHARE = 0.1
"""Rounding explains an error if noise of about a rounding moves the answer by at least this share of it."""

MIN_WHOLE_NUMBERS = 512
"""Of so many whole numbers of one output, rounding may well move one over an edge, such as a pixel of a picture."""

MAX_FLIPPED_SHARE = 1e-2
"""If rounding moves more of an output's whole numbers, it decides what the answer is, and does not blur its edges."""

MIN_SLICE_ELEMENTS = 4
"""The RMSE of a slice of fewer values means no more than the largest error does."""

PIECE_ELEMENTS = 2**18
"""So many elements are compared at once: the intermediate results then stay in a CPU's cache, which is four times as
fast."""

PIECE_ELEMENTS_ON_GPU = 2**20
"""There each piece is a copy and a dozen kernels, and its intermediate results take 100 MB."""


class SliceSums:
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
            others = [axis for axis in range(kept.dim()) if axis != place]
            sums = kept.sum(others) if others else kept
            counts = torch.full_like(sums, sets * squares.numel() / length)
            for known, new in ((self._sums, sums), (self._counts, counts)):
                if dimension in known:
                    longer, shorter = sorted((known[dimension], new), key=len, reverse=True)
                    new = longer.clone()
                    new[: len(shorter)] += shorter
                known[dimension] = new

    @property
    def root_mean_squares(self) -> dict[int, torch.Tensor]:
        return {dimension: (sums / self._counts[dimension]).sqrt() for dimension, sums in self._sums.items()}


@dataclass
class OutputErrors:
    """The errors of one output over all input sets, in float64. Complex numbers count as pairs. The error of a wrong
    whole number is 1, and so is the size of each."""

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
    slices: SliceSums = field(default_factory=SliceSums)
    by_octave: torch.Tensor = field(default_factory=lambda: torch.zeros((4, EXPONENTS), dtype=torch.float64))

    def add_all(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Compare the outputs of several input sets, small ones at once: that takes a fourth of the time."""
        pairs = [(as_pairs(ours).detach(), as_pairs(reference).detach()) for ours, reference in pairs]
        kinds = {(ours.shape, ours.dtype, reference.dtype) for ours, reference in pairs}
        if not self.is_whole and len(kinds) == 1 and 0 < sum(ours.numel() for ours, _ in pairs) <= PIECE_ELEMENTS:
            ours, reference = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
            self.slices.add(self._add_piece(ours, reference).sum(0), len(pairs))
            return
        for ours, reference in pairs:
            self.add(ours, reference)

    def add(self, ours: torch.Tensor, reference: torch.Tensor) -> None:
        """Compare on the device of `ours`, a piece at a time: outputs may fill most of it, and a host is slow."""
        ours, reference = as_pairs(ours).detach(), as_pairs(reference).detach()
        if self.is_whole:
            exact = torch.float64 if ours.is_floating_point() else torch.int64
            wrong = int((ours.to(exact) != reference.to(ours.device, exact)).sum())
            self.values += ours.numel()
            self.reference_values += ours.numel()
            self.reference_squares += ours.numel()
            self.squares += wrong
            if wrong:
                self.largest, self.largest_beyond_rtol = 1.0, math.inf
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

    @property
    def is_finite_alike(self) -> bool:
        return not (self.not_finite or self.not_finite_in_reference or self.not_finite_differently)

    @property
    def rmse(self) -> float:
        if not self.is_finite_alike:
            return math.inf
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    @property
    def reference_rms(self) -> float:
        return math.sqrt(self.reference_squares / self.reference_values) if self.reference_values else 0.0

    @property
    def max_abs_error(self) -> float:
        return self.largest if self.is_finite_alike else math.inf


def errors_of(outputs: Sequence[matching.Matched], reference: Sequence[Outputs], rtol: float) -> list[OutputErrors]:
    """Return the errors of each output. Input sets for which the model returns other outputs add their own."""
    by_label: dict[str, OutputErrors] = {}
    pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for ours, theirs in zip(outputs, reference, strict=True):
        chosen = matching.choices_of(theirs)
        for label, value, expected in zip(labels(theirs), ours, theirs, strict=True):
            by_label.setdefault(label, OutputErrors(label, rtol, not is_inexact(expected)))
            if label in chosen:
                name = f"what {label} chooses"
                chooses_whole = not is_inexact(chosen[label].source)
                of_values = by_label.setdefault(name, OutputErrors(name, rtol, chooses_whole, label))
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
    if is_inexact(ours) or torch.equal(ours.cpu().to(torch.int64), reference.cpu().to(torch.int64)):
        return None
    values, expected = choice.values(ours, reference), choice.values(reference, reference)
    return None if values is None or expected is None else (values, expected)


Combine = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class ErrorSpread:
    """How eager's error of one output is spread: its largest one, and for the slices along each dimension two rows, the
    RMSE of each slice and the root mean square of its reference."""

    largest: float
    slices: Mapping[int, torch.Tensor]
    octaves: EagerOctaves | None = None  # None: whole numbers

    def or_larger(self, other: ErrorSpread) -> ErrorSpread:
        return replace(self._with(torch.maximum, other), largest=max(self.largest, other.largest))

    def _with(self, combine: Combine, other: ErrorSpread) -> ErrorSpread:
        """Return the errors in each part, combined with those of another witness. The sizes are the same in both."""
        slices = {dimension: combine(rows, other.slices[dimension]) for dimension, rows in self.slices.items()}
        octaves = self.octaves
        if octaves is not None and other.octaves is not None:
            octaves = EagerOctaves(*map(combine, octaves, other.octaves))
        return replace(self, slices=slices, octaves=octaves)

    def off_by(self, share: float) -> ErrorSpread:
        """Return the same with errors of this share of each real number."""
        if self.octaves is None:
            return self
        slices = {dimension: torch.stack((share * sizes, sizes)) for dimension, (_, sizes) in self.slices.items()}
        return ErrorSpread(share * self.octaves.size, slices, self.octaves.off_by(share))

    def or_perturbed(self, perturbed: ErrorSpread, only_parts: bool = True) -> ErrorSpread:
        """Return the same with the larger error in each part, where the other one is that of a perturbed model."""
        if not (self.octaves and perturbed.octaves):
            return self
        most = self.off_by(rounding_limits.MAX_PERTURBED_SHARE)
        limited = perturbed._with(torch.minimum, most)
        if only_parts:
            return self._with(torch.maximum, limited)
        # small values may be lost beside larger ones
        largest = min(perturbed.largest, most.largest)
        return self.or_larger(replace(limited, octaves=perturbed.octaves, largest=largest))


class EagerErrors(NamedTuple):
    """The RMSE of each of eager's outputs over all input sets, and how its error is spread."""

    rmse: tuple[float, ...]
    spread: tuple[ErrorSpread, ...]

    def or_larger(self, other: EagerErrors) -> EagerErrors:
        return EagerErrors(
            tuple(map(max, self.rmse, other.rmse)), tuple(map(ErrorSpread.or_larger, self.spread, other.spread))
        )

    def or_perturbed(self, perturbed: EagerErrors, only_parts: bool = True) -> EagerErrors:
        """Return the same with the larger error on the whole, up to a share of the size, and in each part, where the
        others are those of a perturbed model. `only_parts` is for models in which something may jump."""
        parts = tuple(
            own.or_perturbed(other, only_parts) for own, other in zip(self.spread, perturbed.spread, strict=True)
        )
        if only_parts:
            return self._replace(spread=parts)

        def rmse(own: float, other: float, spread: ErrorSpread) -> float:
            size = spread.octaves.size if spread.octaves and math.isfinite(other) else 0.0
            return max(own, min(other, rounding_limits.MAX_PERTURBED_SHARE * size))

        return EagerErrors(tuple(map(rmse, self.rmse, perturbed.rmse, self.spread)), parts)

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

    def is_far_off_by_chance(self, precision: Precision) -> bool:
        """Return True if some slices are far more off than half of them: which ones are, differs from run to run."""
        if precision not in rounding_limits.ROUNDING_UNITS:
            return False
        slices = (rows for spread in self.spread for rows in spread.slices.values())
        return any(bool((own > rounding_limits.usual_limits(precision, own, sizes)).any()) for own, sizes in slices)


def errors_of_eager(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> EagerErrors:
    """Compare eager's outputs of every input set with the reference's. Raise BakeoffError if they are not the same."""
    matched, problem = matching.match(outputs, reference)
    if problem:
        raise BakeoffError(f"the model returns other things in the type of this cell than in a wider one: {problem}")
    all_errors = errors_of(matched, reference, 0.0)
    sizes = {errors.label: SliceSums() for errors in all_errors}
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


def yardsticks(eager: Sequence[Outputs], exact: Sequence[Outputs], rounding_decides: bool) -> EagerErrors:
    if not rounding_decides:
        return errors_of_eager(eager, exact)

    # Moving values by one rounding then gives other shapes, whole numbers and places of NaN, which are no errors.
    def alike(_: str, exact_value: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if value.shape != exact_value.shape or not is_inexact(exact_value):
            return exact_value
        return torch.where(torch.isfinite(value) == torch.isfinite(exact_value), value, exact_value.to(value.dtype))

    pairs = zip(eager, exact, strict=True)
    moved = [matching.combined(theirs, ours, alike) if len(ours) == len(theirs) else theirs for ours, theirs in pairs]
    return errors_of_eager(moved, exact)


def decided_by_rounding(eager: Sequence[Outputs], exact: Sequence[Outputs], precision: Precision) -> str:
    """Return which shapes, whole numbers or places of finite values differ between eager and float64, or nothing. Where
    they differ, float64 is no reference."""
    for ours, theirs in zip(eager, exact, strict=True):
        chosen = matching.choices_of(theirs)  # indices of equal values are the same
        for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            is_choice = labels(theirs)[place] in chosen and one.shape == other.shape
            # Rounding to 8 or 4 bits may change every value, but no shape.
            if not is_choice and (difference := _of_other_kind(one, other, only_shapes=precision.is_quantised)):
                return f"output {place} {difference} in {precision} and in float64"
        if len(ours) != len(theirs):
            return f"{counted(len(ours), 'output')} in {precision}, and {len(theirs)} in float64"
    return ""


def far_from_float64(eager: Sequence[Outputs], exact: Sequence[Outputs], precision: Precision, most: float = 0) -> str:
    """Return how far eager's values are from float64's if that is more than `most` or else than usual, or nothing."""
    # Types that round only the operands of some operators are not judged by this.
    most = most or UNUSUAL_ERRORS.get(precision, math.inf)
    for ours, theirs in zip(eager, exact, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if (error := _relative_error(one, other)) > most:
                return f"output {place} in {precision} is {error:.2g} times its own size off what float64 gives"
    return ""


def is_explained_by_rounding(
    eager: Sequence[Outputs], exact: Sequence[Outputs], noisy: Sequence[Sequence[Outputs]], precision: Precision
) -> bool:
    """Return True if rounding noise moves eager's values about as far as they are from float64's, where that is far. If
    not, float64 is no reference: it draws other random numbers, or the model asks for the type."""
    most = UNUSUAL_ERRORS.get(precision, math.inf)
    return all(
        any(_moves_so_far(one, run[number], place, MIN_EXPLAINED_SHARE * _distance(one, other)) for run in noisy)
        for number, (ours, theirs) in enumerate(zip(eager, exact, strict=True))
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True))
        if _relative_error(one, other) > most
    )


def _moves_so_far(value: torch.Tensor, moved: Outputs, place: int, distance: float) -> bool:
    return len(moved) <= place or moved[place].shape != value.shape or _distance(value, moved[place]) >= distance


def _of_other_kind(value: torch.Tensor, other: torch.Tensor, only_shapes: bool) -> str:
    if value.shape != other.shape:
        return f"has other shapes, {tuple(value.shape)} and {tuple(other.shape)},"
    if only_shapes:
        return ""
    if not is_inexact(value):
        changed = int((value != other.to(value.dtype)).sum()) if value.numel() else 0
        return f"has {changed} of {value.numel()} whole numbers different" if changed else ""
    if value.element_size() > 2 and not torch.equal(torch.isfinite(value), torch.isfinite(other)):
        return "is not finite at the same places"
    return ""


def _relative_error(value: torch.Tensor, other: torch.Tensor) -> float:
    size = _distance(torch.zeros_like(other), other)
    return _distance(value, other) / size if size else 0.0


def _distance(value: torch.Tensor, other: torch.Tensor) -> float:
    if not is_inexact(value):
        return 0.0
    wide = torch.complex128 if value.is_complex() else torch.float64
    known = torch.isfinite(value) & torch.isfinite(other)
    return float((value.to(wide)[known] - other.to(wide)[known]).abs().square().sum().sqrt())


def within_float32(exact: tuple[Outputs, ...], eager: Sequence[Outputs]) -> tuple[Outputs, ...]:
    """Return the reference with eager's values where it leaves the range of float32, as `finfo(x.dtype).min` does. The
    reference itself comes back if it stays within that range."""
    largest = torch.finfo(torch.float32).max

    def is_beyond(value: torch.Tensor) -> torch.Tensor:
        return value.isfinite() & (value.abs() > largest)

    def within(_: str, value: torch.Tensor, of_eager: torch.Tensor) -> torch.Tensor:
        is_double = value.dtype is torch.float64 and value.shape == of_eager.shape
        return torch.where(is_beyond(value), of_eager.to(value), value) if is_double else value

    if not any(value.dtype is torch.float64 and is_beyond(value).any() for values in exact for value in values):
        return exact
    pairs = zip(exact, eager, strict=True)
    return tuple(matching.combined(*pair, within) if len(pair[0]) == len(pair[1]) else pair[0] for pair in pairs)


def with_varying(
    outputs: Sequence[Outputs], drawn: Sequence[Outputs], varying: Sequence[str]
) -> tuple[Outputs, ...] | None:
    """Return the outputs with those that vary from `drawn`, or None if they are not the same ones."""

    def chosen(label: str, value: torch.Tensor, drawn_value: torch.Tensor) -> torch.Tensor:
        return drawn_value if label in varying else value

    if any(labels(ours) != labels(theirs) for ours, theirs in zip(outputs, drawn, strict=True)):
        return None
    return tuple(matching.combined(*pair, chosen) for pair in zip(outputs, drawn, strict=True))
