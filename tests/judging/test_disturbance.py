from typing import Any

import pytest

from bakeoff.judging.disturbance import Usual, disturbed, usual_of
from bakeoff.judging.doubt import Doubt
from bakeoff.judging.doubts_of_machine import (
    AlwaysWaited,
    ClockFell,
    ClockHeldDown,
    CoresStolen,
    CoresTaken,
    GpuShared,
    SpeedDrifted,
)
from bakeoff.judging.ranking import Evidence, Ranking
from bakeoff.records.schema import Burst, Conditions, Record
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


def doubts(*conditions: dict[str, Any], threads: int = 2) -> list[Doubt]:
    return doubts_of([ok(cell("eager"), rounds(*conditions), settings={"threads": threads})])


def doubts_of(records: list[Record]) -> list[Doubt]:
    kinds = (ClockFell, ClockHeldDown, CoresTaken, AlwaysWaited, CoresStolen, SpeedDrifted, GpuShared)
    evidence = Evidence(Ranking(records))
    return [doubt for kind in kinds for doubt in kind.find(evidence)]


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
    assert doubts_of([ok(cell("eager"), constant([1.0] * 12))]) == []
    assert doubts_of([]) == []
    assert doubts(*[{"sm_clock_mhz": 1980, "temperature_c": 87}] * 10) == []  # heat that slows nothing down


def test_a_clock_that_fell_has_its_share_and_its_reasons() -> None:
    slow = {"sm_clock_mhz": 1200, "throttle_reasons": ["software power cap"]}
    reasons = ("software power cap",)
    assert doubts(*[{}] * 22, slow, slow, slow)[0] == ClockFell(0.12, reasons, None, lowest_mhz=1200)
    hot = {"sm_clock_mhz": 1200, "temperature_c": 61}
    assert doubts(*[{}] * 22, *[hot] * 3)[0] == ClockFell(0.12, (), 61, lowest_mhz=1200)


def test_a_clock_that_fell_for_most_of_the_time_is_a_doubt_without_any_reason() -> None:
    found = doubts(*[{"sm_clock_mhz": 1980}] * 3, *[{"sm_clock_mhz": 1200}] * 7)
    assert found == [ClockFell(0.7, (), None, lowest_mhz=1200)]
    assert doubts(*[{"sm_clock_mhz": 1980}] * 3, *[{"sm_clock_mhz": 1700}] * 7) == []


def test_a_clock_held_down_all_the_time_is_a_doubt_with_the_highest_temperature() -> None:
    held = {"sm_clock_mhz": 1500, "throttle_reasons": ["hardware thermal slowdown"]}
    assert doubts(*[{**held, "temperature_c": 84}] * 5, *[{**held, "temperature_c": 87}] * 5) == [
        ClockHeldDown(1.0, ("hardware thermal slowdown",), temperature_c=87)
    ]


@pytest.mark.parametrize(
    ("conditions", "doubt"), [({"wait_share": 0.4}, CoresTaken(0.25)), ({"steal_share": 0.2}, CoresStolen(0.25))]
)
def test_cores_that_others_took_are_a_doubt(conditions: dict[str, Any], doubt: Doubt) -> None:
    assert doubts(*[{}] * 9, *[conditions] * 3) == [doubt]


def test_threads_that_always_wait_are_a_doubt_about_their_cell() -> None:
    for threads in (1, 2):
        waited = [{"wait_share": 0.35}] * 12
        assert doubts(*waited, threads=threads) == [AlwaysWaited({"eager": 0.35}, have_one_thread=threads == 1)]


def test_a_drift_is_a_doubt_and_a_single_slow_round_is_none() -> None:
    (found,) = doubts(*[{"calibration_ms": 2.4 + 0.05 * number} for number in range(10)])
    assert isinstance(found, SpeedDrifted)
    assert found.share == pytest.approx(2.75 / 2.5 - 1)
    assert doubts(*[{}] * 7, {"calibration_ms": 4.8}, *[{}] * 7) == []


def test_the_most_processes_of_others_on_the_gpu_are_a_doubt() -> None:
    assert doubts({"foreign_gpu_processes": 1}, {"foreign_gpu_processes": 3}) == [GpuShared(3)]


def test_what_several_cells_share_is_one_doubt() -> None:
    def record(backend: str) -> Record:
        return ok(cell(backend), rounds(*[{}] * 9, *[{"wait_share": 0.4}] * 3))

    assert len(doubts_of([record("eager"), record("onnx"), record("inductor")])) == 1
