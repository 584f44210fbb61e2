import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest

from bakeoff.judging.certainty import Effect, effect_of
from bakeoff.judging.constraints import QUANTITIES, Requirements
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.doubts import (
    AlwaysWaited,
    BuildSpread,
    ClockFell,
    ClockHeldDown,
    CoarseCheck,
    CoresStolen,
    CoresTaken,
    Doubt,
    FreshMemory,
    GpuShared,
    LastRunDiffers,
    MachineBusy,
    ModelChanges,
    NarrowLead,
    NoBaseline,
    NotRanked,
    NotToldApart,
    OfRecords,
    PartlyElsewhere,
    ProcessSpread,
    RequirementMissed,
    RoughLatency,
    SettledLate,
    SpeedDrifted,
    Stop,
    ThroughputContradicted,
    TwoSpeeds,
    Undecided,
    Unpaired,
)
from bakeoff.judging.judgement import judge
from bakeoff.judging.ranking import Ranking
from bakeoff.records.doubts import (
    BuiltAnew,
    Caveat,
    Dropped,
    InputsNotWritten,
    NarrowReference,
    OtherWidths,
    ProcessLost,
    Recalled,
    Recompiled,
    RecordDoubt,
    WarmUpNoise,
    WarmUpTrend,
)
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Cell, Extent, Interval, LeftEarly, Phase, Ratio, Record, Status, Throughput
from bakeoff.records.traits import Access, AccessKind, FastPath, ModelTraits, NotFinite, OneAnswer
from bakeoff.reports import doubt_sentences, findings, headline, sentences, traits
from tests.reports.samples import (
    accuracy,
    caveat,
    cell,
    constant,
    failed,
    lived,
    ok,
    once,
    over_processes,
    report,
    roofline,
)

ACCESSES = (
    Access(kind=AccessKind.CLOCK),
    Access(kind=AccessKind.VARIABLE, name="SCALE"),
    Access(kind=AccessKind.WRITTEN_FILE, name="/tmp/logs/log.txt"),
    Access(kind=AccessKind.PRINT),
)


def verdict(*records: Record, require: str = "") -> str:
    return sentences.verdict(judged(*records, require=require))


def judged(*records: Record, require: str = "") -> ContestJudgement:
    return judge_contest(records, Requirements.parse(require))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (
            [once(2.0, "eager"), once(1.0, "onnx", build_s=1.0), once(1.5, "inductor", build_s=9.0)],
            "onnx wins at 1.000 ms, 2.00x as fast as eager and 1.50x as fast as inductor.",
        ),
        (
            [once(1.0, "onnx"), once(1.03, "inductor"), once(2.0, "eager")],
            "no winner yet between onnx and inductor (1.000 ms to 1.030 ms); onnx is 2.00x as fast as eager.",
        ),
        ([once(1.0, "eager"), once(2.0, "onnx", build_s=1.0)], "eager wins at 1.000 ms, 2.00x as fast as onnx."),
        (
            [once(1.0, "onnx"), once(1.08, "eager")],
            "onnx wins at 1.000 ms, 1.08x as fast as eager, but measured in too few processes.",
        ),
        (
            [once(1.0, "onnx"), once(1.5, "eager", throughput=Throughput(calls_per_s=2000.0, blocks=5, block_s=0.1))],
            "onnx wins at 1.000 ms, 1.50x as fast as eager, but some processes have two speeds.",
        ),
        ([once(1.0, "onnx")], "only onnx could be ranked, at 1.000 ms."),
        ([once(1.0, "eager")], "only eager could be ranked, at 1.000 ms."),
        (
            [failed(cell("onnx"), Status.CRASH, "signal 11"), failed(cell("eager"), Status.OOM, "no memory")],
            "nothing could be ranked (1 crash, 1 oom).",
        ),
        (
            [
                *(lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03])),
                lived(3.0, "eager"),
            ],
            "no winner yet between onnx and inductor (0.9995 ms to 1.030 ms); onnx is 3.00x as fast as eager.",
        ),
    ],
)
def test_the_verdict_in_one_sentence(records: list[Record], said: str) -> None:
    assert verdict(*records) == f"conv on cpu, fp32: {said}"


def test_an_output_without_cells_says_why_nothing_is_ranked() -> None:
    crashed = judged(failed(cell(), Status.ERROR, "your model failed to load"), failed(cell("onnx"), Status.ERROR, ""))
    assert sentences.why_nothing_is_ranked(crashed) == "conv on cpu, fp32: your model failed to load"
    assert sentences.why_nothing_is_ranked(judged(once(1.0, "onnx"))) == ""


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({}, ""),
        (
            {"onnx": (1, 2.43)},
            "onnx left after its first process: at least 2.4 times slower than openvino in every undisturbed round",
        ),
        (
            {"onnx": (1, 2.43), "inductor": (1, 1.6), "torchscript": (2, 3.0)},
            "inductor and onnx left after their first process: at least 1.6 times slower than openvino in every "
            "undisturbed round; torchscript left after its first 2 processes: at least 3.0 times slower than openvino "
            "in every undisturbed round",
        ),
    ],
)
def test_what_left_early_is_told_in_one_line(left: dict[str, tuple[int, float]], said: str) -> None:
    records = [once(3.0 + place, label) for place, label in enumerate(("openvino", "inductor", "onnx", "torchscript"))]
    gone = {
        label: LeftEarly(after_process=after, ratio=ratio, than="openvino") for label, (after, ratio) in left.items()
    }
    contest = judged(*(record.model_copy(update={"left": gone.get(record.cell.label)}) for record in records))
    assert sentences.left_early(contest) == said
    assert not [told for told in doubt_sentences.doubts(contest) if " left " in told]


def test_builds_of_earlier_runs_and_of_other_cells_are_told() -> None:
    old, shared = ({"built_at": "2026-01-02T03:04:05+00:00"}, {"shared_with": "onnx"})
    later, days_before = ({"built_at": f"{at}:05+00:00"} for at in ("2026-01-02T03:06", "2025-12-30T23:59"))
    phases = {"eager": [{}], "onnx": [old], "torchscript": [later], "iree": [days_before], "onnx/cuda-graph": [shared]}
    records = [
        once(1.0, label).model_copy(update={"phases": [Phase(name="export", seconds=1, **more) for more in each]})
        for label, each in phases.items()
    ]
    checked = records[0].accuracy
    assert checked is not None
    day = checked.model_copy(update={"reference_kept_at": "2026-01-03T03:04:05+00:00"})
    floor = roofline(1.0).model_copy(update={"ceilings_kept_at": "2026-01-04T03:04:05+00:00"})
    records = [each.model_copy(update={"accuracy": day, "roofline": floor}) for each in records]
    assert sentences.builds_made_elsewhere(judged(*records)) == [
        "onnx and torchscript: build times of 2026-01-02 03:04 to 03:06 UTC, from the cache (--fresh builds anew).",
        "iree: build times of 2025-12-30 23:59 UTC, from the cache (--fresh builds anew).",
        "Outputs in float64 of 2026-01-03 03:04 UTC, from the cache (--fresh computes them anew).",
        "Floor by ceilings of 2026-01-04 03:04 UTC, from the cache (--fresh measures them anew).",
        "onnx/cuda-graph: export shared with onnx, and counted as if built alone.",
    ]


def test_a_cell_that_left_by_its_interval_is_told_so() -> None:
    left = LeftEarly(after_process=4, ratio=1.052, than="openvino", seen_in="interval")
    contest = judged(once(3.0, "openvino"), once(3.3, "onnx").model_copy(update={"left": left}))
    assert sentences.left_early(contest) == (
        "onnx left after its first 4 processes: surely slower than openvino, at least 1.05 times"
    )


def test_the_verdict_counts_cells_that_do_not_meet_the_requirements() -> None:
    lost = failed(cell("inductor"), Status.OOM, "no memory")
    said = verdict(once(1.0, "onnx"), lost, require="median_ms<0.5")
    assert said == "conv on cpu, fp32: nothing could be ranked (1 not as required, 1 oom)."


def test_when_building_the_winner_pays_is_told_against_eager_or_else_the_runner_up() -> None:
    eager, onnx = once(2.0, "eager"), once(1.0, "onnx", build_s=1.0)
    assert sentences.pays(judged(eager, onnx)) == "Building onnx (1.0 s) pays against eager from call 1,001 on."
    told = sentences.pays(judged(onnx, once(2.0, "inductor")))
    assert told == "Building onnx (1.0 s) pays against inductor from call 1,001 on."
    settled = [*onnx.phases, Phase(name="settle", calls=1000, seconds=21.0)]
    told = sentences.pays(judged(eager, onnx.model_copy(update={"phases": settled})))
    assert told.startswith("Building onnx (1.0 s, and 21 s of calls until it was final) pays against eager from call 2")
    assert sentences.pays(judged(once(1.0, "eager"), once(2.0, "onnx"))) == ""  # nothing is to be built


def test_an_output_that_is_partly_nan_in_the_reference_too_is_remarked() -> None:
    partly = accuracy().model_copy(update={"not_finite": 3})
    for check, is_told in ((accuracy(), False), (partly, True)):
        contest = judged(once(1.0, "onnx").model_copy(update={"accuracy": check}), once(2.0, "eager"))
        told = "3 values of the model's own outputs are infinite or NaN: only the others have an error."
        assert (told in sentences.remarks(contest)) is is_told


def test_where_another_cell_costs_least_meanwhile_the_sentence_and_the_figure_have_the_same_number() -> None:
    contest = judged(once(2.0, "eager"), once(1.2, "jit", build_s=0.1), once(1.0, "onnx", build_s=1.0))
    told = sentences.pays(contest)
    against_eager, least = (f"{leg:,}" for leg in (1001, contest.costs.legs("cold", contest.contenders)[-1].first_call))
    assert f"pays against eager from call {against_eager} on, and costs least of all from call {least} on" in told
    assert told.endswith(": until then jit costs less.")
    assert f"onnx from call {least} on" in findings.costs(contest)


def test_the_answer_of_a_contest_is_its_candidates_and_how_sure_that_is() -> None:
    tie = judged(once(1.0, "onnx"), once(1.01, "inductor"), once(2.0, "eager"))
    assert (headline.candidates(tie), headline.certainty(tie)) == ("onnx or inductor", "undecided")
    assert sentences.outcome(tie) == "conv on cpu, fp32: onnx or inductor, 1.000 ms, 2.00x eager, undecided"
    many = judged(*(once(1.0 + number / 1000, f"b{number}") for number in range(6)))
    assert headline.candidates(many) == "b0, b1, b2 or 3 others"
    nothing = judged(failed(cell("onnx"), Status.CRASH, "signal 11"))
    assert (headline.candidates(nothing), headline.certainty(nothing)) == ("-", "nothing could be ranked (1 crash)")


def test_a_title_says_what_was_compared_on_what() -> None:
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")
    assert sentences.title(judge(report([*(once(1.0, name) for name in ("eager", "onnx")), absent]))) == (
        "conv \u00d7 eager and onnx on AMD EPYC 9654"
    )
    assert sentences.title(judge(report())).endswith(
        " \u00d7 eager, inductor, onnx and 7 others on NVIDIA H200 and AMD EPYC 9654"
    )


def test_contests_are_named_by_what_differs_between_them() -> None:
    def named(*cells: Cell) -> list[str]:
        return sentences.names(judge(report([ok(each, constant([1.0] * 6)) for each in cells])).contests)

    assert named(cell()) == ["conv"]
    assert named(cell(precision="fp16"), cell(precision="bf16")) == ["fp16", "bf16"]
    assert named(cell(task="train_step"), cell()) == ["train_step", "inference"]
    sizes = [cell(model="mlp", dimensions={"batch": batch, "hidden": 8}) for batch in (1, 2)]
    assert named(*sizes) == ["batch 1", "batch 2"]
    assert named(*sizes, cell(dimensions={"size": 32})) == ["mlp, batch 1", "mlp, batch 2", "conv"]


def busy(value: float, is_rough: bool = False) -> Ratio:
    return Ratio(value=value, ci95=None, paired=True, processes=3, waiting=8.0, is_rough=is_rough)


RATIO = Ratio(value=1.02, ci95=Interval(low=0.99, high=1.06), paired=True, processes=3)


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        (
            Undecided("onnx", {"eager": RATIO}, processes=3),
            "3 processes of each cannot decide how onnx compares with eager. Raise --time-limit, or use a quieter "
            "machine",
        ),
        (
            NotToldApart("onnx", {"eager": RATIO}),
            "eager may be as fast as onnx: the median is longer, but varies too much to tell. Raise --processes",
        ),
        (
            NarrowLead("onnx", processes=1),
            "onnx leads by less than 25 % in a single process of each, but two equal processes can be so far apart. "
            "Measure more of them: --processes 5",
        ),
        (
            NoBaseline("eager"),
            "eager has no numbers here, so no speed-up can be given. Measure it too",
        ),
        (
            ModelChanges("eager"),
            "eager is the model itself, and later answers of it were others: what it answers changes with the number "
            "of calls, the time or the process. Builds were checked against its first answers only. Let it answer "
            "every call alike, or compare later answers yourself",
        ),
        (
            Unpaired(),
            "some cells were not measured in the same rounds, and the machine may have changed in between: leads under "
            "25 % between them count as ties. Measure them in one run, interleaved",
        ),
        (
            RequirementMissed("onnx", "peak_device_bytes", "<", "400 MB", 412e6),
            "onnx may not win: peak_device_bytes is 392.914 MiB, not < 400 MB (381.47 MiB)",
        ),
        (OfRecords(caveat("no trend"), ("onnx", "eager")), "onnx, eager: no trend"),
        (OfRecords(Caveat(text="never ran"), ("onnx",)), "onnx: never ran"),
        (
            CoarseCheck(("eager", "onnx"), error=0.416),
            "eager, onnx: the error is up to 42 % of the outputs and passes, because eager's is as large: this check "
            "finds only gross faults. Random weights often do this: check trained ones",
        ),
        (
            SettledLate("hotpath", calls=71522, seconds=45.8),
            "hotpath: this build was final only after 71,522 calls (45.8 s). They count as part of building it",
        ),
        (
            PartlyElsewhere("onnx", Extent.FALLBACK, (), ("CPUExecutionProvider",)),
            "onnx did not run where it was asked to (fallback): CPUExecutionProvider did the work. With --strict it is "
            "not ranked",
        ),
        (
            PartlyElsewhere("inductor", Extent.FALLBACK, ("graph break: Dynamo cannot trace `f`.",)),
            "inductor did not run where it was asked to (fallback): graph break: Dynamo cannot trace `f`. With "
            "--strict it is not ranked",
        ),
        (
            PartlyElsewhere("onnx", Extent.PARTIAL, ()),
            "onnx ran only in part where it was asked to (partial): the library does not say what ran elsewhere. Its "
            "latency is that of both parts; with --strict it is not ranked",
        ),
        (
            ProcessSpread({"onnx": 0.08}),
            "processes of the same cell differ, the slowest from the fastest by: onnx 8 %. The intervals contain this, "
            "and more --processes narrow them",
        ),
        (
            ThroughputContradicted({"onnx": 0.08}),
            "the throughput is only a part of what the latency allows (onnx 8 %), also when measured again: other"
            " load took the machine meanwhile. Measure it on a quiet machine",
        ),
        (
            TwoSpeeds({"onnx": 2.131}),
            "calls back to back were far faster than the latency of single calls allows (onnx 2.1 times): these "
            "processes have two speeds, and the interval contains one of them. Raise --processes",
        ),
        (
            FreshMemory({"eager": 7526.2}),
            "each call gets memory from the kernel that the C library had given back after the last one (pages: eager "
            "7,526). Another allocator may be much faster: measure rows such as eager@glibc-tuned, and serve so",
        ),
        (
            ClockFell(0.12, lowest_mhz=1200, reasons=("power cap",), temperature_c=None),
            "the GPU's clock fell to 1,200 MHz in 12 % of the measurements (power cap). The latencies are those of a "
            "slowed GPU: check its cooling and its power limit",
        ),
        (
            ClockHeldDown(1.0, reasons=("thermal slowdown",), temperature_c=87),
            "the GPU's clock was held down in 100 % of the measurements (thermal slowdown, at up to 87 °C). The "
            "latencies are those of a slowed GPU: check its cooling and its power limit",
        ),
        (
            CoresTaken(0.25),
            "other processes kept the machine busy in 25 % of the measurements. No narrow lead depends on them",
        ),
        (
            CoresStolen(0.001, is_counted=True),
            "the hypervisor gave our cores to others in 1 % of the measurements. They count, and without them "
            "the answer is open: measure again while the machine is quiet",
        ),
        (
            AlwaysWaited({"eager": 1.46, "onnx": 0.3}),
            "threads waited for a core all the time (in each second of calls, and summed over threads, eager 1.5 s, "
            "onnx 0.3 s): there are more threads than cores, or another process never rests. Stop it, or lower "
            "OMP_NUM_THREADS",
        ),
        (
            AlwaysWaited({"eager": 0.35}, have_one_thread=True),
            "threads waited for a core all the time (in each second of calls, and summed over threads, eager 0.35 s): "
            "another process never rests. Stop it",
        ),
        (
            RoughLatency(
                {"onnx": Interval(low=0.0005, high=0.26), "eager": Interval(low=0.2, high=0.5)}, below_floor=("onnx",)
            ),
            "the latency is known only roughly: onnx [0.0005000,\u00a00.2600] ms, which begins below the floor; eager "
            "[0.2000,\u00a00.5000] ms. Its processes or rounds differ too much, or are too few. Ratios are taken "
            "within rounds and have intervals of their own. Raise --processes",
        ),
        (
            MachineBusy("onnx", {"eager": busy(4.8, is_rough=True), "openvino": busy(60.0), "iree": busy(0.5, True)}),
            "the machine was busy (without waiting, onnx is about 4.80x as fast as eager and iree is about 2.00x as "
            "fast as onnx): threads waited for cores so long that calls would measure the waiting. Stop what else "
            "runs, give the run fewer threads (OMP_NUM_THREADS=1), or let it wait: --wait-for-quiet 10m",
        ),
        (
            LastRunDiffers("yesterday", "onnx", "eager", RATIO, RATIO),
            "the last run (yesterday) said otherwise: onnx was 1.02x as fast as eager [0.99,\u00a01.06], and now is "
            "1.02x [0.99,\u00a01.06]. One of them is wrong, or something changed between them: measure again, on a "
            "quiet machine",
        ),
        (
            SpeedDrifted(0.1),
            "the machine's speed drifted by 10 % over the run. Ratios are taken within rounds, so that a slower clock "
            "divides out; the latencies are an average",
        ),
        (
            SpeedDrifted(17.48),
            "the machine's speed drifted by a factor of 18 over the run. Ratios are taken within rounds, so that a "
            "slower clock divides out; the latencies are an average",
        ),
        (
            GpuShared(1),
            "1 other process used the GPU meanwhile. Stop it and measure again",
        ),
        (
            NotRanked(("onnx",), Status.OOM, "no memory"),
            "onnx is not ranked, oom: no memory",
        ),
        (
            BuildSpread({"inductor": 0.2}),
            "builds of the same cell differ, the slowest from the fastest by: inductor 20 %. That is more than "
            "processes of one build do, so the interval holds for these builds only: raise --builds",
        ),
        (
            NotRanked(("onnx", "inductor"), Status.OOM, ""),
            "onnx and inductor are not ranked, oom",
        ),
        (
            NotRanked(("onnx",), Status.NOT_REACHED, "no time"),
            "onnx was not reached: no time. `resume` measures it",
        ),
    ],
)
def test_a_doubt_in_one_sentence(doubt: Doubt, said: str) -> None:
    assert doubt_sentences.doubt(doubt) == said


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        (caveat("never steady"), "never steady"),
        (
            NarrowReference(computed_in="float64", in_float32=("aten._grouped_mm",)),
            "checked against float64, but without float64 ran in float32: aten._grouped_mm",
        ),
        (
            NarrowReference(computed_in="float32", why="OutOfMemoryError: tried to allocate 80 GiB"),
            "checked against eager in float32, since float64 gave no reference here (OutOfMemoryError: tried to "
            "allocate 80 GiB): an error that eager makes too is not seen",
        ),
        (
            InputsNotWritten(names=("input 0",)),
            "does not write the change into its inputs that the model makes (input 0): a caller that reads them "
            "afterwards sees other values",
        ),
        (
            InputsNotWritten(names=("input 0",), are_converted=True),
            "does not write the change into its inputs that the model makes (input 0): a caller that reads them "
            "afterwards sees other values. The mode copies images into channels_last memory, unless they are in it "
            "already, and calls write into the copies",
        ),
        (
            Dropped(accesses=ACCESSES),
            "the model reads the clock and the variable SCALE, writes the file log.txt and prints in forward, and this "
            "build does not: its answer holds what was read while it was built",
        ),
        (
            Dropped(accesses=ACCESSES[2:]),
            "the model writes the file log.txt and prints in forward, and this build does not",
        ),
        (
            Recalled(operators=1, again=0),
            "the model keeps answers, or parts of them: inputs that it has seen take 0 of the 1 operator that new ones "
            "take. Here the same few inputs come again, so its latency may be that of a lookup. Measure the model "
            "without its cache",
        ),
        (
            OtherWidths(outputs=("output[1] as int32 in place of int64",)),
            "returns output[1] as int32 in place of int64, with the right values: cast it where your code needs the "
            "type",
        ),
        (
            Recompiled(count=2),
            "compiled 2 more times while it was measured: its latency may contain compiling. Fix the shapes of the "
            "inputs",
        ),
        (
            WarmUpTrend(seconds=30.2),
            "still became faster or slower after 30 s of warm-up: its latency in a long-lived process may be another. "
            "A longer --min-time shows it",
        ),
        (
            WarmUpNoise(),
            "latencies still moved by more than 2 % at the end of the warm-up, but neither up nor down: this is noise",
        ),
        (
            ProcessLost(reason="not done within 600 s"),
            "a further process was not done within 600 s: its numbers are those of the processes before",
        ),
        (
            ProcessLost(reason="died of signal 9 (SIGKILL) in last check", rounds=12),
            "died of signal 9 (SIGKILL) in last check. What 12 rounds measured until then counts, but the outputs were "
            "not checked again",
        ),
        (
            BuiltAnew(reason="died of signal 11 (SIGSEGV) in measure"),
            "a build that an earlier run kept failed (died of signal 11 (SIGSEGV) in measure): its numbers are those "
            "of a new build",
        ),
    ],
)
def test_a_doubt_of_a_record_in_one_sentence(doubt: RecordDoubt, said: str) -> None:
    assert doubt_sentences.doubt_of_record(doubt) == said


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
    tuple[Access, ...]: (Access(kind=AccessKind.PRINT),),
}
"""A value for each type of a doubt's fields. With these, a doubt has the worst effect that its kind can have."""


def example_of(kind: type) -> Any:
    hints, names = get_type_hints(kind), inspect.signature(kind).parameters.keys() - {"kind"}
    return kind(**{name: EXAMPLES[hints[name]] for name in names})


def test_each_kind_of_doubt_that_could_change_the_winner_is_told_in_a_few_words() -> None:
    ranking = Ranking([once(1.0, "onnx"), once(1.05, "eager")])
    doubts = [example_of(kind) for kind in get_args(Doubt) if kind is not OfRecords]
    doubts += [OfRecords(example_of(kind), ("onnx",)) for kind in get_args(get_args(RecordDoubt)[0])]
    grave = [doubt for doubt in doubts if effect_of(doubt, ranking) is Effect.WINNER]
    assert [doubt_sentences.brief(doubt) for doubt in grave] == [
        "eager may be as fast",
        "the machine was busy",
        "eager may be as fast",
        "measured in too few processes",
        "the model's answers change with the calls, the time or the process",
        "onnx may miss float64 float64 float64: about 2 more samples would tell",
        "its metrics are not known",
        "it is judged by its calibration data",
        "other builds may differ",
        "some processes have two speeds",
        *["the machine was busy"] * 3,
        "the GPU was shared",
        "onnx was not reached",
        "its outputs could not be compared",
        "a choice of the model is frozen in it",
        "it does not write into its inputs as the model does",
        "it leaves out what the model does in forward",
        "the answer depends on rounding",
        "the model keeps more from call to call",
        "the model keeps its answers to these inputs",
        "its outputs were not checked after its rounds",
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            ModelTraits(accesses=ACCESSES, clock_s=1.0),
            [
                "answers by the clock: the answer depends on the time of the call. Compared calls see the same time",
                "reads the variable SCALE, writes the file log.txt and prints in forward. Measured calls do so, too. "
                "Its answers are checked with what it reads now",
            ],
        ),
        (ModelTraits(accesses=ACCESSES[3:]), ["prints in forward"]),
        (
            ModelTraits(autocasts=("bfloat16",)),
            [
                "computes in bfloat16 by its own autocast, also in cells of another precision: that is the precision "
                "of its weights and inputs"
            ],
        ),
    ],
)
def test_what_a_model_reads_and_does_is_a_sentence_at_the_model(found: ModelTraits, said: list[str]) -> None:
    assert list(traits.sentences(found)) == said


def test_values_that_are_not_finite_are_told_with_their_counts() -> None:
    both = NotFinite(output="output[0]", nan=1200, infinite=1, values=2048)
    found = ModelTraits(not_finite=(both, NotFinite(output="output[1]", nan=0, infinite=3, values=4)))
    assert list(traits.sentences(found)) == [
        "answers its own inputs with values that are not finite: output[0] has 1,200 NaN and 1 infinite among 2,048 "
        "values and output[1] has 3 infinite among 4 values. A build is right if it gives the same ones at the same "
        "places"
    ]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"one_answer": OneAnswer(tried=14, differing=0)}, "all of its input sets, and to 14 of other scales"),
        ({"constant_outputs": ("output[1]",)}, "gives the same values in output[1] to all input sets"),
        ({"one_answer": OneAnswer(tried=14, differing=2)}, "another one to 2 of 14 of other scales"),
        ({"needs_autograd": True}, "everything was called in torch.no_grad"),
        (
            {"fast_path": FastPath(differing=9216, values=49152, are_zeros=True)},
            "fast path writes zeros at padded places (9,216 of 49,152 values)",
        ),
        ({"fast_path": FastPath(differing=1, values=2, are_zeros=False)}, "answers otherwise than these layers"),
    ],
)
def test_what_a_check_takes_into_account_is_told_of_the_model(found: dict[str, Any], told: str) -> None:
    (sentence,) = traits.sentences(ModelTraits(**found))
    assert told in sentence


def test_a_requirement_on_something_that_was_not_measured_says_why() -> None:
    def unmet(name: str) -> str:
        return doubt_sentences.unmet(RequirementMissed("onnx", name, "<", "5", None))

    assert unmet("p99_ms") == "p99_ms cannot be judged: the sample is too small for this percentile: raise --min-time"
    assert unmet("joules_per_call") == (
        "joules_per_call cannot be judged: no energy was counted, or less than the counter resolves"
    )
    assert not any(unmet(name).endswith("it was not measured") for name in QUANTITIES)


def test_the_stored_verdicts_are_those_of_the_judgement() -> None:
    made = report()
    filled = sentences.with_verdicts(judge(made))
    assert filled.records is made.records
    for contest, stored in zip(judge(made).contests, filled.verdicts, strict=True):
        assert (stored.contest_id, stored.title, stored.winner) == (contest.contest_id, contest.title, contest.winner)
        assert [standing.label for standing in stored.standings] == contest.contenders
        assert stored.sentence == sentences.verdict(contest)
        assert stored.doubts == doubt_sentences.doubts(contest)
    baseline = next(each for each in filled.verdicts[0].standings if each.label == "eager")
    assert (baseline.break_even_calls, baseline.break_even_established) == (0, True)


def test_what_a_time_budget_left_open_is_told_with_what_settles_it() -> None:
    records = [
        ok(cell("eager"), over_processes(1.0, (1.0, 1.02, 0.99))),
        ok(cell("onnx"), over_processes(0.95, (1.0, 0.99, 1.02))),
        failed(cell("inductor"), Status.NOT_REACHED, "--budget left no time to build it"),
    ]
    said = sentences.what_more_time_would_settle(judge(report(records, request={"budget": "60s"})))
    assert said.startswith("--budget 60s: more time would settle onnx against eager (conv on cpu, fp32)")
    assert said.endswith("; no time was left for inductor")
    assert sentences.what_more_time_would_settle(judge(report(records, request={}))) == ""
    hasty = [once(1.0, "eager"), once(2.0, "onnx")]
    assert sentences.what_more_time_would_settle(judge(report(hasty, request={"budget": "60s"}))) == (
        "--budget 60s: fewer than 3 processes of each cell were measured of conv on cpu, fp32"
    )
