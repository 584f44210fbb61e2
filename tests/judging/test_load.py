"""What a contest carried under load, judged from built turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubts_of_load import LatencyDrifted, NearCeiling, RequestsFailed, ShortWindows, SoakMissed
from bakeoff.judging.under_load import LoadJudgement, judge_load
from bakeoff.records.load_samples import Load, LoadTurn, LoadWindow, Objective, ServingSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Record, Status
from tests.reports.samples import once

OBJECTIVE = Objective(percentile="p99", limit_ms=20.0)
WOBBLE = (1.0, 1.03, 0.98, 1.01)
"""What rounds differ by. It is the same for all cells of a round."""


def window(rate: float = 400.0, p50_ms: float = 5.0, p99_ms: float = 18.0, **more: object) -> LoadWindow:
    known = {"asked_rate": rate, "rate": rate, "requests": 1000, "seconds": 2.5, "p90_ms": p99_ms}
    return LoadWindow.model_validate({**known, "p50_ms": p50_ms, "p99_ms": p99_ms, "objective_ms": p99_ms, **more})


def load(values: Sequence[float], scenario: Scenario = Scenario.SERVER, **more: object) -> Load:
    """Return what a cell carried that reached one of `values` in each of its processes."""
    turns = [
        LoadTurn(group=process, round=number, process=process, started_s=60.0 * process + number,
                 value=value * wobble, windows=[window(value * wobble)])
        for process, value in enumerate(values)
        for number, wobble in enumerate(WOBBLE)
    ]  # fmt: skip
    known = {"scenario": scenario, "objective": OBJECTIVE if scenario is Scenario.SERVER else None, "turns": turns}
    return Load.model_validate({"settings": ServingSettings(), "ceiling": 9000.0, **known, **more})


def carrying(label: str, values: Sequence[float], median_ms: float = 1.0, **more: object) -> Record:
    return once(median_ms, label).model_copy(update={"load": load(values, **more)})  # type: ignore[arg-type]


def judged(*records: Record, price_per_hour: float | None = None) -> LoadJudgement:
    found = judge_load(records, price_per_hour)
    assert found is not None
    return found


def test_the_cell_that_carries_most_wins() -> None:
    found = judged(carrying("onnx", [350, 352, 349]), carrying("openvino", [410, 414, 409]))
    assert (found.answer.winner, found.answer.tied) == ("openvino", ())
    assert [cell.rank for cell in found.cells] == [1, 2]
    best = found.cells[0]
    assert best.value == pytest.approx(411 * 1.005, rel=0.02)
    assert best.interval is not None and best.interval.low < (best.value or 0) < best.interval.high
    assert found.answer.lead is not None and found.answer.lead.value == pytest.approx(411 / 350, rel=0.01)


def test_less_time_wins_where_the_result_is_a_latency() -> None:
    streams = {"scenario": Scenario.SINGLE_STREAM, "ceiling": 0.01}
    found = judged(carrying("onnx", [2.0, 2.02, 1.99], **streams), carrying("eager", [4.0, 4.1, 4.05], **streams))
    assert found.answer.winner == "onnx"
    assert found.cells[0].rate == pytest.approx(1e3 / 2.0, rel=0.03)


def test_an_answer_with_a_rate_near_the_ceiling_of_the_generator_is_not_sure() -> None:
    records = [carrying("onnx", [6000, 6010, 5990], ceiling=9000.0), carrying("eager", [400, 402, 401])]
    found = judged(*records)
    assert judge_contest(records).answer.certainty is Certainty.DOUBTED
    assert [(type(doubt), doubt.label) for doubt in found.doubts] == [(NearCeiling, "onnx")]


def test_a_loser_near_the_ceiling_of_the_generator_is_a_doubt_of_the_winner() -> None:
    records = [carrying("onnx", [600, 601, 599]), carrying("eager", [400, 402, 401], ceiling=500.0)]
    answer = judge_contest(records).answer
    assert (answer.winner, answer.certainty) == ("onnx", Certainty.DOUBTED)
    assert isinstance(answer.doubt, NearCeiling) and answer.doubt.label == "eager"


def test_a_soak_tells_what_does_not_last() -> None:
    soak = [window(p50_ms=5.0 + part, p99_ms=25.0, joules=50.0, energy_source="RAPL") for part in range(6)]
    record = carrying("onnx", [400, 402, 401], soak=soak, lower_soak=[window(360.0)] * 3)
    found = judged(record, price_per_hour=3.6)
    soaked = found.cells[0].soak
    assert soaked is not None and soaked.drift == pytest.approx(9.5 / 5.5 - 1)
    assert soaked.joules_per_million == pytest.approx(50.0 / 1000 * 1e6)
    assert [type(doubt) for doubt in found.doubts] == [SoakMissed, LatencyDrifted]
    assert found.cells[0].price_per_million == pytest.approx(1e-3 / 403 * 1e6, rel=0.02)


@pytest.mark.parametrize(("p99_ms", "holds"), [(14.0, True), (21.9, True), (22.1, False)])
def test_the_first_lower_rate_that_held_is_told_beside_those_that_missed(p99_ms: float, holds: bool) -> None:
    soak = [window(p99_ms=25.0)] * 6
    lower = [*[window(360.0, p99_ms=24.0)] * 2, *[window(280.0, p99_ms=p99_ms)] * 3]
    found = judged(carrying("onnx", [400, 402, 401], soak=soak, lower_soak=lower))
    (doubt,) = found.doubts
    assert isinstance(doubt, SoakMissed)
    assert [found.cells[0].rank, found.cells[0].value is not None] == [1 if holds else None, holds]
    last = [] if holds else [(280.0, p99_ms)]
    assert [(each.rate, each.objective_ms) for each in doubt.missed] == [(400.0, 25.0), (360.0, 24.0), *last]
    assert (doubt.held and (doubt.held.rate, doubt.held.objective_ms)) == ((280.0, p99_ms) if holds else None)


@pytest.mark.parametrize(("asked", "below"), [(300.0, True), (395.0, False)])
def test_a_soak_at_a_lower_rate_than_a_cell_is_ranked_with_is_known_by_the_rate_that_was_asked(
    asked: float, below: bool
) -> None:
    soak = [window(405.0, p99_ms=25.0, asked_rate=asked)] * 6
    record = carrying("onnx", [400, 402, 401], soak=soak, lower_soak=[window(280.0)] * 3)
    found = judged(record)
    (doubt,) = found.doubts
    assert found.cells[0].soak is not None and found.cells[0].soak.rate == asked
    assert isinstance(doubt, SoakMissed) and doubt.below == (found.cells[0].rate if below else None)


def test_a_queue_that_comes_and_goes_is_no_drift() -> None:
    soak = [window(p50_ms=median_ms) for median_ms in (13.0, 32.6, 9.1, 12.7, 13.3, 13.1)]
    found = judged(carrying("onnx", [400, 402, 401], soak=soak))
    assert found.cells[0].soak is not None and found.cells[0].soak.drift is None
    assert not found.doubts


def test_a_soak_of_saturation_has_no_latencies_and_drifts_by_its_rate() -> None:
    soak = [window(rate, asked_rate=None) for rate in (400.0, 400.0, 400.0, 400.0, 200.0, 200.0)]
    soaked = judged(carrying("onnx", [400, 402, 401], scenario=Scenario.OFFLINE, soak=soak)).cells[0].soak
    assert soaked is not None and soaked.p99_ms is None and soaked.drift == pytest.approx(1.0)


def test_percentiles_of_a_soak_are_over_all_of_its_requests() -> None:
    soak = [window(latencies_us=[5000] * 985 + [late] * 15) for late in (30_000, 6_000)]
    soaked = judged(carrying("onnx", [400, 402, 401], soak=soak)).cells[0].soak
    assert soaked is not None and soaked.p99_ms == 6.0


@pytest.mark.parametrize(("seconds", "requests", "doubted"), [(0.5, 300, True), (2.1, 300, False), (0.5, 1000, False)])
def test_rates_of_short_windows_with_few_requests_are_doubted(seconds: float, requests: int, doubted: bool) -> None:
    record = carrying("onnx", [400, 402, 401])
    assert record.load is not None
    turns = [
        turn.model_copy(update={"windows": [window(seconds=seconds, requests=requests)]}) for turn in record.load.turns
    ]
    found = judged(record.model_copy(update={"load": record.load.model_copy(update={"turns": turns})}))
    assert [type(doubt) for doubt in found.doubts] == [ShortWindows] * doubted


def test_failed_requests_are_counted_and_named() -> None:
    soak = [window(failed=3, failure="RuntimeError: no")]
    (doubt,) = judged(carrying("onnx", [400, 402, 401], soak=soak)).doubts
    assert isinstance(doubt, RequestsFailed) and (doubt.failed, doubt.example) == (3, "RuntimeError: no")


def test_cells_without_a_value_or_with_wrong_answers_are_not_ranked() -> None:
    nothing = once(1.0, "eager").model_copy(update={"load": Load(scenario=Scenario.SERVER, reason="too slow")})
    wrong = carrying("onnx", [900, 901, 902]).model_copy(update={"status": Status.INCORRECT})
    found = judged(nothing, wrong, carrying("openvino", [400, 402, 401]))
    assert found.answer.winner == "openvino"
    assert {cell.label: cell.rank for cell in found.cells} == {"openvino": 1, "eager": None, "onnx": None}


def test_a_contest_that_was_not_under_load_has_no_such_judgement() -> None:
    assert judge_contest([once(1.0, "eager")]).load is None
