import pytest
from hypothesis import given
from hypothesis import strategies as some

from reports.ticks import linear_ticks, log_ticks

sizes = some.floats(min_value=1e-9, max_value=1e9)


@given(sizes, some.floats(min_value=1.01, max_value=1e9), some.integers(min_value=3, max_value=9))
def test_logarithmic_ticks_lie_on_the_axis_and_are_not_too_many(low: float, factor: float, most: int) -> None:
    ticks = log_ticks(low, low * factor, most)
    assert all(low <= tick <= low * factor for tick in ticks)
    assert len(ticks) <= most


@given(some.floats(min_value=-1e6, max_value=1e6), sizes, some.integers(min_value=3, max_value=9))
def test_linear_ticks_lie_on_the_axis_evenly_and_are_not_too_many(low: float, span: float, most: int) -> None:
    high = low + span
    if high == low:
        return
    ticks = linear_ticks(low, high, most)
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(ticks) <= most


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [(0.0, 1.7, 6, [0, 0.5, 1, 1.5]), (0.0, 103.0, 5, [0, 50, 100]), (2.0, 2.0, 5, [2.0])],
)
def test_linear_ticks_are_round(low: float, high: float, most: int, ticks: list[float]) -> None:
    assert linear_ticks(low, high, most) == pytest.approx(ticks)


def test_logarithmic_ticks_are_as_fine_as_fits() -> None:
    assert log_ticks(0.03, 2, 6) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert log_ticks(1, 1e7, 4) == pytest.approx([1, 100, 1e4, 1e6])
