"""What stands first in every output: whether to ship the answer, what to run now, and what was not tried.

What each case says is held against `golden/first_screen.txt`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bakeoff.judging.judgement import Judgement, judge, judged_anew
from bakeoff.records.doubts import Effect
from bakeoff.records.failure import LATER, Failure
from bakeoff.records.schema import Record, Status
from bakeoff.reports import doubt_sentences
from bakeoff.reports.first_screen import AGAIN, export_command, first_screen
from tests.judging.test_load import carrying
from tests.reports.samples import accuracy, cell, constant, failed, judged, lived, ok, once, report, steady, under
from tests.reports.test_load import records as under_load
from tests.support.golden import same_as_golden
from tests.support.printed import every_output

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
    moved = [record.cell.model_copy(update={"model": model}) for record in records]
    return [record.model_copy(update={"cell": its, **more}) for record, its in zip(records, moved, strict=True)]


def ended(failure: Failure) -> Record:
    return failed(cell("onnx"), Status.ERROR, failure.sentence, failure=failure)


def absent(backend: str, reason: str, **more: object) -> Record:
    return failed(cell(backend, **more), Status.UNAVAILABLE, reason)


def checked(**update: object) -> list[Record]:
    return [once(1.0, "onnx", accuracy=accuracy().model_copy(update=update)), EAGER]


def not_tried(**update: object) -> list[Record]:
    half = {"precision": "fp16"}
    of_half = [ok(cell(**half), constant([1.0] * 6)), absent("tensorrt", "no GPU", **half)]
    records = [once(1.0, "eager"), ONNX, absent("tensorrt", "no GPU"), absent("triton", "no GPU"), *of_half]
    return [record.model_copy(update=update) for record in [*records, absent("onnx", "no fp16", **half)]]


def inexact(relative_rmse: float, kind: str = "outputs too far off") -> Judgement:
    error = accuracy().model_copy(
        update={"passed": False, "is_only_inexact": True, "relative_rmse": relative_rmse, "allclose": False}
    )
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
    "nothing can run": lambda: judged([absent("tensorrt", "no GPU").model_copy(update={"asked_by_name": True})]),
    "one named cannot run": lambda: judged(
        [EAGER, absent("tensorrt", "no GPU").model_copy(update={"asked_by_name": True})]
    ),
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
        screen = first_screen(made(), "a run")
        said = {
            "ship": [screen.whether_to_ship],
            **screen.commands,
            "not tried": [screen.not_tried, *screen.why_not],
            "unfinished": screen.unfinished,
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
    ran = report(EQUALS, command="bakeoff --model conv --calls 7", request={"calls": 7})
    offered = first_screen(judge(judged_anew(ran, **asked)), "run").commands
    for purpose in (AGAIN, "more processes, to decide it"):
        (command,) = offered[purpose]
        assert all(word in command for word in words) and "--calls 7" not in command, command


def test_what_is_offered_after_a_question_keeps_the_question() -> None:
    judgement = inexact(0.001)
    asked = judge(judged_anew(judgement.report, calls=1000, require="build_s<9"))
    purpose = "to accept errors of this size after all"
    (kept,), (not_kept,) = (first_screen(asked, "run", is_kept).commands[purpose] for is_kept in (True, False))
    assert not_kept == f"{kept} --calls 1000 --require 'build_s<9'"


def test_an_answer_that_is_not_kept_names_the_cell_to_export() -> None:
    contests = judged([EAGER, KEPT, *of_model([EAGER, KEPT], "mlp", artifact="y")]).contests
    for contest in contests:
        kept, not_kept = (export_command(contest, "run", contests, is_kept).split()[3] for is_kept in (True, False))
        assert (kept, not_kept) == (contest.cell.model, contest.ranked[0].cell.id)


def test_an_interrupted_run_says_with_what_it_is_decided() -> None:
    """It gets as many processes as were asked for."""
    contest = judged(EQUALS, complete=False).contests[0]
    (doubt,) = doubt_sentences.doubts_with(Effect.WINNER, contest)
    assert doubt.endswith("bakeoff resume measures on, and unfinished processes anew")


def test_whoever_measures_again_is_told_which_variables_the_models_files_read() -> None:
    plain = report(EQUALS)
    read = {"own_variables": {"MYWIDTH": "0a1b", "MYDEPTH": ""}}
    found = judge(plain.model_copy(update={"environment": plain.environment.model_copy(update=read)}))
    told = "The model's files read MYWIDTH, which was set: set it for these commands, too."
    outputs = every_output(found)
    for name in ("quiet", "report.md", "details.md", "page"):
        assert told in outputs[name] and "MYDEPTH, " not in outputs[name], name
    assert first_screen(judge(plain), "run").variables_to_set == ""


@pytest.mark.parametrize(
    ("rates", "ceiling", "told"),
    [
        ({"onnx": [350, 352, 349], "openvino": [420, 421, 419]}, 10_000, "and nothing was found that could"),
        ({"onnx": [350, 352, 349], "openvino": [420, 421, 419]}, 800, "; one finding could"),
        ({"onnx": [350, 352, 349], "openvino": [420, 421, 419]}, 500, "; 2 findings could"),
        ({"onnx": [420, 421, 419], "openvino": [420, 421, 419]}, 500, "; 2 findings could"),
        ({"onnx": [420, 421, 419], "openvino": [420, 421, 419]}, 10_000, "and nothing was found that could"),
        ({"onnx": [350], "openvino": [420]}, 10_000, "; more processes could"),
    ],
)
def test_what_the_load_generator_may_limit_is_counted(rates: dict[str, list[float]], ceiling: float, told: str) -> None:
    records = [carrying(label, values, ceiling=ceiling) for label, values in rates.items()]
    assert f"{told} change the winner" in first_screen(judged(records, **LOADED), "").whether_to_ship
    so_far = first_screen(judged(records, **LOADED, complete=False), "").whether_to_ship
    assert f"{told.replace('more processes', 'the rest of the run')} change the winner" in so_far
