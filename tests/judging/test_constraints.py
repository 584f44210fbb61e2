import math

import pytest

from bakeoff.judging.constraints import QUANTITIES, RequirementMissed, Requirements
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Energy, Interval, Memory, Phase, Process, Record, Throughput
from bakeoff.records.start_samples import Start, StartedCell
from tests.reports.samples import MIB, accuracy, bursts, cell, constant, ok


def full() -> Record:
    """A record that has a value of every quantity."""
    stages = {"interpreter_s": 0.1, "imports_s": 0.2, "load_s": 0.3, "first_answer_s": 0.1, "later_answers_s": 0.1}
    start = Start(**stages, peak_bytes=MIB, steady_bytes=MIB, device_bytes=None)
    started = StartedCell(cell_id="onnx", label="onnx", distributions={"onnxruntime": MIB}, starts=[start])
    warm = [Phase(name="load", seconds=0.4), Phase(name="first_call", seconds=0.1)]
    memory = Memory(
        peak_resident_bytes=MIB, engine_resident_bytes=MIB, peak_device_bytes=412 * MIB, artifact_bytes=3 * MIB
    )
    return ok(
        cell("onnx", device="cuda"),
        bursts(1.0, rounds=20, calls=400),
        build_s=2.0,
        processes=[Process(index=0, warm=False, phases=[]), Process(index=1, warm=True, phases=warm)],
        starts=[started],
        energy=Energy(joules_per_call=0.02, idle_w=70.0, calls=1000, seconds=1.0, source="NVML, the whole GPU"),
        memory=memory,
    )


def unmet(text: str, record: Record | None = None) -> list[RequirementMissed]:
    return Requirements.parse(text).unmet(record or full())


def test_every_quantity_is_read_from_the_record() -> None:
    values = {name: quantity.of(full()) for name, quantity in QUANTITIES.items()}
    assert [name for name, value in values.items() if value is None] == []
    assert values["start_s"] == pytest.approx(0.7) and values["environment_bytes"] == MIB
    assert values["build_s"] == pytest.approx(2.0)
    assert values["first_answer_s"] == pytest.approx(2.01)
    assert (values["warm_build_s"], values["warm_first_answer_s"]) == (0.4, 0.5)
    assert values["peak_device_bytes"] == 412 * MIB


def test_what_is_met_has_no_reasons_and_nothing_is_required_by_no_text() -> None:
    assert unmet("p99_ms<5, peak_device_bytes<4GB, build_s<60, rmse<1e-3") == []
    assert not Requirements.parse("  ")
    assert Requirements.parse("") == Requirements() and Requirements().unmet(full()) == []
    assert Requirements.parse("build_s < 60")


def test_each_doubt_has_what_is_and_what_was_asked() -> None:
    found = unmet("build_s<1.5, median_ms<5 , joules_per_call<=0.01, peak_device_bytes<400MB")
    assert [(doubt.value, str(doubt.required), doubt.required.limit) for doubt in found] == [
        (pytest.approx(2.0), "build_s<1.5", 1.5),
        (0.02, "joules_per_call<=0.01", 0.01),
        (412 * MIB, "peak_device_bytes<400 MB", 4e8),
    ]


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("build_s<2", False),
        ("build_s<=2", True),
        ("build_s>2", False),
        ("build_s>=2", True),
        (f"peak_device_bytes<={412 * MIB}", True),
        ("peak_device_bytes<=412MiB", True),
        ("peak_device_bytes<=412 MB", False),
        ("peak_device_bytes<0.5GB", True),
        ("peak_device_bytes<4e8B", False),
        ("build_s<.5e1", True),
    ],
)
def test_operators_and_units(text: str, is_met: bool) -> None:
    record = ok(cell("onnx", device="cuda"), constant([1.0] * 6), first_call_s=0.01).model_copy(
        update={"phases": [Phase(name="compile", seconds=2.0)]}
    )
    assert (unmet(text, record) == []) is is_met


def test_a_quantity_that_was_not_measured_is_not_met() -> None:
    few = ok(cell("onnx"), constant([1.0] * 6))
    found = unmet("p99_ms<5, peak_device_bytes<4GB, warm_build_s<4, joules_per_call<4", few)
    assert [(doubt.required.name, doubt.value) for doubt in found] == [
        (name, None) for name in ("p99_ms", "peak_device_bytes", "warm_build_s", "joules_per_call")
    ]


def test_not_a_number_meets_nothing() -> None:
    wrong = ok(cell("onnx"), constant([1.0] * 6), accuracy=accuracy(math.nan))
    assert len(unmet("rmse<1, rmse>=1", wrong)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p9_ms<5", "unknown quantity 'p9_ms': did you mean 'p99_ms'? (--require 'p9_ms<5'; a metric: --evaluate)"),
        ("xyz<5", "unknown quantity 'xyz': known: artifact_bytes, "),
        ("latency_ms<5", "'latency_ms': did you mean 'median_ms'?"),
        ("p50_ms<5", "'p50_ms': known: median_ms"),
        ("peak_memory_bytes<4GB", "'peak_memory_bytes': did you mean 'peak_device_bytes'?"),
        ("p99_ms<5ms", "--require 'p99_ms<5ms': p99_ms takes a plain number, not one in ms"),
        ("peak_device_bytes<4Gb", "unknown unit of bytes 'Gb': did you mean 'GB'?"),
        ("p99_ms=5", "--require 'p99_ms=5': write NAME<NUMBER"),
        ("p99_ms<", "--require 'p99_ms<': write NAME<NUMBER"),
        ("p99_ms<-1", "--require 'p99_ms<-1': write NAME<NUMBER"),
        ("p99_ms<nan", "--require 'p99_ms<nan': write NAME<NUMBER"),
        ("p99_ms<5,", "--require '': write NAME<NUMBER"),
        ("p99_ms<5 build_s<3", "--require 'p99_ms<5 build_s<3': write NAME<NUMBER"),
        ("p99_ms<4,000", "--require '000': write NAME<NUMBER"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Requirements.parse(text).refuse_metrics()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "outcome"), [("0.05", "met"), ("0.021", "open"), ("0.019", "open"), ("0.01", "missed")]
)
def test_energy_decides_only_where_its_interval_is_beside_the_limit(limit: str, outcome: str) -> None:
    energy = Energy(
        joules_per_call=0.02,
        ci95=Interval(low=0.018, high=0.022),
        turns=5,
        idle_w=70.0,
        calls=1000,
        seconds=1.0,
        source="",
    )
    record = full().model_copy(update={"energy": energy})
    required = Requirements.parse(f"joules_per_call<{limit}")
    told = "missed" if required.unmet(record) else "open" if required.open([record]) else "met"
    assert told == outcome
    below = energy.model_copy(update={"ci95": Interval(low=-0.01, high=0.05)})
    assert required.unmet(record.model_copy(update={"energy": below}))  # less than the counter resolves: not known


def test_a_start_that_may_miss_the_limit_is_a_doubt_and_no_refusal() -> None:
    start = full().starts[0].starts[0]
    starts = [start.model_copy(update={"imports_s": 0.2 + 0.02 * number}) for number in range(7)]
    record = full().model_copy(update={"starts": [full().starts[0].model_copy(update={"starts": starts})]})
    required = Requirements.parse("start_s<0.75")
    assert not required.unmet(record)
    (doubt,) = required.open([record])
    assert doubt.say() == (
        "onnx may miss what is required: start_s is 0.76, and 7 repetitions do not show whether it is < 0.75"
    )
    assert Requirements.parse("start_s<0.5").unmet(record)


def test_a_rate_that_other_load_held_down_may_be_higher() -> None:
    rate = Throughput(calls_per_s=400.0, blocks=3, block_s=0.1)  # single calls take 1 ms
    held_down = full().model_copy(update={"throughput": rate})
    assert held_down.is_throughput_doubtful
    required = Requirements.parse("calls_per_s>500")
    assert not required.unmet(held_down) and [doubt.labels for doubt in required.open([held_down])] == [("onnx",)]
    assert not Requirements.parse("calls_per_s>300").open([held_down])
    assert unmet("calls_per_s>500", full().model_copy(update={"throughput": rate, "latency": None}))
