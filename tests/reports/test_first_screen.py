"""What stands first in every output: whether to ship the answer, what to run now, and what was not tried."""

from __future__ import annotations

import pytest

from bakeoff.judging.judgement import judge, judged_anew
from bakeoff.records.doubts import Effect
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Record, Status
from bakeoff.reports import doubt_sentences
from bakeoff.reports.first_screen import first_screen
from tests.judging.test_load import carrying
from tests.reports.samples import accuracy, cell, constant, failed, judged, lived, ok, once, report, steady, under
from tests.reports.test_load import records as under_load
from tests.support.printed import every_output


def test_the_winner_is_exported_by_its_label_or_in_several_contests_by_their_names() -> None:
    won = once(1.0, "onnx", artifact="artifacts/x")
    eager = once(2.0, "eager")
    exports = "the winner as a folder that runs without Bakeoff"
    alone = first_screen(judged([eager, won]), "my run").commands
    assert alone[exports] == ["bakeoff export 'my run' onnx"]
    other = [ok(cell(each.cell.backend, model="mlp"), each.bursts, artifact="y") for each in (eager, won)]
    both = judged([eager, won, *other])
    plural = "the winners as folders that run without Bakeoff"
    assert first_screen(both, "run").commands[plural] == ["bakeoff export run conv", "bakeoff export run mlp"]
    assert exports not in first_screen(judged([eager, once(1.0, "onnx")]), "run").commands  # nothing was kept


def test_an_answer_that_a_busy_machine_hides_gets_a_run_that_waits() -> None:
    at_work = {"wait_share": 1.4, "cpu_share": 1.2, "others_cores": 2.0}
    records = [ok(cell("onnx"), steady([1.0] * 3)), ok(cell("eager"), under(steady([60.0] * 3), **at_work))]
    screen = first_screen(judged(records, command="bakeoff --model conv --out results/x"), "run")
    assert screen.commands == {
        "the same once other programs rest": ["bakeoff --model conv --out results/x-again --wait-for-quiet 10m"],
        "all of it again": ["bakeoff --model conv --out results/x-again"],
    }
    waited = first_screen(judged(records, command="bakeoff --model conv --wait-for-quiet 1m"), "run")
    assert list(waited.commands) == ["all of it again"], "what was given is no advice"


def test_under_load_what_carries_most_is_checked_and_exported_and_not_the_fastest_call() -> None:
    records = [record.model_copy(update={"artifact": f"artifacts/{record.cell.label}"}) for record in under_load()]
    screen = first_screen(judged(records, request={"load": "server"}), "run")
    assert ["bakeoff export run openvino"] in screen.commands.values()
    assert screen.whether_to_ship.startswith("The outputs of openvino passed")


def test_a_run_that_is_cut_short_is_resumed_and_one_that_decides_nothing_gets_more_processes() -> None:
    undecided = [ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))]
    cut = first_screen(judged(undecided, complete=False), "run")
    assert cut.unfinished and cut.commands["the rest of it"] == ["bakeoff resume run"]
    contest = judged(undecided, complete=False).contests[0]
    (doubt,) = doubt_sentences.doubts_with(Effect.WINNER, contest)
    assert doubt == (
        "the run was interrupted before it was decided how eager compares with onnx. bakeoff resume measures on, and "
        "unfinished processes anew"
    ), "with as many processes as were asked for"
    command = "bakeoff --model conv --json --quiet --junit=j.xml --summary s.md --out results/x"
    whole = first_screen(judged(undecided, command=command), "run")
    assert "could change the winner" in whole.whether_to_ship
    assert whole.commands == {
        "more processes, to decide it": ["python runner.py --model conv --backends eager,onnx --processes 4"],
        "all of it again": ["bakeoff --model conv --out results/x-again"],  # beside this run, and not over its files
    }


def test_whoever_measures_again_is_told_which_variables_the_models_files_read() -> None:
    undecided = [ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))]
    plain = report(undecided)
    read = {"own_variables": {"MYWIDTH": "0a1b", "MYDEPTH": ""}}
    found = judge(plain.model_copy(update={"environment": plain.environment.model_copy(update=read)}))
    told = "The model's files read MYWIDTH, which was set: set it for these commands, too."
    outputs = every_output(found)
    for name in ("quiet", "report.md", "details.md", "page"):
        assert told in outputs[name] and "MYDEPTH, " not in outputs[name], name
    assert first_screen(judge(plain), "run").variables_to_set == ""


def test_commands_that_measure_begin_with_the_variables_of_the_run() -> None:
    undecided = report([ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))])
    typed = "OMP_NUM_THREADS=1 bakeoff --model conv --out run --quiet"
    made = undecided.model_copy(update={"command": typed, "complete": False})
    assert list(first_screen(judge(made), "a run").commands.values()) == [
        ["OMP_NUM_THREADS=1 bakeoff resume 'a run'"],
        ["OMP_NUM_THREADS=1 bakeoff --model conv --out run-again"],
    ]


def test_resume_measures_what_had_no_time_or_no_disk_and_nobody_what_cannot_run() -> None:
    missed = failed(cell("onnx"), Status.NOT_REACHED, "--budget left no time")
    assert ["bakeoff resume run"] in first_screen(judged([once(1.0, "eager"), missed]), "run").commands.values()
    full = Failure(kind="OSError", text="[Errno 28]")
    for failure, resumes in ((full, False), (full.on_full_disk, True)):
        ended = failed(cell("onnx"), Status.ERROR, failure.sentence, failure=failure)
        commands = first_screen(judged([once(1.0, "eager"), ended]), "run").commands
        assert (["bakeoff resume run"] in commands.values()) is resumes
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "it runs on NVIDIA GPUs", asked_by_name=True)
    lost = first_screen(judged([absent]), "run").commands
    assert ["bakeoff doctor"] in lost.values() and ["bakeoff resume run"] not in lost.values()
    assert ["bakeoff doctor"] not in first_screen(judged([once(1.0, "eager"), absent]), "run").commands.values()


def test_other_requirements_stand_in_the_commands_and_a_call_in_python_stays_as_it_was() -> None:
    undecided = [ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))]
    made = report(undecided, command="bakeoff --model conv --require 'build_s<5' --out results/x")
    for require, told in {
        "build_s<9": "bakeoff --model conv --require 'build_s<9'",
        "": "bakeoff --model conv",
    }.items():
        commands = first_screen(judge(judged_anew(made, require=require)), "run").commands
        assert commands["all of it again"] == [f"{told} --out results/x-again"]
        dropped = commands.get("the same without --require 'build_s<9', which is in force")
        assert dropped == (["bakeoff report run --require ''"] if require else None)
        required = told.removeprefix("bakeoff --model conv")
        decided = f"python runner.py --model conv --backends eager,onnx{required} --processes 4"
        assert commands["more processes, to decide it"] == [decided]
    called = made.model_copy(update={"command": "bakeoff.compare(net, precision='fp32,bf16')"})
    screen = first_screen(judge(judged_anew(called, require="build_s<9")), "run")
    assert screen.commands["all of it again"] == ["bakeoff.compare(net, precision='fp32,bf16')"]


def test_more_processes_are_for_what_is_undecided_and_no_other_cell_or_contest() -> None:
    """Neither the beaten cell nor the contest that is decided is measured again, whatever the run's command named."""
    equals = [ok(cell("onnx"), steady([1.0, 1.05])), ok(cell("eager"), steady([1.03, 1.0]))]
    undecided = [*equals, ok(cell("inductor"), steady([9.0, 9.0]))]
    clear = [ok(cell("onnx", model="mlp"), steady([1.0] * 8)), ok(cell("eager", model="mlp"), steady([2.0] * 8))]
    commands = first_screen(judged([*undecided, *clear], command="bakeoff --preset small"), "run").commands
    assert commands["more processes, to decide it"] == [
        "python runner.py --model conv --backends eager,onnx --processes 4"
    ]
    live = [each.model_copy(update={"cell": each.cell.model_copy(update={"model": "live:net"})}) for each in equals]
    assert "more processes, to decide it" not in first_screen(judged(live), "run").commands


def test_a_run_under_load_that_decides_nothing_gets_more_processes() -> None:
    rates = {"onnx": [350, 420, 390], "openvino": [420, 350, 400]}
    undecided = [carrying(label, values, 1.0) for label, values in rates.items()]
    screen = first_screen(judged(undecided, command="bakeoff --load server", request={"load": "server"}), "run")
    (command,) = screen.commands["more processes, to decide it"]
    assert command.startswith("python runner.py --model conv --backends o") and " --processes " in command


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
    assert f"{told} change the winner" in first_screen(judged(records, request={"load": "server"}), "").whether_to_ship
    so_far = first_screen(judged(records, request={"load": "server"}, complete=False), "").whether_to_ship
    assert f"{told.replace('more processes', 'the rest of the run')} change the winner" in so_far


def test_where_eager_wins_there_is_nothing_to_export() -> None:
    screen = first_screen(judged([lived(1.0, "eager"), lived(2.0, "onnx")]), "results/run")
    assert screen.whether_to_ship.endswith("eager is your model as it is: there is nothing to export.")
    tied = first_screen(judged([lived(1.0, "eager"), lived(1.0, "onnx")]), "results/run")
    assert "as it is" not in tied.whether_to_ship


def test_whether_to_ship_tells_what_was_checked_and_of_which_contests_the_winner_may_change() -> None:
    sure = [once(1.0, "onnx"), once(2.0, "eager")]
    assert first_screen(judged(sure), "").whether_to_ship == (
        "The outputs of onnx passed the check against the reference (relative RMSE 1.3e-07), "
        "and nothing was found that could change the winner."
    )
    open_ones = [ok(cell(name, model="mlp"), constant([level] * 8)) for name, level in (("onnx", 1.0), ("eager", 1.01))]
    assert first_screen(judged([*sure, *open_ones]), "").whether_to_ship == (
        "The outputs of the best in 2 of 2 contests passed the check against the reference (relative RMSE up to "
        "1.3e-07); findings could change the winner of mlp."
    )
    unchecked = accuracy().model_copy(update={"unchecked": "no reference"})
    told = first_screen(judged([once(1.0, "onnx", accuracy=unchecked), once(2.0, "eager")]), "").whether_to_ship
    assert told == "The outputs of onnx could not be checked: no reference."
    some = unchecked.model_copy(update={"others_compared": True})
    told = first_screen(judged([once(1.0, "onnx", accuracy=some), once(2.0, "eager")]), "").whether_to_ship
    others = "The others passed the check (relative RMSE 1.3e-07)."
    assert told == f"Some outputs of onnx could not be checked: no reference. {others}"


def test_what_cannot_run_here_is_counted_once_for_the_whole_run() -> None:
    def absent(backend: str, reason: str, **more: object) -> Record:
        return failed(cell(backend, **more), Status.UNAVAILABLE, reason)

    half = {"precision": "fp16"}
    records = [
        *(once(1.0, "eager"), once(1.0, "onnx"), absent("tensorrt", "no GPU"), absent("triton", "no GPU")),
        *(
            ok(cell(**half), constant([1.0] * 6)),
            absent("tensorrt", "no GPU", **half),
            absent("onnx", "no fp16", **half),
        ),
    ]
    screen = first_screen(judged(records), "")
    assert screen.not_tried == (
        "2 backends that cannot run here were not tried: tensorrt, triton. "
        "1 backend that cannot run some of the contests was not tried: onnx."
    )
    assert screen.why_not == ["tensorrt, triton: no GPU", "onnx: no fp16"]
    named = [record.model_copy(update={"asked_by_name": True}) for record in records]
    assert first_screen(judged(named), "").not_tried == ""
    assert first_screen(judged(records[:2]), "").not_tried == ""
