import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.estimate import (
    ERROR_PER_DEVIATION,
    are_precise,
    burst_ms,
    interval_at,
    process_medians_ms,
    ratio_over_processes,
    speedup,
    summarise,
    undisturbed_rounds,
)
from judging.intervals import calls_needed, median_interval, percentile
from records.schema import Burst
from tests.reports.samples import bursts, constant, over_processes, steady, under

latencies_ms = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60)
levels_ms = st.lists(st.floats(0.1, 100), min_size=2, max_size=10)


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


def test_a_burst_stands_for_the_median_of_its_calls() -> None:
    assert burst_ms(Burst(group=0, round=0, started_s=0, samples_ns=[1_000_000, 9_000_000, 2_000_000])) == 2.0


def test_the_interval_over_processes_by_hand() -> None:
    # logarithms 0, 0.01 and 0.02: mean 0.01, standard error 0.01 / sqrt(3), t = 4.3027 at two degrees of freedom
    fast, slow = steady([1.0, 1.0, 1.0]), steady([np.exp(0.0), np.exp(0.01), np.exp(0.02)])
    ratio = speedup(fast, slow)
    assert (ratio.paired, ratio.processes) == (True, 3)
    assert np.log(ratio.value) == pytest.approx(0.01, abs=1e-5)
    assert ratio.ci95 is not None
    assert np.log(ratio.ci95.low) == pytest.approx(0.01 - 4.3027 * 0.01 / 3**0.5, abs=1e-5)
    assert np.log(ratio.ci95.high) == pytest.approx(0.01 + 4.3027 * 0.01 / 3**0.5, abs=1e-5)


@given(levels_ms, st.data())
def test_over_processes_too_the_inverse_agrees(fast_ms: list[float], data: st.DataObject) -> None:
    slow_ms = data.draw(st.lists(st.floats(0.1, 100), min_size=len(fast_ms), max_size=len(fast_ms)))
    forth, back = speedup(steady(fast_ms), steady(slow_ms)), speedup(steady(slow_ms), steady(fast_ms))
    assert forth.processes == back.processes == len(fast_ms)
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.ci95 is not None and back.ci95 is not None
    assert forth.ci95.low <= forth.value <= forth.ci95.high
    assert forth.ci95.low == pytest.approx(1 / back.ci95.high)


@given(st.lists(st.floats(0.5, 20), min_size=3, max_size=8))
def test_a_drift_from_process_to_process_divides_out(drift: list[float]) -> None:
    ratio = speedup(steady(drift), steady([2 * level for level in drift]))
    assert ratio.ci95 is not None
    assert (ratio.ci95.low, ratio.ci95.high) == (pytest.approx(2.0, rel=1e-4), pytest.approx(2.0, rel=1e-4))


def test_rounds_are_paired_within_a_process_only() -> None:
    """The same (group, round) in different processes were minutes apart."""
    fast = constant([1.0] * 6, process=0)
    assert not speedup(fast, constant([2.0] * 6, process=1)).paired
    assert speedup(fast, constant([2.0] * 6, process=0)).paired


def test_processes_that_only_one_side_has_do_not_count() -> None:
    """The other cell died in its second process, or joined late."""
    fast, slow = steady([1.0, 1.0, 1.0, 1.0]), steady([2.0, 2.0, 9.0, 2.0])
    without = [burst for burst in slow if burst.process != 2]
    ratio = speedup(fast, without)
    assert (ratio.value, ratio.processes) == (pytest.approx(2.0), 3)
    alone = speedup(fast, [burst for burst in slow if burst.process == 0])
    assert (alone.value, alone.processes, alone.paired) == (pytest.approx(2.0), 1, True)
    assert alone.ci95 is not None  # of the six rounds


def test_cells_of_different_groups_are_bridged_by_the_baseline() -> None:
    """The machine was half as fast while the first group was measured: the medians say 1.5, the bridge says 3."""
    fast, slow = steady([1.0] * 3), steady([1.5] * 3, group=10)
    baseline = [*steady([4.0] * 3), *steady([2.0] * 3, group=10)]
    ratio = speedup(fast, slow, baseline)
    assert (ratio.value, ratio.paired, ratio.processes) == (pytest.approx(3.0), True, 3)
    unbridged = speedup(fast, slow)
    assert (unbridged.value, unbridged.paired) == (pytest.approx(1.5), False)


def test_a_bridge_is_not_taken_where_rounds_were_shared() -> None:
    fast, slow = steady([1.0] * 3), steady([2.0] * 3)
    assert speedup(fast, slow, steady([4.0, 5.0, 6.0])) == speedup(fast, slow)


def test_a_bridge_needs_rounds_with_either_side() -> None:
    fast, slow = steady([1.0] * 3), steady([1.5] * 3, group=10)
    assert not speedup(fast, slow, steady([4.0] * 3)).paired


def test_processes_measured_one_after_another_are_compared_by_welch() -> None:
    ratio = speedup(steady([1.0, 1.01, 0.99]), steady([2.0, 2.02, 1.98, 2.0], group=10))
    assert (ratio.paired, ratio.processes) == (False, 3)
    assert ratio.value == pytest.approx(2.0, rel=1e-3)
    assert ratio.ci95 is not None
    assert 1.9 < ratio.ci95.low < 2.0 < ratio.ci95.high < 2.1


def test_a_few_outliers_among_the_rounds_do_not_move_a_process() -> None:
    slow = constant([2.0, 2.0, 2.0, 50.0, 2.0, 2.0, 90.0])
    assert speedup(constant([1.0] * 7), slow).value == pytest.approx(2.0)


def test_disturbed_rounds_are_left_out() -> None:
    """Seven of twelve bursts took three times as long, and of six of those it is known why."""
    fast = under(constant([1.0] * 12), wait_share=0.0)
    slow = constant([6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 6.0])
    assert speedup(fast, under(slow, wait_share=0.0)).value == pytest.approx(6.0)
    explained = [*under(slow[:11:2], wait_share=0.5), *under(slow[1:11:2], wait_share=0.0), *slow[11:]]
    assert speedup(fast, explained).value == pytest.approx(2.0)


@pytest.mark.parametrize(("robbed", "value"), [(6, 3.0), (7, 2.0)])
def test_where_most_rounds_were_disturbed_all_are_used(robbed: int, value: float) -> None:
    disturbed = under(constant([2.0] * robbed), steal_share=0.3)
    calm = under(constant([3.0] * (12 - robbed), first_round=robbed), steal_share=0.0)
    assert speedup(constant([1.0] * 12), [*disturbed, *calm]).value == pytest.approx(value)


def test_undisturbed_rounds_are_those_of_the_cell_that_was_disturbed_most() -> None:
    calm = under(constant([1.0] * 6), wait_share=0.0)
    one = [*calm[:5], *under(calm[5:], wait_share=0.2)]
    other = [*under(calm[:2], wait_share=0.2), *calm[2:]]
    assert undisturbed_rounds([calm, calm]) == 6
    assert undisturbed_rounds([one, other]) == 4
    assert undisturbed_rounds([]) == 0


def noisy(level_ms: float, rounds: int, sd: float, seed: int = 0) -> list[Burst]:
    return constant((level_ms * np.exp(np.random.default_rng(seed).normal(0, sd, rounds))).tolist())


def test_ratios_are_precise_once_rounds_agree_or_are_many() -> None:
    even = constant([1.0] * 48)
    assert are_precise([even[:12], noisy(1.0, 12, 0.02)])
    assert not are_precise([even[:12], noisy(1.0, 12, 0.06)])
    assert are_precise([even[:48], noisy(1.0, 48, 0.06)])
    assert not are_precise([even[:48], noisy(1.0, 48, 0.06), noisy(1.0, 48, 0.3, seed=1)])


def test_a_large_difference_needs_less_precision() -> None:
    even = constant([1.0] * 12)
    assert not are_precise([even, noisy(1.0, 12, 0.06)])
    assert are_precise([even, noisy(1.3, 12, 0.06)])
    assert are_precise([noisy(1.3, 12, 0.06), even])


def test_without_a_round_in_common_no_further_one_tells_more() -> None:
    assert are_precise([])
    assert are_precise([constant([1.0, 1.0])])
    assert are_precise([noisy(1.0, 12, 0.3), constant([1.0] * 12, first_round=12)])


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
    assert are_precise([even, fast])
    assert not are_precise([even, fast], bridge=0)
    assert are_precise([even, noisy(0.3, 12, 0.02)], bridge=0)


def test_the_interval_covers_the_true_ratio_95_percent_of_the_time() -> None:
    draws = np.random.default_rng(11).normal(0.03, 0.014, (4000, 3))
    intervals = [ratio_over_processes(draw.tolist()).ci95 for draw in draws]
    covered = np.mean(
        [interval is not None and interval.low <= np.exp(0.03) <= interval.high for interval in intervals]
    )
    assert 0.94 <= covered <= 0.96


def test_another_confidence_of_the_same_interval() -> None:
    ratio = ratio_over_processes([0.0, 0.01, 0.02])
    wide = interval_at(ratio, 0.99)
    assert np.log(wide.high) - 0.01 == pytest.approx(9.9248 * 0.01 / 3**0.5, rel=1e-4)  # t = 9.9248
    same = interval_at(ratio, 0.95)
    assert ratio.ci95 is not None
    assert (same.low, same.high) == (pytest.approx(ratio.ci95.low), pytest.approx(ratio.ci95.high))
    with pytest.raises(ValueError, match="no interval over processes"):
        interval_at(speedup(bursts(1.0), bursts(2.0)), 0.99)


def test_the_summary_of_several_processes_is_over_processes() -> None:
    made = steady([1.0, 1.1, 1.02])
    summary = summarise(made)
    assert summary is not None
    assert process_medians_ms(made) == {0: 1.0, 1: 1.1, 2: 1.02}
    assert (summary.median_ms, summary.processes) == (1.02, 3)
    assert summary.process_spread == pytest.approx(0.1)
    assert summary.median_ci95_ms is not None
    assert 0.8 < summary.median_ci95_ms.low < 1.0 < 1.1 < summary.median_ci95_ms.high < 1.3
    single = summarise(steady([1.0]))
    assert single is not None
    assert (single.processes, single.process_spread) == (1, None)


@given(levels_ms)
def test_a_latency_lies_within_its_interval(levels: list[float]) -> None:
    summary = summarise(steady(levels))
    assert summary is not None and summary.median_ci95_ms is not None
    assert summary.median_ci95_ms.low <= summary.median_ms <= summary.median_ci95_ms.high


def test_more_rounds_do_not_narrow_what_processes_differ_in() -> None:
    def half_width(rounds: int) -> float:
        fast = over_processes(1.0, (1.0, 1.02, 0.98), rounds, seed=1, calls=9)
        interval = speedup(fast, over_processes(1.0, (0.99, 1.0, 1.03), rounds, seed=2, calls=9)).ci95
        assert interval is not None
        return float(np.log(interval.high / interval.low) / 2)

    assert half_width(48) == pytest.approx(half_width(6), rel=0.2)
