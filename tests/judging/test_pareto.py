import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.pareto import dominates, front_of
from bakeoff.records.schema import Memory, Record, Throughput
from tests.reports.samples import MIB, accuracy, cell, constant, ok


def record(
    backend: str, median_ms: float, build_s: float = 1.0, resident: float | None = 500, error: float = 1e-7
) -> Record:
    memory = Memory(peak_resident_bytes=None if resident is None else round(resident * MIB))
    throughput = Throughput(calls_per_s=1e3 / median_ms, blocks=3, block_s=0.1)
    return ok(
        cell(backend),
        constant([median_ms] * 6),
        build_s=build_s,
        accuracy=accuracy(error),
        memory=memory,
        throughput=throughput,
    )


def labels(*records: Record) -> list[str]:
    return list(front_of(records).labels)


def test_what_is_worse_in_everything_is_dominated() -> None:
    assert labels(record("onnx", 1.0), record("inductor", 2.0, build_s=9.0, resident=900)) == ["onnx"]


@pytest.mark.parametrize("better", [{"build_s": 0.5}, {"resident": 100.0}, {"error": 1e-9}])
def test_one_advantage_is_enough_to_stay(better: dict[str, float]) -> None:
    assert labels(record("onnx", 1.0), record("inductor", 2.0, **better)) == ["onnx", "inductor"]


@pytest.mark.parametrize("slightly", [{"build_s": 0.985}, {"resident": 495.0}, {"error": 0.6e-7}])
def test_an_advantage_within_the_margin_is_none(slightly: dict[str, float]) -> None:
    assert labels(record("onnx", 1.0), record("inductor", 2.0, **slightly)) == ["onnx"]


def test_equals_do_not_dominate_each_other() -> None:
    assert labels(record("onnx", 1.0), record("openvino", 1.01)) == ["onnx", "openvino"]


def test_throughput_counts_upwards() -> None:
    batching = record("openvino", 1.5).model_copy(
        update={"throughput": Throughput(calls_per_s=5000, blocks=3, block_s=0.1)}
    )
    assert labels(record("onnx", 1.0), batching) == ["onnx", "openvino"]


def test_what_one_has_no_value_of_compares_nobody_and_is_named() -> None:
    front = front_of([record("onnx", 1.0), record("inductor", 2.0, resident=None)])
    assert (front.labels, front.left_out) == (["onnx"], ["resident memory"])
    assert front.aims == ["latency", "throughput", "build time", "error"]


def test_on_a_gpu_it_is_the_devices_memory() -> None:
    assert "device memory" in front_of([ok(cell("onnx", device="cuda"), constant([1.0] * 6))]).aims


def test_nobody_has_an_empty_front() -> None:
    assert labels() == []


points = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3)


@given(points, points)
def test_domination_goes_one_way(one: list[float], other: list[float]) -> None:
    ties = [1.02] * 3
    assert not (dominates(one, other, ties) and dominates(other, one, ties))
    assert not dominates(one, one, ties)


@given(points)
def test_better_by_more_than_the_margin_in_everything_dominates(values: list[float]) -> None:
    assert dominates([value / 1.03 for value in values], values, [1.02] * 3)
