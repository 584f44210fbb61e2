"""One fit gives every number of a contest, from samples that are reduced to bursts and processes first."""

import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging import estimate
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.fit import Fit, fit, fit_records, fitted, speedup, summarise
from bakeoff.judging.gaps import imprecise, unclear
from bakeoff.judging.intervals import calls_needed, median_interval, percentile
from bakeoff.judging.roofline import of as floor_of
from bakeoff.judging.samples import MAX_TURNS, distributions_of
from bakeoff.records.schema import Burst, Ceilings, Extent, Interval, MemoryLevel, Placement, Record, Status, Work
from bakeoff.records.text import counted, spell_ms
from bakeoff.reports import number_format
from tests.reports.samples import bursts, cell, constant, failed, lived, ok, over_processes, roofline, steady, under
from tests.support.golden import same_as_golden

levels_ms = st.lists(st.floats(0.1, 100), min_size=2, max_size=10)


def fit_of(cells: Mapping[str, Sequence[Burst]]) -> Fit:
    return fit({label: estimate.series_of(taken) for label, taken in cells.items()})


def test_the_summary_by_hand() -> None:
    summary = summarise(constant([1.0, 2.0, 3.0, 4.0, 5.0, 100.0]))
    assert (summary.calls, summary.median_ms, summary.min_ms) == (18, 3.464, 1.0)  # between 3 and 4, as logarithms
    assert summary.mean_ms == pytest.approx(115 / 6)
    assert (summary.median_ci95_ms.low, summary.median_ci95_ms.high) == (
        pytest.approx(1.0, rel=1e-3),
        pytest.approx(100.0, rel=1e-3),
    )
    assert summary.p90_ms is None


def test_rounds_count_alike_however_many_calls_their_bursts_hold() -> None:
    quick, slow = [1_000_000] * 500, [2_000_000] * 10
    taken = [quick, slow, slow]
    summary = summarise([Burst(group=0, round=at, started_s=at, samples_ns=calls) for at, calls in enumerate(taken)])
    assert summary is not None and summary.median_ms == 2.0  # the median of all calls is 1


def test_nothing_measured_has_no_summary_and_an_empty_burst_does_not_count() -> None:
    empty = Burst(group=0, round=9, started_s=0, samples_ns=[])
    assert summarise([]) is None
    assert summarise([empty]) is None
    assert summarise([*constant([2.0]), empty]) == summarise(constant([2.0]))


def test_a_cell_over_itself_is_one() -> None:
    ratio = speedup(bursts(1.3), bursts(1.3))
    assert ratio.value == 1.0
    assert (ratio.ci95.low, ratio.ci95.high) == (1.0, 1.0)
    apart = {"eager": steady([1.0, 1.5, 1.0]), "onnx": steady([0.7, 0.7, 0.7])}  # their processes differ
    own = fit_of({**apart, "late": steady([2.0])}).ratio("late", "late")
    assert own.value == 1.0 and own.ci95 == Interval(low=1.0, high=1.0)


@given(st.lists(st.floats(0.5, 20), min_size=6, max_size=20))
def test_pairing_removes_a_common_drift(drift: list[float]) -> None:
    ratio = speedup(constant(drift), constant([2 * value for value in drift]))
    assert ratio.paired
    assert ratio.value == pytest.approx(2.0, rel=1e-3)
    assert ratio.ci95.low == pytest.approx(2.0, rel=1e-3)


def test_two_rounds_give_a_ratio_without_an_interval_and_none_an_error() -> None:
    assert speedup(constant([1.0, 1.0]), constant([2.0, 2.0])).ci95 is None
    with pytest.raises(ValueError, match="at least one burst"):
        speedup([], constant([1.0]))


def test_the_interval_over_processes_by_hand() -> None:
    # logarithms 0, 0.01 and 0.02: mean 0.01, standard error 0.01 / sqrt(3), t = 4.3027 at two degrees of freedom
    fast, slow = steady([1.0, 1.0, 1.0]), steady([np.exp(0.0), np.exp(0.01), np.exp(0.02)])
    ratio = speedup(fast, slow)
    assert (ratio.paired, ratio.processes) == (True, 3)
    assert np.log(ratio.value) == pytest.approx(0.01, abs=1e-3)
    assert np.log(ratio.ci95.low) == pytest.approx(0.01 - 4.3027 * 0.01 / 3**0.5, abs=1e-3)
    assert np.log(ratio.ci95.high) == pytest.approx(0.01 + 4.3027 * 0.01 / 3**0.5, abs=1e-3)


@given(levels_ms, st.data())
def test_over_processes_too_the_inverse_agrees(fast_ms: list[float], data: st.DataObject) -> None:
    slow_ms = data.draw(st.lists(st.floats(0.1, 100), min_size=len(fast_ms), max_size=len(fast_ms)))
    forth, back = speedup(steady(fast_ms), steady(slow_ms)), speedup(steady(slow_ms), steady(fast_ms))
    assert forth.processes == back.processes == len(fast_ms)
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.ci95.low <= forth.value <= forth.ci95.high
    assert forth.ci95.low == pytest.approx(1 / back.ci95.high)


@given(st.lists(st.floats(0.5, 20), min_size=3, max_size=8))
def test_a_drift_from_process_to_process_divides_out(drift: list[float]) -> None:
    ratio = speedup(steady(drift), steady([2 * level for level in drift]))
    assert (ratio.ci95.low, ratio.ci95.high) == (pytest.approx(2.0, rel=1e-3), pytest.approx(2.0, rel=1e-3))


def test_the_interval_of_a_single_process_holds_the_median_of_its_own_rounds() -> None:
    """The third cell was twice as slow in the second group, which moves the others in the fit."""
    fast, slow = constant([1.0] * 6), constant([1.0] * 6, group=1)
    found = fit_of({"fast": fast, "slow": slow, "eager": [*constant([4.0] * 6), *constant([8.0] * 6, group=1)]})
    for label in ("fast", "slow"):
        interval = found.latency_ci95_ms(label)
        assert interval is not None and interval.low <= 1.0 <= interval.high
        assert interval.low <= found.latency_ms[label] <= interval.high != interval.low


def ratios() -> dict[str, dict[str, list[Burst]]]:
    """Return the bursts of a fast and a slow cell, and of others that connect them."""
    drift = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    doubled, turns = [2 * value for value in drift], [2.0, 2.04, 1.96, 2.02, 1.98, 2.0]
    narrow = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]
    first, fourth = steady([1.0] * 3), steady([1.0] * 4)
    lost = [burst for burst in steady([2.0, 2.0, 9.0, 2.0]) if burst.process != 2]
    apart = {"fast": first, "slow": steady([1.5] * 3, group=10)}
    joined = {"fast": constant(narrow), "slow": constant([3 * one for one in narrow], group=1)}
    wide, even = ([*constant(each), *constant(each, group=1)] for each in ([1.9, 2.0, 2.1, 1.95, 2.05, 2.0], [2.0] * 6))
    slow = constant([6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 2.0, 6.0, 6.0])
    explained = [*under(slow[:11:2], wait_share=0.5), *under(slow[1:11:2], wait_share=0.0), *slow[11:]]
    others = {
        "once": {label: steady([1.0]) for label in ("fast", "eager")},
        "three times": {label: steady([1.0, 1.001, 0.999]) for label in ("fast", "eager")},
    }
    return {
        "a drift in shared rounds": {"fast": constant(drift), "slow": constant(doubled)},
        "a drift in rounds of their own": {"fast": constant(drift), "slow": constant(doubled, first_round=6)},
        "groups of their own": {"fast": constant(drift), "slow": constant(drift, group=1)},
        "processes of their own": {"fast": constant([1.0] * 6), "slow": constant([2.0] * 6, process=1)},
        "a process that one has not": {"fast": fourth, "slow": lost},
        "one process in common": {"fast": fourth, "slow": [burst for burst in lost if burst.process == 0]},
        "two groups and nothing between, where the first was half as fast": apart,
        "two groups through eager of both": {**apart, "eager": [*steady([4.0] * 3), *steady([2.0] * 3, group=10)]},
        "two groups and eager of one": {**apart, "eager": steady([4.0] * 3)},
        "one process through a cell that varies": joined | {"eager": wide},
        "one process through a cell that does not": joined | {"eager": even},
        "one process through both": joined | {"eager": wide, "inductor": even},
        **{
            f"{rounds} rounds beside cells that were measured {name}": of_others | {"slow": constant(turns[:rounds])}
            for name, of_others in others.items()
            for rounds in (3, 4, 5, 6)
        },
        "one after the other": {"fast": steady(narrow[:3]), "slow": steady([2.0, 2.02, 1.98, 2.0], group=10)},
        "outliers": {"fast": constant([1.0] * 7), "slow": constant([2.0, 2.0, 2.0, 50.0, 2.0, 2.0, 90.0])},
        "slow rounds": {"fast": under(constant([1.0] * 12), wait_share=0.0), "slow": under(slow, wait_share=0.0)},
        "slow rounds that were disturbed": {"fast": under(constant([1.0] * 12), wait_share=0.0), "slow": explained},
        **{
            f"{robbed} of 12 rounds disturbed": {
                "fast": constant([1.0] * 12),
                "slow": [
                    *under(constant([2.0] * robbed), steal_share=0.3),
                    *under(constant([3.0] * (12 - robbed), first_round=robbed), steal_share=0.0),
                ],
            }
            for robbed in (6, 7)
        },
    }


def test_ratios_are_estimated_as_before() -> None:
    lines = []
    for name, cells in ratios().items():
        ratio = fit_of(cells).ratio("fast", "slow")
        ends = f" [{ratio.ci95.low:.4g}, {ratio.ci95.high:.4g}]" if ratio.ci95 else ""
        paired = "in shared rounds" if ratio.paired else "unpaired"
        lines.append(f"{name}: {ratio.value:.4g}{ends} {paired} of {counted(ratio.processes, 'process')}")
    same_as_golden("ratios.txt", "\n".join(lines))


def test_the_summary_of_several_processes_is_over_processes() -> None:
    made = steady([1.0, 1.1, 1.02])
    summary = summarise(made)
    assert estimate.process_medians_ms(made) == {0: 1.0, 1: 1.1, 2: 1.02}
    assert (summary.median_ms, summary.processes) == (1.039, 3)  # the geometric mean
    assert summary.process_spread == pytest.approx(0.1)
    assert 0.8 < summary.median_ci95_ms.low < 1.0 < 1.1 < summary.median_ci95_ms.high < 1.3
    single = summarise(steady([1.0]))
    assert (single.processes, single.process_spread) == (1, None)


@given(levels_ms)
def test_a_latency_lies_within_its_interval(levels: list[float]) -> None:
    summary = summarise(steady(levels))
    assert summary.median_ci95_ms.low <= summary.median_ms <= summary.median_ci95_ms.high


def test_more_rounds_do_not_narrow_what_processes_differ_in() -> None:
    def half_width(rounds: int) -> float:
        fast = over_processes(1.0, (1.0, 1.02, 0.98), rounds, seed=1, calls=9)
        interval = speedup(fast, over_processes(1.0, (0.99, 1.0, 1.03), rounds, seed=2, calls=9)).ci95
        return float(np.log(interval.high / interval.low) / 2)

    assert half_width(48) == pytest.approx(half_width(6), rel=0.2)


# --- contests of several cells


LABELS = ("eager", "onnx", "openvino", "inductor", "aotinductor")


def contest(seed: int, cells: int, processes: int, tail: float, disturbed: float, missing: float) -> list[Record]:
    """Return the records of a contest with drift, disturbed rounds, heavy tails and cells that missed epochs."""
    random = np.random.default_rng(seed)
    levels = random.uniform(-1, 1, cells) * random.choice([0.05, 1.0])
    taken: list[list[Burst]] = [[] for _ in range(cells)]
    for process in range(processes):
        present = [cell for cell in range(cells) if cell == 0 or process == 0 or random.random() >= missing]
        layouts = random.normal(0, 0.015, cells)
        drift = np.cumsum(random.normal(0, 0.02, 9)) + random.normal(0, 0.3)
        for number, cell_number in itertools.product(range(9), present):
            log = levels[cell_number] + layouts[cell_number] + drift[number] + 0.02 * tail * random.standard_t(3)
            if random.random() < disturbed:
                log += random.uniform(0.1, 2)
            sample_ns = round(float(np.exp(log)) * 1e6)
            taken[cell_number].append(
                Burst(group=process, round=number, started_s=number, samples_ns=[sample_ns], process=process)
            )
    return [ok(cell(LABELS[place]), bursts) for place, bursts in enumerate(taken)]


contests = st.builds(
    contest,
    seed=st.integers(0, 2**32),
    cells=st.integers(2, 5),
    processes=st.integers(1, 6),
    tail=st.floats(0, 3),
    disturbed=st.floats(0, 0.3),
    missing=st.floats(0, 0.8),
)


def shown_ms(latency_ms: float) -> float:
    return float(spell_ms(latency_ms).removesuffix(" ms").replace(",", ""))


@given(contests)
def test_the_numbers_of_a_contest_agree(records: list[Record]) -> None:
    """Ranks are the order of latencies, printed ratios are those of printed latencies, and A/B times B/C is A/C."""
    judged, found = judge_contest(records), fit_records(records)
    latencies_ms = [row.latency.median_ms for row in judged.ranked if row.latency]
    assert latencies_ms == sorted(latencies_ms) and len(latencies_ms) == len(records)
    (eager_ms,) = [shown_ms(row.latency.median_ms) for row in judged.cells if row.latency and row.is_baseline]
    for row in judged.cells:
        assert row.latency and row.speedup
        assert number_format.ratio(eager_ms / shown_ms(row.latency.median_ms)) == number_format.ratio(row.speedup.value)
    for a, b, c in itertools.permutations(found.latency_ms, 3):
        assert found.ratio(a, b).value * found.ratio(b, c).value == pytest.approx(found.ratio(a, c).value, rel=1e-12)


@given(contests, st.randoms())
def test_the_order_of_the_records_and_bursts_does_not_count(records: list[Record], random: Random) -> None:
    shuffled = [
        record.but(bursts=random.sample(record.bursts, len(record.bursts)))
        for record in random.sample(records, len(records))
    ]
    assert dict(fit_records(shuffled).latency_ms) == dict(fit_records(records).latency_ms)


@given(contests)
def test_a_further_cell_turns_two_others_around_by_no_more_than_their_intervals(records: list[Record]) -> None:
    without, found = fit_records(records[:2]), fit_records(records)
    before, after = (each.ratio("eager", "onnx") for each in (without, found))
    if before.ci95 is None or after.ci95 is None:
        return
    if before.ci95.low > 1 and before.value > 1.02:
        assert after.ci95.high > 1
    if before.ci95.high < 1 and before.value < 1 / 1.02:
        assert after.ci95.low < 1


@pytest.mark.parametrize("processes", [1, 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 5))])
def test_a_further_cell_seldom_moves_two_others_out_of_their_interval(processes: int) -> None:
    """No estimate promises it for every contest. Of 100, two may leave the interval by more than 0.2 %."""
    left = 0
    for seed in range(100):
        records = contest(seed, cells=4, processes=processes, tail=1.0, disturbed=0.15, missing=0.3)
        before, after = (fit_records(some).ratio("eager", "onnx") for some in (records[:2], records))
        assert before.ci95 and after.ci95
        left += not before.ci95.low / 1.002 <= after.value <= before.ci95.high * 1.002
    assert left <= 2


@given(contests)
def test_a_fitted_record_is_fitted_already(records: list[Record]) -> None:
    once = fitted(records)
    assert fitted(once) == once


def test_a_noisy_cell_does_not_spoil_the_others() -> None:
    """Two cells are 1 % apart in every round. The third one is anything between one and three times as slow."""
    random = np.random.default_rng(5)
    drift = random.uniform(1, 2, 12)
    eager = constant((drift * random.uniform(1, 3, 12)).tolist())
    found = fit_of({"onnx": constant(drift.tolist()), "openvino": constant((1.01 * drift).tolist()), "eager": eager})
    assert found.ratio("onnx", "openvino").value == pytest.approx(1.01, rel=1e-3)


def test_a_cell_that_waited_in_most_rounds_does_not_lift_the_latency_of_another() -> None:
    """Threads of eager waited for cores in seven of twelve rounds, for 24 ms. In the others it took 0.065 ms."""
    waited = [number % 12 in (0, 2, 3, 5, 7, 8, 10) for number in range(12)]
    onnx = {0: {(0, number): estimate.Turn(0.05, False) for number in range(12)}}
    eager = {
        0: {
            (0, number): (estimate.Turn(24.0, True, 6.0) if late else estimate.Turn(0.065, False))
            for number, late in enumerate(waited)
        }
    }
    found = fit({"eager": eager, "onnx": onnx})
    assert found.latency_ms == {"eager": 0.065, "onnx": 0.05}
    assert found.ratio("onnx", "eager").value == pytest.approx(1.3)


def test_a_cell_that_left_early_has_the_interval_that_it_has_earned() -> None:
    """Its rounds agree to the last bit, but the other two show that processes differ by 2 %."""
    eager, onnx = steady([3.0, 3.06, 2.94, 3.0]), steady([1.0, 0.98, 1.01, 1.02])
    left = fit_of({"eager": eager, "onnx": onnx, "inductor": steady([2.0])}).ratio("onnx", "inductor")
    alone = speedup(onnx[:6], steady([2.0]))
    assert left.processes == alone.processes == 1
    assert left.ci95 and alone.ci95
    assert left.ci95.low < 1.95 < 2.05 < left.ci95.high
    assert alone.ci95.high - alone.ci95.low < 0.01


def half_width(interval: Interval | None) -> float:
    return float(np.log(interval.high / interval.low) / 2)


@pytest.mark.parametrize(
    ("processes", "disturbed", "is_wider"), [(2, 0, True), (3, 0, False), (3, 1, True), (5, 0, False), (5, 1, True)]
)
def test_processes_that_agree_by_chance_are_known_no_better_than_their_rounds(
    processes: int, disturbed: int, is_wider: bool
) -> None:
    """All processes say 2, but their rounds say 1.4 to 2.8. More than two are enough on a quiet machine."""
    rounds = [1.4, 1.6, 2.0, 2.0, 2.5, 2.8]
    fast, slow = (
        {
            process: {(0, number): estimate.Turn(ms, number < disturbed) for number, ms in enumerate(times_ms)}
            for process in range(processes)
        }
        for times_ms in ([1.0] * len(rounds), rounds)
    )
    found = fit({"fast": fast, "slow": slow})
    for half in (half_width(found.ratio("fast", "slow").ci95), half_width(found.latency_ci95_ms("slow"))):
        assert 0.1 < half < 0.7 if is_wider else half < 1e-9


def test_epochs_that_cells_missed_do_not_bring_their_drift_into_a_ratio() -> None:
    """The machine was twice as slow in the last two epochs, which the third cell had left by then."""
    found = fit_of(
        {"eager": steady([4.0, 4.0, 8.0, 8.0]), "onnx": steady([1.0, 1.0, 2.0, 2.0]), "inductor": steady([2.0, 2.0])}
    )
    assert found.ratio("onnx", "inductor").value == pytest.approx(2.0, rel=1e-3)
    assert found.ratio("inductor", "eager").value == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("level_ms", "changes", "is_beaten"),
    [
        (0.2, {}, False),
        (0.151, {}, False),  # within the error of a measurement
        (0.1, {}, True),
        (0.1, {"status": Status.INCORRECT}, False),
        (0.1, {"placement": Placement(extent=Extent.PARTIAL, frozen_choices=["mine.py, line 20"])}, False),
    ],
)
def test_what_a_right_cell_is_faster_than_is_no_floor(
    level_ms: float, changes: dict[str, Any], is_beaten: bool
) -> None:
    records = [
        lived(1.0, "eager", roofline=roofline(1.0)),
        lived(level_ms, "onnx", roofline=roofline(level_ms), **changes),
    ]
    found = fitted(fitted(records))
    assert [record.roofline is not None and record.roofline.is_beaten for record in found] == [is_beaten, is_beaten]
    assert [record.roofline is not None and record.roofline.share is None for record in found] == [is_beaten] * 2


MB = 10**6


@pytest.mark.parametrize(
    ("moved", "floor_ms", "in_cache"),
    [
        (MB // 2, 0.0005, True),  # smaller than any that was measured: as the smallest
        (3 * MB, 0.006, True),  # of the largest working set that is no larger
        (40 * MB, 0.4, False),
        (1000 * MB, 97.0, False),  # of which 30 MB may stay in the cache
    ],
)
def test_bytes_move_at_the_rate_of_the_level_that_holds_them(moved: int, floor_ms: float, in_cache: bool) -> None:
    rates = {1: 1000e9, 2: 500e9, 32: 100e9, 500: 10e9}
    levels = [MemoryLevel(working_set_bytes=size * MB, bytes_per_s=rate) for size, rate in rates.items()]
    machine = Ceilings(flops_per_s=1e12, bytes_per_s=10e9, levels=levels, cache_bytes=30 * MB)
    found = floor_of(Work(flops=1000, bytes_moved=moved), machine, None)
    assert (found.floor_ms, found.in_cache) == (pytest.approx(floor_ms), in_cache)


latencies_ms = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60)


@given(latencies_ms)
def test_the_interval_contains_the_median_and_is_made_of_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval.low <= float(np.median(values)) <= interval.high
    assert {interval.low, interval.high} <= set(values)


@pytest.mark.parametrize("n", range(6))
def test_fewer_than_six_values_hold_no_interval(n: int) -> None:
    assert median_interval([1.0] * n) is None


@pytest.mark.parametrize(("n", "k"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (50, 18)])
def test_the_interval_takes_the_order_statistics_of_the_tables(n: int, k: int) -> None:
    interval = median_interval([float(value) for value in range(1, n + 1)])
    assert (interval.low, interval.high) == (k, n + 1 - k)


@pytest.mark.parametrize(("quantile", "calls"), [(0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_calls_needed_for_a_percentile(quantile: float, calls: int) -> None:
    assert calls_needed(quantile) == calls
    assert percentile([1.0] * (calls - 1), quantile) is None
    assert percentile([1.0] * calls, quantile) == 1.0


def test_a_burst_stands_for_the_median_of_its_calls() -> None:
    assert estimate.burst_ms(Burst(group=0, round=0, started_s=0, samples_ns=[1_000_000, 9_000_000, 2_000_000])) == 2.0


def test_undisturbed_rounds_of_a_cell_are_counted() -> None:
    calm = under(constant([1.0] * 6), wait_share=0.0)
    one = [*calm[:5], *under(calm[5:], wait_share=0.2)]
    other = [*under(calm[:2], wait_share=0.2), *calm[2:]]
    assert [estimate.undisturbed_rounds(bursts) for bursts in (calm, one, other, [])] == [6, 5, 4, 0]


def noisy(level_ms: float, rounds: int, sd: float, seed: int = 0) -> list[Burst]:
    return constant((level_ms * np.exp(np.random.default_rng(seed).normal(0, sd, rounds))).tolist())


EVEN, FAR, NEAR = constant([1.0] * 12), noisy(2.0, 12, 0.4), constant([1.1] * 12)


@pytest.mark.parametrize(
    ("cells", "bridge", "expected"),
    [
        # once rounds agree or are many
        ([EVEN, noisy(1.0, 12, 0.02)], None, set()),
        ([EVEN, noisy(1.0, 12, 0.06)], None, {0, 1}),
        ([constant([1.0] * 48), noisy(1.0, 48, 0.06)], None, set()),
        ([constant([1.0] * 48), noisy(1.0, 48, 0.06), noisy(1.0, 48, 0.3, seed=1)], None, {0, 2}),
        # a large difference needs less precision
        ([EVEN, noisy(1.3, 12, 0.06)], None, set()),
        ([noisy(1.3, 12, 0.06), EVEN], None, set()),
        ([EVEN, noisy(1.12, 12, 0.06)], None, set()),  # a lead that takes five processes anyway
        # and less still where five processes come anyway
        ([EVEN, FAR], None, {0, 1}),
        ([EVEN, FAR, constant([1.01] * 12)], None, {0, 1}),  # a tie may be decided by three processes
        ([EVEN, FAR, NEAR], None, set()),
        ([EVEN, noisy(2.0, 12, 1.5), NEAR], None, {0, 1}),
        # ratios that go through another cell have to be precise however large
        ([EVEN, FAR, NEAR], 0, {0, 1}),
        ([EVEN, noisy(0.3, 12, 0.06)], None, set()),
        ([EVEN, noisy(0.3, 12, 0.06)], 0, {0, 1}),
        ([EVEN, noisy(0.3, 12, 0.02)], 0, set()),
        # without a round in common no further one decides more
        ([], None, set()),
        ([constant([1.0, 1.0])], None, set()),
        ([noisy(1.0, 12, 0.3), constant([1.0] * 12, first_round=12)], None, set()),
    ],
)
def test_ratios_are_imprecise_until_their_rounds_tell(
    cells: Sequence[Sequence[Burst]], bridge: int | None, expected: set[int]
) -> None:
    assert imprecise(cells, bridge) == expected


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
    estimated = float(np.mean(estimate.ERROR_PER_DEVIATION * deviations / np.sqrt(rounds)))
    assert estimated == pytest.approx(float(medians.std()), rel=off)


def test_the_steadiest_cell_is_the_preferred_one_unless_its_rounds_differ_much() -> None:
    wild, uneven, even = noisy(1.0, 12, 0.2), noisy(3.0, 12, 0.01), constant([2.0] * 12)
    assert estimate.steadiest([uneven, even], preferred=0) == 0
    assert estimate.steadiest([wild, uneven, even], preferred=0) == 2
    assert estimate.steadiest([wild, uneven], preferred=0) == 1
    assert estimate.steadiest([[], even], preferred=0) == 1
    assert estimate.steadiest([[], []], preferred=1) == 1


def test_another_confidence_of_the_same_interval() -> None:
    ratio = estimate.ratio_over_processes([0.0, 0.01, 0.02])
    wide = estimate.interval_at(ratio, 0.99)
    assert np.log(wide.high) - 0.01 == pytest.approx(9.9248 * 0.01 / 3**0.5, rel=1e-4)  # t = 9.9248
    same = estimate.interval_at(ratio, 0.95)
    assert (same.low, same.high) == (pytest.approx(ratio.ci95.low), pytest.approx(ratio.ci95.high))
    with pytest.raises(ValueError, match="no interval over processes"):
        estimate.interval_at(speedup(bursts(1.0), bursts(2.0)), 0.99)


def test_the_distribution_of_single_calls_has_the_cells_latency_and_the_middle_99_percent() -> None:
    record = ok(cell(), bursts(1.0, rounds=20, calls=100))
    (found,) = distributions_of([record, failed(cell("onnx"), Status.OOM, "no memory")]).by_label.values()
    calls_ms = np.concatenate([burst.samples_ns for burst in record.bursts]) / 1e6
    assert record.latency and (found.calls, found.median_ms) == (2000, record.latency.median_ms)
    assert (found.low_ms, found.high_ms) == pytest.approx(np.quantile(calls_ms, [0.005, 0.995]))
    assert max(found.heights) == 1 and len(found.heights) == len(found.middles_ms) == 40
    assert all(found.low_ms < middle < found.high_ms for middle in found.middles_ms)


def test_distributions_far_apart_stand_on_a_logarithmic_axis() -> None:
    near, far = ok(cell("onnx"), bursts(1.0)), ok(cell("eager"), bursts(20.0))
    assert distributions_of([near, far]).is_log
    assert not distributions_of([near]).is_log
    middles_ms = distributions_of([near, far]).by_label["eager"].middles_ms
    steps = np.diff(middles_ms)
    assert steps[-1] > steps[0]


def test_equal_calls_have_no_outline_and_no_calls_no_distribution() -> None:
    assert distributions_of([ok(cell(), constant([1.0] * 8))]).by_label["eager"].heights == ()
    assert distributions_of([]).by_label == {}
    two_calls = Burst(group=0, round=0, started_s=0.0, samples_ns=[1_000_000, 2_000_000])
    assert distributions_of([ok(cell(), [two_calls])]).by_label["eager"].heights == ()


def test_deviations_are_the_bursts_of_each_process_relative_to_the_cell() -> None:
    calm, busy = steady([1.0, 1.1], rounds=4)[:4], steady([1.0, 1.1], rounds=4)[4:]
    made = [*under(calm, wait_share=0.0), *under(busy[:3], wait_share=0.0), *under(busy[3:], wait_share=0.5)]
    (judged,) = judge_contest([ok(cell(), made)]).cells
    first, second = judged.deviations
    assert judged.latency and judged.latency.median_ms == 1.049  # the geometric mean of 1.0 and 1.1
    assert [deviation.share for deviation in first] == pytest.approx([1.0 / 1.049 - 1] * 4)
    assert [deviation.share for deviation in second] == pytest.approx([1.1 / 1.049 - 1] * 4)
    assert [turn.disturbed for turn in second] == [False, False, False, True]
    assert judge_contest([failed(cell(), Status.OOM, "no memory")]).cells[0].deviations == ()


def test_many_bursts_become_few_deviations() -> None:
    (process,) = judge_contest([ok(cell(), constant([1.0] * 200))]).cells[0].deviations
    assert len(process) == 50 <= MAX_TURNS  # four neighbours each
    assert process[0].at_s == pytest.approx(1.5)
