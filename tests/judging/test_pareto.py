import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.contest import dominates, front_of
from bakeoff.records.schema import Memory, Record, Throughput
from tests.reports.samples import MIB, accuracy, cell, constant, ok


def record(
    backend: str,
    median_ms: float,
    build_s: float = 1.0,
    resident: float | None = 500,
    error: float = 1e-7,
    calls_per_s: float | None = None,
) -> Record:
    memory = Memory(peak_resident_bytes=None if resident is None else round(resident * MIB))
    throughput = Throughput(calls_per_s=calls_per_s or 1e3 / median_ms, blocks=3, block_s=0.1)
    return ok(
        cell(backend),
        constant([median_ms] * 6),
        build_s=build_s,
        accuracy=accuracy(error),
        memory=memory,
        throughput=throughput,
    )


@pytest.mark.parametrize(
    ("median_ms", "other", "stays"),
    [
        (2.0, {"build_s": 9.0, "resident": 900}, False),  # worse in everything
        (2.0, {"build_s": 0.5}, True),  # one advantage is enough
        (2.0, {"resident": 100.0}, True),
        (2.0, {"error": 1e-9}, True),
        (1.5, {"calls_per_s": 5000}, True),
        (2.0, {"build_s": 0.985}, False),  # within the margin
        (2.0, {"resident": 495.0}, False),
        (2.0, {"error": 0.6e-7}, False),
        (1.01, {}, True),  # equals
    ],
)
def test_one_advantage_over_the_margin_is_enough_to_stay(
    median_ms: float, other: dict[str, float], stays: bool
) -> None:
    front = front_of([record("onnx", 1.0), record("inductor", median_ms, **other)])
    assert list(front.labels) == ["onnx", *(["inductor"] if stays else [])]


def test_what_one_has_no_value_of_compares_nobody_and_is_named() -> None:
    front = front_of([record("onnx", 1.0), record("inductor", 2.0, resident=None)])
    assert (front.labels, front.left_out) == (["onnx"], ["resident memory"])
    assert front.aims == ["latency", "throughput", "build time", "error"]


def test_on_a_gpu_it_is_the_devices_memory() -> None:
    assert list(front_of([]).labels) == []
    assert "device memory" in front_of([ok(cell("onnx", device="cuda"), constant([1.0] * 6))]).aims


points = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3)


@given(points, points)
def test_domination_goes_one_way(one: list[float], other: list[float]) -> None:
    ties = [1.02] * 3
    assert not (dominates(one, other, ties) and dominates(other, one, ties))
    assert not dominates(one, one, ties)


@given(points)
def test_better_by_more_than_the_margin_in_everything_dominates(values: list[float]) -> None:
    assert dominates([value / 1.03 for value in values], values, [1.02] * 3)
