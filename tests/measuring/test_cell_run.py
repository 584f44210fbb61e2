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
    Recalled,
    Unchecked,
    WithoutEffect,
)
from bakeoff.records.errors import Unsupported, os_reason
from bakeoff.records.failure import DISK_FULL, Failure
from bakeoff.records.schema import Cell, Extent, Placement, Record, Status
from bakeoff.records.traits import NO_TRAITS, Access, AccessKind, ModelTraits, Recall
from tests.reports.samples import accuracy
from tests.support.modules import Calling
from tests.support.scripted import Script, plan_of, ready_with, run_contest


def test_several_builds_take_turns_and_each_begins_with_empty_caches(tmp_path: Path) -> None:
    run = run_contest(tmp_path, {"null-packaged": Script()}, replace(plan_of(5), builds=2))
    folders = run.folders["null-packaged"]
    assert folders[0] != folders[2], "packaging and measuring the second build share another folder"
    assert [folders.index(folder) for folder in folders] == [0, 0, 2, 2, 0, 2, 0]


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


def test_energy_is_for_the_last_process_of_what_may_be_chosen_then(tmp_path: Path) -> None:
    def undecided(records: Sequence[Record]) -> list[tuple[str, str]]:
        return [("null", "eager")] if len(records[0].processes) < 5 else []

    scripts = {"eager": Script(level_ms=1.1), "null": Script(), "null/double": Script(level_ms=1.05)}
    run = run_contest(tmp_path, scripts, plan_of(3, 20), device=Device("cuda"), cores=16, undecided=undecided)
    assert run.most("finishes", "finished") == {0: 3, 1: 3, 2: 3, 3: 3, 4: 1}, "the last ones trace kernels"
    assert {epoch for epoch, what, _ in run.steps if what == "measures"} == {0, 4}, "further processes only check"
    energies = {label: record.energy is not None for label, record in run.records.items()}
    assert energies["null"] and not energies["null/double"], "five processes show that it is slower"


def test_strict_takes_what_ran_where_it_should_whatever_it_did_on_the_host() -> None:
    assert shortfall(Placement(extent=Extent.FULL, fallbacks=["reshape on the host"]), "onnx") is None


def test_a_cause_of_death_is_reported_by_the_exit_status() -> None:
    for exit_status, kernel_killed, status, kind, told in (
        (-11, False, Status.CRASH, "SIGSEGV", "died of signal 11 (SIGSEGV) in load"),
        (3, False, Status.CRASH, "exit status 3", "left with exit status 3 in load"),
        (
            *(-9, True, Status.OOM, "killed by the kernel"),
            "was killed in load by the kernel, which had no memory left: smaller inputs or a narrower --precision need "
            "less",
        ),
    ):
        assert cause_of_death(exit_status, "load", kernel_killed) == (status, Failure(kind=kind, text=told))


@pytest.mark.parametrize(
    ("rmse", "kind"),
    [(math.nan, "outputs of another form"), (math.inf, "outputs not finite"), (0.1, "outputs too far off")],
)
def test_wrong_outputs_have_a_kind_and_say_when_they_became_wrong(rmse: float, kind: str) -> None:
    check = accuracy(rmse, passed=False, rule="as it was")
    assert wrong_outputs(check) == Failure(kind=kind, text="as it was")
    assert wrong_outputs(check.model_copy(update={"rmse": 0.0, "allclose": True})).kind == "nothing to compare"
    assert wrong_outputs(check, "wrong in its process 2").sentence == "wrong in its process 2: as it was"
    assert wrong_outputs(check, "wrong in its process 2").sort == wrong_outputs(check, "wrong in its process 3").sort
    frozen = Placement(extent=Extent.PARTIAL, frozen_choices=["mine.py, line 20"])
    assert wrong_outputs(check, placement=frozen).sort != wrong_outputs(check).sort, "a suite names it apart"


HISTORY = Access(kind=AccessKind.ATTRIBUTE, name="attribute history")
BY_ROUNDING = ModelTraits(depends_on_rounding="it is far off")


@pytest.mark.parametrize(
    ("check", "settings", "traits", "doubts"),
    [
        ({"unwritten_inputs": ["x"]}, {}, NO_TRAITS, [InputsNotWritten(names=("x",), are_converted=False)]),
        (
            {"unwritten_inputs": ["x"]},
            {"memory_format": "channels_last"},
            NO_TRAITS,
            [InputsNotWritten(names=("x",), are_converted=True)],
        ),
        (
            {"dropped": [HISTORY]},
            {},
            ModelTraits(grows=("attribute history", "GPU memory")),
            [Dropped(accesses=(HISTORY,)), Growing(names=("GPU memory",))],
        ),
        ({"unchecked": "zeros would pass"}, {}, BY_ROUNDING, [Unchecked(why="zeros would pass")]),
        ({}, {}, BY_ROUNDING, [DecidedByRounding(how="it is far off", computed_in="float64")]),
        ({}, {}, ModelTraits(recall=Recall(operators=7, again=1)), [Recalled(operators=7, again=1)]),
        ({}, {}, ModelTraits(inputs_without_effect=("input 1",)), [WithoutEffect(inputs=("input 1",))]),
    ],
    ids=["inputs not written", "inputs converted", "a list dropped", "unchecked", "rounding", "recall", "no effect"],
)
def test_what_a_process_finds_of_a_model_is_a_doubt_of_its_cell(
    check: dict[str, Any], settings: dict[str, JsonValue], traits: ModelTraits, doubts: list[object]
) -> None:
    ready = ready_with(accuracy().model_copy(update=check), settings={"threads": 2, **settings})
    assert doubts_of_ready(ready, traits) == doubts


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
def test_a_short_message_is_reported_whole_and_a_long_one_by_its_first_line(error: Exception, text: str) -> None:
    assert explain(error)[1].text == text


def test_a_variable_that_is_not_set_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_inference_mode_lacks_is_reported_with_a_way_that_works(lacking: Callable[[torch.Tensor], object]) -> None:
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


def test_the_first_cause_of_a_chain_is_reported_once() -> None:
    cause = OSError("disk is full")
    assert explain(chained("no build", cause))[1].text == "RuntimeError: no build, because of OSError: disk is full"
    assert explain(chained("no build: disk is full", cause))[1].text == "RuntimeError: no build: disk is full"
    guard = "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1))."
    assert "because of" not in explain(chained(f"Failed to export: {guard}", ValueError(guard)))[1].text
    noted = RuntimeError("no build")
    noted.add_note("the model came in float64\nline after line of a compiler")
    assert explain(noted)[1].text == "RuntimeError: no build: the model came in float64"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/home/me/net.py", "net.py, line 2, in forward"),
        ("/tmp/ipykernel_914/1039087647.py", "a cell of the notebook, line 2, in forward"),
    ],
)
def test_the_last_line_of_the_program_is_reported_and_none_of_a_library(file: str, place: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("def forward(x):\n    return x.reshape(3, 5)", file, "exec"), names)
    with pytest.raises(RuntimeError, match="invalid for input of size 16") as raised:
        torch.func.functional_call(Calling(lambda _, x: names["forward"](x)), {}, torch.ones(2, 8))
    assert last_frame_of_program(raised.value) == place


def test_a_process_that_may_not_open_more_files_is_reported_what_to_do() -> None:
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


def test_a_full_disk_is_known_by_its_free_space_where_a_library_says_something_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not isolation.has_full_disk(tmp_path)
    monkeypatch.setattr(isolation, "FULL_BYTES", 2**62)
    assert explain(RuntimeError("unexpected pos 576 vs 534"))[1].kind == DISK_FULL
