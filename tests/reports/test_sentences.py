from typing import Any

import pytest

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.judgement import judge
from bakeoff.records.failure import NO_BUDGET_LEFT, Failure
from bakeoff.records.schema import Cell, LeftEarly, Phase, Record, Status, Throughput
from bakeoff.records.traits import Access, AccessKind, FastPath, ModelTraits, NotFinite, OneAnswer
from bakeoff.reports import doubt_sentences, findings, headline, sentences, traits
from tests.reports.samples import accuracy, cell, constant, failed, lived, ok, once, over_processes, report, roofline

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
            [*(lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03])), lived(3.0, "eager")],
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
            "onnx left after its first process: slower than openvino in every undisturbed round, at least 1.67 times",
        ),
        (
            {"onnx": (1, 2.43), "inductor": (1, 1.6), "torchscript": (2, 3.0)},
            "inductor and onnx left after their first process: slower than openvino in every undisturbed round, at "
            "least 1.33 times; torchscript left after its first 2 processes: slower than openvino in every undisturbed "
            "round, at least 2.00 times",
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
            ModelTraits(kept_buffers=("calls",)),
            [
                "changes buffers in each call (calls), though none of the first answers depends on them: a build that "
                "leaves them alone is incorrect. What many more calls do was not tried"
            ],
        ),
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


def test_the_stored_verdicts_are_those_of_the_judgement() -> None:
    made = report()
    filled = sentences.with_verdicts(judge(made))
    assert filled.records is made.records
    for contest, stored in zip(judge(made).contests, filled.verdicts, strict=True):
        assert (stored.contest_id, stored.title, stored.winner) == (
            contest.contest_id,
            contest.title,
            contest.fastest.winner,
        )
        assert [standing.label for standing in stored.standings] == contest.contenders
        assert stored.sentence == sentences.verdict(contest)
        assert stored.doubts == doubt_sentences.doubts(contest)
    baseline = next(each for each in filled.verdicts[0].standings if each.label == "eager")
    assert (baseline.break_even_calls, baseline.break_even_established) == (0, True)


def test_what_a_time_budget_left_open_is_told_with_what_settles_it() -> None:
    records = [
        ok(cell("eager"), over_processes(1.0, (1.0, 1.02, 0.99))),
        ok(cell("onnx"), over_processes(0.95, (1.0, 0.99, 1.02))),
        failed(cell("inductor"), Status.NOT_REACHED, "--budget left no time"),
        failed(cell("openvino"), Status.TIMEOUT, "", failure=Failure(kind=NO_BUDGET_LEFT, text="not done")),
        failed(cell("tvm"), Status.TIMEOUT, "", failure=Failure(kind="time limit", text="raise --time-limit")),
    ]
    said = sentences.what_more_time_would_settle(judge(report(records, request={"budget": "60s"})))
    assert said.startswith("--budget 60s: more time would settle onnx against eager (conv on cpu, fp32)")
    assert said.endswith("; no time was left for openvino and inductor")
    assert sentences.what_more_time_would_settle(judge(report(records, request={}))) == ""
    hasty = [once(1.0, "eager"), once(2.0, "onnx")]
    assert sentences.what_more_time_would_settle(judge(report(hasty, request={"budget": "60s"}))) == (
        "--budget 60s: the cells of conv on cpu, fp32 were measured in fewer than 3 processes each"
    )
    stopped = [*hasty, failed(cell("inductor"), Status.NOT_REACHED, "the run was interrupted")]
    interrupted = report(stopped, complete=False, request={"budget": "60s"})
    assert sentences.what_more_time_would_settle(judge(interrupted)) == ""
