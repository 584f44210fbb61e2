"""Is it right? Each cell's outputs are compared with the reference: the same model and inputs in float64.

docs/method.md has the rules, and `rounding_limits` the limits. What a build returns is first matched with what the
model returns (`matching`). For int8 and fp8, eager computes with rounded operands (`measuring.worker.simulation`), so
that no measured library matters. Three times its RMSE is allowed, as backends choose ranges in different ways, but no
more than `max_relative_rmse`. For training, the absolute tolerance is a share of the output's own size, because
gradients of a millionth are common. It is below the error of zeros, so that a missing gradient is found.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bakeoff.backends.training import TrainingOutput
from bakeoff.records.precision import ABSOLUTE_TOLERANCE, Precision
from bakeoff.records.schema import Accuracy
from bakeoff.records.text import spell_times
from bakeoff.truth import rounding_limits
from bakeoff.truth.errors import EagerErrors, ErrorSpread, OutputErrors, errors_of
from bakeoff.truth.matching import (
    Matched,
    OtherTypes,
    Outputs,
    as_pairs,
    labels,
    match,
    other_types,
)
from bakeoff.truth.reference import Reference

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

MIN_SHOWN_SHARE = 0.05
"""Of the values that are far smaller than the output's size, the error of so large a share is shown."""

FAR_SMALLER = 1e-3

BESIDE_LARGER = "of the worst part; no more than rounding beside larger values"

Region = Callable[["torch.Tensor"], "torch.Tensor"]
"""Returns which of the reference's values, as real numbers, decided the check of an output."""


def check(
    outputs: Sequence[Outputs],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput] = (),
    left_out: Collection[str] = (),
    of_other_inputs: Sequence[Outputs] = (),
) -> Accuracy:
    """Compare the outputs of every input set with the reference's. Outputs whose labels are `left_out` may have any
    values. Those `of_other_inputs` show which numbers are constant, and `training_outputs` describe training."""
    matched, problem = match(outputs, reference.outputs, of_other_inputs)
    other = OtherTypes() if problem or training_outputs else other_types(matched, reference.outputs, reference.types)
    if other.kinds:
        problem = f"another type than eager's: {', '.join(other.kinds)}"
    if problem:
        return Accuracy(
            rmse=math.nan,
            relative_rmse=math.nan,
            max_abs_error=math.nan,
            eager_rmse=max(reference.eager_rmse, default=math.nan),
            allclose=False,
            rtol=precision.rtol,
            atol=ABSOLUTE_TOLERANCE,
            passed=False,
            rule=problem,
            reference_kept_at=reference.kept_at,
        )
    errors = errors_of(matched, reference.outputs, precision.rtol)
    checked = _checked_outputs(errors, reference, precision, training_outputs)
    if left_out:
        checked = [output for output in checked if not {output.errors.label, output.errors.of_indices} & set(left_out)]
        errors = [output.errors for output in checked]
    wrong = [output for output in checked if output.is_wrong]
    counts = {
        "value(s) not finite where the reference's are": sum(error.not_finite for error in errors),
        "value(s) finite where the reference's are infinite or NaN": sum(
            error.not_finite_in_reference for error in errors
        ),
        "value(s) infinite or NaN, but not as the reference's": sum(error.not_finite_differently for error in errors),
    }
    not_finite = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    allclose = all(output.is_close for output in checked)
    # errors of whole numbers have no size, so they are shown only where there is nothing else
    shown = [output for output in checked if output.errors.values and not output.errors.is_whole] or checked
    judged = [output for output in shown if output.is_wrong or not output.is_unheld]
    passed = not not_finite and not wrong
    is_compared = any(error.values for error in errors) or not passed
    has_elements = any(tensor.numel() for outputs in reference.outputs for tensor in outputs)
    nothing = f"the model's own answers have no {'finite value' if has_elements else 'element'}"
    unchecked, others_compared = "" if is_compared else nothing, False
    lost = [output for output in judged if output.is_lost] if passed and not training_outputs else []
    if is_compared and lost:
        unchecked, others_compared = _why_lost(lost), len(lost) < len(judged)
        judged = [output for output in judged if not output.is_lost] or judged
    elif is_compared and passed and (parts := [output for output in judged if output.lost_part]):
        unchecked, others_compared = f"in {parts[0].errors.label}, {parts[0].lost_part}", True
    if unchecked:
        rule = f"{'not all' if others_compared else 'not'} compared: {unchecked}"
    elif passed:
        rule = f"at most {precision.max_times_eager_rmse:g}x eager's error"
        if allclose:  # of one that is rounding beside larger values only, its own share is told
            rule = max(shown, key=lambda each: each.worst_part).why_close
        choosing = [error.of_indices for error in errors if error.of_indices and error.values]
        rule += "".join(f"; other indices in {label}, which choose equal values" for label in choosing)
    elif not_finite:
        rule = not_finite
    else:
        worst = max(wrong, key=lambda each: each.excess)
        where = _worst_value(matched, reference.outputs, worst.errors.of_indices or worst.errors.label, worst.region)
        over = f" ({spell_times(worst.excess)} times the limit)" if math.isfinite(worst.excess) else ""
        rule = f"{worst.reason}; {where}{over}"
    return Accuracy(
        rmse=max(output.errors.rmse for output in shown) if is_compared else math.nan,
        relative_rmse=max(output.relative_rmse for output in judged) if is_compared else math.nan,
        overall_relative_rmse=max(output.overall_relative_rmse for output in judged) if is_compared else None,
        max_abs_error=max(output.errors.max_abs_error for output in shown) if is_compared else math.nan,
        eager_rmse=max(output.eager_rmse for output in shown),
        eager_relative_rmse=max(output.eager_relative_rmse for output in judged) if is_compared else None,
        allclose=allclose,
        rtol=shown[0].rtol,
        atol=max(output.tolerance for output in shown),
        passed=passed,
        rule=rule,
        not_finite=sum(int((~torch.isfinite(output)).sum()) for outputs in reference.outputs for output in outputs),
        times_limit=max((output.excess for output in wrong), default=None),
        is_only_inexact=bool(wrong) and not not_finite,
        unchecked=unchecked,
        others_compared=others_compared,
        changes=sum(training_output.kind == "change" for training_output in training_outputs),
        changes_unheld=sum(output.is_unheld for output in checked),
        other_widths=list(other.widths),
        reference_kept_at=reference.kept_at,
    )


def _why_lost(lost: Sequence[_CheckedOutput]) -> str:
    worst = max(lost, key=lambda each: each.eager_relative_rmse)
    error = f"{worst.eager_relative_rmse:.2g} times its own size off what float64 gives"
    return f"the answer depends on rounding, and eager's own {worst.errors.label} is {error}"


@dataclass(frozen=True)
class _CheckedOutput:
    errors: OutputErrors
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
    lost_part: str = ""  # which values have an error that is small beside others alone

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
        return max(self.overall_relative_rmse, self.worst_part)

    @property
    def overall_relative_rmse(self) -> float:
        return self._relative(self.errors.rmse)

    @property
    def eager_relative_rmse(self) -> float:
        return self._relative(self.eager_rmse)

    def _relative(self, rmse: float) -> float:
        return rmse / self.yardstick if self.yardstick else rmse


def _checked_outputs(
    errors: Sequence[OutputErrors],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput],
) -> list[_CheckedOutput]:
    if training_outputs or precision.is_quantised:
        return _checked_by_tolerances(errors, reference, precision, training_outputs)
    spreads = reference.eager_spread or [None] * len(errors)
    return [
        _checked_exactly(each, rmse, precision)
        if each.is_whole
        else _checked_by_rounding(
            each, rmse, spread, precision, reference.longest_sum_of(each.of_indices or each.label)
        )
        for each, rmse, spread in zip(errors, reference.eager_rmse, spreads, strict=True)
    ]


def _checked_exactly(errors: OutputErrors, eager_rmse: float, precision: Precision) -> _CheckedOutput:
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
    errors: OutputErrors, eager_rmse: float, spread: ErrorSpread | None, precision: Precision, longest_sum: int
) -> _CheckedOutput:
    size = errors.reference_rms
    floor = rounding_limits.rounding_floor(precision, size)
    eager = allowed = EagerErrors((eager_rmse,), (spread,) if spread is not None else ())
    if spread is not None:
        allowed = eager.or_of_sums(precision, longest_sum)
    allowed_rmse = allowed.rmse[0]
    of_sums = (
        f"; {allowed_rmse:.2g} counts as eager's in sums of {longest_sum:,} values" if allowed is not eager else ""
    )
    limit = rounding_limits.rmse_limit(precision, allowed_rmse, size)
    times = f"{precision.max_times_eager_rmse:g}x"
    overall = f"rmse {errors.rmse:.2g}, eager's {eager_rmse:.2g}; neither rounding ({floor:.2g}) nor within {times}"
    checks: list[tuple[float, str, Region | None]] = [(_share(errors.rmse, limit), overall, None)]
    worst_part, lost_part = 0.0, ""
    if spread is not None:
        own_groups = spread.octaves.groups(errors.by_octave) if spread.octaves else None
        octaves = allowed.spread[0].octaves
        groups = octaves.groups(errors.by_octave) if octaves else None
        if groups is not None:
            limits = groups.limits(precision, limit, allowed_rmse)
        for dimension, rmse in errors.slices.root_mean_squares.items():
            rmse = rmse.cpu()
            of_eager, sizes = spread.slices[dimension]
            as_large = groups.limits_at(sizes, limits, limit) if groups is not None else limit
            shares = rmse / rounding_limits.slice_limits(precision, as_large, *allowed.spread[0].slices[dimension])
            worst = int(shares.argmax())
            # what is nearly zero, or what eager loses, may be far off by rounding
            usual_sizes = sizes.clamp_min(float(sizes.median())).maximum(of_eager)
            worst_part = max(worst_part, float((rmse / usual_sizes)[usual_sizes > 0].max()) if size else 0.0)
            text = (
                f"rmse {rmse[worst]:.2g} at index {worst} of dimension {dimension}, "
                f"eager's {of_eager[worst]:.2g} there and {eager_rmse:.2g} overall"
            )
            checks.append((float(shares[worst]), text, partial(_in_slice, dimension, worst)))
        largest = _share(errors.largest, rounding_limits.value_limit(precision, limit, allowed.spread[0].largest))
        text = f"a value is off by {errors.largest:.2g}, eager's at most by {spread.largest:.2g}"
        checks.append((largest, text, None))
        if groups is not None and own_groups is not None:
            typical = groups.typical_ours / groups.typical_limits(precision, limit, allowed_rmse)
            shares = groups.ours / limits
            for kind, those, ours, of_eager in (
                ("rmse", shares, groups.ours, own_groups.eager),
                ("typical error", typical, groups.typical_ours, own_groups.typical_eager),
            ):
                worst = int(those.argmax())
                text = (
                    f"{kind} {ours[worst]:.2g} of the values of {groups.range_of(worst)}, "
                    f"eager's {of_eager[worst]:.2g} there and {eager_rmse:.2g} overall"
                )
                checks.append((float(those[worst]), text, partial(_of_magnitude, *groups.ends_of(worst))))
            is_many = groups.counts >= MIN_SHOWN_SHARE * errors.reference_values
            is_small = is_many & (groups.sizes < FAR_SMALLER * size)
            is_shown = (shares > 1) | (typical > 1) | is_small
            hidden = (rounding_limits.MAX_ABSOLUTE_SHARE * groups.sizes).maximum(100 * own_groups.eager)
            is_lost = is_small & (groups.ours > hidden)
            for number in is_lost.nonzero().flatten().tolist():
                lost_part = f"values of {groups.range_of(number)} are only as exact as far larger ones"
            of_sizes = groups.ours / groups.sizes.maximum(own_groups.eager)
            worst_part = max(worst_part, *of_sizes[is_shown].tolist(), 0.0)
    excess, reason, region = max(checks, key=lambda check: check[0])
    return _CheckedOutput(
        errors=errors,
        eager_rmse=eager_rmse,
        yardstick=size,
        excess=excess,
        reason=f"{errors.label}: {reason}{of_sums}",
        is_close=errors.rmse <= floor,
        why_close="no more than rounding"
        if worst_part * size <= rounding_limits.VALUE_MARGIN * floor
        else BESIDE_LARGER,
        rtol=rounding_limits.ROUNDING_UNITS[precision] * precision.epsilon,
        tolerance=0.0 if size else floor,
        worst_part=worst_part,
        region=region,
        lost_part=lost_part,
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
    errors: Sequence[OutputErrors],
    reference: Reference,
    precision: Precision,
    training_outputs: Sequence[TrainingOutput],
) -> list[_CheckedOutput]:
    squares: dict[str, list[float]] = {}
    for each, output in zip(errors, training_outputs, strict=False):
        squares.setdefault(output.kind, []).append(each.reference_rms**2)
    size_of_kind = {kind: math.sqrt(statistics.fmean(each)) for kind, each in squares.items()}
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
        is_close = each.is_finite_alike and each.largest_beyond_rtol <= absolute
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
    """Say where the output of this label is farthest from the reference, what came there and what was expected. Only a
    `region` counts, if it is given."""
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
