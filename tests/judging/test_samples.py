import numpy as np
import pytest

from bakeoff.judging.contest import judge_contest
from bakeoff.judging.samples import MAX_TURNS, distributions_of
from bakeoff.records.schema import Burst, Status
from tests.reports.samples import bursts, cell, constant, failed, ok, steady, under


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
