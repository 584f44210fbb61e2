import pytest

from judging.constraints import QUANTITIES, Requirements
from judging.contest import ContestJudgement, judge_contest
from judging.judgement import judge
from records.schema import Doubt, DoubtKind, Interval, LeftEarly, Phase, Ratio, Record, Status
from reports import sentences
from tests.reports.samples import LAYOUTS, cell, failed, lived, noted, ok, once, over_processes, report


def verdict(*records: Record, require: str = "") -> str:
    return sentences.verdict(judged(*records, require=require))


def judged(*records: Record, require: str = "") -> ContestJudgement:
    return judge_contest(records, Requirements.parse(require))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (
            [once(2.0, "eager"), once(1.0, "onnx", build_s=1.0), once(1.5, "inductor", build_s=9.0)],
            "onnx wins at 1.000 ms, 1.50x [1.50, 1.50] as fast as inductor and 2.00x [2.00, 2.00] as fast as eager; "
            "building it (1.0 s) pays from call 1,001 on.",
        ),
        (
            [once(1.0, "onnx"), once(1.03, "inductor"), once(2.0, "eager")],
            "tie between onnx and inductor (1.000 ms to 1.030 ms), about 2.00x [2.00, 2.00] as fast as eager.",
        ),
        (
            [once(1.0, "eager"), once(2.0, "onnx", build_s=1.0)],
            "eager wins at 1.000 ms, 2.00x [2.00, 2.00] as fast as onnx.",
        ),
        ([once(1.0, "onnx")], "only onnx could be ranked, at 1.000 ms."),
        (
            [failed(cell("onnx"), Status.CRASH, "signal 11"), failed(cell("eager"), Status.OOM, "no memory")],
            "nothing could be ranked (1 crash, 1 oom).",
        ),
        (
            [lived(2.0, "eager"), lived(1.0, "onnx"), lived(1.05, "inductor", LAYOUTS[::-1])],
            "onnx wins at 1.000 ms, 1.05x [1.05, 1.05] as fast as inductor and 2.00x [2.00, 2.00] as fast as eager "
            "over 5 processes of each.",
        ),
        (
            [
                *(lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03])),
                lived(3.0, "eager"),
            ],
            "no winner yet between onnx and inductor (0.9995 ms to 1.030 ms), about 3.00x [2.74, 3.29] as fast as "
            "eager over 3 processes of each; unstable, since measuring ended before this was decided.",
        ),
    ],
)
def test_the_verdict_in_one_sentence(records: list[Record], said: str) -> None:
    assert verdict(*records) == f"conv on cpu, fp32: {said}"


def test_a_verdict_that_stands_alone_says_why_nothing_could_be_ranked() -> None:
    crashed = judged(failed(cell(), Status.ERROR, "your model failed to load"), failed(cell("onnx"), Status.ERROR, ""))
    assert sentences.verdict_alone(crashed) == (
        "conv on cpu, fp32: nothing could be ranked (2 error): your model failed to load"
    )
    assert sentences.verdict_alone(judged(once(1.0, "onnx"))) == verdict(once(1.0, "onnx"))


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
    assert not [doubt for doubt in contest.doubts if "left" in doubt.kind.value]


def test_the_winners_artefact_is_told_with_the_command_that_exports_it() -> None:
    won = once(1.0, "onnx", artifact="artifacts/x")
    for folder, said in (
        ("", "is kept: artifacts/x. To run it without Bakeoff: python runner.py export FOLDER conv_"),
        ("my run", "is kept: my run/artifacts/x. To run it without Bakeoff: python runner.py export 'my run' conv_"),
    ):
        (contest,) = judge(report([once(2.0, "eager"), won])).contests
        assert said in sentences.what_to_ship(contest, folder)
    (tied,) = judge(report([once(1.0, "eager", artifact="artifacts/y"), won])).contests
    (nothing,) = judge(report([once(2.0, "eager"), once(1.0, "onnx")])).contests
    assert sentences.what_to_ship(tied) == sentences.what_to_ship(nothing) == ""
    other = [ok(cell(each.cell.backend, model="mlp"), each.bursts, artifact="y") for each in (once(2.0, "eager"), won)]
    both = judge(report([once(2.0, "eager"), won, *other]))
    assert sentences.what_all_winners_ship(both, "run").endswith("Bakeoff: python runner.py export run CONTEST")


def test_the_verdict_counts_cells_that_do_not_meet_the_requirements() -> None:
    lost = failed(cell("inductor"), Status.OOM, "no memory")
    said = verdict(once(1.0, "onnx"), lost, require="median_ms<0.5")
    assert said == "conv on cpu, fp32: nothing could be ranked (1 not as required, 1 oom)."


def test_the_cost_of_calls_until_a_build_was_final_stands_beside_building() -> None:
    hot = once(1.0, "hotpath", build_s=0.5)
    hot = hot.model_copy(update={"phases": [*hot.phases, Phase(name="settle", calls=1000, seconds=21.0)]})
    said = verdict(once(2.0, "eager"), hot)
    assert "building it (0.5 s, and 21.0 s of calls until it was final) pays from call 20,50" in said


RATIO = Ratio(value=1.02, ci95=Interval(low=0.99, high=1.06), paired=True, processes=3)


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        (
            Doubt(kind=DoubtKind.UNDECIDED, labels=["onnx", "eager"], ratios=[RATIO], values={"processes": 3}),
            "unstable: 3 processes of each cell do not decide how onnx compares with eager (1.02x [0.99, 1.06]). Raise "
            "--time-limit, or --processes over 3, or use a quieter machine",
        ),
        (
            Doubt(kind=DoubtKind.NOT_TOLD_APART, labels=["onnx", "eager"], ratios=[RATIO]),
            "onnx cannot be told apart from cells with a longer median that vary more: eager (1.02x [0.99, 1.06])",
        ),
        (
            Doubt(kind=DoubtKind.NARROW_LEAD, labels=["onnx"], values={"processes": 1}),
            "onnx leads by less than 10 %, and each cell was measured in a single process: two equal processes can be "
            "up to 8 % apart",
        ),
        (
            Doubt(kind=DoubtKind.NO_BASELINE, labels=["eager"]),
            "there is no eager to compare with: speed-ups and break-even are not given",
        ),
        (
            Doubt(kind=DoubtKind.UNPAIRED),
            "some cells were not measured in the same rounds, so their ratios contain the machine's drift: leads under "
            "25 % between them are called ties",
        ),
        (
            Doubt(
                kind=DoubtKind.REQUIREMENT,
                labels=["onnx"],
                values={"value": 412e6},
                details=["peak_device_bytes", "<", "400 MB"],
            ),
            "onnx may not win: peak_device_bytes is 412 MB, not < 400 MB",
        ),
        (noted("never steady"), "never steady"),
        (noted("no trend").model_copy(update={"labels": ["onnx", "eager"]}), "onnx, eager: no trend"),
        (Doubt(kind=DoubtKind.CAVEAT, labels=["onnx"], details=["never ran"]), "onnx: never ran"),
        (
            Doubt(kind=DoubtKind.REFERENCE, details=["float32"]),
            "checked against eager in float32, since float64 could not be computed here",
        ),
        (
            Doubt(kind=DoubtKind.REFERENCE, details=["float64", "aten._grouped_mm"]),
            "checked against float64, but without float64 ran in float32: aten._grouped_mm",
        ),
        (Doubt(kind=DoubtKind.RECOMPILED, values={"count": 2}), "compiled 2 more time(s) while it was measured"),
        (
            Doubt(kind=DoubtKind.WARM_UP, values={"seconds": 30.2}),
            "the warm-up did not become steady within 2 % in 30 s",
        ),
        (
            Doubt(kind=DoubtKind.WARM_UP_NOISE),
            "latencies still differed by more than 2 % at the end of the warm-up, but became neither faster nor slower",
        ),
        (Doubt(kind=DoubtKind.PROCESS_LOST, details=["not done in 4 s"]), "a further process was not done in 4 s"),
        (
            Doubt(kind=DoubtKind.SETTLED_LATE, labels=["hotpath"], values={"calls": 71522, "seconds": 45.8}),
            "hotpath: this build needed 71,522 calls (45.8 s) before it was final; they are part of the cost of "
            "starting",
        ),
        (
            Doubt(kind=DoubtKind.PLACEMENT, labels=["onnx"], details=["fallback", "CPUExecutionProvider"]),
            "onnx ran only in part where it was asked to (fallback): CPUExecutionProvider",
        ),
        (
            Doubt(kind=DoubtKind.PROCESS_SPREAD, labels=["onnx"], values={"onnx": 0.08}),
            "slowest over fastest process of the same cell: onnx 8 %",
        ),
        (
            Doubt(kind=DoubtKind.CLOCK_FELL, values={"lowest_mhz": 1200, "share": 0.12}, details=["power cap"]),
            "the SM clock fell to 1,200 MHz in 12 % of the bursts (power cap)",
        ),
        (
            Doubt(kind=DoubtKind.CLOCK_HELD_DOWN, values={"share": 1.0, "temperature_c": 87}),
            "the GPU's clock was held down in 100 % of the bursts (at up to 87 °C)",
        ),
        (
            Doubt(kind=DoubtKind.WAITED, values={"share": 0.25, "involuntary_switches": 120}),
            "other processes kept our threads waiting in 25 % of the bursts (a thread lost its core 120 times a burst)",
        ),
        (
            Doubt(kind=DoubtKind.ALWAYS_WAITED, labels=["eager"], values={"eager": 0.35}),
            "threads waited for a core even in the best bursts (eager 35 % of the time, summed over threads): there "
            "are more threads than cores, or another process never rests",
        ),
        (
            Doubt(kind=DoubtKind.STOLEN, values={"share": 0.001}),
            "the hypervisor gave our cores to others in 1 % of the bursts",
        ),
        (
            Doubt(kind=DoubtKind.DRIFT, values={"share": 0.1, "fastest_ms": 2.5, "slowest_ms": 2.75}),
            "the machine's speed drifted by 10 % over the run (calibration 2.5 to 2.75 ms)",
        ),
        (Doubt(kind=DoubtKind.GPU_SHARED, values={"processes": 1}), "1 other process used the GPU meanwhile"),
        (Doubt(kind=DoubtKind.GPU_SHARED, values={"processes": 3}), "3 other processes used the GPU meanwhile"),
        (
            Doubt(kind=DoubtKind.NOT_RANKED, labels=["onnx"], details=["oom", "no memory"]),
            "onnx is not ranked, oom: no memory",
        ),
        (
            Doubt(kind=DoubtKind.BUILD_SPREAD, labels=["inductor"], values={"inductor": 0.2}),
            "slowest over fastest build of the same cell: inductor 20 %, more than processes of one build differ: its "
            "interval holds for these builds only",
        ),
        (
            Doubt(kind=DoubtKind.NOT_RANKED, labels=["onnx", "inductor"], details=["oom", ""]),
            "onnx and inductor are not ranked, oom",
        ),
    ],
)
def test_a_doubt_in_one_sentence(doubt: Doubt, said: str) -> None:
    assert sentences.doubt(doubt) == said


def test_a_requirement_on_something_that_was_not_measured_says_why() -> None:
    def unmet(name: str) -> str:
        return sentences.unmet(Doubt(kind=DoubtKind.REQUIREMENT, details=[name, "<", "5"]))

    assert unmet("p99_ms") == "p99_ms cannot be judged: the sample is too small for this percentile: raise --min-time"
    assert unmet("joules_per_call") == "joules_per_call cannot be judged: this machine counts no energy"
    assert not any(unmet(name).endswith("it was not measured") for name in QUANTITIES)


def test_the_stored_verdicts_are_those_of_the_judgement() -> None:
    made = report()
    filled = sentences.with_verdicts(judge(made))
    assert filled.records is made.records
    for contest, stored in zip(judge(made).contests, filled.verdicts, strict=True):
        assert (stored.contest_id, stored.title, stored.winner) == (contest.contest_id, contest.title, contest.winner)
        assert [standing.label for standing in stored.standings] == contest.contenders
        assert stored.sentence == sentences.verdict(contest)
        assert stored.doubts == sentences.doubts(contest)
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
    assert said.endswith("; `resume` measures the cells that were not reached: inductor")
    assert sentences.what_more_time_would_settle(judge(report(records, request={}))) == ""
