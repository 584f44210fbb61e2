from typing import Any

import pytest

from judging.disturbance import Usual, conditions_doubts, disturbed, usual_of
from records.schema import Burst, Conditions, Record
from tests.reports.samples import cell, constant, ok, under

CALM: dict[str, Any] = {"calibration_ms": 2.4, "wait_share": 0.0, "steal_share": 0.0, "sm_clock_mhz": 1980}
USUAL = Usual(calibration_ms=2.4, sm_clock_mhz=1980, wait_share=0.0, steal_share=0.0)


def burst(**conditions: Any) -> Burst:
    return under(constant([1.0]), **(CALM | conditions))[0]


def rounds(*conditions: dict[str, Any]) -> list[Burst]:
    """One burst each, a second apart, in these conditions or else calm."""
    calm = constant([1.0] * len(conditions))
    return [
        one.model_copy(update={"conditions": Conditions(**(CALM | seen))})
        for one, seen in zip(calm, conditions, strict=True)
    ]


def doubts(*conditions: dict[str, Any]) -> list[str]:
    return conditions_doubts([ok(cell("eager"), rounds(*conditions))])


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, False),
        ({"wait_share": 0.019}, False),
        ({"wait_share": 0.03}, True),
        ({"steal_share": 0.03}, True),
        ({"calibration_ms": 2.6}, False),
        ({"calibration_ms": 2.7}, True),
        ({"sm_clock_mhz": 1500}, False),
        ({"sm_clock_mhz": 1200}, True),
        ({"wait_share": None, "steal_share": None, "calibration_ms": None, "sm_clock_mhz": None}, False),
    ],
)
def test_what_disturbs_a_burst(conditions: dict[str, Any], expected: bool) -> None:
    assert disturbed(burst(**conditions), USUAL) is expected


def test_a_burst_without_conditions_is_taken_as_it_is() -> None:
    assert not disturbed(constant([1.0])[0], USUAL)
    unknown = usual_of(constant([1.0, 2.0]))
    assert unknown == Usual(calibration_ms=None, sm_clock_mhz=None, wait_share=None, steal_share=None)
    assert disturbed(burst(wait_share=0.5), unknown)


def test_a_cell_that_keeps_itself_waiting_is_not_disturbed_by_it() -> None:
    """More threads than cores wait in every burst; a neighbour comes on top, and even for half of the time is seen."""
    own = usual_of(rounds(*[{"wait_share": 0.30}] * 5, *[{"wait_share": 0.50}] * 5))
    assert not disturbed(burst(wait_share=0.31), own)
    assert disturbed(burst(wait_share=0.50), own)


def test_calm_rounds_raise_no_doubt() -> None:
    assert doubts(*[{}] * 12) == []
    assert conditions_doubts([ok(cell("eager"), constant([1.0] * 12))]) == []
    assert conditions_doubts([]) == []


def test_a_clock_that_fell_is_named_with_its_reasons() -> None:
    slow = {"sm_clock_mhz": 1200, "throttle_reasons": ["software power cap"]}
    assert doubts(*[{}] * 22, slow, slow, slow)[0] == (
        "SM clock fell to 1,200 MHz in 12 % of the bursts (software power cap)"
    )


def test_a_clock_that_fell_for_most_of_the_time_is_named_though_nobody_says_why() -> None:
    assert doubts(*[{"sm_clock_mhz": 1980}] * 3, *[{"sm_clock_mhz": 1200}] * 7)[0] == (
        "SM clock fell to 1,200 MHz in 70 % of the bursts"
    )
    assert doubts(*[{"sm_clock_mhz": 1980}] * 3, *[{"sm_clock_mhz": 1700}] * 7) == []


def test_a_clock_held_down_all_the_time_is_named_too() -> None:
    held = {"sm_clock_mhz": 1500, "throttle_reasons": ["hardware thermal slowdown"]}
    assert doubts(*[held] * 10) == [
        "the GPU's clock was held down in 100 % of the bursts (hardware thermal slowdown)",
    ]


def test_how_hot_the_gpu_was_is_named_with_the_reasons() -> None:
    held = {"sm_clock_mhz": 1500, "throttle_reasons": ["hardware thermal slowdown"]}
    cool, hot = {**held, "temperature_c": 84}, {**held, "temperature_c": 87}
    assert doubts(*[cool] * 5, *[hot] * 5) == [
        "the GPU's clock was held down in 100 % of the bursts (hardware thermal slowdown, at up to 87 °C)",
    ]
    assert doubts(*[{}] * 22, *[{"sm_clock_mhz": 1200, "temperature_c": 61}] * 3)[0] == (
        "SM clock fell to 1,200 MHz in 12 % of the bursts (at up to 61 °C)"
    )
    assert doubts(*[{"sm_clock_mhz": 1980, "temperature_c": 87}] * 10) == []  # heat that slows nothing down


def test_waiting_for_a_core_is_named_with_the_switches() -> None:
    waiting = {"wait_share": 0.4, "involuntary_switches": 120}
    assert doubts(*[{}] * 9, *[waiting] * 3) == [
        "other processes kept our threads waiting in 25 % of the bursts (involuntary context switches: 120 a burst)"
    ]


def test_threads_that_always_wait_are_named_by_cell() -> None:
    found = doubts(*[{"wait_share": 0.35}] * 12)
    assert len(found) == 1
    assert "eager 35 % of the time" in found[0]


def test_steal_is_named() -> None:
    assert doubts(*[{}] * 9, *[{"steal_share": 0.2}] * 3) == [
        "the hypervisor gave our cores to others in 25 % of the bursts"
    ]


def test_a_drift_is_named_and_a_single_slow_round_is_none() -> None:
    slower = [{"calibration_ms": 2.4 + 0.05 * number} for number in range(10)]
    assert doubts(*slower) == ["the machine's speed drifted by 10 % over the run (calibration 2.5 to 2.75 ms)"]
    assert doubts(*[{}] * 7, {"calibration_ms": 4.8}, *[{}] * 7) == []


def test_processes_of_others_on_the_gpu_are_named() -> None:
    assert doubts(*[{}] * 9, {"foreign_gpu_processes": 1}) == ["1 other process used the GPU meanwhile"]
    assert doubts({"foreign_gpu_processes": 1}, {"foreign_gpu_processes": 3}) == [
        "3 other processes used the GPU meanwhile"
    ]


def test_what_befell_several_cells_is_said_once() -> None:
    def record(backend: str) -> Record:
        return ok(cell(backend), rounds(*[{}] * 9, *[{"wait_share": 0.4}] * 3))

    assert len(conditions_doubts([record("eager"), record("onnx"), record("inductor")])) == 1
