"""Sentences of rare cases, held against `golden/sentences.txt`. The usual ones are on the golden pages."""

from collections.abc import Callable

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.judgement import judge
from bakeoff.records.failure import NO_BUDGET_LEFT, Failure
from bakeoff.records.schema import Cell, LeftEarly, Phase, Record, Status, Throughput
from bakeoff.records.traits import Access, AccessKind, FastPath, ModelTraits, NotFinite, OneAnswer
from bakeoff.reports import doubt_sentences, findings, headline, number_format, sentences, traits
from tests.reports.samples import accuracy, cell, constant, failed, lived, ok, once, over_processes, report, roofline
from tests.support.golden import same_as_golden


def judged(*records: Record, require: str = "") -> ContestJudgement:
    return judge_contest(records, Requirements.parse(require))


LOST = failed(cell("inductor"), Status.OOM, "no memory")
NOISY = [lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03])]
LOWER = [ok(cell(name), over_processes(ms)) for name, ms in (("onnx", 1.0), ("inductor", 1.05), ("eager", 3.0))]
TWO_SPEEDS = Throughput(calls_per_s=2000.0, blocks=5, block_s=0.1)
CONTESTS: dict[str, ContestJudgement] = {
    "a winner": judged(once(2.0, "eager"), once(1.0, "onnx", build_s=1.0), once(1.5, "inductor", build_s=9.0)),
    "a tie": judged(once(1.0, "onnx"), once(1.03, "inductor"), once(2.0, "eager")),
    "processes that differ": judged(*NOISY, lived(3.0, "eager")),
    "eager wins": judged(once(1.0, "eager"), once(2.0, "onnx", build_s=1.0)),
    "a narrow lead": judged(once(1.0, "onnx"), once(1.08, "eager")),
    "two speeds": judged(once(1.0, "onnx"), once(1.5, "eager", throughput=TWO_SPEEDS)),
    "one cell": judged(once(1.0, "onnx")),
    "eager alone": judged(once(1.0, "eager")),
    "nothing": judged(failed(cell("onnx"), Status.CRASH, "signal 11"), failed(cell("eager"), Status.OOM, "no memory")),
    "nothing as required": judged(once(1.0, "onnx"), LOST, require="median_ms<0.5"),
    "no model": judged(
        failed(cell(), Status.ERROR, "your model failed to load"), failed(cell("onnx"), Status.ERROR, "")
    ),
    "many that tie": judged(*(once(1.0 + number / 1000, f"b{number}") for number in range(6))),
    "no eager": judged(once(1.0, "onnx", build_s=1.0), once(2.0, "inductor")),
    "calls until final": judged(
        once(2.0, "eager"), once(1.0, "onnx", build_s=1.0).model_copy(
            update={"phases": [*once(1.0, "onnx", build_s=1.0).phases, Phase(name="settle", calls=1000, seconds=21.0)]}
        ),
    ),
}  # fmt: skip


def test_contests_are_told_as_before() -> None:
    told: dict[str, Callable[[ContestJudgement], object]] = {
        "verdict": sentences.verdict,
        "outcome": sentences.outcome,
        "candidates": headline.candidates,
        "certainty": headline.certainty,
        "pays": sentences.pays,
        "why nothing": sentences.why_nothing_is_ranked,
    }
    lines = [f"{name}, {what}: {say(contest)}" for name, contest in CONTESTS.items() for what, say in told.items()]
    same_as_golden("sentences.txt", "\n".join(lines))


LEFT: dict[str, dict[str, LeftEarly]] = {
    "none": {},
    "one": {"onnx": LeftEarly(after_process=1, ratio=2.43, than="openvino")},
    "by its interval": {"onnx": LeftEarly(after_process=4, ratio=1.052, than="openvino", seen_in="interval")},
    "three": {
        label: LeftEarly(after_process=after, ratio=ratio, than="openvino")
        for label, after, ratio in (("onnx", 1, 2.43), ("inductor", 1, 1.6), ("torchscript", 2, 3.0))
    },
}


def test_what_left_early_is_told_as_before_and_is_no_doubt() -> None:
    lines = []
    for name, left in LEFT.items():
        records = [
            once(3.0 + place, label) for place, label in enumerate(("openvino", "inductor", "onnx", "torchscript"))
        ]
        contest = judged(*(record.model_copy(update={"left": left.get(record.cell.label)}) for record in records))
        lines.append(f"{name}: {sentences.left_early(contest)}")
        assert not [told for told in doubt_sentences.doubts(contest) if " left " in told]
    same_as_golden("left_early.txt", "\n".join(lines))


ACCESSES = (
    Access(kind=AccessKind.CLOCK),
    Access(kind=AccessKind.VARIABLE, name="SCALE"),
    Access(kind=AccessKind.WRITTEN_FILE, name="/tmp/logs/log.txt"),
    Access(kind=AccessKind.PRINT),
)
NOT_FINITE = (
    NotFinite(output="output[0]", nan=1200, infinite=1, values=2048),
    NotFinite(output="output[1]", nan=0, infinite=3, values=4),
)
TRAITS = [
    ModelTraits(accesses=ACCESSES, clock_s=1.0),
    ModelTraits(accesses=ACCESSES[3:]),
    ModelTraits(kept_buffers=("calls",)),
    ModelTraits(unvaried_inputs=("input 1",)),
    ModelTraits(inputs_without_effect=("input 1",)),
    ModelTraits(tiny_weights=("blocks.0.gamma", "blocks.1.gamma")),
    ModelTraits(changed_kinds=("masks", "rows")),
    ModelTraits(autocasts=("bfloat16",)),
    ModelTraits(not_finite=NOT_FINITE),
    ModelTraits(one_answer=OneAnswer(tried=14, differing=0)),
    ModelTraits(one_answer=OneAnswer(tried=14, differing=2)),
    ModelTraits(constant_outputs=("output[1]",)),
    ModelTraits(needs_autograd=True),
    ModelTraits(fast_path=FastPath(differing=9216, values=49152, are_zeros=True)),
    ModelTraits(fast_path=FastPath(differing=1, values=2, are_zeros=False)),
]


def test_traits_are_told_as_before() -> None:
    same_as_golden("traits.txt", "\n".join(sentence for found in TRAITS for sentence in traits.sentences(found)))


def test_builds_of_earlier_runs_and_of_other_cells_are_told_as_before() -> None:
    old, shared = ({"built_at": "2026-01-02T03:04:05+00:00"}, {"shared_with": "onnx"})
    later, days_before = ({"built_at": f"{at}:05+00:00"} for at in ("2026-01-02T03:06", "2025-12-30T23:59"))
    phases = {"eager": [{}], "onnx": [old], "torchscript": [later], "iree": [days_before], "onnx/cuda-graph": [shared]}
    day = accuracy().model_copy(update={"reference_kept_at": "2026-01-03T03:04:05+00:00"})
    floor = roofline(1.0).model_copy(update={"ceilings_kept_at": "2026-01-04T03:04:05+00:00"})
    records = [
        once(
            1.0, label, accuracy=day, roofline=floor, phases=[Phase(name="export", seconds=1, **more) for more in each]
        )
        for label, each in phases.items()
    ]
    same_as_golden("builds_made_elsewhere.txt", "\n".join(sentences.builds_made_elsewhere(judged(*records))))


def test_an_output_that_is_partly_nan_in_the_reference_too_is_remarked() -> None:
    partly = accuracy().model_copy(update={"not_finite": 3})
    clean, remarked = (
        sentences.remarks(judged(once(1.0, "onnx", accuracy=check), once(2.0, "eager")))
        for check in (accuracy(), partly)
    )
    assert len(remarked) == len(clean) + 1 and any(told.startswith("3 values") for told in remarked)


def test_where_another_cell_costs_least_meanwhile_the_sentence_and_the_figure_have_the_same_number() -> None:
    contest = judged(once(2.0, "eager"), once(1.2, "jit", build_s=0.1), once(1.0, "onnx", build_s=1.0))
    told = sentences.pays(contest)
    against_eager, least = (f"{leg:,}" for leg in (1001, contest.costs.legs("cold", contest.contenders)[-1].first_call))
    assert f"pays against eager from call {against_eager} on, and costs least of all from call {least} on" in told
    assert told.endswith(": until then jit costs less.")
    assert f"onnx from call {least} on" in findings.costs(contest)


def test_a_title_says_what_was_compared_on_what() -> None:
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")
    assert sentences.title(judge(report([*(once(1.0, name) for name in ("eager", "onnx")), absent]))) == (
        "conv \u00d7 eager and onnx on AMD EPYC 9654"
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


def test_a_latency_outside_of_its_processes_medians_is_explained() -> None:
    """In the second process the machine was twice as slow, and onnx took part in that one only."""
    eager, onnx = constant([2.0] * 6, process=0) + constant([4.0] * 6, process=1), constant([2.0] * 6, process=1)
    contest = judged(ok(cell("eager"), eager), ok(cell("onnx"), onnx))
    (moved,) = [one for one in contest.ranked if one.label == "onnx"]
    assert moved.latency and moved.latency.median_ms < 0.9 * 2.0
    assert sentences.beyond_processes(contest).startswith("onnx:")
    assert sentences.beyond_processes(judged(once(1.0, "onnx"), once(2.0, "eager"))) == ""


def test_a_candidate_with_a_lower_rank_is_explained() -> None:
    contests = [judged(*records) for records in (LOWER, NOISY)]
    told = [sentences.lower_ranks(contest) for contest in contests]
    lower = [[row.label for row in one.fastest.ranked if row.label in one.fastest.open_labels and row.rank != 1]
             for one in contests]  # fmt: skip
    assert [bool(labels) for labels in lower] == [bool(text) for text in told] == [True, False]
    assert all(label in text for labels, text in zip(lower, told, strict=True) for label in labels)


def test_what_the_budget_cut_off_reads_so_and_is_no_timeout() -> None:
    ended = [
        failed(cell("eager"), Status.TIMEOUT, "", failure=Failure(kind=kind, text="not done"), died_in="compile")
        for kind in (NO_BUDGET_LEFT, "time limit")
    ]
    assert list(map(number_format.ending, ended)) == ["cut off by --budget in compile", "timeout in compile"]
    assert headline.endings(judged(ended[0]).cells) == "1 cut off by --budget"


def test_what_a_time_budget_left_open_is_told_with_what_settles_it() -> None:
    records = [
        ok(cell("eager"), over_processes(1.0, (1.0, 1.02, 0.99))),
        ok(cell("onnx"), over_processes(0.95, (1.0, 0.99, 1.02))),
        failed(cell("inductor"), Status.NOT_REACHED, "--budget left no time"),
        failed(cell("openvino"), Status.TIMEOUT, "", failure=Failure(kind=NO_BUDGET_LEFT, text="not done")),
        failed(cell("tvm"), Status.TIMEOUT, "", failure=Failure(kind="time limit", text="raise --time-limit")),
    ]
    said = sentences.what_more_time_would_settle(judge(report(records, request={"budget": "60s"}, elapsed_s=58.0)))
    assert said.startswith("--budget 60s: more time would settle onnx against eager (conv on cpu, fp32)")
    assert said.endswith("; no time was left for openvino and inductor")
    assert sentences.what_more_time_would_settle(judge(report(records, request={}))) == ""
    resumed = report(records, request={"budget": "60s"}, elapsed_s=150.0)
    assert sentences.what_more_time_would_settle(judge(resumed)) == "", "which has no budget"
    hasty = [once(1.0, "eager"), once(2.0, "onnx")]
    assert sentences.what_more_time_would_settle(judge(report(hasty, request={"budget": "60s"}, elapsed_s=58.0))) == (
        "--budget 60s: the cells of conv on cpu, fp32 were measured in fewer than 3 processes each"
    )
    stopped = [*hasty, failed(cell("inductor"), Status.NOT_REACHED, "the run was interrupted")]
    interrupted = report(stopped, complete=False, request={"budget": "60s"}, elapsed_s=58.0)
    assert sentences.what_more_time_would_settle(judge(interrupted)) == ""
