"""The arithmetic of when a compilation pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hotpath import deciding
from hotpath.deciding import Expectation, Trial, delay_of_compiling_s, trial_of


def test_a_step_waits_until_as_many_calls_again_would_pay_for_it() -> None:
    # at 3x, two thirds of each millisecond are saved: 1 s is paid for by 1500 calls, and a fifth of what 5000 take
    assert not Expectation(4_999, 1e-3, speedup=3.0).is_worth(1.0)
    assert Expectation(5_001, 1e-3, speedup=3.0).is_worth(1.0)
    # at 1.1x the saving is what decides: an eleventh of what has been spent
    assert not Expectation(10_900, 1e-3, speedup=1.1).is_worth(1.0)
    assert Expectation(11_100, 1e-3, speedup=1.1).is_worth(1.0)


def test_what_is_known_to_be_clearly_slower_is_never_worth_anything() -> None:
    assert not Expectation(10**9, 1.0, speedup=0.79).is_worth(0.0)


@pytest.mark.parametrize("speedup", [0.8, 1.0, 1.02])
def test_what_was_hardly_told_apart_beside_the_calls_is_as_good_as_unknown(speedup: float) -> None:
    assert Expectation(1000, 1e-3, speedup).saving_s == Expectation(1000, 1e-3).saving_s
    assert Expectation(1000, 1e-3, speedup).is_worth(0.2)
    assert not Expectation(1000, 1e-3, speedup).is_worth(0.21)


def test_what_nobody_knows_is_assumed() -> None:
    assert Expectation(1000, 1e-3).saving_s == pytest.approx(deciding.SAVED_IF_UNKNOWN)
    assert delay_of_compiling_s(None, 0.0, False) == deciding.BURDEN_SHARED * deciding.COMPILE_IF_UNKNOWN_S


def test_a_compiler_with_cores_of_its_own_starts_earlier() -> None:
    busy, spare = (delay_of_compiling_s(20.0, 0.01, has_spare_cores) for has_spare_cores in (False, True))
    path = Expectation(5_000, 1e-3)
    assert path.is_worth(spare) and not path.is_worth(busy)


def test_how_much_a_compilation_disturbs_is_measured() -> None:
    assert deciding.burden_of(1e-3, 1.25e-3) == pytest.approx(0.2)
    assert deciding.burden_of(1e-3, 0.9e-3) == 0.0
    assert delay_of_compiling_s(20.0, 0.01, False, burden=0.2) == pytest.approx(4.01)
    assert delay_of_compiling_s(20.0, 0.01, False, burden=0.0) == pytest.approx(0.01)


@given(
    calls=st.integers(0, 10**7),
    eager_s=st.floats(1e-6, 1.0),
    speedup=st.none() | st.floats(0.1, 100.0),
    delay_s=st.floats(0.0, 1e3),
)
def test_no_step_costs_more_than_a_share_of_what_was_spent(
    calls: int, eager_s: float, speedup: float | None, delay_s: float
) -> None:
    path = Expectation(calls, eager_s, speedup)
    if path.is_worth(delay_s):
        assert path.spent_s + delay_s <= (1 + deciding.REGRET) * path.spent_s + 1e-9


def drawn_trial(times_as_fast: float, noise: float, draw: random.Random) -> tuple[Trial, int]:
    """A trial to its end, and its pairs: the machine is twice as slow for half of it, and 15 % of the calls are."""
    eager_s: list[float] = []
    compiled_s: list[float] = []

    def call(pace: float) -> float:
        return pace * draw.lognormvariate(0, noise) * (2 if draw.random() < 0.15 else 1)

    while True:
        pace = 1e-3 * (1 + (len(eager_s) // 10) % 2)
        eager_s.append(times_as_fast * call(pace))
        compiled_s.append(call(pace))
        trial = trial_of(eager_s, compiled_s)
        if trial is not None and trial.is_over:
            return trial, len(eager_s)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_trial_of_equals_stays_eager(noise: float) -> None:
    draw = random.Random(0)
    trials = [drawn_trial(1.0, noise, draw)[0] for _ in range(300)]
    assert sum(trial.is_won for trial in trials) <= 0.05 * len(trials)


def test_a_lead_is_found_and_soon_where_it_is_large() -> None:
    draw = random.Random(0)
    trials = [drawn_trial(2.0, 0.1, draw) for _ in range(100)]
    assert all(trial.is_won for trial, _ in trials)
    assert sum(pairs for _, pairs in trials) < 15 * len(trials)
    assert all(drawn_trial(0.7, 0.1, draw)[0].is_lost for _ in range(100))
    assert sum(drawn_trial(1.1, 0.05, draw)[0].is_won for _ in range(100)) >= 90


def test_fewer_pairs_than_the_fewest_say_nothing() -> None:
    fewest, most = deciding.TRIAL_PAIRS
    assert trial_of([2.0] * (fewest - 1), [1.0] * most) is None
    trial = trial_of([1.02] * most, [1.0] * most)
    assert trial is not None and trial.is_over and trial.is_lost and not trial.is_won


@pytest.mark.parametrize("count", range(deciding.TRIAL_PAIRS[0], deciding.TRIAL_PAIRS[1] + 1))
def test_the_interval_is_the_narrowest_that_keeps_its_word(count: int) -> None:
    ratios = [1 + number / 100 for number in range(count)]
    trial = trial_of(ratios, [1.0] * count)
    assert trial is not None
    beyond = ratios.index(trial.low)
    assert trial.high == ratios[-1 - beyond]
    assert 2 * stats.binom.cdf(beyond, count, 0.5) <= deciding.TRIAL_ERROR < 2 * stats.binom.cdf(beyond + 1, count, 0.5)
