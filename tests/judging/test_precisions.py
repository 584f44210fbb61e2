"""One contest across precisions: who may win, who is the fastest of each precision, and what is said of both."""

from dataclasses import replace
from typing import Any

import pytest

from bakeoff.judging.compare import Outcome, compare
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.judgement import judge
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Generated, Interval, Ratio, Record, Status
from bakeoff.records.traits import ModelTraits
from bakeoff.reports import first_screen, headline, precisions, traits
from tests.judging.test_costs import load
from tests.reports.samples import accuracy, cell, failed, ok, over_processes, report, scored
from tests.support.golden import same_as_golden
from tests.support.printed import every_output

ASKED = (Precision.FP32, Precision.BF16, Precision.INT8)
ERRORS = {"fp32": 2e-7, "bf16": 5e-3, "int8": 2e-2}


def record(backend: str, precision: str, median_ms: float, error: float | None = None, **more: Any) -> Record:
    checked = accuracy(ERRORS[precision] if error is None else error).but(rtol=1.9e-6)
    measured = cell(backend, precision=precision, compared=ASKED)
    return ok(measured, over_processes(median_ms, seed=len(backend)), accuracy=checked, **more)


def records() -> list[Record]:
    return [
        record("eager", "fp32", 4.0),
        record("onnx", "fp32", 2.0),
        record("eager", "bf16", 1.5),
        failed(cell("onnx", precision="bf16", compared=ASKED), Status.UNSUPPORTED, "no kernels"),
        record("eager", "int8", 3.0),
        record("onnx", "int8", 1.0),
    ]


def judged(require: str = "", made: list[Record] | None = None) -> ContestJudgement:
    return judge_contest(made or records(), Requirements.parse(require))


def test_an_error_as_large_as_eagers_is_reported_beside_it_in_every_output() -> None:
    """Outputs of bf16 may have nothing in common with the reference, and eager's too."""
    coarse = accuracy(74.0, rule="at most 4x eager's error").but(allclose=False)
    made = [record("eager", "fp32", 4.0), record("onnx", "bf16", 1.0).but(accuracy=coarse)]
    outputs = every_output(judge(report(made, request={"require": "median_ms<9, relative_rmse<100"})))
    for text in (outputs[name] for name in ("terminal", "details.md", "report.md", "page")):
        assert "passed the check against the reference (relative RMSE 7.4e+01, as large as eager's own)" in text
        assert "error 7.4e+01, as large as eager's own" in text
        assert text.count("as large as eager's own") >= 3, "the table has it, too"


def test_an_error_of_the_worst_part_is_reported_beside_that_of_all_values() -> None:
    """A channel of small values may be off by far more of its size than the outputs are."""
    of_part = accuracy(2.1e-3).but(overall_relative_rmse=7.7e-7)
    made = [record("eager", "fp32", 4.0), record("onnx", "fp32", 1.0).but(accuracy=of_part)]
    outputs = every_output(judge(report(made)))
    for name in ("terminal", "details.md", "report.md", "page"):
        said = " ".join(outputs[name].split())
        assert "(relative RMSE 2.1e-03 in the worst part, 7.7e-07 over all values)" in said, name
    assert outputs["page"].count("7.7e-07 over all values") == 3, "the table has it, too"
    coarse = of_part.but(relative_rmse=2.0, allclose=False)
    said = first_screen.whether_to_ship([judged(made=[made[0], made[1].but(accuracy=coarse)])])
    assert "(relative RMSE 2.0e+00 in the worst part, as large as eager's own, 7.7e-07 over all values)" in said


def test_a_speed_up_that_nothing_is_known_of_is_left_out() -> None:
    contest = judged()
    unknown = Ratio(value=3.0, ci95=Interval(low=0.01, high=100.0), paired=True)
    rows = tuple(replace(row, speedup=unknown) for row in contest.fastest.rows)
    assert "eager fp32," in precisions.sentences(contest)[2]
    unclear = replace(contest, fastest=replace(contest.fastest, rows=rows))
    assert not any("?" in line for line in precisions.sentences(unclear))


def test_what_int8_is_calibrated_with_is_reported_whichever_precision_comes_first() -> None:
    made = [
        each.but(traits=ModelTraits(forms=("is calibrated",) if "int8" in each.cell.label else ()))
        for each in records()
    ]
    contest = judged(made=made)
    assert contest.cells[0].cell.precision is Precision.FP32
    assert traits.about_models([contest]) == ["The model is calibrated"]


RATES = {"onnx fp32": 410, "eager fp32": 200, "eager bf16": 300, "onnx int8": 900, "eager int8": 250}


def under_load(require: str = "") -> ContestJudgement:
    made = [
        each.but(load=load([RATES[each.cell.label] * wobble for wobble in (1.0, 1.01, 0.99)])) if each.latency else each
        for each in evaluated()
    ]
    return judged(require, made)


def generating(tokens: dict[str, int]) -> ContestJudgement:
    made = []
    for task, times in (("prefill", 4.0), ("decode", 1.0)):
        for each in records():
            if each.latency:
                sizes = {"batch": 1, "prompt": 8, "new_tokens": 5}
                renamed = each.cell.but(model="transformer_lm", task=task, dimensions=sizes)
                agreed = Generated(tokens=4, sequences=1, agreed=4, usual_margin=0.5, first=Precision.FP32,
                                   agreed_with_first=tokens[each.cell.precision])  # fmt: skip
                made.append(each.but(cell=renamed, generated=agreed if times == 1.0 else None))
    return judge(report(made)).contests[1]


def test_a_contest_of_one_precision_says_nothing_of_others() -> None:
    contest = judge_contest([ok(cell(name), over_processes(1.0)) for name in ("eager", "onnx")])
    assert (contest.of_precisions, contest.tolerance) == ((), None)
    assert all(row.place is None and row.beyond is None for row in contest.cells)


def with_metric(made: Record, wrong: int) -> Record:
    """The record with `top1` of 800 samples. The reference has none of them wrong."""
    return scored(made, [0.0] * wrong + [1.0] * (800 - wrong), [1.0] * 800)


WRONG = {"fp32": 0, "bf16": 0, "int8": 16}


def evaluated() -> list[Record]:
    return [with_metric(each, WRONG[each.cell.precision]) if each.latency else each for each in records()]


@pytest.mark.parametrize("joint_first", [True, False])
def test_a_run_across_precisions_is_compared_with_runs_of_each(joint_first: bool) -> None:
    joint = report(records())
    apart = report(
        [
            each.but(
                cell=each.cell.but(compared=()),
                bursts=[
                    burst.but(samples_ns=[2 * ns for ns in burst.samples_ns])
                    if each.cell.backend == "onnx" and each.cell.precision is Precision.INT8
                    else burst
                    for burst in each.bursts
                ],
            )
            for each in records()
        ]
    )
    found = compare(*((joint, apart) if joint_first else (apart, joint)))
    outcomes = {(each.cell.backend, str(each.cell.precision)): each.outcome for each in found.cells}
    assert outcomes["onnx", "int8"] is (Outcome.SLOWER if joint_first else Outcome.FASTER)
    assert outcomes["onnx", "fp32"] is outcomes["eager", "bf16"] is Outcome.SAME
    assert {control.label for control in found.controls.values()} == {"eager"}


def places_of(contest: ContestJudgement) -> str:
    """Return the rank of each cell, and its place within its precision."""
    return ", ".join(
        f"{row.label} {row.rank or '-'} ({row.place or '-'} of its precision)" for row in contest.answer.rows
    )


def test_precisions_are_reported_as_before() -> None:
    lost = [
        failed(each.cell, Status.UNSUPPORTED, "no") if each.cell.precision == "bf16" else each for each in records()
    ]
    cases = {
        "by the rounding": judged(),
        "by a required error": judged("relative_rmse<1e-2"),
        "by a metric": judged("top1>=0%", evaluated()),
        "by a metric with room": judged("top1>-5%", evaluated()),
        "a precision that nothing supports": judged(made=lost),
        "under load": under_load(),
        "under load by a metric": under_load("top1>-5%"),
        "under load by a strict metric": under_load("top1>=0%"),
        "generations": generating({"fp32": 4, "bf16": 3, "int8": 1}),
    }
    lines = [
        f"{name}: {told}"
        for name, contest in cases.items()
        for told in (headline.line(contest), *precisions.sentences(contest), f"places: {places_of(contest)}")
    ]
    same_as_golden("precisions.txt", "\n".join(lines))
