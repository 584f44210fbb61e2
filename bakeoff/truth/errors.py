"""Measures the errors of outputs: over all values, in slices along each dimension, by magnitude, and the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bakeoff.truth.choices import Choice
from bakeoff.truth.magnitudes import EXPONENTS, errors_by_octave
from bakeoff.truth.matching import Matched, as_pairs, choices_of, labels

Outputs = tuple["torch.Tensor", ...]

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
class OutputErrors:
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
    slices: SliceSums = field(default_factory=SliceSums)
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


def errors_of(outputs: Sequence[Matched], reference: Sequence[Outputs], rtol: float) -> list[OutputErrors]:
    """Return the errors of each output. Input sets for which the model returns other outputs add their own."""
    by_label: dict[str, OutputErrors] = {}
    pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for ours, theirs in zip(outputs, reference, strict=True):
        chosen = choices_of(theirs)
        for label, value, expected in zip(labels(theirs), ours, theirs, strict=True):
            is_whole = not (expected.is_floating_point() or expected.is_complex())
            by_label.setdefault(label, OutputErrors(label, rtol, is_whole))
            if label in chosen:
                name = f"what {label} chooses"
                of_values = by_label.setdefault(name, OutputErrors(name, rtol, False, label))
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
