"""What stands first in every output: whether to ship the answer, what to run now, and what was not tried.

What each case says is held against `golden/first_screen.txt`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import JsonValue

from bakeoff.api.pipelines import cells_to_ship
from bakeoff.api.result import Result
from bakeoff.judging.answer import Certainty, Question
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.judgement import Judgement, judge, judged_anew
from bakeoff.judging.ranking import undecided
from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.doubts import AcceptedByLimit, Effect
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import LATER, Failure
from bakeoff.records.schema import Interval, Ratio, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.reports import answers, first_screen, headline, junit, machine, number_format, sentences, summary
from bakeoff.reports.first_screen import AGAIN, export_command
from bakeoff.reports.json_answer import ContestAnswer, answer_of
from bakeoff.reports.markdown import escape
from bakeoff.reports.run_report import to_markdown, to_page, to_short_markdown
from bakeoff.reports.writer import render
from bakeoff.shipping.export import choose
from tests.judging import test_costs as loads
from tests.judging import test_metrics as metrics
from tests.judging import test_precisions as precisions
from tests.judging import test_suites as suites
from tests.judging.test_costs import carrying
from tests.reports import samples, test_suite_report
from tests.reports.samples import (
    LAYOUTS,
    accuracy,
    cell,
    constant,
    environment,
    failed,
    judged,
    lived,
    ok,
    once,
    over_processes,
    report,
    steady,
    under,
)
from tests.reports.test_suite_report import loaded_records as under_load
from tests.support.golden import same_as_golden
from tests.support.printed import every_output, reported

EAGER, ONNX = once(2.0, "eager"), once(1.0, "onnx")
KEPT = once(1.0, "onnx", artifact="artifacts/x")
OF_PLUGIN = once(0.5, "openvino", artifact="artifacts/y", no_export="what is exported runs on the CPU only")
EQUALS = [ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))]
CONV = "bakeoff --model conv --out results/x"
AT_WORK = {"wait_share": 1.4, "cpu_share": 1.2, "others_cores": 2.0}
BUSY = [ok(cell("onnx"), steady([1.0] * 3)), ok(cell("eager"), under(steady([60.0] * 3), **AT_WORK))]
FULL = Failure(kind="OSError", text="[Errno 28]")


def of_model(records: list[Record], model: str, **more: object) -> list[Record]:
    """Return the same records, of another model."""
    moved = [record.cell.but(model=model) for record in records]
    return [record.but(cell=its, **more) for record, its in zip(records, moved, strict=True)]


def ended(failure: Failure) -> Record:
    return failed(cell("onnx"), Status.ERROR, failure.sentence, failure=failure)


def absent(backend: str, reason: str, **more: object) -> Record:
    return failed(cell(backend, **more), Status.UNAVAILABLE, reason)


def checked(**update: object) -> list[Record]:
    return [once(1.0, "onnx", accuracy=accuracy().but(**update)), EAGER]


def not_tried(**update: object) -> list[Record]:
    half = {"precision": "fp16"}
    of_half = [ok(cell(**half), constant([1.0] * 6)), absent("tensorrt", "no GPU", **half)]
    records = [once(1.0, "eager"), ONNX, absent("tensorrt", "no GPU"), absent("triton", "no GPU"), *of_half]
    return [record.but(**update) for record in [*records, absent("onnx", "no fp16", **half)]]


def inexact(relative_rmse: float, kind: str = "outputs too far off") -> Judgement:
    error = accuracy().but(passed=False, is_only_inexact=True, relative_rmse=relative_rmse, allclose=False)
    failure = Failure(kind=kind, text="rmse")
    wrong = failed(cell("onnx"), Status.INCORRECT, failure.sentence, failure=failure, accuracy=error)
    return judged([EAGER, wrong])


def required(command: str, require: str) -> Judgement:
    return judge(judged_anew(report(EQUALS, command=command), require=require))


DECIDED = [ok(cell(name, model="mlp"), steady([ms] * 8)) for name, ms in (("onnx", 1.0), ("eager", 2.0))]
OPEN = [ok(cell(name, model="mlp"), constant([ms] * 8)) for name, ms in (("onnx", 1.0), ("eager", 1.01))]
BUILD_LIMITED = "bakeoff --model conv --require 'build_s<5' --out results/x"
FILES_TYPED = "bakeoff --model conv --json --quiet --junit=j.xml --summary s.md --out results/x"
LOADED = {"request": {"load": "server"}}
CASES: dict[str, Callable[[], Judgement]] = {
    "a winner that was kept": lambda: judged([EAGER, KEPT]),
    "a winner that was not kept": lambda: judged([EAGER, ONNX]),
    "a winner that cannot be exported": lambda: judged([EAGER, OF_PLUGIN, KEPT]),
    "a winner that cannot be exported, and no other": lambda: judged([EAGER, OF_PLUGIN]),
    "winners of two contests": lambda: judged([EAGER, KEPT, *of_model([EAGER, KEPT], "mlp", artifact="y")]),
    "eager wins": lambda: judged([lived(1.0, "eager"), lived(2.0, "onnx")]),
    "eager ties": lambda: judged([lived(1.0, "eager"), lived(1.0, "onnx")]),
    "a busy machine": lambda: judged(BUSY, command=CONV),
    "a busy machine that was waited for": lambda: judged(BUSY, command="bakeoff --model conv --wait-for-quiet 1m"),
    "undecided": lambda: judged(EQUALS, command=FILES_TYPED),
    "undecided and cut short": lambda: judged(EQUALS, complete=False),
    "undecided beside a beaten cell and a decided contest": lambda: judged(
        [*EQUALS, ok(cell("inductor"), steady([9.0, 9.0])), *DECIDED], command="bakeoff --preset small"
    ),
    "undecided with a live model": lambda: judged(of_model(EQUALS, "live:net")),
    "undecided with variables": lambda: judged(
        EQUALS, command="OMP_NUM_THREADS=1 bakeoff --model conv --out run --quiet", complete=False
    ),
    "undecided with another requirement": lambda: required(BUILD_LIMITED, "build_s<9"),
    "undecided with no requirement any more": lambda: required(BUILD_LIMITED, ""),
    "a call in Python with another requirement": lambda: required(
        "bakeoff.compare(net, precision='fp32,bf16')", "build_s<9"
    ),
    "no time was left": lambda: judged([EAGER, failed(cell("onnx"), Status.NOT_REACHED, "--budget left no time")]),
    "an error": lambda: judged([EAGER, ended(FULL)]),
    "a full disk": lambda: judged([EAGER, ended(FULL.on_full_disk)]),
    "nothing can run": lambda: judged([absent("tensorrt", "no GPU").but(asked_by_name=True)]),
    "one named cannot run": lambda: judged([EAGER, absent("tensorrt", "no GPU").but(asked_by_name=True)]),
    "some cannot run": lambda: judged(not_tried()),
    "some named cannot run": lambda: judged(not_tried(asked_by_name=True)),
    "an open contest beside a sure one": lambda: judged([ONNX, EAGER, *OPEN]),
    "unchecked": lambda: judged(checked(unchecked="no reference")),
    "checked in part": lambda: judged(checked(unchecked="no reference", others_compared=True)),
    "nearly right": lambda: inexact(0.01),
    "far off": lambda: inexact(0.011),
    "nearly right at first": lambda: inexact(0.001, f"outputs too far off{LATER}"),
    "under load": lambda: judged(of_model(under_load(), "conv", artifact="artifacts/x"), **LOADED),
    "undecided under load": lambda: judged(
        [carrying("onnx", [350, 420, 390]), carrying("openvino", [420, 350, 400])], **LOADED
    ),
}


def test_first_screens_read_as_before() -> None:
    lines = []
    for name, made in CASES.items():
        run = made()
        said = {
            "ship": [first_screen.whether_to_ship(run.contests)],
            **first_screen.commands(run, "a run"),
            "not tried": [first_screen.not_tried(run), *first_screen.why_not(run)],
            "unfinished": first_screen.unfinished(run),
        }
        lines += [f"{name}, {what}: {text}" for what, texts in said.items() for text in texts if text]
    same_as_golden("first_screen.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"calls": 1000, "require": "build_s<9"}, ["--calls 1000", "--require 'build_s<9'"]),
        ({"calls": 0, "accept": "rmse<1e-3"}, ["--accept 'rmse<1e-3'"]),
    ],
)
def test_commands_ask_what_the_answer_was_asked(asked: dict[str, Any], words: list[str]) -> None:
    """The command of the run had `--calls 7`, which 0 takes out."""
    ran = report(EQUALS, command="bakeoff --model conv --calls 7 --out mine/", request={"calls": 7})
    offered = first_screen.commands(judge(judged_anew(ran, **asked)), "run")
    for purpose in (AGAIN, "more processes, to decide it"):
        (command,) = offered[purpose]
        assert all(word in command for word in (*words, "--out mine-again")) and "--calls 7" not in command, command


def test_what_is_offered_after_a_question_keeps_the_question() -> None:
    judgement = inexact(0.001)
    asked = judge(judged_anew(judgement.report, calls=1000, require="build_s<9"))
    purpose = "to accept errors of this size after all"
    (kept,), (not_kept,) = (first_screen.commands(asked, "run", is_kept)[purpose] for is_kept in (True, False))
    assert not_kept == f"{kept.removesuffix(' --keep')} --calls 1000 --require 'build_s<9'" != kept


def test_an_answer_that_is_not_kept_names_the_cell_to_export() -> None:
    contests = judged([EAGER, KEPT, *of_model([EAGER, KEPT], "mlp", artifact="y")]).contests
    for contest in contests:
        kept, not_kept = (export_command(contest, "run", contests, is_kept).split()[3] for is_kept in (True, False))
        assert (kept, not_kept) == (contest.cell.model, contest.ranked[0].cell.id)
    allowed = AcceptedByLimit(required="rmse<5", relative_rmse=0.1, failure=Failure(kind="too far off", text="rmse"))
    (accepted,) = judged([EAGER, KEPT.but(doubts=[allowed])]).contests
    offered = [export_command(accepted, "run", [accepted], is_kept) for is_kept in (True, False)]
    assert offered == ["bakeoff export run onnx", ""], "on disk it is incorrect, and is not exported"


def test_whoever_measures_again_is_reported_which_variables_the_models_files_read() -> None:
    plain = report(EQUALS)
    read = {"own_variables": {"MYWIDTH": "0a1b", "MYDEPTH": ""}}
    found = judge(plain.but(environment=plain.environment.but(**read)))
    told = "The model's files read MYWIDTH, which was set: set it for these commands, too."
    outputs = every_output(found)
    for name in ("quiet", "report.md", "details.md", "page"):
        assert told in outputs[name] and "MYDEPTH, " not in outputs[name], name
    assert machine.variables_to_set(plain.environment) == ""


def line(judgement: Judgement) -> str:
    return headline.line(judgement.contests[-1])


def pair(onnx_ms: list[float], eager_ms: list[float], build_s: float = 0.0) -> list[Record]:
    return [ok(cell("onnx"), steady(onnx_ms), build_s=build_s), ok(cell("eager"), steady(eager_ms))]


def evaluated(scores: list[float], require: str = "top1>-1%") -> Judgement:
    """A run in which a fast build has these scores, and the reference knows nine of ten samples."""
    theirs = [0.0 if place % 10 == 0 else 1.0 for place in range(len(scores))]
    return judged(
        [metrics.measured("onnx", scores, theirs), metrics.measured("eager", theirs, theirs, ms=2.0)],
        request={"require": require},
    )


APART = ok(cell(), over_processes(10.0, (1.0, 1.5, 2.0, 2.5, 3.0)))
TO_BUILD = [once(1.0, "onnx", build_s=20.0), once(2.0, "eager")]
BETTER = [0.0 if place % 10 == 0 and place > 10 else 1.0 for place in range(1000)]
AS_GOOD = [float(place % 10 > 0) for place in range(1000)]
CLOSE_MS = [1.06, 0.97, 1.05, 0.96, 1.05, 0.98, 1.04, 0.97, 1.05]
ARTEFACT = {"artifact": "artifacts/made"}


def fast_and_slow(**more: object) -> list[Record]:
    """Return a build that is ten times as fast as eager, and took 20 s."""
    return [lived(1.0, "onnx", build_s=20.0, **ARTEFACT, **more), lived(10.0, "eager", **ARTEFACT, **more)]


def at_rates(*rates: float, ceiling: float = 9000.0) -> list[Record]:
    """Return builds that carry these rates, and take the longer for a call the more they carry."""
    names = ("openvino", "eager", "onnx")
    return [
        loads.carrying(name, [rate, 1.01 * rate, 0.99 * rate], rate / 100, ceiling=ceiling)
        for name, rate in zip(names, rates, strict=False)
    ]


def generating(first_ms: float, further_ms: float) -> list[Record]:
    """Return eager beside a build that takes this for the prompt, and this for each further token."""
    return [*suites.both(100.0, 10.0, "eager"), *suites.both(first_ms, further_ms, "onnx", build_s=3.0)]


def without_turns(records: list[Record]) -> list[Record]:
    loads_of = [each.load and each.load.but(turns=[]) for each in records]
    return [each.but(load=of) for each, of in zip(records, loads_of, strict=True)]


NO_TORCHAO = Failure(kind="Unavailable", text="quantised precisions need torchao")
QUESTIONS: dict[str, Callable[[], Judgement]] = {
    "a lead of two processes": lambda: judged(pair([1.0, 1.0], [4.48, 4.95])),
    "a lead that is not sure": lambda: judged(pair([1.0, 1.0], [1.5, 9.0])),
    "a baseline that varies": lambda: judged([ok(cell("onnx"), over_processes(1.0, LAYOUTS)), APART]),
    "load": lambda: judged([carrying("onnx", [500, 501, 502], 1.0), carrying("eager", [250, 251, 249], 2.0)]),
    "open load": lambda: judged([carrying("onnx", [504, 380, 450], 1.0), carrying("eager", [380, 504, 450], 2.0)]),
    "generation": lambda: suites.judged_generation(
        *suites.both(100.0, 10.0, "eager"), *suites.both(80.0, 5.0, "inductor")
    ),
    "many calls": lambda: judged(TO_BUILD, request={"calls": 100_000}),
    "few calls": lambda: judged(TO_BUILD, request={"calls": 10}),
    "a better metric": lambda: evaluated(BETTER),
    "a metric that is as good": lambda: evaluated(AS_GOOD, ""),
    "a plain metric": lambda: judged([metrics.measured("onnx", 0.9, 0.90001)]),
    "a negative metric": lambda: judged(
        [metrics.measured("onnx", -3.0, -2.0), metrics.measured("eager", -2.0, -2.0, ms=2.0)]
    ),
    "few samples": lambda: evaluated([0.0, *[1.0] * 7]),
    "close after eight processes": lambda: judged(pair([1.0] * 8, CLOSE_MS[:8])),
    "close after nine processes": lambda: judged(pair([1.0] * 9, CLOSE_MS)),
    "latency": lambda: judged(fast_and_slow()),
    "a tie": lambda: judged([lived(1.0, "onnx"), lived(1.0, "eager")]),
    "one process": lambda: judged([once(1.0, "onnx"), once(1.02, "eager")]),
    "one of three open": lambda: judged(
        [lived(1.0, "onnx"), lived(1.3, "eager"), lived(1.6, "openvino", [0.6, 1.0, 1.9, 1.2, 0.7])]
    ),
    "calls before they cross": lambda: judged(fast_and_slow(), request={"calls": 10}),
    "calls about where they cross": lambda: judged(fast_and_slow(), request={"calls": 2222}),
    "calls after they cross": lambda: judged(fast_and_slow(), request={"calls": 10**6}),
    "rates": lambda: judged(at_rates(400, 250)),
    "a tie under load": lambda: judged(at_rates(400, 400)),
    "load near the generator's limit": lambda: judged(at_rates(6000, 400)),
    "nothing carried anything": lambda: judged(without_turns(at_rates(400, 250))),
    "load and calls": lambda: judged(at_rates(400, 250), request={"calls": 10}),
    "a generation that eager wins": lambda: judged(generating(500.0, 9.0)),
    "a generation that ties": lambda: judged(generating(100.1, 10.01)),
    "precisions": lambda: judged(precisions.records()),
    "precisions by their error": lambda: judged(precisions.records(), request={"require": "relative_rmse<5e-2"}),
    "end to end": lambda: judged([suites.staged(each, before=20.0) for each in fast_and_slow()]),
    "end to end over calls": lambda: judged(
        [suites.staged(each, before=20.0) for each in fast_and_slow()], request={"calls": 10}
    ),
    "one build for sizes": lambda: judged(test_suite_report.records()),
    "a suite over calls": lambda: judged(samples.suite(), request={"calls": 10}),
    "nothing": lambda: judged([failed(cell(), Status.ERROR, "no")]),
    "nothing of several precisions": lambda: judged(
        [
            precisions.record("eager", "fp32", 4.0),
            failed(cell(precision="int8", compared=precisions.ASKED), Status.UNAVAILABLE, "", failure=NO_TORCHAO),
        ],
        request={"require": "median_ms<1"},
    ),
}


def test_contests_are_answered_as_before() -> None:
    lines = []
    for name, made in QUESTIONS.items():
        contest = made().contests[-1]
        lines += [f"{name}: {headline.line(contest)}", f"{name}: {sentences.paragraph(contest)}"]
    same_as_golden("headlines.txt", "\n".join(lines))


def test_a_total_over_calls_is_the_first_sentence_and_what_a_single_call_leaves_open_is_said_of_that(
    tmp_path: Path,
) -> None:
    calls_ms = {"onnx": [1.0, 1.05], "openvino": [1.03, 1.0], "eager": [2.0, 2.0]}
    made = [ok(cell(name), steady(levels), build_s=20.0 * (name != "eager")) for name, levels in calls_ms.items()]
    judgement = judged(made, request={"calls": 10})
    (contest,) = judgement.contests
    assert "At single calls, no winner yet between " in sentences.paragraph(contest)
    answer = answer_of(judgement, tmp_path).contests[0]
    by_effect = answer.doubts_by_effect
    assert answer.doubts_of_winner == by_effect["winner"] == [] and len(by_effect["winner_at_single_calls"]) == 1
    assert sorted(doubt for doubts in by_effect.values() for doubt in doubts) == sorted(answer.doubts)
    for text in (to_short_markdown(judgement, tmp_path), to_page(judgement)):
        assert "What could change the winner at single calls" in text and "nothing was found that could" in text
        assert "more time would settle" not in text
    of_calls = answer_of(judged(made), tmp_path).contests[0]
    assert of_calls.doubts_of_winner == of_calls.doubts_by_effect["winner"] != []


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.9, 2.1, "2.00x eager"),
        (1.2, 2.2, "1.20x to 2.20x eager"),
        (1.2, 4.0, "faster than eager, unclear by how much (1.20x to 4.00x)"),
        (13.74, 636, "faster than eager, unclear by how much (13.74x to 636x)"),
        (3.35, 3906.2, "faster than eager, unclear by how much (3.35x to 3,906x)"),
        (1.2, 9e4, "faster than eager, unclear by how much (1.20x to 90,000x)"),
        (0.1, 9e4, "?x eager"),
        (0.99, 1.02, "2.00x eager"),
    ],
)
def test_a_speedup_is_reported_as_surely_as_it_is_known(low: float, high: float, said: str) -> None:
    assert number_format.compared(Ratio(value=2.0, ci95=Interval(low=low, high=high), paired=True), "eager") == said


def test_what_keeps_the_cheapest_build_from_winning_is_listed_though_another_answers_a_call_faster() -> None:
    few = [0.0, *[1.0] * 7]
    slow_to_build = ok(cell("inductor"), steady([0.5, 0.5]), build_s=60.0)
    fastest = metrics.measured("inductor", [1.0] * 1000, [1.0] * 1000, ms=0.5)
    records = [
        fastest.but(phases=slow_to_build.phases, processes=slow_to_build.processes),
        metrics.measured("onnx", few, few),
        metrics.measured("eager", few, few, ms=2.0),
    ]
    judgement = judged(records, request={"require": "top1>-1%", "calls": 100})
    assert line(judgement).startswith("onnx, ") and "but " in line(judgement) and "onnx" in line(judgement)
    (said,) = sentences.doubts_with(Effect.WINNER, judgement.contests[0])
    assert "may miss what is required" in said
    assert "one finding could change the winner" in first_screen.whether_to_ship(judgement.contests)


def test_a_narrow_terminal_leaves_out_other_columns_before_the_names_of_backends() -> None:
    rows = reported(evaluated([float(place % 10 > 0) for place in range(1000)]), 80, is_terminal=True).splitlines()
    assert any("onnx" in row and "0.9 (0)" in row for row in rows) and any(
        "eager" in row and "2.000" in row for row in rows
    )


@pytest.mark.parametrize(("processes", "is_open"), [(8, True), (9, False)])
def test_after_nine_processes_it_is_an_answer_that_two_are_close(processes: int, is_open: bool) -> None:
    records = pair([1.0] * processes, CLOSE_MS[:processes])
    assert bool(undecided(records)) is is_open
    assert (headline.how_sure(judge_contest(records), judge_contest(records).fastest) == "undecided") is is_open


BACKENDS = ("eager", "onnx", "torchscript")


def interrupted(folder: Path, measured: dict[str, float]) -> Judgement:
    """Judge a run of three cells of which these have numbers, from what lies in its folder."""
    cells = [cell(backend) for backend in BACKENDS]
    ahead = [Record(cell=each, status=Status.NOT_REACHED, reason="scripted: too early") for each in cells]
    store = Store.create(folder, Request(models=("conv",)), [each.id for each in cells], "bakeoff run", ahead)
    store.save_environment(environment())
    store.keep_so_far(cells[0].contest_id, [ok(cell(name), over_processes(ms)) for name, ms in measured.items()])
    return judge(report_of(store))


def test_cells_that_an_interrupted_run_did_not_reach_are_named_and_have_not_failed(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {"onnx": 1.0})
    (contest,) = judgement.contests
    assert headline.line(contest).endswith("only onnx was measured, so far")
    assert sentences.title(judgement).startswith("conv \u00d7 eager, onnx and torchscript")
    assert machine.what_is_missing(judgement.report, sentences.not_reached(judgement)) == (
        "Incomplete: 1 of 3 cells have ended or were measured in part. Not reached yet: eager and torchscript."
    )
    for name, text in every_output(judgement).items():
        assert "only onnx was measured, so far" in text, name
        assert "not reached" in text.lower(), name
        assert "could be ranked" not in text, name


def test_in_a_sweep_cells_that_were_not_reached_have_their_size() -> None:
    small, large = ([cell(name, dimensions={"batch": size}) for name in ("eager", "onnx")] for size in (1, 8))
    records = [ok(each, over_processes(2.0)) for each in small]
    records += [failed(each, Status.NOT_REACHED, "too early") for each in large]
    unfinished = first_screen.unfinished(judged(records, complete=False, planned=4))
    assert unfinished[0].endswith("Not reached yet: eager (batch 8) and onnx (batch 8).")


def test_a_winner_is_doubted_while_a_cell_was_not_reached(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {"eager": 3.0, "onnx": 1.0})
    assert headline.certainty(judgement.contests[0]) == "but torchscript was not reached, so far"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("conv", "bakeoff resume measures"),
        ("live:Net", "Call compare again. Without fresh=True, it uses the builds that are"),
    ],
)
def test_a_live_model_is_compared_again_since_resume_cannot_go_on_with_it(model: str, told: str) -> None:
    eager, onnx, missing = (cell(backend).but(model=model) for backend in BACKENDS)
    open_pair = [ok(eager, steady([1.0, 1.4, 1.1])), ok(onnx, steady([1.3, 1.0, 1.1]))]
    later = Record(cell=missing, status=Status.NOT_REACHED, reason="too early")
    judgement = judge(report([*open_pair, later], complete=False, request={"models": [model]}))
    (undecided,) = (each for each in sentences.doubts(judgement.contests[0]) if "was decided how" in each)
    (not_reached,) = (each for each in sentences.doubts(judgement.contests[0]) if "not reached: " in each)
    assert told in undecided and told in not_reached
    commands = first_screen.commands(judgement, "run").values()
    assert (["bakeoff resume run"] in commands) is (model == "conv")


@pytest.mark.parametrize(
    ("is_complete", "asked", "processes", "told"),
    [
        (False, {}, 3, "bakeoff resume measures on, and unfinished processes anew"),
        (False, {"budget": "60 s"}, 3, "bakeoff resume measures on, and unfinished processes anew"),
        (True, {"budget": "60 s"}, 3, "Raise --budget, or use a quieter machine"),
        (True, {"budget": "60 s", "processes": 2}, 2, "Raise --processes over 2, or use a quieter machine"),
        (True, {}, 20, "Raise --processes over 20, or use a quieter machine"),
        (True, {"processes": 25, "time_limit_s": 40.0}, 20, "Raise --time-limit, or use a quieter machine"),
        (True, {"time_limit_s": 600.0}, 9, "Raise --processes over 9, or use a quieter machine"),
    ],
)
def test_the_advice_for_an_open_answer_is_about_what_has_stopped_the_run(
    is_complete: bool, asked: dict[str, JsonValue], processes: int, told: str
) -> None:
    levels_ms = ([1.0, 1.7, 1.1, 3.0, 0.9] * 4)[:processes]
    pair = [ok(cell("eager"), steady(levels_ms)), ok(cell("onnx"), steady(levels_ms[1:] + levels_ms[:1]))]
    pair = [record.but(elapsed_s=30.0) for record in pair]
    (contest,) = judge(report(pair, complete=is_complete, request=asked)).contests
    doubts = sentences.doubts(contest)
    (how_to_decide,) = (each for each in doubts if re.search("how (onnx|eager) compares with", each))
    assert how_to_decide.endswith(told)
    rough = [each for each in doubts if "known only roughly" in each]
    assert all(each.endswith("Raise --processes" if is_complete else told) for each in rough)
    assert rough or is_complete


def test_a_run_that_is_interrupted_before_its_first_round_names_all_its_cells(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {})
    assert [each.cell.backend for each in judgement.report.records] == list(BACKENDS)
    for name, text in every_output(judgement).items():
        assert all(backend in text for backend in BACKENDS), name
        assert "nothing could be ranked (3 not reached)" in text.lower(), name


def test_a_report_without_a_chart_imports_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second, for which an interrupted run would go on."""
    monkeypatch.setitem(sys.modules, "bakeoff.reports.charts.paint", None)
    monkeypatch.delattr("bakeoff.reports.charts.paint", raising=False)
    assert "report.html" in render(interrupted(tmp_path / "run", {}), tmp_path)


def test_a_contest_that_has_not_begun_has_a_row_for_each_cell(tmp_path: Path) -> None:
    other = cell("eager").but(model="later")
    ahead = [Record(cell=each, status=Status.NOT_REACHED) for each in (cell("eager"), other)]
    store = Store.create(tmp_path / "run", Request(models=("conv",)), [each.cell.id for each in ahead], "", ahead)
    store.save_environment(environment())
    store.save(ok(cell("eager"), over_processes(2.0)))
    made = report_of(store)
    assert [each.status for each in made.records] == [Status.OK, Status.NOT_REACHED] and not made.complete
    assert made.reached == 1 and made.planned == 2
    assert [each.is_so_far for each in judge(made).contests] == [False, True], "the first one has ended"


@pytest.mark.parametrize("require", ["", "start_s<5"])
def test_missing_starts_are_reported_and_make_no_verdict_undecided(require: str, tmp_path: Path) -> None:
    cells = [cell(backend) for backend in BACKENDS[:2]]
    request = Request(models=("conv",), starts=True, require=require)
    store = Store.create(tmp_path / "run", request, [each.id for each in cells], "bakeoff run")
    store.save_environment(environment())
    for each, levels_ms in zip(cells, ([1.0, 1.4, 1.1], [1.3, 1.0, 1.1]), strict=True):
        store.save(ok(each, steady(levels_ms)))
    judgement = judge(report_of(store))
    (contest,) = judgement.contests
    assert not judgement.report.complete and not contest.is_so_far, "the contest itself has ended"
    assert machine.what_is_missing(judgement.report).startswith("Interrupted: all cells are measured, and the starts")
    told = every_output(judgement)["terminal"]
    assert "bakeoff resume" in told and "the run was interrupted before it was decided" not in told
    assert "processes of each cannot decide" in told
    assert ("onnx and eager may miss start_s < 5: no start was measured" in told) is bool(require)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_every_output_has_the_same_answer(kind: str, tmp_path: Path) -> None:
    judgement = QUESTIONS[kind]()
    contest = judgement.contests[-1]
    asked = contest.answer
    question, winner, certainty = asked.question, asked.winner, asked.certainty
    answer = answer_of(judgement, tmp_path).contests[-1]
    assert (answer.question, answer.winner, answer.outcome) == (question, winner, certainty)
    assert answer.headline == headline.line(contest)
    assert set(answer.candidates) == {*([winner] if winner else []), *answer.tied, *answer.open, *answer.candidates[:1]}
    if answer.candidates:
        assert answer.headline.startswith(" or ".join(answer.candidates)) and answer.value and answer.latency_ms
    assert answer.doubts[: len(answer.doubts_of_winner)] == answer.doubts_of_winner
    assert bool(answer.doubts_of_winner) or certainty is not Certainty.DOUBTED
    assert (answer.at_single_calls is None) == (question is Question.LATENCY)

    stored = sentences.with_verdicts(judgement).verdicts[-1]
    assert (stored.winner, stored.unstable) == (winner, certainty is Certainty.OPEN)
    assert answer.headline in stored.sentence or question is Question.LATENCY

    properties = ElementTree.fromstring(junit.of_run(judgement)).iter("property")
    assert [each.attrib["value"] for each in properties][-1] == answer.headline
    named = escape(answers.named(contest.answer) if asked.candidates else headline.certainty(contest))
    for text in (to_markdown(judgement), to_short_markdown(judgement, tmp_path), summary.of_run(judgement)):
        assert named.lower() in text.lower()

    check_what_ships(judgement.report, answer, tmp_path)


def check_what_ships(made: Report, answer: ContestAnswer, folder: Path) -> None:
    """What `export`, `Result` and `apply` take without a name is the winner of the answer."""
    judgement = judge(made)
    contest = judgement.contests[-1]
    if answer.winner is None:
        with pytest.raises(UsageError, match="no winner to export"):
            choose(made, contest.contest_id)
        return
    record = choose(made, contest.contest_id)
    assert record.cell.label == answer.winner
    if len(judgement.contests) == 1:
        assert Result(made, folder).winner == answer.winner
        shipped = cells_to_ship(Result(made, folder))
        assert shipped == ([] if answer.winner == answer.baseline else [record.cell.id])
    if record.artifact:
        command = export_command(contest, str(folder), judgement.contests).split()
        assert choose(made, command[-1].strip("'")).cell.label == answer.winner
