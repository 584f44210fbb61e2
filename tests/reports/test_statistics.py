import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.schema import Burst
from reports.statistics import (
    break_even_calls,
    calls_needed,
    median_interval,
    percentile,
    speedup,
    summarise,
)
from tests.reports.samples import bursts, constant

latencies_ms = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60)


@given(latencies_ms)
def test_the_interval_contains_the_median_and_is_made_of_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    assert interval.low <= float(np.median(values)) <= interval.high
    assert {interval.low, interval.high} <= set(values)


@given(latencies_ms, st.randoms())
def test_the_interval_does_not_depend_on_the_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median_interval(shuffled) == median_interval(values)


def test_the_interval_covers_the_true_median_at_least_95_percent_of_the_time() -> None:
    draws = np.random.default_rng(7).lognormal(size=(2000, 10))
    intervals = [median_interval(draw.tolist()) for draw in draws]
    covered = np.mean([interval is not None and interval.low <= 1.0 <= interval.high for interval in intervals])
    assert 0.965 <= covered <= 0.99  # exactly 1 - 22/1024 = 0.9785 for ten values; two thousand draws of it


@pytest.mark.parametrize("n", range(6))
def test_fewer_than_six_values_hold_no_interval(n: int) -> None:
    assert median_interval([1.0] * n) is None


@pytest.mark.parametrize(("n", "k"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (50, 18)])
def test_the_interval_takes_the_order_statistics_of_the_tables(n: int, k: int) -> None:
    interval = median_interval([float(value) for value in range(1, n + 1)])
    assert interval is not None
    assert (interval.low, interval.high) == (k, n + 1 - k)


@pytest.mark.parametrize(("quantile", "calls"), [(0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_calls_needed_for_a_percentile(quantile: float, calls: int) -> None:
    assert calls_needed(quantile) == calls
    assert percentile([1.0] * (calls - 1), quantile) is None
    assert percentile([1.0] * calls, quantile) == 1.0


def test_the_summary_by_hand() -> None:
    summary = summarise(constant([1.0, 2.0, 3.0, 4.0, 5.0, 100.0]))
    assert summary is not None
    assert (summary.calls, summary.median_ms, summary.min_ms) == (18, 3.5, 1.0)
    assert summary.mean_ms == pytest.approx(115 / 6)
    assert summary.median_ci95_ms is not None
    assert (summary.median_ci95_ms.low, summary.median_ci95_ms.high) == (1.0, 100.0)
    assert summary.p90_ms is None


def test_nothing_measured_has_no_summary_and_an_empty_burst_does_not_count() -> None:
    empty = Burst(group=0, round=9, started_s=0, samples_ns=[])
    assert summarise([]) is None
    assert summarise([empty]) is None
    assert summarise([*constant([2.0]), empty]) == summarise(constant([2.0]))


def test_a_cell_over_itself_is_one() -> None:
    ratio = speedup(bursts(1.3), bursts(1.3))
    assert ratio.value == 1.0
    assert ratio.ci95 is not None
    assert (ratio.ci95.low, ratio.ci95.high) == (1.0, 1.0)


@given(st.lists(st.floats(0.5, 20), min_size=6, max_size=20))
def test_pairing_removes_a_common_drift(drift: list[float]) -> None:
    ratio = speedup(constant(drift), constant([2 * value for value in drift]))
    assert ratio.paired
    assert ratio.value == pytest.approx(2.0, rel=1e-5)  # samples are whole nanoseconds
    assert ratio.ci95 is not None
    assert ratio.ci95.low == pytest.approx(2.0, rel=1e-4)


def test_without_shared_rounds_the_drift_widens_the_interval() -> None:
    drift = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    fast, slow = constant(drift), constant([2 * value for value in drift], first_round=6)
    ratio, paired = speedup(fast, slow), speedup(fast, constant([2 * value for value in drift]))
    assert not ratio.paired
    assert ratio.value == pytest.approx(2.0)
    assert ratio.ci95 is not None and paired.ci95 is not None
    assert ratio.ci95.high - ratio.ci95.low > 10 * (paired.ci95.high - paired.ci95.low)
    assert not speedup(fast, constant(drift, group=1)).paired


def test_speedup_and_its_inverse_agree() -> None:
    forth, back = speedup(bursts(1.0, seed=1), bursts(1.7, seed=2)), speedup(bursts(1.7, seed=2), bursts(1.0, seed=1))
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.ci95 is not None and back.ci95 is not None
    assert forth.ci95.low == pytest.approx(1 / back.ci95.high)


def test_two_rounds_give_a_ratio_without_an_interval_and_none_an_error() -> None:
    assert speedup(constant([1.0, 1.0]), constant([2.0, 2.0])).ci95 is None
    with pytest.raises(ValueError, match="at least one burst"):
        speedup([], constant([1.0]))


@pytest.mark.parametrize(
    ("build_s", "baseline_build_s", "median_ms", "baseline_ms", "calls"),
    [
        (10.0, 0.0, 1.0, 2.0, 10_000),
        (1.0, 0.5, 1.0, 1.3, 1_667),  # 0.5 s / 0.3 ms = 1666.7
        (10.0, 0.0, 2.0, 2.0, None),
        (10.0, 0.0, 3.0, 2.0, None),
        (0.0, 0.0, 2.0, 2.0, 0),
        (0.1, 0.5, 1.0, 2.0, 0),
    ],
)
def test_break_even(
    build_s: float, baseline_build_s: float, median_ms: float, baseline_ms: float, calls: int | None
) -> None:
    assert break_even_calls(build_s, baseline_build_s, median_ms, baseline_ms) == calls
