"""What a cell's record holds, from workers that follow a script, and how a failure is explained."""

import errno
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import JsonValue

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubts_of_cells import ThroughputContradicted, TwoSpeeds
from bakeoff.measuring import isolation
from bakeoff.measuring.controller.cell_process import CellProcess, Life, ProcessStage
from bakeoff.measuring.controller.cell_record import cause_of_death, doubts_of_ready, shortfall, wrong_outputs
from bakeoff.measuring.controller.worker_process import DeadlinePassed
from bakeoff.measuring.messages import Event, ReadyToBuild
from bakeoff.measuring.worker.worker_context import IN_INFERENCE_MODE, explain, last_frame_below, last_frame_of_program
from bakeoff.records.device import Device
from bakeoff.records.doubts import (
    DecidedByRounding,
    Dropped,
    Growing,
    InputsNotWritten,
    ProcessLost,
    Recalled,
    Recompiled,
    Unchecked,
    WithoutEffect,
)
from bakeoff.records.errors import Unsupported, os_reason
from bakeoff.records.failure import DISK_FULL, Failure
from bakeoff.records.schema import Cell, Extent, Placement, Record, Status
from bakeoff.records.traits import NO_TRAITS, Access, AccessKind, ModelTraits, Recall
from bakeoff.reports.headline import certainty
from tests.reports.samples import accuracy
from tests.support.scripted import HANG, KERNELS, SEGFAULT, WRONG, Ending, Script, plan_of, ready_with, run_contest


def test_only_the_first_process_builds_cold_and_only_it_packages(tmp_path: Path) -> None:
    run = run_contest(tmp_path, {"null-packaged": Script()}, plan_of(3))
    record = run.records["null-packaged"]
    assert [(process.index, process.warm, process.calls) for process in record.processes] == [
        (0, False, 12),
        (1, True, 12),
        (2, True, 12),
    ]
    assert [[phase.name for phase in process.phases] for process in record.processes] == [
        ["compile", "load"],
        ["load"],
        ["load"],
    ]
    assert record.phases == record.processes[0].phases
    assert record.latency is not None and record.latency.processes == 3
    assert record.settings == {"start_method": "scripted", "threads": 2}


def test_several_builds_take_turns_and_each_begins_with_empty_caches(tmp_path: Path) -> None:
    run = run_contest(tmp_path, {"null-packaged": Script()}, replace(plan_of(5), builds=2))
    processes = run.records["null-packaged"].processes
    assert [(process.build, process.warm) for process in processes] == [
        (0, False),
        (1, False),
        (0, True),
        (1, True),
        (0, True),
    ]
    assert [[phase.name for phase in process.phases] for process in processes[:3]] == [
        ["compile", "load"],
        ["compile", "load"],
        ["load"],
    ]
    folders = run.folders["null-packaged"]
    assert folders[0] != folders[2], "packaging and measuring the second build share another folder"
    assert [folders.index(folder) for folder in folders] == [0, 0, 2, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("number", "stage", "reason"),
    [
        (0, "start", "rmse is 7"),
        (0, "finish", "right at first, wrong after measuring: rmse is 7"),
        (1, "start", "wrong in its process 2: rmse is 7"),
        (1, "finish", "wrong in its process 2: rmse is 7"),
    ],
)
def test_a_wrong_answer_of_any_process_is_incorrect_and_keeps_its_numbers(
    tmp_path: Path, number: int, stage: str, reason: str
) -> None:
    run = run_contest(tmp_path, {"null": Script(answers={(number, stage): WRONG})}, plan_of(3))
    record = run.records["null"]
    assert (record.status, record.reason) == (Status.INCORRECT, reason)
    assert len(record.processes) == number + 1
    assert record.latency is not None


@pytest.mark.parametrize(
    ("rates", "calls_per_s", "doubted"),
    [
        ({}, 1000, None),
        ({0: 50.0}, 1000, None),
        ({0: 50.0, 1: 60.0, 2: 70.0}, 70, ThroughputContradicted),
        ({1: 50.0}, 1000, None),
        ({0: 2100.0}, 2100, None),
    ],
)
def test_a_throughput_that_the_latency_contradicts_is_measured_again_and_then_doubted(
    tmp_path: Path, rates: dict[int, float], calls_per_s: float, doubted: type | None
) -> None:
    scripts = {"eager": Script(level_ms=1.1), "null": Script(calls_per_s=rates)}
    records = run_contest(tmp_path, scripts, plan_of(3)).records
    found = records["null"].throughput
    assert found is not None and found.calls_per_s == calls_per_s
    doubts = [doubt for doubt in judge_contest(list(records.values())).doubts if doubt.cells == ("null",)]
    assert [type(doubt) for doubt in doubts] == ([doubted] if doubted else [])


@pytest.mark.parametrize(("calls_per_s", "processes", "doubted"), [(1400, 1, 0), (2100, 1, 1), (2100, 3, 0)])
def test_a_single_process_with_a_far_higher_throughput_has_two_speeds(
    tmp_path: Path, calls_per_s: float, processes: int, doubted: int
) -> None:
    scripts = {"eager": Script(level_ms=1.1), "null": Script(calls_per_s={0: calls_per_s})}
    contest = judge_contest(list(run_contest(tmp_path, scripts, plan_of(processes)).records.values()))
    doubts = [doubt for doubt in contest.doubts if isinstance(doubt, TwoSpeeds)]
    assert len(doubts) == doubted
    assert all(doubt.cells == ("null",) for doubt in doubts)


@pytest.mark.parametrize(("processes", "has_energy"), [(1, [True, True]), (3, [True, False])])
def test_a_cell_that_gets_one_process_of_several_has_no_energy(
    tmp_path: Path, processes: int, has_energy: list[bool]
) -> None:
    scripts = {"eager": Script(), "null": Script(endings={(1, "start"): HANG})}
    run = run_contest(tmp_path, scripts, plan_of(processes))
    assert [record.energy is not None for record in run.records.values()] == has_energy


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("asked_for", [False, True])
def test_a_cell_that_is_far_from_the_best_has_energy_and_a_trace_only_if_energy_was_asked_for(
    tmp_path: Path, asked_for: bool, processes: int
) -> None:
    scripts = {"eager": Script(level_ms=1.1), "null": Script(), "null/double": Script(level_ms=1.3)}
    plan = replace(plan_of(processes), races=False, energy_of_all=asked_for)
    run = run_contest(tmp_path, scripts, plan, device=Device("cuda"))
    assert {len(record.processes) for record in run.records.values()} == {processes}
    for name in ("energy", "kernel_times"):
        found = {label: getattr(record, name) is not None for label, record in run.records.items()}
        assert found == {"eager": True, "null": True, "null/double": asked_for}
    assert all(record.throughput for record in run.records.values())


@pytest.mark.parametrize(
    ("device", "limits", "is_measured"),
    [
        ("cpu", {}, True),
        ("cpu", {"budget_s": 60.0}, False),
        ("cpu", {"time_limit_s": 60.0}, False),
        ("cuda", {}, False),
    ],
)
def test_the_memory_without_torch_is_measured_on_a_cpu_where_there_is_time(
    tmp_path: Path, device: str, limits: dict[str, Any], is_measured: bool
) -> None:
    run = run_contest(tmp_path, {"null": Script()}, plan_of(2), device=Device(device), **limits)
    (record,) = run.records.values()
    assert record.memory is not None and (record.memory.engine_resident_bytes is not None) is is_measured


def test_energy_is_for_the_last_process_of_what_may_be_chosen_then(tmp_path: Path) -> None:
    def undecided(records: Sequence[Record]) -> list[tuple[str, str]]:
        return [("null", "eager")] if len(records[0].processes) < 5 else []

    scripts = {"eager": Script(level_ms=1.1), "null": Script(), "null/double": Script(level_ms=1.05)}
    run = run_contest(tmp_path, scripts, plan_of(3, 20), device=Device("cuda"), cores=16, undecided=undecided)
    assert run.most("finishes", "finished") == {0: 3, 1: 3, 2: 3, 3: 3, 4: 1}, "the last ones trace kernels"
    assert {epoch for epoch, what, _ in run.steps if what == "measures"} == {0, 4}, "further processes only check"
    energies = {label: record.energy is not None for label, record in run.records.items()}
    assert energies["null"] and not energies["null/double"], "five processes show that it is slower"


def test_what_answers_wrongly_is_not_what_others_are_near_to(tmp_path: Path) -> None:
    wrong = Script(level_ms=0.1, answers={(0, "start"): WRONG})
    records = run_contest(tmp_path, {"eager": Script(), "null": Script(level_ms=1.1), "null/wrong": wrong}).records
    found = {label: record.energy is not None for label, record in records.items()}
    assert found == {"eager": True, "null": True, "null/wrong": False}


def test_last_checks_of_a_gpus_cells_go_on_together_and_what_is_measured_goes_alone(tmp_path: Path) -> None:
    levels = {"eager": 1.0, "null": 1.1, "null/double": 2.0, "null/slow": 3.0, "null/again": 4.0}
    scripts = {label: Script(level_ms=level) for label, level in levels.items()}
    run = run_contest(tmp_path, scripts, plan_of(3), device=Device("cuda"), cores=16)
    assert {len(record.processes) for record in run.records.values()} == {3}
    assert run.most("finishes", "finished") == {0: 5, 1: 5, 2: 3}, "all, all, and those without a trace"
    on_cpu = run_contest(tmp_path / "cpu", scripts, plan_of(3), cores=16)
    assert on_cpu.most("finishes", "finished") == {0: 1, 1: 1, 2: 1}, "each check takes all cores"
    steps_on_cpu = [(epoch, what) for epoch, what, _ in on_cpu.steps]
    begins = steps_on_cpu.index((1, "launched"))
    assert (0, "ended") in steps_on_cpu[:begins] and (0, "ended") not in steps_on_cpu[begins:], (
        "all are gone before the next epoch"
    )
    for each in (run, on_cpu):
        assert each.most("measures", "furthermeasured") == {0: 1, 1: 0, 2: 1}
        for epoch in (0, 2):
            steps = [what for number, what, _ in each.steps if number == epoch]
            last_measured = max(place for place, what in enumerate(steps) if what == "furthermeasured")
            assert last_measured < min(map(steps.index, ("finishes", "ended"))), "nothing else goes on beside it"


@pytest.mark.parametrize("is_required", [False, True])
def test_a_cell_that_nobody_may_choose_has_several_blocks_of_throughput_only_if_it_is_required(
    tmp_path: Path, is_required: bool
) -> None:
    scripts = {
        "eager": Script(level_ms=1.1),
        "null": Script(),
        "null/double": Script(level_ms=1.3, calls_per_s={0: 50.0}),
    }
    plan = replace(plan_of(3), races=False, throughput_of_all=is_required)
    records = run_contest(tmp_path, scripts, plan).records
    blocks = {label: record.throughput.blocks for label, record in records.items() if record.throughput}
    assert blocks == {"eager": 3, "null": 3, "null/double": 3 if is_required else 1}
    slowest = records["null/double"].throughput
    assert slowest is not None and (slowest.calls_per_s > 50) == is_required, "its latency contradicts the first one"


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(
    ("stage", "ending", "rounds", "reason"),
    [
        ("burst 9", HANG, 9, "not done within 30 s, in measure: raise --time-limit"),
        ("further", HANG, 12, "not done within 30 s, in throughput: raise --time-limit"),
        ("further", SEGFAULT, 12, "died of signal 11 (SIGSEGV) in throughput"),
        ("further", Status.ERROR, 12, "scripted in throughput"),
        ("finish", HANG, 12, "not done within 30 s, in last check: raise --time-limit"),
        ("finish", SEGFAULT, 12, "died of signal 11 (SIGSEGV) in last check"),
    ],
)
def test_a_process_that_is_lost_when_it_has_rounds_is_ranked_by_these_and_is_no_sure_winner(
    tmp_path: Path, process: int, stage: str, ending: Ending, rounds: int, reason: str
) -> None:
    scripts = {"eager": Script(level_ms=2.0, calls_per_s={0: 50.0}), "null": Script(endings={(process, stage): ending})}
    scripts["null"].calls_per_s = {0: 50.0}  # so that later processes measure throughput, too
    records = run_contest(tmp_path, scripts, plan_of(3), time_limit_s=30.0).records
    assert {record.status for record in records.values()} == {Status.OK}
    lost = records["null"]
    assert [each.calls for each in lost.processes] == [12] * process + [rounds]
    assert lost.latency is not None and lost.latency.processes == process + 1 and lost.placement is None
    assert lost.accuracy is not None and (lost.accuracy.rmse_after is None) is (process == 0)
    assert lost.doubts == [ProcessLost(reason=reason, rounds=rounds)]
    contest = judge_contest(list(records.values()))
    assert (contest.fastest.winner, contest.fastest.certainty) == ("null", Certainty.DOUBTED)
    assert certainty(contest) == "but its outputs were not checked after its rounds"


def test_a_process_that_is_lost_after_a_wrong_answer_is_incorrect_and_keeps_its_numbers(tmp_path: Path) -> None:
    wrong = Script(answers={(0, "start"): WRONG}, endings={(0, "finish"): HANG})
    records = run_contest(tmp_path, {"eager": Script(), "null": wrong}, time_limit_s=30.0).records
    assert (records["null"].status, records["null"].reason) == (Status.INCORRECT, "rmse is 7")
    assert records["null"].latency is not None


@pytest.mark.parametrize(("ending", "known"), [(None, True), (SEGFAULT, False), (HANG, False), (Status.ERROR, False)])
def test_a_process_that_fails_in_a_trace_costs_nothing_but_the_trace(
    tmp_path: Path, ending: Ending | None, known: bool
) -> None:
    script = Script(endings={(1, "trace"): ending} if ending else {})
    run = run_contest(tmp_path, {"null": script}, plan_of(2), device=Device("cuda"))
    record = run.records["null"]
    assert (record.status, len(record.processes)) == (Status.OK, 2)
    assert record.kernel_times == (KERNELS if known else None)


def test_what_is_compiled_while_it_is_measured_is_a_doubt(tmp_path: Path) -> None:
    run = run_contest(tmp_path, {"null": Script(recompilations=2)}, plan_of(2))
    assert run.records["null"].doubts == [Recompiled(count=2)]


@pytest.mark.parametrize(("stage", "processes"), [("start", 0), ("burst 3", 1)])
def test_a_cell_that_fails_keeps_what_it_came_to(tmp_path: Path, stage: str, processes: int) -> None:
    run = run_contest(tmp_path, {"null": Script(endings={(0, stage): Status.ERROR})})
    record = run.records["null"]
    assert (record.status, record.reason, record.latency) == (Status.ERROR, "scripted", None)
    assert len(record.processes) == processes
    assert len(record.bursts) == 3 * processes


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (Placement(extent=Extent.FULL, fallbacks=["reshape on the host"]), ""),
        (
            Placement(extent=Extent.PARTIAL, fallbacks=["gelu", "sort", "topk"]),
            "placement is partial, and --strict asks for full: gelu, sort and topk",
        ),
        (Placement(extent=Extent.FALLBACK), "placement is fallback, and --strict asks for full"),
        (None, "onnx does not report where it ran, and --strict asks for full"),
    ],
)
def test_strict_asks_for_a_full_placement(placement: Placement | None, reason: str) -> None:
    missing = shortfall(placement, "onnx")
    assert (missing.sentence if missing else "") == reason


def test_a_cause_of_death_is_told_by_the_exit_status() -> None:
    for exit_status, kernel_killed, status, kind, told in (
        (-11, False, Status.CRASH, "SIGSEGV", "died of signal 11 (SIGSEGV) in load"),
        (3, False, Status.CRASH, "exit status 3", "left with exit status 3 in load"),
        (
            *(-9, True, Status.OOM, "killed by the kernel"),
            "killed in load by the kernel, which had no memory left: smaller inputs or a narrower --precision need "
            "less",
        ),
    ):
        assert cause_of_death(exit_status, "load", kernel_killed) == (status, Failure(kind=kind, text=told))


@pytest.mark.parametrize(
    ("rmse", "kind"),
    [
        (math.nan, "outputs of another form"),
        (math.inf, "outputs not finite"),
        (0.1, "outputs too far off"),
    ],
)
def test_wrong_outputs_have_a_kind_and_tell_when_they_became_wrong(rmse: float, kind: str) -> None:
    check = accuracy(rmse, passed=False, rule="as it was")
    assert wrong_outputs(check) == Failure(kind=kind, text="as it was")
    assert wrong_outputs(check.model_copy(update={"rmse": 0.0, "allclose": True})).kind == "nothing to compare"
    assert wrong_outputs(check, "wrong in its process 2").sentence == "wrong in its process 2: as it was"
    assert wrong_outputs(check, "wrong in its process 2").sort == wrong_outputs(check, "wrong in its process 3").sort
    frozen = Placement(extent=Extent.PARTIAL, frozen_choices=["mine.py, line 20"])
    assert wrong_outputs(check, placement=frozen).sort != wrong_outputs(check).sort, "a suite names it apart"


@pytest.mark.parametrize("settings", [{"threads": 2}, {"threads": 2, "memory_format": "channels_last"}])
def test_inputs_that_stay_unwritten_since_a_mode_converts_them_are_told_with_that_reason(
    settings: dict[str, JsonValue],
) -> None:
    ready = ready_with(accuracy().model_copy(update={"unwritten_inputs": ["input 0"]}), settings=settings)
    doubts = doubts_of_ready(ready, NO_TRAITS)
    assert doubts == [InputsNotWritten(names=("input 0",), are_converted="memory_format" in settings)]


def test_a_build_that_drops_a_list_does_not_let_it_grow() -> None:
    dropped = Access(kind=AccessKind.ATTRIBUTE, name="attribute history")
    ready = ready_with(accuracy().model_copy(update={"dropped": [dropped]}))
    doubts = doubts_of_ready(ready, ModelTraits(grows=("attribute history", "GPU memory")))
    assert doubts == [Dropped(accesses=(dropped,)), Growing(names=("GPU memory",))]


@pytest.mark.parametrize("unchecked", ["", "zeros would pass"])
def test_an_answer_that_depends_on_rounding_is_told_once(unchecked: str) -> None:
    ready = ready_with(accuracy().model_copy(update={"unchecked": unchecked}))
    doubts = doubts_of_ready(ready, ModelTraits(depends_on_rounding="it is far off"))
    by_rounding = DecidedByRounding(how="it is far off", computed_in="float64")
    assert doubts == ([Unchecked(why=unchecked)] if unchecked else [by_rounding])


def test_that_a_model_keeps_answers_is_a_doubt_of_each_cell() -> None:
    doubts = doubts_of_ready(ready_with(accuracy()), ModelTraits(recall=Recall(operators=7, again=1)))
    assert doubts == [Recalled(operators=7, again=1)]


def test_an_input_that_moves_no_output_is_a_doubt_of_each_cell() -> None:
    doubts = doubts_of_ready(ready_with(accuracy()), ModelTraits(inputs_without_effect=("input 1",)))
    assert doubts == [WithoutEffect(inputs=("input 1",))]


class Recorded:
    """A worker that notes when it is stopped, goes on and ends, and says what it was given."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.events: list[Event] = []

    def receive(self, deadline_s: float) -> Event:
        if not self.events:
            raise DeadlinePassed
        return self.events.pop(0)

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.heard.append(name)


def launched_ahead(worker: Recorded) -> CellProcess:
    def life() -> Life:
        yield ReadyToBuild
        yield ProcessStage.LOADED

    cell = Cell(model="mlp", backend="null")
    process = CellProcess(cell, 1, 0, True, launcher=None, limit_s=10.0, is_ahead=True)  # type: ignore[arg-type]
    process.worker = worker  # type: ignore[assignment]
    process.begin(life(), 0.0)
    return process


def test_a_process_that_is_held_goes_on_and_that_time_does_not_count() -> None:
    worker = Recorded()
    process = launched_ahead(worker)
    for now_s in (2.0, 3.0):
        process.hold(now_s)
    assert not process.goes_on and process.waited_s == 2.0
    process.go_on(50.0)
    process.poll_ahead(51.0)
    assert process.goes_on and process.deadline_s == 58.0 and worker.heard == ["pause", "resume"]
    worker.events = [ReadyToBuild()]
    process.poll_ahead(57.0)
    process.go_on(58.0)
    assert process.is_ready and not process.goes_on and worker.heard == ["pause", "resume", "pause"]


def test_a_process_that_takes_too_long_ahead_of_its_epoch_is_given_up() -> None:
    worker = Recorded()
    process = launched_ahead(worker)
    process.poll_ahead(9.0)
    assert process.goes_on
    process.poll_ahead(10.0)
    assert process.stage is ProcessStage.GIVEN_UP and worker.heard == ["end"]


class InductorError(Exception):
    """What Inductor raises for an error of its own: the other error's name and message."""


def lower(size: int) -> int:
    assert size > 0
    return size


def failed(error: Exception) -> Exception:
    """Return the error as Inductor raises it: with the traceback of its cause, and without the cause."""
    return InductorError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def test_an_assertion_without_a_message_names_its_place() -> None:
    try:
        lower(0)
    except AssertionError as error:
        status, failure = explain(failed(AssertionError().with_traceback(error.__traceback__)))
    assert status is Status.ERROR
    assert failure.text.startswith("InductorError: AssertionError, raised in lower (test_cell_run.py, line ")
    assert failure.text.endswith(": assert size > 0)")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such size."), "ValueError: no such size"),
        (Unsupported("there is only one size."), "there is only one size"),
        (ValueError("no such\nlabel | file"), "ValueError: no such label | file"),
        (ValueError("first\n" + "more\n" * 9), "ValueError: first"),
    ],
)
def test_a_short_message_is_told_whole_and_a_long_one_by_its_first_line(error: Exception, text: str) -> None:
    assert explain(error)[1].text == text


def test_a_variable_that_is_not_set_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(name: str) -> str:
        try:
            try:
                os.environ[name]
            except KeyError as error:
                raise RuntimeError("no weights") from error
        except RuntimeError as error:
            return explain(error)[1].text
        raise AssertionError(f"{name} is set")

    monkeypatch.delenv("TORCH_WEIGHTS_OF_MINE", raising=False)
    told = "the environment variable MY_MODEL_DIR is not set: set it before you start bakeoff"
    assert reason("MY_MODEL_DIR") == f"RuntimeError: no weights, because of KeyError: 'MY_MODEL_DIR': {told}"
    withheld = "Bakeoff passes TORCH_WEIGHTS_OF_MINE on to no process, because it may change what is measured"
    assert reason("TORCH_WEIGHTS_OF_MINE").endswith(f"{withheld}: use another name")
    assert "environment variable" not in explain(KeyError("MY_MODEL_DIR"))[1].text


def saved_for_backward(x: torch.Tensor) -> object:
    with torch.inference_mode(False), torch.enable_grad():
        return torch.ones(3, requires_grad=True) * x


def version_of(x: torch.Tensor) -> object:
    return x._version


@pytest.mark.parametrize("lacking", [version_of, saved_for_backward])
def test_what_inference_mode_lacks_is_told_with_a_way_that_works(lacking: Callable[[torch.Tensor], object]) -> None:
    with torch.inference_mode():
        given = torch.ones(3)
        with pytest.raises(RuntimeError) as raised:
            lacking(given)
        assert explain(raised.value)[1].text.endswith(f": {IN_INFERENCE_MODE}")
        with torch.inference_mode(False):
            lacking(given.clone())


def test_the_place_of_a_variable_that_is_not_set_is_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of `<frozen os>` resolve to a file in the folder that the user stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_MODEL_DIR", raising=False)
    file, names = tmp_path / "net.py", dict[str, Any]()
    exec(compile("import os\ndef factory():\n    return os.environ['MY_MODEL_DIR']\n", str(file), "exec"), names)
    with pytest.raises(KeyError) as raised:
        names["factory"]()
    assert last_frame_below(tmp_path, raised.value, file) == "net.py, line 3, in factory"


def chained(told: str, cause: Exception) -> Exception:
    try:
        raise RuntimeError(told) from cause
    except RuntimeError as error:
        return error


def test_the_first_cause_of_a_chain_is_told_once() -> None:
    cause = OSError("disk is full")
    assert explain(chained("no build", cause))[1].text == "RuntimeError: no build, because of OSError: disk is full"
    assert explain(chained("no build: disk is full", cause))[1].text == "RuntimeError: no build: disk is full"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/home/me/net.py", "net.py, line 2, in forward"),
        ("/tmp/ipykernel_914/1039087647.py", "a cell of the notebook, line 2, in forward"),
    ],
)
def test_the_last_line_of_the_program_is_told_and_none_of_a_library(file: str, place: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("def forward(x):\n    return x.reshape(3, 5)", file, "exec"), names)
    with pytest.raises(RuntimeError, match="invalid for input of size 16") as raised:
        torch.func.functional_call(Calling(names["forward"]), {}, torch.ones(2, 8))
    assert last_frame_of_program(raised.value) == place


class Calling(torch.nn.Module):
    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = forward


def test_a_process_that_may_not_open_more_files_is_told_what_to_do() -> None:
    error = OSError(errno.EMFILE, "Too many open files", "weights.bin")
    assert explain(error)[1].text.endswith("'weights.bin': " + os_reason(error))
    assert "ulimit -n" in os_reason(error) and "ulimit" not in explain(OSError(errno.ENOSPC, "disk is full"))[1].text


@pytest.mark.parametrize(
    "message",
    ["[Errno 28] No space left on device: 'x'", "I/O error: No space left on device (os error 28)",
     "C++ compile error\nFatal error: can't write to x.o: 'No space left on device'\nx.s: error: no such file"],
    ids=["system", "safetensors", "compiler"],
)  # fmt: skip
def test_a_full_disk_is_known_by_what_any_error_of_the_chain_says(message: str) -> None:
    status, failure = explain(RuntimeError(message))
    assert (status, failure.kind) == (Status.ERROR, DISK_FULL) and failure.text.endswith(": a disk is full, make room")
    assert explain(chained("no build", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))[1].kind == DISK_FULL
    assert explain(RuntimeError("unexpected pos 576 vs 534"))[1].kind == "RuntimeError"


def test_a_full_disk_is_known_by_its_free_space_where_a_library_tells_something_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not isolation.has_full_disk(tmp_path)
    monkeypatch.setattr(isolation, "FULL_BYTES", 2**62)
    assert explain(RuntimeError("unexpected pos 576 vs 534"))[1].kind == DISK_FULL
