"""Doubts in words: what each says is held against `golden/doubts.txt`."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from bakeoff.judging.constraints import QUANTITIES, Requirement, RequirementMissed, RequirementOpen
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubt import Doubt, OfRecords, Stop
from bakeoff.judging.doubts import IN_ORDER_OF_WEIGHT
from bakeoff.judging.doubts_of_cells import (
    BuildSpread,
    CoarseCheck,
    FreshMemory,
    PartlyElsewhere,
    ProcessSpread,
    RoughLatency,
    RoughLead,
    SettledLate,
    ThroughputContradicted,
    TwoSpeeds,
)
from bakeoff.judging.doubts_of_load import KINDS as OF_LOAD
from bakeoff.judging.doubts_of_load import LatencyDrifted, NearCeiling, RequestsFailed, ShortWindows, SoakMissed
from bakeoff.judging.doubts_of_machine import (
    AlwaysWaited,
    ClockFell,
    ClockHeldDown,
    CoresStolen,
    CoresTaken,
    GpuShared,
    SpeedDrifted,
)
from bakeoff.judging.doubts_of_winner import (
    LastRunDiffers,
    MachineBusy,
    ModelChanges,
    NarrowLead,
    NoBaseline,
    NotRanked,
    NotToldApart,
    Undecided,
    Unpaired,
)
from bakeoff.judging.loaded_cell import SoakSummary
from bakeoff.judging.ranking import Evidence, Ranking
from bakeoff.records.doubts import (
    BuiltAnew,
    Caveat,
    Dropped,
    Effect,
    InputsNotWritten,
    NarrowReference,
    OtherWidths,
    ProcessLost,
    Recalled,
    Recompiled,
    RecordDoubt,
    WarmUpNoise,
    WarmUpTrend,
    WithoutEffect,
)
from bakeoff.records.failure import Failure
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Extent, Interval, Ratio, Status
from bakeoff.records.traits import Access, AccessKind
from tests.reports.samples import caveat, lived, once
from tests.support.golden import same_as_golden

ACCESSES = (
    Access(kind=AccessKind.CLOCK),
    Access(kind=AccessKind.VARIABLE, name="SCALE"),
    Access(kind=AccessKind.WRITTEN_FILE, name="/tmp/logs/log.txt"),
    Access(kind=AccessKind.PRINT),
)
RATIO = Ratio(value=1.02, ci95=Interval(low=0.99, high=1.06), paired=True, processes=3)


def busy(value: float, is_rough: bool = False) -> Ratio:
    return Ratio(value=value, ci95=None, paired=True, processes=3, waiting=8.0, is_rough=is_rough)


SOAK = SoakSummary(
    seconds=12.0, rate=400.0, p50_ms=5.0, p99_ms=25.0, objective_ms=25.0, has_missed=True, drift=None,
    joules_per_million=None, energy_source="", resident_bytes=None, device_bytes=None,
)  # fmt: skip

DOUBTS: list[Doubt] = [
    Undecided("onnx", {"eager": RATIO}, processes=3),
    NotToldApart("onnx", {"eager": RATIO}),
    NarrowLead("onnx", processes=1),
    NoBaseline("eager"),
    NoBaseline("eager fp32", ("onnx", "inductor/max-autotune")),
    NoBaseline("eager", ("onnx",), is_live=True),
    ModelChanges("eager"),
    Unpaired(),
    RequirementMissed("onnx", Requirement("peak_device_bytes", "<", 4e8, "400 MB"), 412e6),
    OfRecords(caveat("no trend"), ("onnx", "eager")),
    OfRecords(Caveat(text="never ran"), ("onnx",)),
    CoarseCheck(("eager", "onnx"), error=0.416),
    SettledLate("hotpath", calls=71522, seconds=45.8),
    PartlyElsewhere("onnx", Extent.FALLBACK, (), ("CPUExecutionProvider",)),
    PartlyElsewhere("inductor", Extent.FALLBACK, ("graph break: Dynamo cannot trace `f`.",)),
    PartlyElsewhere("onnx", Extent.PARTIAL, ()),
    ProcessSpread({"onnx": 0.08}),
    ProcessSpread({"onnx": 3.5}, widened={"eager": 22.4}),
    ThroughputContradicted({"onnx": 0.08, "eager": 0.002}),
    TwoSpeeds({"onnx": 2.131}),
    FreshMemory({"eager": 7526.2}),
    ClockFell(0.12, lowest_mhz=1200, reasons=("power cap",), temperature_c=None),
    ClockHeldDown(1.0, reasons=("thermal slowdown",), temperature_c=87),
    CoresTaken(0.25),
    CoresStolen(0.001, is_counted=True),
    AlwaysWaited({"eager": 1.46, "onnx": 0.3}),
    AlwaysWaited({"eager": 0.35}, have_one_thread=True),
    RoughLatency(
        {"onnx": Interval(low=0.0005, high=0.26), "eager": Interval(low=0.2, high=0.5)}, below_floor=("onnx",)
    ),
    RoughLatency({"onnx": Interval(low=0.1, high=0.3), "iree": Interval(low=0.2, high=0.5)}, by_waiting=("onnx",)),
    *(RoughLead("onnx", "eager", RATIO.model_copy(update={"processes": processes})) for processes in (1, 3)),
    MachineBusy("onnx", {"eager": busy(4.8, is_rough=True), "openvino": busy(60.0), "iree": busy(0.5, True)}),
    LastRunDiffers("yesterday", "onnx", "eager", RATIO, RATIO),
    SpeedDrifted(0.1),
    SpeedDrifted(17.48),
    GpuShared(1),
    NotRanked(("onnx",), Status.OOM, "no memory"),
    BuildSpread({"inductor": 0.2}),
    NotRanked(("onnx", "inductor"), Status.OOM, ""),
    NotRanked(("onnx",), Status.TIMEOUT, "not done in time", is_cut_off=True),
    NotRanked(("onnx",), Status.NOT_REACHED, "no time"),
    NearCeiling("onnx", 6000.0, 9000.0, Scenario.SERVER),
    NearCeiling("onnx", 0.02, 0.015, Scenario.SINGLE_STREAM),
    SoakMissed("onnx", (SOAK, replace(SOAK, rate=360.0)), replace(SOAK, rate=280.0), 420.0, has_value=True),
    SoakMissed("onnx", (SOAK,), None, None, has_value=False),
    LatencyDrifted("onnx", 0.73, 400.0),
    ShortWindows("onnx", 0.5),
    RequestsFailed("onnx", 3, 1200, "RuntimeError: no"),
]

OF_RECORDS: list[RecordDoubt] = [
    caveat("never steady"),
    NarrowReference(computed_in="float64", in_float32=("aten._grouped_mm",)),
    NarrowReference(computed_in="float32", why="OutOfMemoryError: tried to allocate 80 GiB"),
    InputsNotWritten(names=("input 0",)),
    InputsNotWritten(names=("input 0",), are_converted=True),
    Dropped(accesses=ACCESSES),
    Dropped(accesses=ACCESSES[2:]),
    Recalled(operators=1, again=0),
    WithoutEffect(inputs=("input 1",)),
    OtherWidths(outputs=("output[1] as int32 in place of int64",)),
    Recompiled(count=2),
    WarmUpTrend(seconds=30.2),
    WarmUpNoise(),
    ProcessLost(reason="not done within 600 s"),
    ProcessLost(reason="died of signal 9 (SIGKILL) in last check", rounds=12),
    BuiltAnew(reason="died of signal 11 (SIGSEGV) in measure"),
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


IN_RECORDS = get_args(get_args(RecordDoubt)[0])


def test_each_doubt_says_as_before_what_it_means_and_in_brief_how_it_could_change_the_winner() -> None:
    first = Evidence(Ranking([once(1.0, "onnx"), once(1.05, "eager")])).first
    examples = [example_of(kind) for kind in kinds_of(Doubt) if kind is not OfRecords]
    examples += [replace(example_of(kind), label="onnx") for kind in OF_LOAD]
    examples += [OfRecords(example_of(kind), ("onnx",)) for kind in IN_RECORDS]
    grave = [doubt for doubt in examples if doubt.effect(first) is Effect.WINNER]
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
