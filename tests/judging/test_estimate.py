import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.estimate import (
    ERROR_PER_DEVIATION,
    burst_ms,
    interval_at,
    ratio_over_processes,
    steadiest,
    undisturbed_rounds,
)
from bakeoff.judging.fit import speedup
from bakeoff.judging.gaps import imprecise, unclear
from bakeoff.judging.intervals import calls_needed, median_interval, percentile
from bakeoff.records.schema import Burst
from tests.reports.samples import bursts, constant, under

latencies_ms = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60)


@given(latencies_ms)
def test_the_interval_contains_the_median_and_is_made_of_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    assert interval.low <= float(np.median(values)) <= interval.high
    assert {interval.low, interval.high} <= set(values)


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


def test_a_burst_stands_for_the_median_of_its_calls() -> None:
    assert burst_ms(Burst(group=0, round=0, started_s=0, samples_ns=[1_000_000, 9_000_000, 2_000_000])) == 2.0


def test_undisturbed_rounds_of_a_cell_are_counted() -> None:
    calm = under(constant([1.0] * 6), wait_share=0.0)
    one = [*calm[:5], *under(calm[5:], wait_share=0.2)]
    other = [*under(calm[:2], wait_share=0.2), *calm[2:]]
    assert [undisturbed_rounds(bursts) for bursts in (calm, one, other, [])] == [6, 5, 4, 0]


def noisy(level_ms: float, rounds: int, sd: float, seed: int = 0) -> list[Burst]:
    return constant((level_ms * np.exp(np.random.default_rng(seed).normal(0, sd, rounds))).tolist())


def test_ratios_are_precise_once_rounds_agree_or_are_many() -> None:
    even = constant([1.0] * 48)
    assert not imprecise([even[:12], noisy(1.0, 12, 0.02)])
    assert imprecise([even[:12], noisy(1.0, 12, 0.06)])
    assert not imprecise([even[:48], noisy(1.0, 48, 0.06)])
    assert imprecise([even[:48], noisy(1.0, 48, 0.06), noisy(1.0, 48, 0.3, seed=1)]) == {0, 2}


def test_a_large_difference_needs_less_precision() -> None:
    even = constant([1.0] * 12)
    assert imprecise([even, noisy(1.0, 12, 0.06)])
    assert not imprecise([even, noisy(1.3, 12, 0.06)])
    assert not imprecise([noisy(1.3, 12, 0.06), even])
    assert not imprecise([even, noisy(1.12, 12, 0.06)]), "a lead that takes five processes anyway"


def test_a_large_difference_needs_less_precision_still_where_five_processes_come_anyway() -> None:
    even, far, near = constant([1.0] * 12), noisy(2.0, 12, 0.4), constant([1.1] * 12)
    assert imprecise([even, far])
    assert imprecise([even, far, constant([1.01] * 12)]), "a tie may be decided by three processes"
    assert not imprecise([even, far, near])
    assert imprecise([even, noisy(2.0, 12, 1.5), near])
    assert imprecise([even, far, near], bridge=0)


def test_without_a_round_in_common_no_further_one_tells_more() -> None:
    assert not imprecise([])
    assert not imprecise([constant([1.0, 1.0])])
    assert not imprecise([noisy(1.0, 12, 0.3), constant([1.0] * 12, first_round=12)])


def test_a_gap_is_clear_once_its_error_is_a_small_share_of_it() -> None:
    even = constant([1.0] * 6)
    cells = [even, noisy(1.1, 6, 0.002), noisy(1.1, 6, 0.2), noisy(3.0, 6, 0.06)]
    assert unclear(cells) == {0, 2}
    assert unclear(cells, most_error=0.001) == {0, 2, 3}, "an error as small as a few rounds can have is enough"
    assert unclear(cells[:2]) == set()
    assert unclear([even]) == {0}, "alone there is no gap"
    assert unclear([even, noisy(1.003, 6, 0.02)]) == {0, 1}, "a small gap needs all rounds"


def test_a_narrow_gap_is_not_clear_in_disturbed_rounds_and_a_wide_one_is() -> None:
    calm, loud = under(constant([1.0] * 4), wait_share=0.0), under(constant([1.0] * 2, first_round=4), wait_share=0.5)
    for ratio, is_open in ((1.1, True), (2.0, False)):
        slow = under(constant([ratio] * 6), wait_share=0.0)
        assert bool(unclear([[*calm, *loud], slow])) == is_open


@pytest.mark.parametrize(("rounds", "off"), [(12, 0.10), (48, 0.05)])
def test_a_medians_error_is_estimated_nearly_without_bias(rounds: int, off: float) -> None:
    draws = np.random.default_rng(3).normal(0, 1, (4000, rounds))
    medians = np.median(draws, axis=1)
    deviations = np.median(np.abs(draws - medians[:, None]), axis=1)
    estimated = float(np.mean(ERROR_PER_DEVIATION * deviations / np.sqrt(rounds)))
    assert estimated == pytest.approx(float(medians.std()), rel=off)


def test_ratios_that_go_through_another_cell_have_to_be_precise_however_large() -> None:
    even = constant([1.0] * 12)
    fast = noisy(0.3, 12, 0.06)
    assert not imprecise([even, fast])
    assert imprecise([even, fast], bridge=0)
    assert not imprecise([even, noisy(0.3, 12, 0.02)], bridge=0)


def test_the_steadiest_cell_is_the_preferred_one_unless_its_rounds_differ_much() -> None:
    wild, uneven, even = noisy(1.0, 12, 0.2), noisy(3.0, 12, 0.01), constant([2.0] * 12)
    assert steadiest([uneven, even], preferred=0) == 0
    assert steadiest([wild, uneven, even], preferred=0) == 2
    assert steadiest([wild, uneven], preferred=0) == 1
    assert steadiest([[], even], preferred=0) == 1
    assert steadiest([[], []], preferred=1) == 1


def test_another_confidence_of_the_same_interval() -> None:
    ratio = ratio_over_processes([0.0, 0.01, 0.02])
    wide = interval_at(ratio, 0.99)
    assert np.log(wide.high) - 0.01 == pytest.approx(9.9248 * 0.01 / 3**0.5, rel=1e-4)  # t = 9.9248
    same = interval_at(ratio, 0.95)
    assert ratio.ci95 is not None
    assert (same.low, same.high) == (pytest.approx(ratio.ci95.low), pytest.approx(ratio.ci95.high))
    with pytest.raises(ValueError, match="no interval over processes"):
        interval_at(speedup(bursts(1.0), bursts(2.0)), 0.99)
