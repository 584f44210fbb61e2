"""Values are grouped by their magnitude, with enough of them in each group."""

import pytest
import torch

from bakeoff.records.precision import Precision
from bakeoff.truth.errors import ErrorSpread
from bakeoff.truth.magnitudes import EXPONENTS, EagerOctaves, Groups, errors_by_octave

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
