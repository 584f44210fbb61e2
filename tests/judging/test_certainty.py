"""How sure the answer of a contest is, and what its doubts do to it."""

import math

import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.doubts_of_cells import RoughLatency, RoughLead
from bakeoff.judging.doubts_of_machine import AlwaysWaited, CoresTaken, GpuShared
from bakeoff.judging.doubts_of_winner import MachineBusy, NotRanked
from bakeoff.judging.ranking import undecided
from bakeoff.records.doubts import Dropped, Effect, InputsNotWritten, Recalled, RecordDoubt, WithoutEffect
from bakeoff.records.failure import NO_BUDGET_LEFT, Failure
from bakeoff.records.schema import Record, Status
from bakeoff.records.traits import Access, AccessKind
from tests.reports.samples import caveat, cell, constant, failed, lived, ok, once, roofline, steady, under

LOST = failed(cell("openvino"), Status.OOM, "no memory")
LATER = failed(cell("openvino"), Status.NOT_REACHED, "no time")
CUT_OFF = LOST.model_copy(
    update={"status": Status.TIMEOUT, "failure": Failure(kind=NO_BUDGET_LEFT, text="not done in time")}
)
ABSENT = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")


def kinds(contest: ContestJudgement, effect: Effect) -> list[type]:
    return [type(doubt) for doubt in contest.doubts_by_effect[effect]]


@pytest.mark.parametrize(
    ("records", "certainty", "candidates"),
    [
        ([lived(1.0, "onnx"), lived(2.0, "eager"), LOST, ABSENT], Certainty.SURE, ["onnx"]),
        ([lived(1.0, "onnx"), lived(2.0, "eager"), LATER], Certainty.DOUBTED, ["onnx"]),
        ([lived(1.0, "onnx"), lived(2.0, "eager"), CUT_OFF], Certainty.DOUBTED, ["onnx"]),
        ([once(1.0, "onnx"), once(1.08, "eager")], Certainty.DOUBTED, ["onnx"]),
        ([once(1.0, "onnx"), once(1.01, "eager")], Certainty.OPEN, ["onnx", "eager"]),
        ([lived(1.0, "onnx", [1.0] * 3), lived(1.001, "eager", [1.0] * 3)], Certainty.TIE, ["onnx", "eager"]),
        (
            [lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "eager", [0.97, 1.0, 1.03])],
            Certainty.OPEN,
            ["onnx", "eager"],
        ),
        ([once(1.0, "onnx"), LOST], Certainty.ALONE, ["onnx"]),
        ([LOST, ABSENT], Certainty.NOTHING, []),
    ],
)
def test_the_certainty_follows_from_the_judgement(
    records: list[Record], certainty: Certainty, candidates: list[str]
) -> None:
    contest = judge_contest(records)
    assert (contest.fastest.certainty, contest.fastest.candidates) == (certainty, candidates)


def test_what_cannot_run_is_no_doubt_and_a_failure_is_a_remark() -> None:
    contest = judge_contest([lived(1.0, "onnx"), lived(2.0, "eager"), LOST, ABSENT])
    assert [doubt.cells for doubt in contest.doubts] == [("openvino",)]
    assert kinds(contest, Effect.NONE) == [NotRanked]


@pytest.mark.parametrize(
    "doubt",
    [
        InputsNotWritten(names=("input 0",)),
        Recalled(operators=7, again=0),
        WithoutEffect(inputs=("input 1",)),
        Dropped(accesses=(Access(kind=AccessKind.CLOCK),)),
    ],
)
@pytest.mark.parametrize(
    ("label", "certainty"), [("onnx", Certainty.DOUBTED), ("eager", Certainty.SURE), ("", Certainty.SURE)]
)
def test_a_winner_that_does_other_things_than_the_model_is_doubted(
    label: str, certainty: Certainty, doubt: RecordDoubt
) -> None:
    records = [
        record.model_copy(update={"doubts": [doubt] if record.cell.label == label else []})
        for record in (lived(1.0, "onnx"), lived(2.0, "eager"))
    ]
    headline = judge_contest(records).answer
    assert (headline.certainty, headline.candidates) == (certainty, ["onnx"])


def busy(share: float, level_ms: float, backend: str) -> Record:
    """Return a cell whose threads waited for a core in this share of the rounds."""
    bursts = steady([level_ms] * 5, rounds=10)
    waited = [under([burst], wait_share=0.5 if burst.round < 10 * share else 0.0)[0] for burst in bursts]
    return ok(cell(backend), waited)


@pytest.mark.parametrize(
    ("share", "lead", "effect"),
    [(0.3, 1.2, Effect.NONE), (0.6, 1.2, Effect.NONE), (0.7, 1.2, Effect.WINNER), (0.7, 1.5, Effect.NONE)],
)
def test_a_busy_machine_bears_on_a_narrow_lead_if_calm_rounds_alone_do_not_show_it(
    share: float, lead: float, effect: Effect
) -> None:
    """With six of ten rounds disturbed, all of them count, and the other four say the same."""
    contest = judge_contest([busy(share, 1.0, "onnx"), busy(share, lead, "eager")])
    assert kinds(contest, effect) == [CoresTaken]
    assert contest.fastest.certainty is (Certainty.DOUBTED if effect is Effect.WINNER else Certainty.SURE)


def test_a_narrow_lead_that_disturbed_rounds_alone_show_is_doubted() -> None:
    onnx, slow, equal = busy(0.6, 1.0, "onnx"), busy(0.6, 1.2, "eager"), busy(0.6, 1.0, "eager")
    bursts = [*(burst for burst in slow.bursts if burst.round < 6), *(one for one in equal.bursts if one.round >= 6)]
    assert kinds(judge_contest([onnx, ok(cell("eager"), bursts)]), Effect.WINNER) == [CoresTaken]


IN_PARALLEL = {"others_cores": 2.0, "cpu_share": 1.2, "caller_share": 0.6}


def waiting(level_ms: float, backend: str, share: float, quiet_rounds: int = 0, **quiet: object) -> Record:
    """Return a cell with two threads that waited for this share of each burst. Some rounds had `quiet` slices."""
    bursts = [
        under([burst], wait_share=share, **IN_PARALLEL, **(quiet if burst.round < quiet_rounds else {}))[0]
        for burst in steady([level_ms] * 3, rounds=12)
    ]
    return ok(cell(backend), bursts)


def test_a_ratio_that_measures_waiting_is_not_told() -> None:
    """So it was in a run beside other programs: eager took 100 times as long as alone, and the truth was 4.8."""
    contest = judge_contest([waiting(0.5, "onnx", 0.0), waiting(48.0, "eager", 1.4)])
    assert (contest.fastest.certainty, contest.fastest.winner) == (Certainty.OPEN, None)
    assert kinds(contest, Effect.WINNER) == [MachineBusy]
    ratio = contest.fastest.leads["eager"]
    assert (ratio.ci95, ratio.is_of_busy_machine, ratio.is_rough) == (None, True, False)


@pytest.mark.parametrize(("rounds", "certainty"), [(2, Certainty.OPEN), (4, Certainty.SURE)])
def test_calls_that_did_not_wait_stand_for_their_rounds(rounds: int, certainty: Certainty) -> None:
    """Two of them tell roughly what the ratio is. With four in each process, it is known."""
    quiet: dict[str, object] = {"quiet_calls": 1, "quiet_ms": 2.4, "quiet_wait_share": 0.01}
    contest = judge_contest([waiting(0.5, "onnx", 0.0), waiting(48.0, "eager", 1.4, rounds, **quiet)])
    assert contest.fastest.certainty is certainty
    ratio = contest.fastest.leads["eager"]
    assert ratio.value == pytest.approx(4.8, rel=1e-3)
    assert contest.fit.ratio("eager", "eager").is_rough is False, "a cell is as fast as itself, whatever it waited for"
    assert ratio.is_rough is (certainty is Certainty.OPEN)


def test_waiting_is_taken_off_where_one_thread_does_the_work() -> None:
    at_work = {"wait_share": 0.75, "cpu_share": 0.25, "caller_share": 0.25, "others_cores": 2.0}
    alone = under(steady([20.0] * 3, rounds=12), **at_work, given_ms=5.0)
    contest = judge_contest([waiting(1.0, "onnx", 0.0), ok(cell("eager"), alone)])
    lead = contest.fastest.leads["eager"]
    assert (contest.fastest.certainty, lead.value) == (Certainty.SURE, 5.0)
    assert lead.ci95 is not None and lead.ci95.low == pytest.approx(5.0 / 1.35)  # such calls find cold caches


def test_a_latency_below_the_caller_s_cpu_time_is_not_believed() -> None:
    """A cell of onnx/openvino-ep waited for more than its calls took. It was said to be 4,631 times as fast."""
    at_work = {"wait_share": 1.7, "cpu_share": 0.2, "caller_share": 0.2, "others_cores": 2.0}
    too_short = under(steady([10.0] * 3, rounds=12), **at_work, given_ms=0.0001)
    contest = judge_contest([waiting(0.5, "onnx", 0.0), ok(cell("eager"), too_short)])
    assert contest.fastest.certainty is Certainty.OPEN
    assert not contest.fastest.leads["eager"].is_rough


def test_an_interval_contains_what_waiting_may_have_done() -> None:
    contest = judge_contest([waiting(1.0, "onnx", 0.1), waiting(2.0, "eager", 0.2)])
    ends = contest.fastest.leads["eager"].ci95
    assert ends is not None
    assert (contest.fastest.certainty, ends.low, ends.high) == (
        Certainty.SURE,
        pytest.approx(1.6),
        pytest.approx(2 / 0.9),
    )


def test_a_lead_that_waiting_may_have_made_is_open() -> None:
    contest = judge_contest([waiting(1.0, "onnx", 0.2), waiting(1.2, "eager", 0.2)])
    assert (contest.fastest.certainty, kinds(contest, Effect.WINNER)) == (Certainty.OPEN, [MachineBusy])
    assert undecided([waiting(1.0, "onnx", 0.2), waiting(1.2, "eager", 0.2)]) == []  # more of the same tells no more


@pytest.mark.parametrize("cause", [{}, {"others_cores": 0.05}])
def test_threads_that_wait_for_one_another_alone_are_part_of_a_latency(cause: dict[str, object]) -> None:
    bursts = under(steady([2.0] * 3, rounds=12), wait_share=0.5, cpu_share=1.2, **cause)
    contest = judge_contest([waiting(0.5, "onnx", 0.0), ok(cell("eager"), bursts)])
    assert contest.fastest.certainty is Certainty.SURE
    assert AlwaysWaited in kinds(contest, Effect.NUMBER)


def test_a_quota_that_holds_a_process_counts_as_others_do() -> None:
    bursts = under(steady([2.0] * 3, rounds=12), wait_share=0.6, cpu_share=1.2, throttled_share=0.5)
    contest = judge_contest([waiting(0.5, "onnx", 0.0), ok(cell("eager"), bursts)])
    assert kinds(contest, Effect.WINNER) == [MachineBusy]


@pytest.mark.parametrize(("lead", "effect"), [(1.2, Effect.WINNER), (2.0, Effect.NUMBER)])
def test_a_rival_that_always_waited_may_be_faster_by_so_much(lead: float, effect: Effect) -> None:
    bursts = under(steady([lead] * 5), wait_share=0.35)
    contest = judge_contest([lived(1.0, "onnx", [1.0] * 5), ok(cell("eager"), bursts)])
    assert kinds(contest, effect) == [AlwaysWaited]


@pytest.mark.parametrize("starved", ["onnx", "eager"])
@pytest.mark.parametrize(("share", "is_known"), [(0.85, True), (0.94, False)])
def test_cells_that_waited_most_of_the_time_make_no_sure_winner(starved: str, share: float, is_known: bool) -> None:
    """So it was in runs beside busy neighbours: eager took 170 times as long as it does alone."""
    levels_ms, waits = {"onnx": 0.03, "eager": 14.0}, {starved: share}
    records = [
        ok(cell(name), under(steady([level_ms], rounds=12), wait_share=waits.get(name, 0.0)), build_s=3.5)
        for name, level_ms in levels_ms.items()
    ]
    contest = judge_contest(records)
    assert contest.fastest.certainty is (Certainty.SURE if is_known else Certainty.DOUBTED)
    assert AlwaysWaited in kinds(contest, Effect.NUMBER if is_known else Effect.WINNER)
    pays = contest.cells[0].break_even
    assert pays is not None
    assert pays.is_established is is_known


@pytest.mark.parametrize(("lead", "effect"), [(1.2, Effect.WINNER), (2.0, Effect.NUMBER)])
def test_a_shared_gpu_bears_on_a_narrow_lead(lead: float, effect: Effect) -> None:
    levels = {"onnx": 1.0, "eager": lead}
    records = [ok(cell(name), under(steady([level] * 5), foreign_gpu_processes=1)) for name, level in levels.items()]
    assert kinds(judge_contest(records), effect) == [GpuShared]


def test_doubts_about_numbers_that_the_answer_shows_come_before_those_about_others() -> None:
    records = [
        lived(3.0, "inductor", doubts=[caveat("of another cell")]),
        lived(1.0, "onnx", doubts=[caveat("of the winner")]),
        lived(2.0, "eager", doubts=[caveat("of the baseline")]),
        LATER,
    ]
    contest = judge_contest(records)
    assert kinds(contest, Effect.WINNER) == [NotRanked]
    told = [doubt.cells for doubt in contest.doubts]
    assert told == [("openvino",), ("onnx",), ("eager",), ("inductor",)]


def test_a_latency_that_is_hardly_known_is_told_beside_a_sure_winner() -> None:
    """In a second process, both took 1.8 times as long: the ratio stays as it was, and a latency may be anything."""
    levels_ms = {"onnx": 0.5, "eager": 1.6}
    rough = judge_contest(
        [lived(level_ms, name, [1.0, 1.8], roofline=roofline(level_ms)) for name, level_ms in levels_ms.items()]
    )
    assert rough.fastest.certainty is Certainty.SURE
    (doubt,) = (each for each in rough.doubts_by_effect[Effect.NUMBER] if isinstance(each, RoughLatency))
    assert doubt.intervals["onnx"].low < roofline(0.5).floor_ms < doubt.intervals["onnx"].high
    assert (doubt.cells, doubt.below_floor, doubt.has_ratios) == (("onnx", "eager"), ("onnx", "eager"), True)
    usual = judge_contest([lived(level_ms, name, roofline=roofline(level_ms)) for name, level_ms in levels_ms.items()])
    assert RoughLatency not in map(type, usual.doubts)


def test_a_lead_that_is_hardly_known_is_told_beside_a_sure_winner() -> None:
    """In every second round onnx is slow and eager is quick. Each latency is known, and their ratio hardly."""
    rounds = [math.exp(0.25), math.exp(-0.25)] * 3
    times = {"onnx": rounds, "eager": [2.6 / factor for factor in rounds]}
    rough = judge_contest([ok(cell(name), constant(levels)) for name, levels in times.items()])
    assert rough.fastest.certainty is Certainty.SURE and RoughLatency not in map(type, rough.doubts)
    (doubt,) = (each for each in rough.doubts_by_effect[Effect.NUMBER] if isinstance(each, RoughLead))
    assert (doubt.best, doubt.other, doubt.lead.processes) == ("onnx", "eager", 1)
    assert doubt.lead.ci95 and 2 * doubt.lead.ci95.low < doubt.lead.ci95.high
    usual = judge_contest([ok(cell(name), constant(levels[:1] * 6)) for name, levels in times.items()])
    assert RoughLead not in map(type, usual.doubts)


def test_what_calls_may_take_without_waiting_is_no_less_than_the_quickest_one_took() -> None:
    """Two threads waited for cores: it is not known how much of a call that was, and each call took 1 ms at least."""
    waited = {"wait_share": 0.99, "others_cores": 3.0, "cpu_share": 1.0, "caller_share": 0.5}
    records = [ok(cell(name), under(steady([1.0, 1.2, 1.1]), **waited)) for name in ("eager", "onnx")]
    contest = judge_contest(records)
    ends, measured = contest.fit.latency_ci95_ms("onnx"), contest.fit.ends_as_measured("onnx")
    assert ends and measured and contest.fit.reach("onnx") > 1
    assert ends.low == min(1.0, measured.low) and ends.high == measured.high


def test_a_latency_that_is_rough_by_waiting_is_told_apart_from_one_of_few_processes() -> None:
    """Calls of eager lost their cores for a third of their time, and more processes would not help."""
    waited = {"wait_share": 0.35, "others_cores": 3.0, "cpu_share": 1.0, "caller_share": 0.5}
    levels = steady([1.0, 1.2, 1.1])
    quick = [burst.model_copy(update={"samples_ns": [*burst.samples_ns, 300_000]}) for burst in levels]
    records = [ok(cell("eager"), under(quick, **waited)), lived(0.5, "onnx", [1.0, 1.8])]
    rough = next(doubt for doubt in judge_contest(records).doubts if isinstance(doubt, RoughLatency))
    assert (set(rough.intervals), rough.by_waiting) == ({"eager", "onnx"}, ("eager",))
