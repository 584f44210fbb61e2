"""What calls cost from either start, and what a contest carried under load, judged from built records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.costs import (
    HORIZON,
    TIMED_ONCE_MARGIN,
    BreakEven,
    Costs,
    Line,
    Start,
    break_even,
    envelope,
    line_of,
)
from bakeoff.judging.doubt import OfRecords
from bakeoff.judging.doubts_of_load import LatencyDrifted, SoakMissed
from bakeoff.judging.fit import summarise
from bakeoff.judging.ranking import Ranking
from bakeoff.judging.under_load import LoadJudgement, judge_load
from bakeoff.records.doubts import Effect, WithoutEffect
from bakeoff.records.load_samples import Load, LoadTurn, LoadWindow, Objective, ServingSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Interval, Phase, Process, Ratio, Record, Status
from tests.reports.samples import caveat, cell, failed, ok, once, steady

seconds = st.floats(1e-6, 100.0)
lines = st.builds(Line, st.text("abcdef", min_size=1, max_size=3), seconds, seconds)


def measured(
    backend: str,
    level_ms: float,
    build_s: float = 0.0,
    warm_build_s: float | None = 0.0,
    biases: tuple[float, ...] = (1.0, 1.001, 0.999),
) -> Record:
    """A record of three processes; its first call takes 10 ms, cold or warm."""
    bursts = steady([level_ms * bias for bias in biases], rounds=8)
    record = ok(cell(backend), bursts, build_s=build_s, first_call_s=0.01)
    processes = [Process(index=0, warm=False, phases=record.phases)]
    if warm_build_s is not None:
        phases = [Phase(name="load", seconds=warm_build_s), Phase(name="first_call", seconds=0.01)]
        processes += [Process(index=index, warm=True, phases=phases) for index in (1, 2)]
    return record.model_copy(update={"processes": processes, "latency": summarise(bursts)})


def costs_of(*records: Record) -> Costs:
    return Costs(Ranking(records))


def surely(value: float) -> Ratio:
    return Ratio(value=value, ci95=Interval(low=value, high=value), paired=True, processes=3)


# --- a line


def test_the_first_call_is_one_of_the_calls() -> None:
    line = Line("onnx", setup_s=2.0, steady_s=0.5)
    assert [line.total_s(calls) for calls in (1, 2, 11)] == [2.0, 2.5, 7.0]


@pytest.mark.parametrize(
    ("ours", "theirs", "calls"),
    [
        ((10.0, 1.0), (0.0, 2.0), 11),  # equal after ten calls beyond the first
        ((10.5, 1.0), (0.0, 2.0), 12),
        ((10.0, 2.0), (0.0, 2.0), None),
        ((10.0, 3.0), (0.0, 2.0), None),
        ((0.0, 3.0), (1.0, 2.0), None),  # ahead at first, and overtaken for good
        ((0.0, 2.0), (0.0, 2.0), 0),
        ((0.5, 1.0), (1.0, 2.0), 0),
    ],
)
def test_break_even(ours: tuple[float, float], theirs: tuple[float, float], calls: int | None) -> None:
    assert Line("ours", *ours).break_even(Line("theirs", *theirs)) == calls


@given(lines, lines)
def test_from_the_break_even_on_and_not_before_it_costs_no_more(ours: Line, theirs: Line) -> None:
    calls = ours.break_even(theirs)
    if calls:
        assert calls > 1
        assert ours.exact_total_s(calls) <= theirs.exact_total_s(calls)
        assert ours.exact_total_s(calls - 1) > theirs.exact_total_s(calls - 1)
    elif calls is None:
        assert ours.exact_total_s(10**15) > theirs.exact_total_s(10**15)
    else:
        assert all(ours.exact_total_s(calls) <= theirs.exact_total_s(calls) for calls in (1, 10**15))


# --- the envelope


def test_the_envelope_goes_from_crossing_to_crossing() -> None:
    eager, onnx, tuned = Line("eager", 1.0, 4.0), Line("onnx", 10.0, 2.0), Line("tuned", 100.0, 1.0)
    never = Line("never", 100.0, 2.5)
    assert envelope([never, tuned, eager, onnx], 1000) == [(eager, 1), (onnx, 6), (tuned, 91)]
    assert envelope([never, tuned, eager, onnx], 90) == [(eager, 1), (onnx, 6)]
    assert envelope([], 1000) == []


@given(st.lists(lines, min_size=1, max_size=8), st.integers(1, 10**7))
@example([Line("a", 1.0, 1.0), Line("b", 1.0, 1.0)], 1)
@example([Line("a", 2.0, 1.0), Line("b", 1.0, 2.0), Line("c", 1.5, 1.5)], 2)  # all three cross at call 2
def test_nobody_is_below_the_envelope(many: list[Line], calls: int) -> None:
    legs = envelope(many, 10**7)
    starts = [first for _, first in legs]
    assert starts[0] == 1 and starts == sorted(set(starts)) and starts[-1] <= 10**7
    on_it = [line for line, first in legs if first <= calls][-1]
    assert on_it.exact_total_s(calls) == min(line.exact_total_s(calls) for line in many)


# --- from records


def test_a_line_is_made_of_the_start_and_the_steady_latency() -> None:
    onnx = measured("onnx", 2.0, build_s=5.0, warm_build_s=0.5)
    assert line_of(onnx, "cold") == Line("onnx", pytest.approx(5.01), pytest.approx(2e-3))  # type: ignore[arg-type]
    assert line_of(onnx, "warm") == Line("onnx", pytest.approx(0.51), pytest.approx(2e-3))  # type: ignore[arg-type]


def test_calls_until_a_build_is_final_cost_what_they_took_beyond_steady_ones() -> None:
    plain = measured("hotpath", 2.0)
    settle = Phase(name="settle", seconds=5.0, calls=1000)
    slow, quick = (
        line_of(plain.model_copy(update={"phases": [*plain.phases, phase]}), "cold")
        for phase in (settle, settle.model_copy(update={"seconds": 1.0}))
    )
    steady = line_of(plain, "cold")
    assert slow and steady and slow.setup_s == pytest.approx(steady.setup_s + 3.0)
    assert slow.total_s(1002) == pytest.approx(steady.setup_s + 5.0 + 2e-3)  # the first call, those 1000, and one more
    assert quick == steady  # settling is never a gain
    assert plain.build_s == 0 and plain.first_call_s == 0.01


def test_what_was_not_measured_has_no_line() -> None:
    once = measured("onnx", 2.0, warm_build_s=None)
    assert line_of(once, "cold") and line_of(once, "warm") is None
    assert line_of(failed(cell("onnx"), Status.CRASH, "signal 11", phases=once.phases), "cold") is None
    assert line_of(once.model_copy(update={"phases": []}), "cold") is None


def with_warm_starts(record: Record, starts_s: Sequence[float]) -> Record:
    warm = [
        Process(index=index, warm=True, phases=[Phase(name="first_call", seconds=seconds)])
        for index, seconds in enumerate(starts_s, 1)
    ]
    return record.model_copy(update={"processes": [record.processes[0], *warm]})


def test_a_warm_start_is_the_median_one_and_known_as_widely_as_the_others_lie_apart() -> None:
    eager = with_warm_starts(measured("eager", 1.0), [0.022, 0.0016, 0.002])
    assert line_of(eager, "warm") == Line("eager", 0.002, pytest.approx(1e-3), pytest.approx(11.0))  # type: ignore[arg-type]
    alike = with_warm_starts(measured("eager", 1.0), [0.022, 0.021, 0.022])
    assert line_of(alike, "warm") == Line("eager", 0.022, pytest.approx(1e-3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("starts_s", "rivals"), [((0.02, 0.02), []), ((0.02, 0.001), ["eager"])])
def test_a_start_that_was_slow_once_makes_no_other_cell_the_cheapest(
    starts_s: tuple[float, float], rivals: list[str]
) -> None:
    eager = with_warm_starts(measured("eager", 1.0), (*starts_s, starts_s[0]))
    onnx = with_warm_starts(measured("onnx", 1.0), [0.01, 0.01])
    cheapest = costs_of(eager, onnx).answer(1, "warm", ["eager", "onnx"])
    assert cheapest and cheapest.candidates[0] == "onnx"
    assert cheapest.candidates[1:] == rivals


def test_cold_and_warm_pay_at_different_calls() -> None:
    onnx = measured("onnx", 1.0, build_s=5.0, warm_build_s=0.5, biases=(0.999, 1.0, 1.001))
    costs = costs_of(measured("eager", 2.0), onnx)
    cold, warm = (costs.break_even("onnx", "eager", start) for start in ("cold", "warm"))  # type: ignore[arg-type]
    assert cold and warm and cold.is_established and warm.is_established
    assert (cold.calls, warm.calls) == (pytest.approx(5001, abs=6), pytest.approx(501, abs=2))
    assert cold.low and cold.calls and cold.high and cold.low < cold.calls < cold.high
    assert costs.break_even("onnx", "onnx", "cold") is None
    assert costs.break_even("onnx", "openvino", "cold") is None


@pytest.mark.parametrize(
    ("level_ms", "biases"),
    [(1.9, (0.9, 1.1, 1.0)), (1.98, (1.0, 1.0, 1.0))],  # under the margin, however narrow
)
def test_a_break_even_between_latencies_that_do_not_differ_surely_is_not_established(
    level_ms: float, biases: tuple[float, float, float]
) -> None:
    onnx = measured("onnx", level_ms, build_s=5.0, biases=biases)
    found = costs_of(measured("eager", 2.0), onnx).break_even("onnx", "eager", "cold")
    assert found and found.calls and not found.is_established


def test_two_that_tie_with_a_noisier_best_keep_what_is_known_of_them() -> None:
    records = [measured("eager", 2.0), measured("onnx", 1.0, build_s=5.0), measured("x", 0.99, biases=(0.6, 1.5, 1.0))]
    assert set(judge_contest(records).fastest.tied) == {"x", "onnx", "eager"}
    costs = Costs(Ranking(records))
    found, unsure = costs.break_even("onnx", "eager", "cold"), costs.break_even("onnx", "x", "cold")
    assert found and found.is_established
    assert unsure and not unsure.is_established


def test_the_verdict_has_the_same_break_even() -> None:
    records = [measured("eager", 2.0), measured("onnx", 1.0, build_s=5.0), measured("x", 1.99, build_s=1.0)]
    judged = {cell.label: cell.break_even for cell in judge_contest(records).cells}
    assert judged["onnx"] == costs_of(*records).break_even("onnx", "eager", "cold")
    assert judged["x"] is not None and not judged["x"].is_established
    assert judged["eager"] == BreakEven(0, 0, 0, is_established=True)


def test_the_end_of_an_interval_may_say_that_it_never_pays() -> None:
    ours, theirs = Line("ours", 10.0, 1.0), Line("theirs", 1.0, 1.05)
    # medians and paired ratio disagree on how far the two are apart, as a drift between rounds can make them
    ratio = Ratio(value=1.2, ci95=Interval(low=1.1, high=1.3), paired=True, processes=3)
    found = break_even(ours, theirs, ratio)
    assert (found.calls, found.high, found.is_established) == (181, None, False)


def test_a_single_process_widens_the_interval_by_what_it_cannot_see() -> None:
    ours, theirs = Line("ours", 10.0, 1.0), Line("theirs", 1.0, 2.0)
    sure = break_even(ours, theirs, surely(2.0))
    single = break_even(ours, theirs, surely(2.0).model_copy(update={"processes": 1}))
    unpaired = break_even(ours, theirs, surely(2.0).model_copy(update={"paired": False}))
    assert (sure.low, sure.calls, sure.high) == (10, 10, 10)
    assert single.low and single.high and unpaired.low and unpaired.high
    assert unpaired.low < single.low <= 10 < single.high < unpaired.high


# --- who costs least


def contest() -> Costs:
    return costs_of(
        measured("eager", 2.0),
        measured("onnx", 1.0, build_s=1.0, warm_build_s=0.1),
        measured("openvino", 1.0, build_s=1.0, warm_build_s=0.1, biases=(1.01, 1.0, 0.995)),
        measured("inductor", 0.5, build_s=60.0, warm_build_s=1.0),
    )


EVERYBODY = ("eager", "onnx", "openvino", "inductor")
EVERYBODY_HOT = ("eager", "hotpath")


def test_the_cheapest_over_so_many_calls_and_who_may_be_as_cheap() -> None:
    found = [contest().answer(calls, "cold", EVERYBODY) for calls in HORIZON]
    assert [each.candidates[0] for each in found if each] == [
        *["eager"] * 3,
        "eager",  # 2.0 against 2.01 s over a thousand calls
        "onnx",
        "onnx",
        "inductor",
        "inductor",
    ]
    rivals = [each.candidates[1:] for each in found if each]
    assert rivals[:3] == [[], [], []]
    assert rivals[3] == ["onnx", "openvino"]  # within 2 %
    assert rivals[4] == ["openvino"]  # the same latency, but for what lies between processes
    assert rivals[5] == ["openvino", "inductor"]  # 101 against 110 s, of which one building took 60 s
    assert rivals[6:] == [[], []]


def test_only_those_that_may_win_are_compared() -> None:
    assert [leg.line.label for leg in contest().legs("cold", ["onnx", "inductor"])] == ["onnx", "inductor"]
    assert contest().legs("cold", []) == []
    assert contest().answer(10, "cold", ["nobody"]) is None


def test_with_no_interval_nothing_is_known_of_the_calls_after_the_first() -> None:
    records = [measured("eager", 2.0), measured("onnx", 1.0, build_s=1.0)]
    single = [record.model_copy(update={"bursts": record.bursts[:1]}) for record in records]
    costs = Costs(Ranking(single))
    assert Ranking(single).score.ratio("onnx", "eager").ci95 is None
    once, often = (costs.answer(calls, "cold", EVERYBODY) for calls in (1, 10**6))
    assert once and once.candidates == ["eager"]
    assert often and often.candidates == ["onnx", "eager"]


def test_legs_say_where_they_cross_and_whether_that_is_established() -> None:
    eager, onnx, inductor = contest().legs("cold", EVERYBODY)
    assert (eager.line.label, eager.first_call, eager.crossing) == ("eager", 1, None)
    assert onnx.crossing and onnx.crossing.is_established
    assert onnx.first_call == onnx.crossing.calls == pytest.approx(1001, abs=2)
    assert inductor.first_call == pytest.approx(118_001, abs=5)


def test_the_leg_before_is_no_rival_where_the_crossing_is_established() -> None:
    """Near a crossing nothing tells two cells apart, which is no doubt about where it is."""
    costs = costs_of(measured("eager", 1.0, biases=(1.0,)), measured("onnx", 0.95, build_s=3.0, biases=(1.0,)))
    leg = costs.legs("cold", EVERYBODY)[-1]
    assert leg.is_established and leg.crossing == costs.break_even("onnx", "eager", "cold")
    assert leg.rivals == []


def test_the_next_leg_is_no_rival_where_it_soon_takes_over() -> None:
    """The start of inductor may be as short as that of onnx, which leads for a hundred calls."""
    costs = costs_of(
        starting("eager", 0.01, level_ms=4.0),
        starting("onnx", 0.01, level_ms=2.0, build_s=1.0),
        starting("inductor", 0.01, level_ms=1.0, build_s=1.6),
    )
    rivals = [(leg.line.label, leg.rivals) for leg in costs.legs("cold", EVERYBODY)]
    assert rivals == [("eager", []), ("onnx", []), ("inductor", [])]


# --- over a number of calls


def test_a_doubt_about_who_costs_least_is_one_about_the_answer_over_so_many_calls() -> None:
    of_eager = WithoutEffect(inputs=("input 1",))
    eager = measured("eager", 2.0).model_copy(update={"doubts": [of_eager]})
    onnx = measured("onnx", 1.0, build_s=1.0).model_copy(update={"doubts": [caveat("odd")]})
    contest = judge_contest([eager, onnx], calls=10)
    assert (contest.answer.winner, contest.answer.certainty) == ("eager", Certainty.DOUBTED)
    assert contest.doubts_by_effect[Effect.WINNER] == ()
    assert contest.doubts_of_answer[Effect.WINNER] == (OfRecords(("eager",), of_eager),)


def test_the_speedup_over_so_many_calls() -> None:
    found = speedup_of(contest(), "onnx", 10_000)
    # (10 ms + 9,999 · 2 ms) / (1,010 ms + 9,999 · 1 ms)
    assert found and found.value == pytest.approx(20.008 / 11.009, rel=1e-3)


def speedup_of(costs: Costs, label: str, calls: int) -> Ratio | None:
    """Return how many times as long as this cell eager takes over so many calls from a cold start."""
    answer = costs.answer(calls, "cold", [line.label for line in costs.lines("cold")])
    row = answer and answer.row_of(label)
    return row.speedup if row else None


def cheapest_of(costs: Costs, calls: int, among: Sequence[str], start: Start = "cold") -> str | None:
    """Return the label that surely costs least, if there is one."""
    found = costs.answer(calls, start, among)
    return found.winner if found else None


def test_steady_latencies_that_no_verdict_calls_make_no_winner_over_however_many_calls() -> None:
    """5 % apart in three processes of each: their 95 % interval excludes 1, and a verdict needs more than that."""
    records = [measured("eager", 1.05), measured("onnx", 1.0, build_s=1.0)]
    costs = Costs(Ranking(records))
    steady = Ranking(records).score.ratio("onnx", "eager")
    assert steady.ci95 and steady.ci95.low > 1.03
    assert judge_contest(records).fastest.winner is None
    often = speedup_of(costs, "onnx", 10**6)
    assert often and often.ci95 and often.ci95.low > 1.03
    assert cheapest_of(costs, 1, EVERYBODY) == "eager"  # by its setup
    cheapest = costs.answer(10**6, "cold", EVERYBODY)
    assert cheapest and cheapest.candidates[1:] == ["eager"]


# --- what was timed once


def starting(backend: str, first_call_s: float, level_ms: float = 1.0, build_s: float = 0.0) -> Record:
    phases = [Phase(name="load", seconds=build_s), Phase(name="first_call", seconds=first_call_s)]
    return measured(backend, level_ms, warm_build_s=None).model_copy(update={"phases": phases})


def test_first_calls_that_differ_by_chance_make_no_winner() -> None:
    costs = costs_of(starting("eager", 1.05), starting("hotpath", 1.0))
    for calls in (1, 100):
        found, cheapest = speedup_of(costs, "hotpath", calls), costs.answer(calls, "cold", EVERYBODY_HOT)
        assert found and found.value > 1.04
        assert cheapest and cheapest.candidates[1:] == ["eager"]
    first = costs.legs("cold", EVERYBODY_HOT)[0]
    assert (first.line.label, [line.label for line in first.rivals]) == ("hotpath", ["eager"])


@pytest.mark.parametrize(("first_call_s", "winner"), [(1.5, None), (1.6, "hotpath")])
def test_a_lead_is_one_if_it_were_longer_and_the_other_shorter_by_the_margin(
    first_call_s: float, winner: str | None
) -> None:
    costs = costs_of(starting("eager", first_call_s), starting("hotpath", 1.0))
    assert TIMED_ONCE_MARGIN == 0.25
    assert cheapest_of(costs, 1, EVERYBODY_HOT) == winner
    found = speedup_of(costs, "hotpath", 1)
    assert found and found.ci95 == Interval(low=first_call_s, high=first_call_s)  # of steady latencies alone


def test_what_starts_three_times_as_fast_wins_among_equal_latencies() -> None:
    costs = costs_of(starting("eager", 0.6), starting("hotpath", 0.2))
    assert [cheapest_of(costs, calls, EVERYBODY_HOT) for calls in (1, 1000, 10**6)] == ["hotpath", "hotpath", None]


@pytest.mark.parametrize(("calls", "winner"), [(1, "eager"), (100, "eager"), (10**6, "inductor")])
def test_building_for_seconds_decides_over_few_calls_and_latency_over_many(calls: int, winner: str) -> None:
    costs = costs_of(starting("eager", 0.1), starting("inductor", 0.001, level_ms=0.5, build_s=2.0))
    assert cheapest_of(costs, calls, EVERYBODY) == winner
    assert [(leg.line.label, leg.rivals) for leg in costs.legs("cold", EVERYBODY)] == [("eager", []), ("inductor", [])]


def test_builds_that_differ_by_chance_name_nobody_between_two_others() -> None:
    """Equal but for 5 % of the build, between one that needs none and one that is faster still for far more."""
    records = [
        *(starting("eager", 0.01, level_ms=4.0), starting("inductor", 0.01, level_ms=0.5, build_s=1000.0)),
        *(starting("onnx", 0.01, level_ms=2.0, build_s=1.0), starting("openvino", 0.01, level_ms=2.0, build_s=1.05)),
    ]
    legs = Costs(Ranking(records)).legs("cold", EVERYBODY)
    told = [(leg.line.label, [line.label for line in leg.rivals]) for leg in legs]
    assert told == [("eager", []), ("onnx", ["openvino"]), ("inductor", [])]
    assert legs[1].crossing and legs[1].crossing.is_established


def test_break_even_is_by_building_and_first_call_as_they_were_timed() -> None:
    costs = costs_of(starting("eager", 1.0), starting("onnx", 1.05, level_ms=0.5))
    found = costs.break_even("onnx", "eager", "cold")
    assert found and found.is_established and found.calls == pytest.approx(101, abs=1)
    assert cheapest_of(costs, 200, EVERYBODY) is None


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


def test_a_soak_tells_what_does_not_last() -> None:
    soak = [window(p50_ms=5.0 + part, p99_ms=25.0, joules=50.0, energy_source="RAPL") for part in range(6)]
    record = carrying("onnx", [400, 402, 401], soak=soak, lower_soak=[window(360.0)] * 3)
    found = judged(record, price_per_hour=3.6)
    soaked = found.cells[0].soak
    assert soaked is not None and soaked.drift == pytest.approx(9.5 / 5.5 - 1)
    assert soaked.joules_per_million == pytest.approx(50.0 / 1000 * 1e6)
    assert [type(doubt) for doubt in found.doubts] == [SoakMissed, LatencyDrifted]
    assert found.cells[0].price_per_million == pytest.approx(1e-3 / 403 * 1e6, rel=0.02)


def test_percentiles_of_a_soak_are_over_all_of_its_requests() -> None:
    soak = [window(latencies_us=[5000] * 985 + [late] * 15) for late in (30_000, 6_000)]
    soaked = judged(carrying("onnx", [400, 402, 401], soak=soak)).cells[0].soak
    assert soaked is not None and soaked.p99_ms == 6.0
