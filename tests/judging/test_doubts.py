"""Doubts: what disturbs a measurement, how builds and runs differ, what that does to the answer, and the words."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from bakeoff.judging import doubts_of_cells as of_cells
from bakeoff.judging import doubts_of_machine as of_machine
from bakeoff.judging import doubts_of_winner as of_winner
from bakeoff.judging.answer import Certainty
from bakeoff.judging.compare import compare
from bakeoff.judging.constraints import QUANTITIES, Requirement, RequirementMissed, RequirementOpen
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.disturbance import Given, Usual, disturbed, given, usual_of
from bakeoff.judging.doubt import Doubt, OfRecords, Stop
from bakeoff.judging.doubts import IN_ORDER_OF_WEIGHT
from bakeoff.judging.doubts_of_load import KINDS as OF_LOAD
from bakeoff.judging.doubts_of_load import LatencyDrifted, NearCeiling, RequestsFailed, ShortWindows, SoakMissed
from bakeoff.judging.judgement import judge
from bakeoff.judging.loaded_cell import SoakSummary
from bakeoff.judging.ranking import Evidence, Ranking
from bakeoff.judging.stored_report import last_verdicts
from bakeoff.records import doubts as of_records
from bakeoff.records.failure import Failure
from bakeoff.records.report_file import write_json
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Burst, Conditions, Extent, Interval, Process, Ratio, Record, Report, Status
from bakeoff.records.traits import Access, AccessKind
from bakeoff.reports import headline
from bakeoff.reports.comparison import to_markdown
from bakeoff.reports.sentences import stored_verdict
from tests.reports.samples import bursts, caveat, cell, constant, environment, lived, ok, once, report, steady, under
from tests.reports.test_sentences import ACCESSES
from tests.support.golden import same_as_golden

RATIO = Ratio(value=1.02, ci95=Interval(low=0.99, high=1.06), paired=True, processes=3)


def busy(value: float, is_rough: bool = False) -> Ratio:
    return Ratio(value=value, ci95=None, paired=True, processes=3, waiting=8.0, is_rough=is_rough)


SOAK = SoakSummary(
    seconds=12.0, rate=400.0, p50_ms=5.0, p99_ms=25.0, objective_ms=25.0, has_missed=True, drift=None,
    joules_per_million=None, energy_source="", resident_bytes=None, device_bytes=None,
)  # fmt: skip
HELD = replace(SOAK, rate=280.0, objective_ms=21.0, has_missed=False)

DOUBTS: list[Doubt] = [
    of_winner.Undecided("onnx", {"eager": RATIO}, processes=3),
    of_winner.NotToldApart("onnx", {"eager": RATIO}),
    of_winner.NarrowLead("onnx", processes=1),
    of_winner.NoBaseline("eager"),
    of_winner.NoBaseline("eager fp32", ("onnx", "inductor/max-autotune")),
    of_winner.NoBaseline("eager", ("onnx",), is_live=True),
    of_winner.ModelChanges("eager"),
    of_winner.Unpaired(),
    RequirementMissed("onnx", Requirement("peak_device_bytes", "<", 4e8, "400 MB"), 412e6),
    OfRecords(("onnx", "eager"), caveat("no trend")),
    OfRecords(("onnx",), of_records.Caveat(text="never ran")),
    of_cells.CoarseCheck(("eager", "onnx"), error=0.416),
    of_cells.NotEvaluated(("onnx",), "KeyError: label", of_reference=False),
    of_cells.NotEvaluated(("onnx", "eager"), "KeyError: label", of_reference=True),
    of_cells.EvaluationVaries("eager", "top1", 0.62, 0.6),
    of_cells.WithoutInterval(("top1",)),
    of_cells.JudgedByCalibration(("onnx", "eager"), samples=64, judged=800),
    RequirementMissed("onnx", Requirement("top1", ">", -0.01, "-1%", True, True), 0.875, 1.0),
    RequirementOpen(("onnx",), Requirement("top1", ">", -0.01, "-1%", True, True), 1.0, 1.0, 8, 372),
    RequirementOpen(("onnx",), Requirement("top1", ">", 0.0, "0%", True, True), 1.0, 1.0, 800, None),
    RequirementOpen(("onnx",), Requirement("start_s", "<", 1.0, "1"), None, None, 0, None, "no start was measured"),
    of_cells.SettledLate("hotpath", calls=71522, seconds=45.8),
    of_cells.PartlyElsewhere("onnx", Extent.FALLBACK, (), ("CPUExecutionProvider",)),
    of_cells.PartlyElsewhere("inductor", Extent.FALLBACK, ("graph break: Dynamo cannot trace `f`.",)),
    of_cells.PartlyElsewhere("onnx", Extent.PARTIAL, ()),
    of_cells.ProcessSpread({"onnx": 0.08}),
    of_cells.ProcessSpread({"onnx": 3.5}, widened={"eager": 22.4}),
    of_cells.ThroughputContradicted({"onnx": 0.08, "eager": 0.002}),
    of_cells.TwoSpeeds({"onnx": 2.131}),
    of_cells.FreshMemory({"eager": 7526.2}),
    of_machine.CoresStolen(0.001, is_counted=True),
    of_machine.AlwaysWaited({"eager": 1.46, "onnx": 0.3}),
    of_cells.RoughLatency(
        {"onnx": Interval(low=0.0005, high=0.26), "eager": Interval(low=0.2, high=0.5)}, below_floor=("onnx",)
    ),
    of_cells.RoughLatency(
        {"onnx": Interval(low=0.1, high=0.3), "iree": Interval(low=0.2, high=0.5)}, by_waiting=("onnx",)
    ),
    *(of_cells.RoughLead("onnx", "eager", RATIO.but(processes=processes)) for processes in (1, 3)),
    of_winner.MachineBusy("onnx", {"eager": busy(4.8, is_rough=True), "openvino": busy(60.0), "iree": busy(0.5, True)}),
    of_winner.MachineBusy("onnx", {"eager": busy(1.04, is_rough=True)}),
    of_winner.LastRunDiffers("yesterday", "onnx", "eager", RATIO, RATIO),
    of_machine.SpeedDrifted(17.48),
    of_winner.NotRanked(("onnx",), Status.OOM, "no memory"),
    of_cells.BuildSpread({"inductor": 0.2}),
    of_winner.NotRanked(("onnx", "inductor"), Status.OOM, ""),
    of_winner.NotRanked(("onnx",), Status.NOT_REACHED, "no time"),
    NearCeiling("onnx", 6000.0, 9000.0, Scenario.SERVER),
    NearCeiling("onnx", 0.02, 0.015, Scenario.SINGLE_STREAM),
    SoakMissed("onnx", (SOAK, replace(SOAK, rate=360.0)), HELD, 420.0, has_value=True, limit_ms=20.0),
    SoakMissed("onnx", (SOAK,), None, None, has_value=False, limit_ms=20.0),
    LatencyDrifted("onnx", 0.73, 400.0),
    ShortWindows("onnx", 0.5),
    RequestsFailed("onnx", 3, 1200, "RuntimeError: no"),
]

OF_RECORDS: list[of_records.RecordDoubt] = [
    caveat("never steady"),
    of_records.NarrowReference(computed_in="float64", in_float32=("aten._grouped_mm",)),
    of_records.NarrowReference(computed_in="float32", why="OutOfMemoryError: tried to allocate 80 GiB"),
    of_records.InputsNotWritten(names=("input 0",)),
    of_records.InputsNotWritten(names=("input 0",), are_converted=True),
    of_records.Dropped(accesses=ACCESSES),
    of_records.Dropped(accesses=ACCESSES[2:]),
    of_records.Recalled(operators=1, again=0),
    of_records.WithoutEffect(inputs=("input 1",)),
    of_records.OtherWidths(outputs=("output[1] as int32 in place of int64",)),
    of_records.Recompiled(count=2),
    of_records.WarmUpTrend(seconds=30.2),
    of_records.WarmUpNoise(),
    of_records.ProcessLost(reason="not done within 600 s"),
    of_records.ProcessLost(reason="died of signal 9 (SIGKILL) in measure"),
    of_records.ProcessLost(reason="died of signal 9 (SIGKILL) in last check", rounds=12),
    of_records.BuiltAnew(reason="died of signal 11 (SIGSEGV) in measure"),
]

EXAMPLES: dict[object, object] = {
    bool: True,
    int: 2,
    int | None: 2,
    float: 2.0,
    float | None: 2.0,
    str: "float64",
    tuple[str, ...]: ("onnx",),
    Mapping[str, float]: {"eager": 2.0},
    Mapping[str, Ratio]: {"eager": RATIO},
    Ratio: RATIO,
    Mapping[str, Interval]: {"eager": Interval(low=1.0, high=3.0)},
    Status: Status.NOT_REACHED,
    Extent: Extent.PARTIAL,
    Stop: Stop.BUDGET,
    Failure: Failure(kind="", text=""),
    Requirement: Requirement("p99_ms", "<", 5.0, "5"),
    tuple[Access, ...]: (Access(kind=AccessKind.PRINT),),
    Scenario: Scenario.SERVER,
    tuple[SoakSummary, ...]: (SOAK,),
    SoakSummary | None: SOAK,
}
"""A value for each type of a doubt's fields. With these, a doubt has the worst effect that its kind can have."""


def example_of(kind: type) -> Any:
    hints, names = get_type_hints(kind), inspect.signature(kind).parameters.keys() - {"kind"}
    return kind(**{name: EXAMPLES[hints[name]] for name in names})


def kinds_of(kind: type) -> list[type]:
    kinds = [found for below in kind.__subclasses__() for found in kinds_of(below)]
    return kinds if inspect.isabstract(kind) else [kind, *kinds]


IN_RECORDS = get_args(get_args(of_records.RecordDoubt)[0])


def test_each_doubt_says_as_before_what_it_means_and_in_brief_how_it_could_change_the_winner() -> None:
    first = Evidence(Ranking([once(1.0, "onnx"), once(1.05, "eager")])).first
    examples = [example_of(kind) for kind in kinds_of(Doubt) if kind is not OfRecords]
    examples += [replace(example_of(kind), label="onnx") for kind in OF_LOAD]
    examples += [OfRecords(("onnx",), example_of(kind)) for kind in IN_RECORDS]
    grave = [doubt for doubt in examples if doubt.effect(first) is of_records.Effect.WINNER]
    brief = [f"but {doubt.brief} ({type(getattr(doubt, 'doubt', doubt)).__name__})" for doubt in grave]
    text = "\n".join([*(doubt.say() for doubt in [*DOUBTS, *OF_RECORDS]), "", *sorted(brief), ""])
    same_as_golden("doubts.txt", text)


def test_each_kind_of_doubt_has_a_row() -> None:
    found_elsewhere = (OfRecords, RequirementMissed, RequirementOpen, *OF_LOAD)
    rowless = [kind for kind in kinds_of(Doubt) if kind not in found_elsewhere and kind.find not in IN_ORDER_OF_WEIGHT]
    assert rowless == []
    contest = judge_contest([lived(1.0, "onnx", doubts=[example_of(kind) for kind in IN_RECORDS])])
    assert {type(doubt.doubt) for doubt in contest.doubts if isinstance(doubt, OfRecords)} == set(IN_RECORDS)


def test_a_requirement_on_something_that_was_not_measured_says_why() -> None:
    def unmet(name: str) -> str:
        return RequirementMissed("onnx", Requirement(name, "<", 5.0, "5"), None).unmet

    assert unmet("p99_ms") == "p99_ms cannot be judged: the sample is too small for this percentile: raise --min-time"
    assert unmet("joules_per_call") == (
        "joules_per_call cannot be judged: no energy was counted, or less than the counter resolves"
    )
    assert not any(unmet(name).endswith("it was not measured") for name in QUANTITIES)


def measured(levels_ms: Sequence[float], builds: int, backend: str = "inductor") -> Record:
    """Return a cell with a process of each level. Its builds take turns."""
    record = ok(cell(backend), steady(levels_ms))
    processes = [
        Process(index=number, warm=number >= builds, build=number % builds, phases=[], calls=18, median_ms=level_ms)
        for number, level_ms in enumerate(levels_ms)
    ]
    return record.but(processes=processes)


@pytest.mark.parametrize(
    ("levels_ms", "builds", "spread"),
    [
        ([1.0, 1.2, 1.001, 1.201], 2, 0.20),
        ([1.0, 1.2, 1.15, 1.05], 2, None),  # processes of one build are as far apart
        ([1.0, 1.04, 1.0001, 1.0401], 2, None),  # so far apart are processes of two kinds
        ([1.0, 1.2, 1.1], 3, None),  # no build has two processes
        ([1.0, 1.2, 1.001, 1.201], 1, None),
        ([1.0, 1.3, 1.001, 1.301, 0.999], 2, 0.30),
        ([1.0, 1.2, 1.0, 1.2], 2, 0.20),  # processes of one build that do not vary at all
        ([1.0, 1.2, 1.0], 2, 0.20),  # one process of the second build is enough
    ],
)
def test_builds_differ_if_they_are_further_apart_than_their_processes(
    levels_ms: Sequence[float], builds: int, spread: float | None
) -> None:
    assert of_cells.spread_of_builds(measured(levels_ms, builds)) == (spread and pytest.approx(spread, abs=0.01))


CALM: dict[str, Any] = {"calibration_ms": 2.4, "wait_share": 0.0, "steal_share": 0.0, "sm_clock_mhz": 1980}
USUAL = Usual(calibration_ms=2.4, sm_clock_mhz=1980, wait_share=0.0, steal_share=0.0)


def burst(**conditions: Any) -> Burst:
    return under(constant([1.0]), **(CALM | conditions))[0]


def rounds(*conditions: dict[str, Any]) -> list[Burst]:
    """One burst each, a second apart, in these conditions or else calm."""
    calm = constant([1.0] * len(conditions))
    return [one.but(conditions=Conditions(**(CALM | seen))) for one, seen in zip(calm, conditions, strict=True)]


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


def test_doubts_about_machines_are_reported_as_before() -> None:
    """Heat that slows nothing down is no doubt, and neither is a single slow round."""
    slow = {"sm_clock_mhz": 1200, "throttle_reasons": ["software power cap"]}
    hot, half = {"sm_clock_mhz": 1200, "temperature_c": 61}, {"sm_clock_mhz": 1700}
    held = {"sm_clock_mhz": 1500, "throttle_reasons": ["hardware thermal slowdown"]}
    others = [{"foreign_gpu_processes": count} for count in (1, 3)]
    conditions: dict[str, list[dict[str, Any]]] = {
        "calm": [{}] * 12,
        "heat": [{"temperature_c": 87}] * 10,
        "a clock that fell": [*[{}] * 22, *[slow] * 3],
        "a clock that fell without a reason": [*[{}] * 22, *[hot] * 3],
        "a clock that fell most of the time": [*[{}] * 3, *[{"sm_clock_mhz": 1200}] * 7],
        "a clock that fell a little": [*[{}] * 3, *[half] * 7],
        "a clock held down": [held | {"temperature_c": degrees} for degrees in (84, 87) for _ in range(5)],
        "cores that others took": [*[{}] * 9, *[{"wait_share": 0.4}] * 3],
        "cores that a host took": [*[{}] * 9, *[{"steal_share": 0.2}] * 3],
        "threads that always waited": [{"wait_share": 0.35}] * 12,
        "a drift": [{"calibration_ms": 2.4 + 0.05 * number} for number in range(10)],
        "one slow round": [*[{}] * 7, {"calibration_ms": 4.8}, *[{}] * 7],
        "a shared GPU": others,
    }
    taken = rounds(*conditions["cores that others took"])
    cases = {name: [ok(cell("eager"), rounds(*seen), settings={"threads": 2})] for name, seen in conditions.items()}
    cases |= {
        "one thread that always waited": [
            ok(cell("eager"), rounds(*conditions["threads that always waited"]), settings={"threads": 1})
        ],
        "three cells": [ok(cell(name), taken) for name in ("eager", "onnx", "inductor")],
        "no conditions": [ok(cell("eager"), constant([1.0] * 12))],
        "no cell": [],
    }
    kinds = (
        of_machine.ClockFell,
        of_machine.ClockHeldDown,
        of_machine.CoresTaken,
        of_machine.AlwaysWaited,
        of_machine.CoresStolen,
        of_machine.SpeedDrifted,
        of_machine.GpuShared,
    )
    found = {
        name: [doubt.say() for kind in kinds for doubt in kind.find(Evidence(Ranking(records)))]
        for name, records in cases.items()
    }
    same_as_golden("machine_doubts.txt", "\n".join(f"{name}: {'; '.join(said)}" for name, said in found.items()))


LATE = "2026-05-02T10:00:00Z"
LATER = "2026-05-03T10:00:00Z"


def run(onnx_ms: float, **more: object) -> Report:
    """Return a run of eager at 1 ms and of onnx, with its verdict."""
    made = report([lived(1.0, "eager"), lived(onnx_ms, "onnx")], **more)
    return made.but(verdicts=[stored_verdict(contest) for contest in judge(made).contests])


def after(last_onnx_ms: float, onnx_ms: float) -> Report:
    last = run(last_onnx_ms).verdicts[0].but(run_id="yesterday")
    return run(onnx_ms, last_verdicts=[last])


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "certainty", "effect"),
    [
        (0.5, 0.5, Certainty.SURE, None),
        (0.4, 0.5, Certainty.SURE, of_records.Effect.NUMBER),
        (1.8, 0.5, Certainty.DOUBTED, of_records.Effect.WINNER),
    ],
)
def test_a_run_that_says_other_than_the_last_one_has_a_doubt(
    before_ms: float, now_ms: float, certainty: Certainty, effect: of_records.Effect | None
) -> None:
    (contest,) = judge(after(before_ms, now_ms)).contests
    told = [
        (its, each)
        for its, doubts in contest.doubts_by_effect.items()
        for each in doubts
        if isinstance(each, of_winner.LastRunDiffers)
    ]
    assert (contest.fastest.certainty, [its for its, _ in told]) == (certainty, [effect] if effect is not None else [])
    if effect is of_records.Effect.WINNER:
        assert headline.certainty(contest) == "but the last run said the opposite"
        said = told[0][1].say()
        assert said.startswith("the last run (yesterday) said the opposite: onnx was 0.56x as fast as eager")


def test_two_runs_that_say_the_opposite_are_reported_in_a_comparison() -> None:
    ((title, found),) = compare(run(0.5), run(1.8)).opposite
    assert (title, found.label, found.other) == ("conv on cpu, fp32", "onnx", "eager")
    assert "The two runs say the opposite" in to_markdown(compare(run(0.5), run(1.8)))
    assert compare(run(0.5), run(0.4)).opposite == []


@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ({}, True),
        ({"created_at": LATER}, False),
        ({"own_files": {"net.py": "ab"}}, False),
        ({"environment": environment().but(hostname="another")}, False),
        ({"environment": environment().but(python="3.0")}, False),
    ],
)
def test_the_last_run_is_one_of_the_same_files_on_the_same_machine(
    tmp_path: Path, more: Mapping[str, object], is_found: bool
) -> None:
    write_json(run(0.5, **more), tmp_path / "last")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    found = last_verdicts(tmp_path / "now", run(0.4, created_at=LATE))
    assert [each.run_id for each in found] == (["20260501-100000-conv"] if is_found else [])


def test_the_latest_of_several_runs_counts_for_each_contest(tmp_path: Path) -> None:
    other = report([lived(1.0, "eager").but(cell=cell("eager").but(seed=3))])
    write_json(run(0.5, run_id="first"), tmp_path / "a")
    write_json(run(0.4, run_id="second"), tmp_path / "b")
    write_json(other, tmp_path / "c")
    assert [each.run_id for each in last_verdicts(tmp_path / "now", run(0.4, created_at=LATE))] == ["second"]


@pytest.mark.parametrize(("calls", "quiet_calls"), [(80, 3), (6, 2), (2, 1)])
def test_so_many_calls_that_did_not_wait_stand_for_a_burst(calls: int, quiet_calls: int) -> None:
    for number, stands in ((quiet_calls, True), (quiet_calls - 1, False)):
        quiet = {"quiet_calls": number, "quiet_ms": 0.9, "quiet_wait_share": 0.0}
        (burst,) = under(bursts(1.0, rounds=1, calls=calls), wait_share=0.5, others_cores=2.0, **quiet)
        assert (given(burst, Usual(None, None, 0.0, None)) == Given(0.9)) is stands


def test_what_calls_may_take_without_waiting_is_no_less_than_the_quickest_one_took() -> None:
    """Two threads waited for cores: it is not known how much of a call that was, and each call took 1 ms at least."""
    waited = {"wait_share": 0.99, "others_cores": 3.0, "cpu_share": 1.0, "caller_share": 0.5}
    records = [ok(cell(name), under(steady([1.0, 1.2, 1.1]), **waited)) for name in ("eager", "onnx")]
    contest = judge_contest(records)
    ends, measured = contest.fit.latency_ci95_ms("onnx"), contest.fit.ends_as_measured("onnx")
    assert ends and measured and contest.fit.reach("onnx") > 1
    assert ends.low == min(1.0, measured.low) and ends.high == measured.high
