"""Sentences of rare cases, held against `golden/sentences.txt`. The usual ones are on the golden pages."""

from collections.abc import Callable

import pytest

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.judgement import contests_of, judge, judged_anew
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import NO_BUDGET_LEFT, Failure
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.schema import Cell, Gpu, Kernel, KernelTimes, LeftEarly, Phase, Record, Report, Status, Throughput
from bakeoff.records.text import first
from bakeoff.records.traits import Access, AccessKind, FastPath, ModelTraits, NotFinite, OneAnswer
from bakeoff.reports import answers, cost_report, findings, headline, machine, number_format, sentences, traits
from bakeoff.reports.blocks import Items, Surface, shown
from bakeoff.reports.tables import Table
from tests.judging.test_costs import carrying
from tests.reports.samples import (
    accuracy,
    bursts,
    cell,
    constant,
    conv_on_cpu,
    environment,
    failed,
    judged,
    lived,
    ok,
    once,
    over_processes,
    product_on_cuda,
    report,
    roofline,
    under,
)
from tests.support.golden import same_as_golden
from tests.support.printed import every_output


def judged_contest(*records: Record, require: str = "") -> ContestJudgement:
    return judge_contest(records, Requirements.parse(require))


LOST = failed(cell("inductor"), Status.OOM, "no memory")
NOISY = [lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03])]
LOWER = [ok(cell(name), over_processes(ms)) for name, ms in (("onnx", 1.0), ("inductor", 1.05), ("eager", 3.0))]
TWO_SPEEDS = Throughput(calls_per_s=2000.0, blocks=5, block_s=0.1)
CONTESTS: dict[str, ContestJudgement] = {
    "a winner": judged_contest(once(2.0, "eager"), once(1.0, "onnx", build_s=1.0), once(1.5, "inductor", build_s=9.0)),
    "a tie": judged_contest(once(1.0, "onnx"), once(1.03, "inductor"), once(2.0, "eager")),
    "processes that differ": judged_contest(*NOISY, lived(3.0, "eager")),
    "eager wins": judged_contest(once(1.0, "eager"), once(2.0, "onnx", build_s=1.0)),
    "a narrow lead": judged_contest(once(1.0, "onnx"), once(1.08, "eager")),
    "two speeds": judged_contest(once(1.0, "onnx"), once(1.5, "eager", throughput=TWO_SPEEDS)),
    "one cell": judged_contest(once(1.0, "onnx")),
    "eager alone": judged_contest(once(1.0, "eager")),
    "nothing": judged_contest(
        failed(cell("onnx"), Status.CRASH, "signal 11"), failed(cell("eager"), Status.OOM, "no memory")
    ),
    "nothing as required": judged_contest(once(1.0, "onnx"), LOST, require="median_ms<0.5"),
    "no model": judged_contest(
        failed(cell(), Status.ERROR, "your model failed to load"), failed(cell("onnx"), Status.ERROR, "")
    ),
    "many that tie": judged_contest(*(once(1.0 + number / 1000, f"b{number}") for number in range(6))),
    "no eager": judged_contest(once(1.0, "onnx", build_s=1.0), once(2.0, "inductor")),
    "calls until final": judged_contest(
        once(2.0, "eager"),
        (built := once(1.0, "onnx", build_s=1.0)).but(
            phases=[*built.phases, Phase(name="settle", calls=1000, seconds=21.0)]
        ),
    ),
}  # fmt: skip


def test_contests_are_reported_as_before() -> None:
    told: dict[str, Callable[[ContestJudgement], object]] = {
        "verdict": sentences.verdict,
        "outcome": sentences.outcome,
        "candidates": lambda contest: answers.named(contest.answer),
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


def test_what_left_early_is_reported_as_before_and_is_no_doubt() -> None:
    lines = []
    for name, left in LEFT.items():
        records = [
            once(3.0 + place, label) for place, label in enumerate(("openvino", "inductor", "onnx", "torchscript"))
        ]
        contest = judged_contest(*(record.but(left=left.get(record.cell.label)) for record in records))
        lines.append(f"{name}: {sentences.left_early(contest)}")
        assert not [told for told in sentences.doubts(contest) if " left " in told]
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


def test_traits_are_reported_as_before() -> None:
    same_as_golden("traits.txt", "\n".join(sentence for found in TRAITS for sentence in traits.sentences(found)))


def test_builds_of_earlier_runs_and_of_other_cells_are_reported_as_before() -> None:
    old, shared = ({"built_at": "2026-01-02T03:04:05+00:00"}, {"shared_with": "onnx"})
    later, days_before = ({"built_at": f"{at}:05+00:00"} for at in ("2026-01-02T03:06", "2025-12-30T23:59"))
    phases = {"eager": [{}], "onnx": [old], "torchscript": [later], "iree": [days_before], "onnx/cuda-graph": [shared]}
    day = accuracy().but(reference_kept_at="2026-01-03T03:04:05+00:00")
    floor = roofline(1.0).but(ceilings_kept_at="2026-01-04T03:04:05+00:00")
    records = [
        once(
            1.0, label, accuracy=day, roofline=floor, phases=[Phase(name="export", seconds=1, **more) for more in each]
        )
        for label, each in phases.items()
    ]
    same_as_golden("builds_made_elsewhere.txt", "\n".join(sentences.builds_made_elsewhere(judged_contest(*records))))


def test_where_the_model_itself_fails_the_answer_says_why() -> None:
    told = Failure(kind="RuntimeError", text="your model failed when it was called in fp32: RuntimeError: 2x7 and 8x4")
    records = [failed(cell(label), Status.ERROR, "", failure=told) for label in ("eager", "onnx")]
    assert headline.line(judged_contest(*records)) == f"nothing could be ranked (2 error; eager: {told.text})"


@pytest.mark.parametrize(("value", "spelt"), [(1.85, "1.85"), (1234.0, "1,234"), (5e17, "over 1,000,000")])
def test_a_ratio_that_says_only_far_more_has_no_digits(value: float, spelt: str) -> None:
    assert number_format.ratio(value) == spelt


@pytest.mark.parametrize(
    ("value", "spelt"),
    [
        (0, "0 FLOP"),
        (0.4, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (12_345, "12.3 kFLOP"),
        (99_960, "100 kFLOP"),
        (872_415_232, "872 MFLOP"),
        (999_900_000, "1.00 GFLOP"),
        (1.99e11, "199 GFLOP"),
        (7.9e14, "790 TFLOP"),
        (1.2e15, "1.20 PFLOP"),
        (5e18, "5,000 PFLOP"),
    ],
)
def test_quantities_have_three_digits_and_a_prefix(value: float, spelt: str) -> None:
    assert number_format.quantity(value, "FLOP") == spelt


@pytest.mark.parametrize(
    ("share", "spelt"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00001, "<0.01"),
        (0.00034, "0.034"),
        (0.0461, "4.6"),
        (0.57, "57"),
        (0.0996, "10"),
        (1.51, "151"),
        (43.3, "4,330"),
    ],
)
def test_percentages_have_two_digits(share: float | None, spelt: str) -> None:
    assert number_format.percent(share) == spelt


def test_seconds_have_two_digits_however_short() -> None:
    spelt = [number_format.seconds(value_s) for value_s in (None, 0.0, 0.0000423, 0.0042, 0.42, 4.2, 42.0)]
    assert spelt == [number_format.NONE, "0", "0.000042", "0.0042", "0.42", "4.2", "42"]


def test_a_long_list_names_some_and_counts_the_rest() -> None:
    assert first([], 2) == []
    assert first(["a", "b", "c"], 2) == ["a", "b", "c"]
    assert first(["a", "b", "c", "d"], 2) == ["a", "b", "2 others"]


def test_shares_of_time_come_largest_first() -> None:
    assert number_format.time_shares({"CPU": 0.034, "CUDA": 0.966}) == ["CUDA 97 %", "CPU 3.4 %"]


def test_a_phase_is_not_said_twice_beside_the_reason() -> None:
    crash = failed(cell("onnx"), Status.CRASH, "died of signal 11 (SIGSEGV) in load", died_in="load")
    assert (number_format.ending(crash), number_format.ending_beside_reason(crash)) == ("crash in load", "crash")
    error = failed(cell("onnx"), Status.ERROR, "no such operator", died_in="export")
    assert number_format.ending_beside_reason(error) == "error in export"


def step(backend: str, median_ms: float, busy_ms: float | None, task: str = "decode") -> Record:
    """Return a step whose floor is 0.151 ms, as traced."""
    name = "void gemv<at::BFloat16>(" + "int, " * 40 + ")"
    longest = [Kernel(name=name, share=0.614), Kernel(name="copy", share=0.2)]
    times = None if busy_ms is None else KernelTimes(busy_ms=busy_ms, kernels=1412, longest=longest, calls=3)
    measured = cell(backend, device="cuda", task=task)
    return ok(measured, bursts(median_ms), roofline=roofline(median_ms), kernel_times=times)


def test_a_floor_that_was_not_measured_is_reported_with_the_reason_on_the_terminal_and_in_both_reports() -> None:
    judgement = judged([once(1.0, "onnx", no_floor="scripted: no time"), once(2.0, "eager")])
    outputs = every_output(judgement)
    for name in ("terminal", "report.md", "details.md"):
        assert outputs[name].count("No floor: scripted: no time.") == 1, name


def under_load(turns: int, **more: object) -> Report:
    """Return an interrupted run under load of two cells, of which so many have a turn."""
    records = [carrying("onnx", [400] if turns else []), carrying("openvino", [300] if turns > 1 else [])]
    records = [record.but(**more) for record in records]
    return report(records, complete=False, planned=2, request={"load": "server"})


MISSED = carrying("onnx", [], reason="p99 < 20 ms does not hold")
RUNS: dict[str, Report] = {
    "complete": report(conv_on_cpu()),
    "some cells": report(conv_on_cpu(), complete=False, planned=40),
    "no cell": report([], complete=False, planned=1),
    "every cell": report(conv_on_cpu(), complete=False),
    **{f"{turns} under load": under_load(turns) for turns in range(3)},
    "not yet under load": under_load(2, load=None),
    "ended under load": report([MISSED], complete=False, planned=1, request={"load": "server"}),
}
HASTY = [once(1.0, "eager"), once(2.0, "onnx")]
OPEN = [
    ok(cell("eager"), over_processes(1.0, (1.0, 1.02, 0.99))),
    ok(cell("onnx"), over_processes(0.95, (1.0, 0.99, 1.02))),
    *(
        failed(cell(label), Status.NOT_REACHED, "", failure=Failure(kind=NO_BUDGET_LEFT, text="not done"))
        for label in ("inductor", "openvino")
    ),
    failed(cell("tvm"), Status.TIMEOUT, "", failure=Failure(kind="time limit", text="raise --time-limit")),
]
STOPPED = [*HASTY, failed(cell("inductor"), Status.NOT_REACHED, "the run was interrupted")]
BUDGET: dict[str, dict[str, str]] = {"request": {"budget": "60s"}}
BUDGETS: dict[str, Report] = {
    "a budget that left cells out": report(OPEN, **BUDGET),
    "no budget": report(OPEN, request={}),
    "resumed without its budget": report(OPEN, **BUDGET, resumed_at="2026-11-30T08:00:00+00:00"),
    "a budget beside other programs": report(
        [one.but(bursts=under(one.bursts, wait_share=0.2, cpu_share=1.2, others_cores=2.0)) for one in OPEN[:2]],
        **BUDGET,
    ),
    "a budget for few processes": report(HASTY, **BUDGET),
    "interrupted within its budget": report(STOPPED, complete=False, **BUDGET),
}
FLOORS: dict[str, list[Record]] = {
    "kernels that are slow, and a GPU that waits": [step("eager", 2.0, 0.3), step("inductor", 0.3, 0.28)],
    "no trace": [step("eager", 2.0, None)],
    "another task": [step("eager", 2.0, 0.3, task="inference")],
}
PRODUCTS: dict[str, list[Record]] = {
    "a product": product_on_cuda(),
    "a product of an unknown clock": product_on_cuda(clock_mhz=None),
    "a product bound by memory": product_on_cuda(bound="memory"),
    "cells of the CPU": conv_on_cpu(),
}
NOT_FINITE_YET = accuracy().but(not_finite=3)
REMARKED: dict[str, list[Record]] = {
    "values that are not finite": [once(1.0, "onnx", accuracy=NOT_FINITE_YET), once(2.0, "eager")],
    "a slow process that one cell lacks": [
        ok(cell("eager"), constant([2.0] * 6) + constant([4.0] * 6, process=1)),
        ok(cell("onnx"), constant([2.0] * 6, process=1)),
    ],
    "a lower rank": LOWER,
    "no lower rank": NOISY,
}
ABSENT = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")
MANY_SIZES = [cell(model="mlp", dimensions={"batch": batch, "hidden": 8}) for batch in (1, 2)]
NAMED: dict[str, list[Cell]] = {
    "one contest": [cell()],
    "two precisions": [cell(precision="fp16"), cell(precision="bf16")],
    "two tasks": [cell(task="train_step"), cell()],
    "two sizes": MANY_SIZES,
    "two sizes and another model": [*MANY_SIZES, cell(dimensions={"size": 32})],
    "two backends, and one that cannot run": [cell("eager"), cell("onnx")],
}
WRONG = [record.but(status=Status.INCORRECT) for record in product_on_cuda()]
GPUS = {"one": environment().gpus, "four": [Gpu(index=n, name="NVIDIA H200") for n in range(4)], "none": []}


def test_runs_and_machines_are_reported_as_before() -> None:
    lines = [f"{name}: {machine.what_is_missing(run)}" for name, run in RUNS.items()]
    for name, gpus in GPUS.items():
        lines.append(f"{name}: {machine.name(environment().but(gpus=gpus))}")
    lines += [f"{name}: {sentences.what_more_time_would_settle(judge(run))}" for name, run in BUDGETS.items()]
    for name, records in (PRODUCTS | {"a wrong product": WRONG}).items():
        lines += [f"{name}: {machine.tensor_core_rates(contest)}" for contest in contests_of(report(records))]
    for name, records in FLOORS.items():
        lines.append(f"{name}: {' '.join(sentences.floor_sentences(contests_of(report(records))[0]))}")
    for name, records in REMARKED.items():
        lines.append(f"{name}: {' '.join(sentences.remarks(judged_contest(*records)))}")
    for name, cells in NAMED.items():
        run = judged([*(ok(each, constant([1.0] * 6)) for each in cells), ABSENT])
        lines.append(f"{name}: {sentences.title(run)}: {', '.join(sentences.names(run.contests))}")
    lines += [f"{name}: {fact}" for name, fact in machine.environment_facts(environment()).items()]
    same_as_golden("machines.txt", "\n".join(lines))


def records(**more: object) -> list[Record]:
    """Return eager at 2 ms, onnx at 1 ms after 2 s of building, openvino that ties with onnx, and a crash."""
    return [
        ok(cell("eager"), over_processes(2.0)),
        ok(cell("onnx"), over_processes(1.0, (1.0, 1.01, 0.99), seed=1), build_s=2.0, **more),
        ok(cell("openvino"), over_processes(0.99, (0.9, 1.1, 1.0), seed=2), build_s=9.0),
        failed(cell("inductor"), Status.CRASH, "signal 11"),
    ]


def view(made: list[Record] | None = None, calls: int | None = None, require: str | None = None) -> ContestJudgement:
    return contests_of(judged_anew(report(made or records()), calls, require))[0]


SLOWER = [ok(cell("eager"), over_processes(1.0)), ok(cell("onnx"), over_processes(2.0, seed=1), build_s=2.0)]
CASES: dict[str, ContestJudgement] = {
    "crossings and two that tie": view(),
    "a number of calls": view(calls=7_777),
    "one is always the cheapest": view(SLOWER),
    "a start that was not timed": view([SLOWER[0], SLOWER[1].but(phases=[])]),
    "a lead of the first call alone": view(
        [
            ok(cell("eager"), over_processes(1.0), first_call_s=0.1),
            ok(cell("onnx"), over_processes(1.01, seed=1), first_call_s=0.095),
        ],
        calls=100,
    ),
    "one only seems the cheapest": view(
        [
            ok(cell("eager"), over_processes(1.0, (1.0, 1.3, 0.8)), first_call_s=0.001),
            ok(cell("onnx"), over_processes(1.1, seed=1), build_s=2.0),
        ]
    ),
    "two may not win": view(calls=100, require="median_ms<1.5, build_s<5"),
}


def test_costs_are_reported_as_before() -> None:
    lines = []
    for name, contest in CASES.items():
        (section,) = cost_report.sections(contest)
        _, said, table = section.blocks
        assert isinstance(said, Items) and isinstance(table, Table)
        rows = [[column.heading for column in table.columns], *table.rows]
        told = [*said.texts, findings.costs(contest), *(" | ".join(map(str, row)) for row in rows)]
        lines += [f"{name}: {one}" for one in told]
    same_as_golden("costs.txt", "\n".join(lines))


def test_a_cell_that_may_not_win_is_never_the_cheapest_but_can_be_the_baseline() -> None:
    contest = CASES["two may not win"]
    assert (contest.contenders, contest.baseline) == (["onnx"], "eager")


def test_a_report_is_judged_anew_and_keeps_its_records() -> None:
    before = report(records())
    after = judged_anew(before, calls=7, require="build_s<5")
    assert (after.request["calls"], after.request["require"]) == (7, "build_s<5")
    assert after.records == before.records
    assert contests_of(judged_anew(after, require=""))[0].doubts == contests_of(before)[0].doubts
    assert contests_of(after)[0].doubts != contests_of(before)[0].doubts
    assert judged_anew(before) == before


def test_a_report_is_not_judged_by_a_metric_that_was_never_returned() -> None:
    metrics = Metrics(values={"top1": Metric(value=0.9)})
    evaluated = report([record.but(reference_metrics=metrics) for record in records()])
    assert judged_anew(evaluated, require="top1>-5%").request["require"] == "top1>-5%"
    with pytest.raises(UsageError, match="unknown quantity 'top2': did you mean 'top1'"):
        judged_anew(evaluated, require="top2>-5%")


def test_nothing_is_shown_if_nothing_was_measured() -> None:
    contest = view([failed(cell("onnx"), Status.CRASH, "signal 11")])
    assert not shown(cost_report.sections(contest), Surface.ALL)
