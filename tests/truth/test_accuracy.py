"""Outputs are compared with the reference by magnitude, by choice or by distribution, and are right or wrong."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from bakeoff.backends.calling import Returned
from bakeoff.backends.training import TrainingOutput
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy
from bakeoff.truth.accuracy import BESIDE_LARGER, Outputs, check
from bakeoff.truth.calls import run_eager
from bakeoff.truth.distribution import CALLS, FALSE_ALARM, difference
from bakeoff.truth.errors import ErrorSpread, errors_of_eager
from bakeoff.truth.magnitudes import EXPONENTS, EagerOctaves, Groups, errors_by_octave
from bakeoff.truth.reference import Reference
from tests.support.modules import Calling

EXACT = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
EAGER_RMSE = 0.1
"""Far over what allclose grants, so that only the comparison with eager can let a cell pass."""


def off_by(rmse: float, exact: torch.Tensor = EXACT) -> torch.Tensor:
    """Values whose RMSE to `exact` is just `rmse`."""
    return exact + rmse * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(exact.numel() // 2)


def checked(
    *outputs: torch.Tensor,
    reference: Outputs = (EXACT,),
    eager: tuple[float, ...] = (0.0,),
    precision: str = "fp32",
) -> Accuracy:
    return check([tuple(outputs)], Reference((reference,), eager), Precision(precision))


def with_values(*values: float) -> torch.Tensor:
    """Return the exact values, of which these stand in the place of some."""
    changed = EXACT.clone()
    changed[3 : 3 + len(values)] = torch.tensor(values, dtype=torch.float64)
    return changed


ZEROS, EMPTY = torch.zeros(64, dtype=torch.float64), torch.empty(0, 3, dtype=torch.float64)
NUMBERS = torch.arange(10)
ROUNDED = "no more than rounding"


@pytest.mark.parametrize(
    ("ours", "exact", "eager", "precision", "passed", "rule"),
    [
        ([EXACT.float()], [EXACT], 0.0, "fp32", True, ROUNDED),
        ([EXACT.bfloat16()], [EXACT], 0.0, "bf16", True, ROUNDED),
        ([EXACT * (1 + 5e-4)], [EXACT], 0.0, "fp32", False, "output 0: rmse"),
        ([EXACT * (1 + 5e-4)], [EXACT], 0.0, "fp16", True, ROUNDED),
        ([ZEROS + 0.2], [ZEROS], 0.1, "int8", True, "at most 3x eager's error"),
        ([ZEROS + 0.4], [ZEROS], 0.1, "int8", False, "output 0: rmse"),
        ([EXACT], [with_values(math.nan)], 10.0, "fp32", False, "1 value(s) finite where the reference's are infinite"),
        ([with_values(-math.inf)], [with_values(math.inf)], 10.0, "fp32", False, ""),
        ([with_values(math.nan, -math.inf).float()], [with_values(math.nan, -math.inf)], 0.0, "fp32", True, ROUNDED),
        ([with_values(math.nan)], [EXACT], math.inf, "fp32", False, "1 value(s) not finite where the reference's are"),
        ([EXACT + 1000.0], [EXACT], math.inf, "fp32", False, ""),  # eager that is not finite excuses nothing
        ([], [EXACT], 0.0, "fp32", False, "0 outputs where the model has 1: output 0 is missing"),
        ([EXACT, EXACT], [EXACT], 0.0, "fp32", False, "2 outputs where the model has 1: output 1 is not the model's"),
        ([EXACT.reshape(8, 8)], [EXACT], 0.0, "fp32", False, "output 0 of input set 0 has shape (8, 8), not (64,)"),
        ([NUMBERS.int()], [NUMBERS], 0.0, "fp32", True, "equal whole numbers"),
        ([NUMBERS + (NUMBERS == 4)], [NUMBERS], 0.0, "fp32", False, ""),
        ([EMPTY.float(), EXACT], [EMPTY, EXACT], 0.0, "fp32", True, ROUNDED),
        ([EMPTY.float()], [EMPTY], 0.0, "fp32", True, "not compared: the model's own answers have no element"),
    ],
)
def test_an_output_is_right_or_wrong_by_a_rule(
    ours: list[torch.Tensor], exact: list[torch.Tensor], eager: float, precision: str, passed: bool, rule: str
) -> None:
    found = checked(*ours, reference=tuple(exact), eager=(eager,) * len(exact), precision=precision)
    assert found.passed is passed and rule in found.rule
    if "finite" in rule:
        assert found.rmse == math.inf


@pytest.mark.parametrize(
    ("precision", "factor"), [("fp32", 4), ("tf32", 2), ("bf16", 3), ("fp16", 3), ("int8", 3), ("fp8", 3)]
)
def test_an_error_of_some_times_eagers_passes_and_a_larger_one_fails(precision: str, factor: int) -> None:
    assert Precision(precision).max_times_eager_rmse == factor
    below = checked(off_by(0.999 * factor * EAGER_RMSE), eager=(EAGER_RMSE,), precision=precision)
    above = checked(off_by(1.001 * factor * EAGER_RMSE), eager=(EAGER_RMSE,), precision=precision)
    assert below.passed and not below.allclose and below.rule == f"at most {factor}x eager's error"
    assert not above.passed and f"within {factor}x" in above.rule


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_noise_of_a_tenth_of_the_signals_power_fails_for_every_model(
    precision: str,
) -> None:
    root_mean_square = float(EXACT.square().mean().sqrt())
    below = checked(off_by(0.315 * root_mean_square), eager=(10.0,), precision=precision)
    above = checked(off_by(0.317 * root_mean_square), eager=(10.0,), precision=precision)
    assert below.passed
    assert not above.passed and "nor within 3x and 0.32 of the output; worst at" in above.rule
    assert not checked(torch.zeros_like(EXACT), eager=(10.0,), precision=precision).passed
    assert checked(off_by(0.317 * root_mean_square), eager=(10.0,), precision="bf16").passed


@pytest.mark.parametrize("precision", Precision)
def test_the_rule_of_every_precision_can_fail(precision: str) -> None:
    right = checked(EXACT, eager=(1e-9,), precision=precision)
    wrong = checked(EXACT.flip(0), eager=(1e-9,), precision=precision)
    assert right.passed and not wrong.passed


def test_the_error_is_given_in_three_ways() -> None:
    accuracy = checked(off_by(0.5), eager=(EAGER_RMSE,))
    assert accuracy.rmse == pytest.approx(0.5)
    assert accuracy.max_abs_error == pytest.approx(0.5)
    assert accuracy.relative_rmse == pytest.approx(0.5 / float(EXACT.square().mean().sqrt()))
    assert accuracy.eager_rmse == EAGER_RMSE


SIZE = float(EXACT.square().mean().sqrt())
KINDS: tuple[Literal["gradient", "change"], ...] = ("gradient", "change")
OUTPUTS = (
    TrainingOutput("loss"),
    *(TrainingOutput(kind, name) for kind in KINDS for name in ("a", "b")),
)


def trained(change_a: float, change_b: float, eager_a: float, eager_b: float, gradient: float = 0.0) -> Accuracy:
    """The check of a step in bfloat16 whose gradients' and changes' errors are such shares of what they should be; and
    so are eager's, of whose gradients half is wrong."""
    exact = (EXACT,) * 5
    eager = tuple(SIZE * share for share in (0.0, 0.5, 0.5, eager_a, eager_b))
    ours = tuple(off_by(SIZE * share) for share in (0.0, gradient, 0.0, change_a, change_b))
    return check([ours], Reference((exact,), eager), Precision.BF16, OUTPUTS)


@pytest.mark.parametrize("eager", [0.34, 0.5, 0.89])
def test_zeros_are_wrong_where_eager_is_much_better_than_zeros(eager: float) -> None:
    assert trained(0.94, 0.0, eager, 0.0).passed
    nothing = trained(1.0, 0.0, eager, 0.0)
    assert not nothing.passed and nothing.relative_rmse == pytest.approx(1.0)
    assert nothing.rule.startswith("change of a: ") and "nor within 3x and 0.95 of the output; worst at" in nothing.rule
    assert not trained(0.0, 0.0, 0.0, 0.0, gradient=1.0).passed


def test_the_limit_is_never_above_the_allowed_multiple_of_eager() -> None:
    assert trained(0.299, 0.0, 0.1, 0.0).passed and not trained(0.301, 0.0, 0.1, 0.0).passed
    assert trained(2.99, 0.0, 1.0, 0.0).passed and not trained(3.01, 0.0, 1.0, 0.0).passed


@pytest.mark.parametrize("eager", [0.9, 1.0, 2.0])
def test_a_change_that_eager_cannot_hold_is_counted_but_not_in_the_error(eager: float) -> None:
    found = trained(1.0, 0.2, eager, 0.1)
    assert found.passed and (found.changes, found.changes_unheld) == (2, 1)
    assert found.relative_rmse == pytest.approx(0.2)
    wild = trained(100.0, 0.2, eager, 0.1)
    assert not wild.passed and wild.rule.startswith("change of a: ")
    assert wild.relative_rmse == pytest.approx(100.0)


def test_without_a_change_that_is_held_the_error_is_that_of_gradients() -> None:
    found = trained(1.0, 1.0, 1.0, 1.0, gradient=0.25)
    assert found.passed and (found.changes, found.changes_unheld) == (2, 2)
    assert found.relative_rmse == pytest.approx(0.25)


def test_an_eager_that_overflows_holds_no_change_and_excuses_none() -> None:
    found = trained(1.0, 0.0, math.inf, 0.0)
    assert not found.passed and found.changes_unheld == 0


def test_a_change_of_zero_is_right_where_the_reference_is_zero() -> None:
    zeros = torch.zeros(64, dtype=torch.float64)
    names = (TrainingOutput("loss"), TrainingOutput("change", "a"), TrainingOutput("change", "b"))
    reference = (EXACT, EXACT, zeros)
    found = check([reference], Reference((reference,), (0.0, 0.1, 1e-9)), Precision.BF16, names)
    assert found.passed and found.changes_unheld == 0
    alone = check(
        [(EXACT, zeros)],
        Reference(((EXACT, zeros),), (0.0, 0.0)),
        Precision.BF16,
        (TrainingOutput("loss"), TrainingOutput("change", "a")),
    )
    assert alone.passed and alone.changes_unheld == 0 and alone.relative_rmse == 0.0


@pytest.mark.parametrize("large", [1e6, 1e12])
def test_a_small_output_that_is_wrong_is_found_beside_a_large_one(large: float) -> None:
    reference = (EXACT * large, EXACT * 1e-2)
    eager = (large * 1e-7, 1e-9)
    right = checked((EXACT * large).float(), (EXACT * 1e-2).float(), reference=reference, eager=eager)
    wrong = checked((EXACT * large).float(), (EXACT * -1e-2).float(), reference=reference, eager=eager)
    assert right.passed
    assert not wrong.passed and wrong.rule.startswith("output 1: ")
    assert wrong.relative_rmse == pytest.approx(2.0)


def test_the_error_of_several_outputs_is_the_largest() -> None:
    accuracy = checked(EXACT, off_by(0.5), EXACT, reference=(EXACT,) * 3, eager=(0.0, EAGER_RMSE, 0.0))
    assert accuracy.rmse == pytest.approx(0.5) and accuracy.eager_rmse == EAGER_RMSE
    assert accuracy.relative_rmse == pytest.approx(0.5 / float(EXACT.square().mean().sqrt()))


def test_an_error_in_one_of_several_input_sets_is_found() -> None:
    reference = Reference(((EXACT,), (EXACT,), (EXACT,)), (1e-9,))
    right = EXACT.float()
    assert check([(right,), (right,), (right,)], reference, Precision.FP32).passed
    assert not check([(right,), (right,), (right.flip(0),)], reference, Precision.FP32).passed


def test_the_error_of_eager_is_taken_per_output() -> None:
    exact = [(EXACT, EXACT), (EXACT, EXACT)]
    eager = [(off_by(1.0), EXACT), (off_by(3.0), EXACT)]
    assert errors_of_eager(eager, exact).rmse == pytest.approx((math.sqrt(5.0), 0.0))


def test_a_reference_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    strange = torch.tensor([math.nan, math.inf, 1 / 3], dtype=torch.float64)
    sets = tuple((strange + index, torch.arange(index, index + 3), EXACT.reshape(8, 8).T) for index in range(11))
    saved = Reference(sets, (0.1, math.inf, 0.0), computed_in="float32", why_narrower="no room")
    saved.save(tmp_path / "a.b.pt")
    loaded = Reference.load(tmp_path / "a.b.pt")
    assert loaded.eager_rmse == saved.eager_rmse
    assert (loaded.computed_in, loaded.why_narrower) == ("float32", "no room")
    assert len(loaded.outputs) == 11
    for ours, theirs in zip(loaded.outputs, saved.outputs, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.b.pt"]


def test_a_reference_holds_two_outputs_that_share_memory(tmp_path: Path) -> None:
    Reference(((EXACT, EXACT, EXACT.view(8, 8)),), (0.0, 0.0, 0.0)).save(tmp_path / "reference.pt")
    assert [tuple(one.shape) for one in Reference.load(tmp_path / "reference.pt").outputs[0]] == [
        (64,),
        (64,),
        (8, 8),
    ]


def test_outputs_may_pass_by_different_rules() -> None:
    exact = (torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64) * 1e-9)
    reference = Reference((exact,), (1e-4, 0.0))
    # the first is near eager only, the second has only rounding
    outputs = (exact[0] + 1.5e-4, exact[1] + 1e-15)
    found = check([outputs], reference, Precision.FP32)
    assert found.passed
    assert not found.allclose
    assert found.rule == "at most 4x eager's error"


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_comparing_in_pieces_gives_the_same_result(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.truth.errors.PIECE_ELEMENTS", piece)
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(8, 8, dtype=torch.float64, generator=generator)
    error = 1e-3 * torch.randn(8, 8, dtype=torch.float64, generator=generator)
    outputs, exact = [(reference + error,), ((2 * reference).t(),)], ((reference,), ((2 * reference).t(),))
    found = check(outputs, Reference(exact, *errors_of_eager(outputs, exact)), Precision.INT8)
    assert found.rmse == pytest.approx(float(error.square().sum().div(128).sqrt()))
    assert found.relative_rmse == pytest.approx(found.rmse / float(reference.square().mul(5).sum().div(128).sqrt()))
    assert found.max_abs_error == pytest.approx(float(error.abs().max()))
    assert found.allclose == torch.allclose(reference + error, reference, rtol=found.rtol, atol=found.atol)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 40, 63])
def test_a_value_that_is_not_finite_is_found_in_every_piece(
    value: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bakeoff.truth.errors.PIECE_ELEMENTS", 16)
    strange = EXACT.clone()
    strange[place] = value
    assert checked(strange).rule == "1 value(s) not finite where the reference's are"
    assert checked(strange, reference=(strange.clone(),)).passed
    opposite = torch.where(torch.isfinite(strange), strange, -1.0 if math.isnan(value) else -value)
    assert not checked(opposite, reference=(strange,)).passed


FEATURES = torch.randn(1, 512, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
EPSILON = {"fp32": 2**-23, "bf16": 2**-7}


def noise(size: float, seed: int) -> torch.Tensor:
    """Errors of rounding of this root mean square, in all values of `FEATURES`."""
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(FEATURES.shape, dtype=torch.float64, generator=generator)


def checked_beside_eager(ours: torch.Tensor, precision: str, eager_error: float) -> Accuracy:
    """Check `ours` against `FEATURES`, where eager's error has so many units in the last place."""
    eager = FEATURES + noise(eager_error * EPSILON[precision], 2)
    reference = Reference(((FEATURES,),), *errors_of_eager([(eager,)], [(FEATURES,)]))
    return check([(ours,)], reference, Precision(precision))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_rounding_passes_at_every_size_of_an_output_and_a_larger_error_does_not(scale: float) -> None:
    reference = (FEATURES * scale,)
    right = checked((FEATURES + noise(12 * 2**-23, 3)) * scale, reference=reference, eager=(4 * 2**-23 * scale,))
    wrong = checked((FEATURES + noise(20 * 2**-23, 3)) * scale, reference=reference, eager=(4 * 2**-23 * scale,))
    assert right.passed and right.rule == "no more than rounding"
    assert not wrong.passed and "neither rounding (1.9e" in wrong.rule


def test_zeros_in_place_of_small_probabilities_are_wrong() -> None:
    probabilities = torch.softmax(FEATURES.flatten(), 0)
    assert not checked(torch.zeros_like(probabilities), reference=(probabilities,), eager=(1e-12,)).passed


@pytest.mark.parametrize(("precision", "eager_error"), [("fp32", 0.5), ("fp32", 20.0), ("bf16", 0.5), ("bf16", 3.0)])
def test_noise_like_eagers_passes(precision: str, eager_error: float) -> None:
    for seed in range(5):
        ours = FEATURES + noise(1.5 * eager_error * EPSILON[precision], 3 + seed)
        assert checked_beside_eager(ours, precision, eager_error).passed


@pytest.mark.parametrize(("precision", "eager_error"), [("fp32", 4.0), ("bf16", 0.5)])
@pytest.mark.parametrize("place", [(0, 300), (0, slice(None), 3, 5), (0, 300, 3)])
def test_one_wrong_slice_among_many_is_found(
    precision: str, eager_error: float, place: tuple[int | slice, ...]
) -> None:
    ours = FEATURES + noise(eager_error * EPSILON[precision], 3)
    ours[place] += 0.2
    found = checked_beside_eager(ours, precision, eager_error)
    assert not found.passed and found.rule.startswith("output 0: ")


def test_one_wrong_channel_is_named_where_the_error_overall_is_small() -> None:
    ours = FEATURES + noise(0.5 * EPSILON["bf16"], 3)
    ours[0, 300] += 0.2
    found = checked_beside_eager(ours, "bf16", 0.5)
    assert found.rmse < 2 * EPSILON["bf16"] < 0.1 < found.relative_rmse
    assert found.rule.startswith("output 0: rmse 0.2 at index 300 of dimension 1, eager's 0.00")
    assert "worst at [0, 300, " in found.rule


def test_one_wrong_value_among_many_is_found() -> None:
    ours = FEATURES + noise(0.5 * EPSILON["bf16"], 3)
    ours[0, 300, 3, 5] += 1.0
    found = checked_beside_eager(ours, "bf16", 0.5)
    assert found.rmse < 2 * EPSILON["bf16"] and not found.passed
    assert "worst at [0, 300, 3, 5] of input set 0: " in found.rule


@pytest.mark.parametrize("fill", [-1e9, float(torch.finfo(torch.float32).min)])
@pytest.mark.parametrize("masked", [1, 450])
def test_masked_values_hide_no_wrong_ones(fill: float, masked: int, tmp_path: Path) -> None:
    exact = torch.randn(16, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eager, right, zeros = exact.float(), exact * (1 + 2e-7), torch.zeros_like(exact)
    for each in (exact, eager, right, zeros):
        each[:, :masked] = fill
    Reference(((exact,),), *errors_of_eager([(eager,)], [(exact,)])).save(tmp_path / "reference.pt")
    reference = Reference.load(tmp_path / "reference.pt")
    assert check([(right.float(),)], reference, Precision.FP32).passed
    found = check([(zeros,)], reference, Precision.FP32)
    assert not found.passed
    assert "of the values of 2 to 4, eager's " in found.rule


def test_of_several_limits_the_one_that_is_missed_by_most_is_the_reason() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(64, 64, dtype=torch.float64, generator=generator)
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))
    ours = exact.float()
    ours[:, 3] += 1e-2  # which is over the limit for all values, too
    assert "at index 3 of dimension 1" in check([(ours,)], reference, Precision.FP32).rule


def test_errors_in_small_values_beside_large_ones() -> None:
    """Zeros are wrong in each power of ten. What cancels, and what is exact as a share of 1, is right."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(-6, 10, (4096, 8), generator=generator)
    exact = torch.randn(4096, 8, dtype=torch.float64, generator=generator).abs().clamp_min(0.1) * 10.0**powers
    eager = exact.float()
    reference = Reference(((exact,),), *errors_of_eager([(eager,)], [(exact,)]))
    assert check([(eager,)], reference, Precision.FP32).passed
    for power in range(-6, 10):
        found = check([(eager.masked_fill(powers == power, 0),)], reference, Precision.FP32)
        assert not found.passed and found.relative_rmse > 0.3, power
    sums = torch.randn(2, 2**18, dtype=torch.float64, generator=generator)
    differences = (
        sums[0] - sums[1],
        (sums[0].float() - sums[1].float()),
        (1 + sums[0]).float() - (1 + sums[1]).float(),
    )
    exact, eager, ours = (each.view(512, 512) for each in differences)
    reference = Reference(((exact,),), *errors_of_eager([(eager,)], [(exact,)]))
    assert check([(ours,)], reference, Precision.FP32).passed
    scores = torch.sigmoid(torch.linspace(-10, -8, 4096, dtype=torch.float64)).view(64, 64)
    exact = torch.cat([640 * torch.rand(64, 4, dtype=torch.float64, generator=generator), scores], 1)
    coarse = torch.where(exact < 1, (exact * 2**24).round() / 2**24, exact.float().double())
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))
    found = check([(coarse,)], reference, Precision.FP32)
    assert found.passed and found.rule == BESIDE_LARGER and found.relative_rmse > 5e-5
    assert found.overall_relative_rmse and found.overall_relative_rmse < 1e-6, "which is that of the outputs"
    exact = torch.randn(512, 2, dtype=torch.float64, generator=generator).abs() * torch.tensor([1e-9, 1e6])
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))
    lost = check([(exact.float() * torch.tensor([0.0, 1.0]),)], reference, Precision.FP32)
    assert lost.unchecked and lost.others_compared and lost.relative_rmse > 0.9
    assert not check([(exact.float(),)], reference, Precision.FP32).unchecked
    assert check([(exact.float(),)], reference, Precision.FP32).rule == "no more than rounding"


def test_silu_may_have_a_sigmoid_that_is_exact_as_a_share_of_one() -> None:
    x = torch.linspace(-20, 30, 2**16, dtype=torch.float64).view(256, 256)
    exact = x * x.sigmoid()
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))

    def built(bits: int) -> torch.Tensor:
        return (x * (x.sigmoid() * 2.0**bits).round() / 2.0**bits).float()

    assert check([(built(23),)], reference, Precision.FP32).passed
    assert not check([(built(20),)], reference, Precision.FP32).passed


def test_values_below_one_that_are_computed_in_bfloat16_are_found_beside_large_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = 10 ** (16 * torch.rand(2**17, dtype=torch.float64, generator=generator) - 8)
    noise = torch.randn(2, 2**17, dtype=torch.float64, generator=generator)
    eager, right = (exact * (1 + 1e-6 * noise)).float()
    reference = Reference(((exact,),), *errors_of_eager([(eager,)], [(exact,)]))
    assert check([(right,)], reference, Precision.FP32).passed
    found = check([(torch.where(eager < 1, eager.bfloat16().float(), eager),)], reference, Precision.FP32)
    assert not found.passed and "typical error" in found.rule
    place, came = re.findall(r"worst at \[(\d+)\] of input set 0: (\S+),", found.rule)[0]
    assert float(came) < 1, "the place is one of the values that decided, and not the largest error"
    assert float(came) == pytest.approx(float(eager[int(place)]), rel=1e-2)


def test_fewer_input_sets_than_eager_was_called_with_are_judged_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    sets = [(torch.randn(64, 64, dtype=torch.float64, generator=generator),) for _ in range(4)]
    eager = [(exact.float(),) for (exact,) in sets]
    reference = Reference(tuple(sets), *errors_of_eager(eager, sets))
    alone = replace(reference, outputs=tuple(sets[:1]))
    assert check(eager[:1], alone, Precision.FP32).passed
    assert not check([(eager[0][0].bfloat16().float(),)], alone, Precision.FP32).passed


def test_a_long_sum_in_one_order_is_right_and_one_that_lacks_some_values_is_not() -> None:
    values = torch.rand(16, 100_000, generator=torch.Generator().manual_seed(0))
    exact = values.double().sum(1)
    short = errors_of_eager([(values.sum(1),)], [(exact,)])
    reference = Reference(((exact,),), *short, longest_sum=values.shape[1])
    in_order = torch.from_numpy(values.numpy().cumsum(1, dtype="float32")[:, -1].copy())
    assert check([(in_order,)], reference, Precision.FP32).passed
    assert not check([(in_order,)], Reference(((exact,),), *short), Precision.FP32).passed
    lacking = check([(values[:, :-4].sum(1),)], reference, Precision.FP32)
    assert not lacking.passed and lacking.eager_rmse == short.rmse[0]
    assert "counts as eager's in sums of 100,000 values" in lacking.rule
    beside = Reference(((exact, exact),), short.rmse * 2, short.spread * 2, longest_sum=100_000, sums=(1, 100_000))
    right = values.sum(1)
    assert check([(right, in_order)], beside, Precision.FP32).passed
    assert not check([(in_order, right)], beside, Precision.FP32).passed
    assert short.or_of_sums(Precision.FP32, 1024) == short == short.or_of_sums(Precision.BF16, 10**6)


def test_a_long_sum_of_squares_in_one_order_is_right() -> None:
    values = torch.randn(16, 100_000, generator=torch.Generator().manual_seed(0)).square()
    exact = values.double().sum(1)
    errors = errors_of_eager([(values.sum(1),)], [(exact,)])
    in_order = torch.from_numpy(values.numpy().cumsum(1, dtype="float32")[:, -1].copy())
    assert check([(in_order,)], Reference(((exact,),), *errors, longest_sum=100_000), Precision.FP32).passed


def test_an_ill_conditioned_column_excuses_no_fault_in_others() -> None:
    generator = torch.Generator().manual_seed(0)
    exact, noise, other = torch.randn(3, 256, 32, dtype=torch.float64, generator=generator)
    shares = torch.tensor([1e-2] * 2 + [1e-7] * 30)
    errors = errors_of_eager([((exact * (1 + shares * noise)).float(),)], [(exact,)])
    assert errors.differs_in_parts(Precision.FP32)
    perturbed = errors_of_eager([(exact * (1 + 2 * shares * other),)], [(exact,)])
    reference = Reference(((exact,),), *errors.or_perturbed(perturbed))
    right = (exact * (1 + 3 * shares * other)).float()
    assert check([(right,)], reference, Precision.FP32).passed
    right[:, 7] *= 1.003
    found = check([(right,)], reference, Precision.FP32)
    assert not found.passed and "at index 7 of dimension 1" in found.rule


def test_the_place_that_is_shown_is_in_the_wrong_slice() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(64, 64, dtype=torch.float64, generator=generator) * torch.tensor([1e6] + [1.0] * 63)
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))
    ours = exact.float()
    ours[0, 0] += 1e-1
    ours[:, 3] += 1e-3
    found = check([(ours,)], reference, Precision.FP32)
    assert "at index 3 of dimension 1" in found.rule and re.search(r"worst at \[\d+, 3\]", found.rule)


def test_an_output_that_is_lost_to_rounding_does_not_hide_that_the_others_were_compared() -> None:
    right, zero = FEATURES.flatten(), 1e-17 * FEATURES.flatten()
    eager = (right.float(), 1e-9 * FEATURES.flatten().flip(0))
    reference = Reference(((right, zero),), *errors_of_eager([eager], [(right, zero)]))
    found = check([eager], reference, Precision.FP32)
    assert found.passed and found.others_compared and found.relative_rmse < 1e-6
    assert "eager's own output 1 is 1e+08 times its own size off" in found.unchecked
    assert not check([(right + 1e-3, eager[1])], reference, Precision.FP32).passed
    alone = Reference(((zero,),), *errors_of_eager([eager[1:]], [(zero,)]))
    assert (
        check([eager[1:]], alone, Precision.FP32).unchecked
        and not check([eager[1:]], alone, Precision.FP32).others_compared
    )


def test_tails_of_a_softmax_may_become_zeros() -> None:
    exact = torch.softmax(40 * torch.randn(16, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1)
    reference = Reference(((exact,),), *errors_of_eager([(exact.float(),)], [(exact,)]))
    assert check([(torch.where(exact < 1e-7, 0, exact).float(),)], reference, Precision.FP32).passed


def test_a_wrong_output_tells_what_came_and_what_was_expected() -> None:
    ours = EXACT.clone()
    ours[7] = -3.0
    found = check([(EXACT,), (ours,)], Reference(((EXACT,), (EXACT,)), (1e-9,)), Precision.FP32)
    assert "; worst at [7] of input set 1: -3, expected 1.11111 (" in found.rule
    assert found.times_limit is not None and found.times_limit > 1e5 and "times the limit" in found.rule


def test_values_that_are_not_finite_in_the_reference_are_counted() -> None:
    exact = EXACT.clone()
    exact[:3] = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)
    found = check([(exact.clone(),)], Reference(((exact,),), (0.0,)), Precision.FP32)
    assert (found.passed, found.unchecked, found.not_finite) == (True, "", 3)
    assert check([(EXACT,)], Reference(((EXACT,),), (0.0,)), Precision.FP32).not_finite == 0


def test_how_far_an_error_is_over_its_limit_is_told() -> None:
    limit = 16 * EPSILON["fp32"] * math.sqrt(float(EXACT.square().mean()))
    for times in (0.9, 1.7):
        found = check([(EXACT + times * limit,)], Reference(((EXACT,),), (0.0,)), Precision.FP32)
        assert found.times_limit == (None if times < 1 else pytest.approx(times, rel=1e-3))
        assert ("(1.7 times the limit)" in found.rule) == (times > 1)


def test_how_eagers_error_is_spread_is_kept(tmp_path: Path) -> None:
    eager = FEATURES + noise(0.1, 2)
    saved = Reference(((FEATURES,),), *errors_of_eager([(eager,)], [(FEATURES,)]))
    saved.save(tmp_path / "reference.pt")
    (loaded,) = Reference.load(tmp_path / "reference.pt").eager_spread
    assert loaded.largest == saved.eager_spread[0].largest == pytest.approx(float((eager - FEATURES).abs().max()))
    assert sorted(loaded.slices) == [1, 2, 3]  # one of the first would be all of it
    channel = (eager - FEATURES)[0, 300].square().mean().sqrt()
    assert float(loaded.slices[1][0, 300]) == pytest.approx(float(channel))
    assert float(loaded.slices[1][1, 300]) == pytest.approx(float(FEATURES[0, 300].square().mean().sqrt()))


def test_slices_of_sets_with_other_lengths_are_added() -> None:
    exact = [(torch.zeros(2, 4, dtype=torch.float64),), (torch.zeros(3, 4, dtype=torch.float64),)]
    eager = [(exact[0][0] + 1.0,), (exact[1][0] + 2.0,)]
    (spread,) = errors_of_eager(eager, exact).spread
    assert spread.slices[0][0].tolist() == pytest.approx([math.sqrt(2.5), math.sqrt(2.5), 2.0])


def test_the_error_that_is_shown_is_that_of_the_worst_channel() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(4, 512, 8, generator=generator, dtype=torch.float64)
    exact[:, 0] *= 1e5  # beside which no other channel counts
    broken = exact.float()
    broken[:, 7] = 0
    eager = errors_of_eager([(exact.float(),)], [(exact,)])
    reference = Reference(((exact,),), eager.rmse, eager.spread)
    found = check([(broken,)], reference, Precision.FP32)
    assert found.rmse < 1 and 0.9 < found.relative_rmse < 1.1
    assert check([(exact.float(),)], reference, Precision.FP32).relative_rmse < 1e-6


def test_an_error_of_right_forms_and_finite_values_is_told_apart_from_other_faults() -> None:
    assert checked(EXACT + 1.0).is_only_inexact
    assert not checked(EXACT).is_only_inexact
    with_nan = (EXACT + 1.0).index_fill(0, torch.tensor([3]), math.nan)
    for other in (with_nan, EXACT[:32]):
        assert not checked(other).passed and not checked(other).is_only_inexact


Chosen = Callable[[torch.Tensor], Any]
TIED_SCORES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0], [5.0, 5.0, 4.0, 4.0, 0.0, 1.0]])


def reference_of(choose: Chosen) -> Reference:
    choosing = Calling(lambda _, scores: choose(scores * 2))  # an intermediate result, which is not returned
    with torch.inference_mode():
        exact = run_eager(choosing, (Inputs((TIED_SCORES.double(),)),))
        eager = run_eager(choosing, (Inputs((TIED_SCORES,)),))
    return Reference(exact, *errors_of_eager(eager, exact))


def compared(choose: Chosen, *ours: torch.Tensor) -> Accuracy:
    return check([ours], reference_of(choose), Precision.FP32)


def best(scores: torch.Tensor) -> Any:
    return scores.topk(2)


VALUES = best(TIED_SCORES * 2).values


@pytest.mark.parametrize("indices", [[[1, 2], [0, 1]], [[4, 2], [1, 0]], [[2, 1], [0, 1]]])
def test_ties_of_a_top_k_are_right_in_any_order(indices: list[list[int]]) -> None:
    found = compared(best, VALUES, torch.tensor(indices))
    assert found.passed and found.rmse == 0
    assert found.rule.startswith("no more than rounding")


@pytest.mark.parametrize(
    "indices",
    [
        [[1, 3], [0, 1]],  # a smaller value
        [[1, 1], [0, 1]],  # the same place twice
        [[1, 6], [0, 1]],  # outside
        [[1, -1], [0, 1]],
    ],
)
def test_indices_of_other_values_are_wrong(indices: list[list[int]]) -> None:
    found = compared(best, VALUES, torch.tensor(indices))
    assert not found.passed and "output.indices" in found.rule


def test_the_rule_says_why_other_indices_are_right() -> None:
    (outputs,) = reference_of(best).outputs
    other = outputs[1].clone()
    other[0] = torch.tensor([4, 1]) if outputs[1][0].tolist() != [4, 1] else torch.tensor([1, 4])
    rule = compared(best, VALUES, other).rule
    assert rule == "no more than rounding; other indices in output.indices, which choose equal values"


@pytest.mark.parametrize(
    ("choose", "other", "wrong"),
    [
        (lambda s: s.argmax(-1), [4, 1], [3, 1]),
        (lambda s: s.long().argmax(-1), [4, 1], [3, 1]),  # among whole numbers
        (lambda s: s.argmax(-1, keepdim=True), [[2], [1]], [[0], [1]]),
        (lambda s: s.argmax(), 7, 1),
        (lambda s: s.argmin(0), [0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 1]),
        (lambda s: s.max(1).indices, [1, 0], [5, 0]),
        (lambda s: s.sort(-1).indices[:, 3:], [[4, 2, 1], [2, 1, 0]], [[4, 2, 0], [2, 1, 0]]),
        (lambda s: s.argsort(-1).to(torch.int32)[:, -1], [1, 1], [0, 1]),
        (lambda s: s.t().argsort(0).t()[:, 5], [2, 0], [3, 0]),
        (lambda s: s.kthvalue(6).indices, [4, 1], [0, 1]),
        (lambda s: nn.functional.max_pool2d(s.view(1, 1, 2, 6), (2, 6), return_indices=True)[1], [[[[7]]]], [[[[1]]]]),
    ],
)
def test_all_that_choose_are_recognised(choose: Chosen, other: Any, wrong: Any) -> None:
    assert compared(choose, torch.tensor(other)).passed
    assert not compared(choose, torch.tensor(wrong)).passed


@pytest.mark.parametrize(
    ("choose", "right"),
    [
        (lambda s: s.argmax(-1), [[4, 0], [2, 1]]),
        (lambda s: s.argsort(-1).argsort(-1), [[[0, 3, 4, 1, 5, 2], [4, 5, 2, 3, 0, 1]]]),  # eager's ranks
    ],
)
def test_a_near_tie_that_rounding_decides_is_right(choose: Chosen, right: list[Any]) -> None:
    def nearly(scores: torch.Tensor) -> Any:
        return choose(scores + torch.tensor([0, 1e-9, 0, 0, 0, 0], dtype=scores.dtype))

    assert all(compared(nearly, torch.tensor(each)).passed for each in right)


@pytest.mark.parametrize(
    ("choose", "wrong"),
    [
        (lambda s: s.argmax(-1) + 1, [5, 2]),  # it is no index any more
        (lambda s: s.sort(dim=-1, stable=True).indices[:, -1], [1, 0]),  # which of equal values comes last is specified
        (lambda s: (s > 5).long().sum(-1), [4, 2]),
        (lambda s: s[:, 0].long(), [2, 11]),
    ],
)
def test_other_whole_numbers_are_exact(choose: Chosen, wrong: list[int]) -> None:
    assert not compared(choose, torch.tensor(wrong)).passed


def test_choices_are_saved_with_the_reference(tmp_path: Path) -> None:
    known = reference_of(best)
    known.save(tmp_path / "reference")
    loaded = Reference.load(tmp_path / "reference")
    assert isinstance(loaded.outputs[0], Returned) and set(loaded.outputs[0].choices) == {".indices"}
    assert check([(VALUES, torch.tensor([[2, 1], [1, 0]]))], loaded, Precision.FP32).passed
    assert not check([(VALUES, torch.tensor([[2, 3], [1, 0]]))], loaded, Precision.FP32).passed


def drawn(seed: int, *, times: float = 1.0, plus: float = 0.0, elements: int = 40) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(CALLS, elements, generator=generator) < 0.5  # as dropout does
    return {"output": values.double() * 2.1 * times + plus}


def test_right_builds_are_blamed_as_rarely_as_is_said() -> None:
    trials = 60
    blamed = sum(bool(difference(drawn(2 * n), drawn(2 * n + 1), Precision.FP32)) for n in range(trials))
    assert blamed <= 1, f"with {FALSE_ALARM} each, two in {trials} come once in 600 runs of this test"


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (drawn(1, times=0.5), "output has another"),
        (drawn(1, plus=1.0), "output has another mean"),
        ({"output": drawn(1)["output"].mean(0).expand(CALLS, 40)}, "output has another spread"),
        (drawn(1, elements=8), "of another size"),
        ({}, "of another size"),
    ],
)
def test_another_distribution_is_told(ours: dict[str, torch.Tensor], told: str) -> None:
    assert told in difference(ours, drawn(2), Precision.FP32)


def test_rounding_is_no_other_distribution() -> None:
    still = torch.ones(CALLS, 5).double()
    assert difference({"output": still * (1 + 1e-7)}, {"output": still}, Precision.FP32) == ""
    assert "does not vary" in difference({"output": still * 1.01}, {"output": still}, Precision.FP32)


NOTHING = torch.zeros((4, EXPONENTS), dtype=torch.float64)


def octaves_of(values: torch.Tensor, errors: torch.Tensor) -> EagerOctaves:
    return EagerOctaves.of(errors_by_octave(values.abs(), errors.abs())).with_reference(values)


def test_octaves_with_few_values_count_with_their_neighbours_and_zeros_nowhere() -> None:
    sizes = {100.0: 20, 3.0: 10, 1.5: 10, 0.3: 5, 0.0: 50}
    values = torch.cat([torch.full((count,), size, dtype=torch.float64) for size, count in sizes.items()])
    groups = octaves_of(values, 0.1 * values).groups(errors_by_octave(values, values))
    assert groups is not None
    assert groups.counts.tolist() == [20, 25]
    assert [groups.range_of(number) for number in range(2)] == ["64 to 1.3e+02", "0.25 to 4"]
    torch.testing.assert_close(groups.eager, 0.1 * groups.ours)
    torch.testing.assert_close(groups.ours, groups.sizes)
    few = values[:15]
    assert octaves_of(few, few).groups(NOTHING) is None


def spread_of(values: torch.Tensor, share: float) -> ErrorSpread:
    return ErrorSpread(0.0, {}, octaves_of(values, share * values))


def groups_with(eager: ErrorSpread, perturbed: ErrorSpread) -> Groups:
    octaves = eager.or_perturbed(perturbed).octaves
    groups = octaves.groups(NOTHING) if octaves else None
    assert groups is not None
    return groups


def test_a_perturbed_model_raises_an_error_up_to_a_share_of_the_size() -> None:
    values = torch.ones(64, dtype=torch.float64)
    eager, slightly, wildly = (spread_of(values, share) for share in (1e-6, 1e-4, 1.0))
    for perturbed, expected in ((slightly, 1e-4), (wildly, 2.0**-8)):
        groups = groups_with(eager, perturbed)
        torch.testing.assert_close(groups.eager, torch.tensor([expected], dtype=torch.float64))


def test_a_slice_has_the_limit_of_values_of_its_size() -> None:
    values = torch.cat([torch.full((64,), 10.0**power, dtype=torch.float64) for power in (6, 0, -3)])
    groups = octaves_of(values, 1e-7 * values).groups(NOTHING)
    assert groups is not None
    limits = groups.limits(Precision.FP32, limit=2.0, eager_rmse=0.1)
    overall = 0.5
    found = groups.limits_at(torch.tensor([1e7, 1e6, 0.9, 1e-3, 1e-5], dtype=torch.float64), limits, overall)
    assert found.tolist() == [overall, overall, float(limits[1]), float(limits[2]), overall]


def test_a_few_values_in_another_unit_are_a_magnitude_of_their_own() -> None:
    """Three outputs of 1e8, 1 and 1e-3 for four inputs: a build that answers 0 in the small ones is found."""
    values = torch.tensor([1e8, 1.0, 1e-3] * 4, dtype=torch.float64)
    wrong = torch.where(values < 10, values, 0.0)
    groups = octaves_of(values, 1e-7 * values).groups(errors_by_octave(values, wrong))
    assert groups is not None
    assert groups.counts.tolist() == [4, 4, 4]
    limits = groups.limits(Precision.FP32, limit=50.0, eager_rmse=6.0)
    assert (groups.ours > limits).tolist() == [False, True, True]


def test_the_error_of_a_usual_value_shows_what_a_few_large_ones_hide() -> None:
    """Of 1600 values of 1, and as many of 1e-3, the small ones are rounded to eight bits, or a few of them are lost."""
    values = torch.cat([torch.full((1600,), size, dtype=torch.float64) for size in (1.0, 1e-3)])
    few = torch.where(torch.arange(3200) % 400 == 399, values, 1e-8 * values)
    rounded = torch.where(values < 1, 1e-3 * values, 1e-8 * values)
    octaves = octaves_of(values, 1e-8 * values)
    for errors, is_found in ((few, False), (rounded, True)):
        groups = octaves.groups(errors_by_octave(values, errors))
        assert groups is not None
        # a thousandth of a value of 1e-3 is within the absolute tolerance
        scaled = groups._replace(**{name: getattr(groups, name) * 1e6 for name in ("sizes", *TYPICAL)})
        limits = scaled.typical_limits(Precision.FP32, limit=2.0, eager_rmse=1e-2)
        assert (scaled.typical_ours > limits).tolist() == [False, is_found]


TYPICAL = ("typical_ours", "typical_eager")


def test_a_perturbed_model_says_nothing_of_octaves_without_values() -> None:
    values = torch.tensor([1e8, 1e-3] * 32, dtype=torch.float64)
    groups = groups_with(spread_of(values, 1e-7), spread_of(values, 1e-6))
    torch.testing.assert_close(groups.typical_eager, 1e-6 * groups.sizes)


@pytest.mark.parametrize("smallest", [1e-4, 1e-7])
def test_a_few_computed_values_among_those_handed_on_are_no_magnitude(smallest: float) -> None:
    """Of 4096 rows of a cache some are computed. By chance eager is right in a small value there, and a build is not.

    The small value may be of the last magnitude, or below it with too few others for one of its own.
    """
    others = torch.full((95,), 1e-4, dtype=torch.float64)
    values = torch.cat([2.0 ** -(torch.arange(4000) % 10).double(), others, torch.tensor([smallest]).double()])
    rounding = torch.where(torch.arange(4096) % 40 == 0, 5e-4, 0.0).double()
    eager, build, zeros = rounding.clone(), rounding.clone(), torch.where(values < 0.2, values, 0.0)
    eager[4000:], build[4000:] = 0.0, 0.0
    eager[4095], build[4095] = 1e-7, 1e-3
    octaves = EagerOctaves.of(errors_by_octave(values, eager, torch.float16)).with_reference(values)
    for errors, is_found in ((build, False), (zeros, True)):
        groups = octaves.groups(errors_by_octave(values, errors, torch.float16))
        assert groups is not None and groups.counts.sum() == 4096
        limits = groups.limits(Precision.FP16, limit=5e-4, eager_rmse=8e-5)
        assert bool((groups.ours > limits).any()) is is_found
