"""What calls cost from either start, and what a contest carried under load, judged from built records."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.costs import STARTS, BreakEven, Costs, Leg, Line, break_even, envelope, line_of
from bakeoff.judging.doubt import OfRecords
from bakeoff.judging.doubts_of_load import LatencyDrifted, SoakMissed
from bakeoff.judging.fit import summarise
from bakeoff.judging.ranking import Ranking
from bakeoff.judging.under_load import LoadJudgement, judge_load
from bakeoff.records.doubts import Effect, WithoutEffect
from bakeoff.records.load_samples import Load, LoadTurn, LoadWindow, Objective, ServingSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Interval, Phase, Process, Ratio, Record, Status
from bakeoff.reports import headline, number_format, sentences
from tests.reports.samples import caveat, cell, failed, ok, once, steady
from tests.support.golden import same_as_golden

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
    return record.but(processes=processes, latency=summarise(bursts))


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
        line_of(plain.but(phases=[*plain.phases, phase]), "cold") for phase in (settle, settle.but(seconds=1.0))
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
    assert line_of(once.but(phases=[]), "cold") is None


def with_warm_starts(record: Record, starts_s: Sequence[float]) -> Record:
    warm = [
        Process(index=index, warm=True, phases=[Phase(name="first_call", seconds=seconds)])
        for index, seconds in enumerate(starts_s, 1)
    ]
    return record.but(processes=[record.processes[0], *warm])


def test_a_warm_start_is_the_median_one_and_known_as_widely_as_the_others_lie_apart() -> None:
    eager = with_warm_starts(measured("eager", 1.0), [0.022, 0.0016, 0.002])
    assert line_of(eager, "warm") == Line("eager", 0.002, pytest.approx(1e-3), pytest.approx(11.0))  # type: ignore[arg-type]
    alike = with_warm_starts(measured("eager", 1.0), [0.022, 0.021, 0.022])
    assert line_of(alike, "warm") == Line("eager", 0.022, pytest.approx(1e-3))  # type: ignore[arg-type]


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
    single = break_even(ours, theirs, surely(2.0).but(processes=1))
    unpaired = break_even(ours, theirs, surely(2.0).but(paired=False))
    assert (sure.low, sure.calls, sure.high) == (10, 10, 10)
    assert single.low and single.high and unpaired.low and unpaired.high
    assert unpaired.low < single.low <= 10 < single.high < unpaired.high


# --- who costs least


def in_short(costs: Costs) -> str:
    """Return for each start which cell costs least from which call on, and who does over so many calls. A `?` stands
    for a crossing that is not established, and several cells where one of them may cost as little."""
    parts = []
    for start in STARTS:
        among = [line.label for line in costs.lines(start)]
        if legs := costs.legs(start, among):
            parts.append(f"{start}: {', '.join(map(_leg, legs))}")
        for calls in (1, 100, 10**4, 10**6):
            if answer := costs.answer(calls, start, among):
                gain = f" {sentences.ratio(answer.gain)}" if answer.gain else ""
                parts.append(f"{calls:,} calls {' or '.join(answer.candidates)}{gain}")
    return "; ".join(parts)


def _leg(leg: Leg) -> str:
    names = " or ".join([leg.line.label, *(line.label for line in leg.rivals)])
    crossing = f" ({number_format.break_even_with_interval(leg.crossing)})" if leg.crossing else ""
    return f"{names} from {leg.first_call:,}{'' if leg.is_established or not leg.crossing else '?'}{crossing}"


def starting(backend: str, first_call_s: float, level_ms: float = 1.0, build_s: float = 0.0) -> Record:
    phases = [Phase(name="load", seconds=build_s), Phase(name="first_call", seconds=first_call_s)]
    return measured(backend, level_ms, warm_build_s=None).but(phases=phases)


def test_costs_are_judged_as_before() -> None:
    eager, onnx = measured("eager", 2.0), measured("onnx", 1.0, build_s=5.0, warm_build_s=0.5)
    alone = (1.0,)
    scenes = {
        "two that tie between others": [
            eager,
            measured("onnx", 1.0, build_s=1.0, warm_build_s=0.1),
            measured("openvino", 1.0, build_s=1.0, warm_build_s=0.1, biases=(1.01, 1.0, 0.995)),
            measured("inductor", 0.5, build_s=60.0, warm_build_s=1.0),
        ],
        "a cold and a warm start": [eager, onnx],
        "latencies that vary": [eager, measured("onnx", 1.9, build_s=5.0, biases=(0.9, 1.1, 1.0))],
        "latencies within the margin": [eager, measured("onnx", 1.98, build_s=5.0, biases=(1.0, 1.0, 1.0))],
        "latencies that no verdict calls": [measured("eager", 1.05), measured("onnx", 1.0, build_s=1.0)],
        "a noisier best": [eager, onnx, measured("x", 0.99, biases=(0.6, 1.5, 1.0))],
        "single processes": [measured("eager", 1.0, biases=alone), measured("onnx", 0.95, build_s=3.0, biases=alone)],
        "single bursts": [one.but(bursts=one.bursts[:1]) for one in (eager, onnx)],
        **{
            f"warm starts of {starts_s} s": [
                with_warm_starts(measured("eager", 1.0), starts_s), with_warm_starts(measured("onnx", 1.0), [0.01] * 2)
            ]
            for starts_s in ((0.02, 0.02, 0.02), (0.02, 0.001, 0.02))
        },
        "a leg of a hundred calls": [
            starting("eager", 0.01, 4.0), starting("onnx", 0.01, 2.0, 1.0), starting("inductor", 0.01, 1.0, 1.6)
        ],
        **{
            f"first calls of {first_s} and 1 s": [starting("eager", first_s), starting("hotpath", 1.0)]
            for first_s in (1.05, 1.5, 1.6, 3.0)
        },
        "seconds of building": [starting("eager", 0.1), starting("inductor", 0.001, level_ms=0.5, build_s=2.0)],
        "builds that differ by chance": [
            *(starting("eager", 0.01, level_ms=4.0), starting("inductor", 0.01, level_ms=0.5, build_s=1000.0)),
            *(starting("onnx", 0.01, 2.0, build_s=1.0), starting("openvino", 0.01, 2.0, build_s=1.05)),
        ],
        "a first call that takes longer": [starting("eager", 1.0), starting("onnx", 1.05, level_ms=0.5)],
    }  # fmt: skip
    lines = [f"{name}: {in_short(costs_of(*records))}" for name, records in scenes.items()]
    same_as_golden("lives.txt", "\n".join(lines))


# --- over a number of calls


def test_a_doubt_about_who_costs_least_is_one_about_the_answer_over_so_many_calls() -> None:
    of_eager = WithoutEffect(inputs=("input 1",))
    eager = measured("eager", 2.0).but(doubts=[of_eager])
    onnx = measured("onnx", 1.0, build_s=1.0).but(doubts=[caveat("odd")])
    contest = judge_contest([eager, onnx], calls=10)
    assert (contest.answer.winner, contest.answer.certainty) == ("eager", Certainty.DOUBTED)
    assert contest.doubts_by_effect[Effect.WINNER] == ()
    assert contest.doubts_of_answer[Effect.WINNER] == (OfRecords(("eager",), of_eager),)


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
    return once(median_ms, label).but(load=load(values, **more))  # type: ignore[arg-type]


def judged(*records: Record, price_per_hour: float | None = None) -> LoadJudgement:
    return judge_load(records, price_per_hour)


def test_a_soak_shows_what_does_not_last() -> None:
    soak = [window(p50_ms=5.0 + part, p99_ms=25.0, joules=50.0, energy_source="RAPL") for part in range(6)]
    record = carrying("onnx", [400, 402, 401], soak=soak, lower_soak=[window(360.0)] * 3)
    found = judged(record, price_per_hour=3.6)
    soaked = found.cells[0].soak
    assert soaked is not None and soaked.drift == pytest.approx(9.5 / 5.5 - 1)
    assert soaked.joules_per_million == pytest.approx(50.0 / 1000 * 1e6)
    assert [type(doubt) for doubt in found.doubts] == [SoakMissed, LatencyDrifted]
    assert found.cells[0].price_per_million == pytest.approx(1e-3 / 403 * 1e6, rel=0.02)


def test_an_open_answer_names_the_rate_that_its_first_cell_held_for_long() -> None:
    soak = [window(p50_ms=5.0, p99_ms=25.0)] * 6
    onnx = carrying("onnx", [400, 402, 401], soak=soak, lower_soak=[window(360.0)] * 3)
    contest = judge_contest([onnx, carrying("eager", [400, 403, 399])])
    assert headline.value(contest) == "403 requests/s at p99 < 20 ms (onnx; 360 for long)"


def test_percentiles_of_a_soak_are_over_all_of_its_requests() -> None:
    soak = [window(latencies_us=[5000] * 985 + [late] * 15) for late in (30_000, 6_000)]
    soaked = judged(carrying("onnx", [400, 402, 401], soak=soak)).cells[0].soak
    assert soaked is not None and soaked.p99_ms == 6.0
