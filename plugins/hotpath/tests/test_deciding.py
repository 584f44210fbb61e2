"""The arithmetic of when a compilation pays."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bakeoff_hotpath import deciding
from bakeoff_hotpath.deciding import (
    COMPILE_IF_UNKNOWN_S,
    MAX_TRIAL_PAIRS,
    MIN_TRIAL_PAIRS,
    Expectation,
    TrialResult,
    delay_of_compiling_s,
    trial_result,
)


@pytest.mark.parametrize(
    ("speedup", "too_few_calls", "enough_calls"),
    [
        (3.0, 4_999, 5_001),  # the delay of 1 s may be a fifth of the 5 s that the calls took
        (1.1, 10_900, 11_100),  # an eleventh of the time of the calls is saved
        (None, 4_999, 5_001),
        (0.8, 4_999, 5_001),  # about equal beside the calls, so that nothing is known
        (0.79, 10**9, None),
    ],
)
def test_a_step_waits_until_as_many_calls_again_would_pay_for_it(
    speedup: float | None, too_few_calls: int, enough_calls: int | None
) -> None:
    assert not Expectation(too_few_calls, 1e-3, speedup).is_worth(1.0)
    assert enough_calls is None or Expectation(enough_calls, 1e-3, speedup).is_worth(1.0)


def test_unknown_costs_are_assumed() -> None:
    assert Expectation(1000, 1e-3).saving_s == Expectation(1000, 1e-3, 1.02).saving_s == pytest.approx(0.4)
    assert delay_of_compiling_s(None, 0.0, has_spare_cores=False) == COMPILE_IF_UNKNOWN_S
    assert delay_of_compiling_s(20.0, 0.01, has_spare_cores=True) == pytest.approx(0.41)
    assert delay_of_compiling_s(20.0, 0.01, has_spare_cores=False, burden=0.2) == pytest.approx(4.01)
    assert delay_of_compiling_s(20.0, 0.01, has_spare_cores=False, burden=0.0) == pytest.approx(0.01)


def test_the_burden_is_the_share_of_time_that_the_calls_lost() -> None:
    assert deciding.burden_of(1e-3, 2e-3) == pytest.approx(0.5)
    assert deciding.burden_of(1e-3, 0.9e-3) == 0.0


@given(
    calls=st.integers(0, 10**7),
    eager_s=st.floats(1e-6, 1.0),
    speedup=st.none() | st.floats(0.1, 100.0),
    delay_s=st.floats(0.0, 1e3),
)
def test_no_step_costs_more_than_a_fifth_of_the_time_of_the_calls(
    calls: int, eager_s: float, speedup: float | None, delay_s: float
) -> None:
    if Expectation(calls, eager_s, speedup).is_worth(delay_s):
        assert delay_s <= 0.2 * calls * eager_s + 1e-9


@pytest.mark.parametrize(
    ("usable_cores", "cores", "load", "wanted", "is_spare"),
    [
        (2, 2, 0.1, 2, False),  # the model uses every core
        (2, 2, 0.9, 1, True),
        (2, 2, 1.9, 1, False),  # another program uses the second core
        (16, 128, 60.0, 4, True),  # the load is that of the whole machine
        (16, 128, 125.0, 4, False),
    ],
)
def test_a_spare_core_is_one_that_nobody_else_uses(
    usable_cores: int, cores: int, load: float, wanted: int, is_spare: bool
) -> None:
    assert deciding.has_spare_core(usable_cores, cores, load, wanted) is is_spare


def drawn_trial(speedup: float, noise: float, draw: random.Random) -> tuple[TrialResult, int]:
    """Return the result of a trial, and its pairs. The machine changes its speed, and 15 % of the calls are slow."""
    eager_s: list[float] = []
    compiled_s: list[float] = []

    def call(pace: float) -> float:
        return pace * draw.lognormvariate(0, noise) * (2 if draw.random() < 0.15 else 1)

    while True:
        pace = 1e-3 * (1 + (len(eager_s) // 10) % 2)
        eager_s.append(speedup * call(pace))
        compiled_s.append(call(pace))
        result = trial_result(eager_s, compiled_s)
        if result is not None and result.is_over:
            return result, len(eager_s)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_trial_of_equals_stays_eager(noise: float) -> None:
    draw = random.Random(0)
    results = [drawn_trial(1.0, noise, draw)[0] for _ in range(300)]
    assert sum(result.is_won for result in results) <= 0.05 * len(results)


def test_a_trial_finds_a_lead_and_is_short_where_the_lead_is_large() -> None:
    draw = random.Random(0)
    trials = [drawn_trial(2.0, 0.1, draw) for _ in range(100)]
    assert all(result.is_won for result, _ in trials)
    assert sum(pairs for _, pairs in trials) < 15 * len(trials)
    assert all(drawn_trial(0.7, 0.1, draw)[0].is_lost for _ in range(100))
    assert sum(drawn_trial(1.1, 0.05, draw)[0].is_won for _ in range(100)) >= 90


def test_too_few_pairs_say_nothing() -> None:
    assert trial_result([2.0] * (MIN_TRIAL_PAIRS - 1), [1.0] * MAX_TRIAL_PAIRS) is None
    result = trial_result([1.02] * MAX_TRIAL_PAIRS, [1.0] * MAX_TRIAL_PAIRS)
    assert result is not None and result.is_over and result.is_lost and not result.is_won


def test_the_interval_is_the_narrowest_that_misses_in_one_of_a_hundred_cases() -> None:
    for count in range(MIN_TRIAL_PAIRS, MAX_TRIAL_PAIRS + 1):
        ratios = [1 + number / 100 for number in range(count)]
        result = trial_result(ratios, [1.0] * count)
        assert result is not None
        beyond = ratios.index(result.low)
        assert result.high == ratios[-1 - beyond]
        binomial = stats.binom(count, 0.5)
        assert 2 * binomial.cdf(beyond) <= deciding.TRIAL_ERROR < 2 * binomial.cdf(beyond + 1)
