"""The reference and the ceilings, asked of a launcher that answers as told."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bakeoff.judging import roofline
from bakeoff.measuring import isolation
from bakeoff.measuring import session as measuring
from bakeoff.measuring.controller import groundwork
from bakeoff.measuring.controller import headers as headers_of_torch
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.environment import capture
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import ForkLauncher
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.messages import (
    CeilingsMeasured,
    ComputeReference,
    Failed,
    HeadersMade,
    MeasureCeilings,
    PrecompileHeaders,
    ReferenceComputed,
)
from bakeoff.measuring.worker.compiler_checks import CompilerChecks
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records.device import CPU, Device
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Ceilings, Cell, Status, Work
from bakeoff.records.store import Store
from tests.support.measuring import Silent, measure
from tests.support.scripted import Script, ScriptedLauncher, ScriptedMachine, contest_of, plan_of

CONTEST = contest_of(["eager", "null"])


@pytest.fixture
def launcher(tmp_path: Path) -> ScriptedLauncher:
    return ScriptedLauncher(tmp_path, {}, ScriptedMachine())


def context_of(launcher: ScriptedLauncher, store: Store, cache: BuildCache | None = None) -> RunContext:
    plan = plan_of()
    return RunContext(
        launchers=launcher,  # type: ignore[arg-type]
        store=store,
        progress=Silent(),
        sampling=plan,
        time_limit_s=30.0,
        interleaved=True,
        time_plan=TimePlan(plan),
        headers=Headers(store, Silent()),
        build_cache=cache,
    )


def failed(text: str, status: Status = Status.ERROR, place: str = "") -> Failed:
    return Failed(status=status, failure=Failure(kind="RuntimeError", text=text, place=place))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "run", Request(), [], "test")


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (
            failed("ValueError: no weights"),
            Status.ERROR,
            "the reference could not be computed: ValueError: no weights (",
        ),
        (
            Failed(
                status=Status.ERROR,
                failure=Failure(kind="KeyError", text="KeyError: 'x'", place="mine.py, line 3, in forward"),
            ),
            Status.ERROR,
            "the reference could not be computed: KeyError: 'x' (mine.py, line 3, in forward) (",
        ),
        (
            Failed(status=Status.ERROR, failure=Failure(kind="SafetensorError", text="SafetensorError").on_full_disk),
            Status.ERROR,
            "no disk space was left for the reference: SafetensorError: a disk is full, make room (",
        ),
        (
            WorkerEnded(-11),
            Status.CRASH,
            "the reference could not be computed: its process died of signal 11 (SIGSEGV) in start",
        ),
        (DeadlinePassed(), Status.TIMEOUT, "the reference was not computed within 30 s: raise --time-limit"),
    ],
    ids=["failed", "failed in the user's code", "full disk", "died", "out of time"],
)
def test_without_a_reference_there_is_a_reason(
    launcher: ScriptedLauncher, store: Store, answer: object, status: Status, reason: str
) -> None:
    launcher.answers[ComputeReference] = answer
    with pytest.raises(groundwork.NoReference) as error:
        groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert error.value.status is status
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("model", "your model failed to load"),
        ("call", "your model failed when it was called in fp32"),
        ("reference", "the reference could not be computed"),
    ],
)
def test_what_failed_follows_from_the_phase(phase: str, said: str) -> None:
    assert groundwork.what_failed(phase, CONTEST.cells[0].cell) == said


def test_a_reference_is_computed_once_and_what_a_call_takes_is_kept(
    launcher: ScriptedLauncher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, *_ = groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert store.facts(CONTEST.id, Work) is not None
    path.touch()
    asked: list[ComputeReference] = []
    ask = launcher.ask
    monkeypatch.setattr(launcher, "ask", lambda job, *rest: asked.append(job) or ask(job, *rest))
    assert groundwork.reference(CONTEST, context_of(launcher, store), 30.0) == (path, None, None)
    assert [job.is_resumed for job in asked] == [True], "only compared with the model as it is now"
    launcher.answers[ComputeReference] = ReferenceComputed(work=None, uncounted="", is_changed=True)
    with pytest.raises(groundwork.NoReference, match=r"than before this run was interrupted: start a new run"):
        groundwork.reference(CONTEST, context_of(launcher, store), 30.0)


def test_a_model_whose_work_cannot_be_counted_is_noted(launcher: ScriptedLauncher, store: Store) -> None:
    launcher.answers[ComputeReference] = ReferenceComputed(work=None, uncounted="RuntimeError: not now")
    groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert store.notes() == [f"no roofline for {CONTEST.id}: counting its work failed: RuntimeError: not now"]


@pytest.mark.parametrize(
    "answer",
    [
        failed("no such device"),
        WorkerEnded(3),
        DeadlinePassed(),
    ],
)
def test_a_machine_whose_ceilings_cannot_be_measured_is_used_without_a_floor(
    launcher: ScriptedLauncher, store: Store, answer: object, measured_ceilings: None
) -> None:
    launcher.answers[MeasureCeilings] = answer
    cell = CONTEST.cells[0].cell
    groundwork.measure_ceilings(cell, context_of(launcher, store), 30.0)
    assert store.ceilings(cell.device, cell.precision) is None
    assert any("no roofline on cpu in fp32: measuring the machine's ceilings failed" in note for note in store.notes())


def test_ceilings_are_measured_once(launcher: ScriptedLauncher, store: Store, measured_ceilings: None) -> None:
    cell = CONTEST.cells[0].cell
    for _ in range(2):
        groundwork.measure_ceilings(cell, context_of(launcher, store), 30.0)
        launcher.answers.clear()
    assert store.ceilings(cell.device, cell.precision) is not None


def test_the_next_run_on_the_machine_takes_the_ceilings_of_the_first(
    launcher: ScriptedLauncher,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured_ceilings: None,
) -> None:
    cell = CONTEST.cells[0].cell
    machine = capture()
    store.save_environment(machine)
    measured = CeilingsMeasured(ceilings=Ceilings(flops_per_s=3e11, bytes_per_s=1e10))
    launcher.answers[MeasureCeilings] = measured
    cache, asked_for_quiet = BuildCache(tmp_path / "cache"), list[str]()
    monkeypatch.setattr(launcher, "await_serving", lambda: asked_for_quiet.append("first"))
    groundwork.measure_ceilings(cell, context_of(launcher, store, cache), 30.0)
    assert not store.notes() and asked_for_quiet == ["first"]

    launcher.answers.clear()
    later = Store.create(tmp_path / "later", Request(), [], "test")
    later.save_environment(machine)
    groundwork.measure_ceilings(cell, context_of(launcher, later, cache), 30.0)
    assert asked_for_quiet == ["first"], "nothing is measured"
    first, taken = (each.ceilings(cell.device, cell.precision) for each in (store, later))
    assert first == measured.ceilings and first.kept_at == "" and taken is not None
    assert taken.kept_at and taken.model_copy(update={"kept_at": ""}) == first
    assert roofline.of(Work(flops=1, bytes_moved=1), taken, None).ceilings_kept_at == taken.kept_at


def test_ceilings_of_a_busy_machine_that_are_kept_tell_the_day(
    launcher: ScriptedLauncher, store: Store, tmp_path: Path, measured_ceilings: None
) -> None:
    cell, machine, cache = CONTEST.cells[0].cell, capture(), BuildCache(tmp_path / "cache")
    store.save_environment(machine)
    busy = Ceilings(flops_per_s=3e11, bytes_per_s=1e10, wait_share=0.5)
    cache.keep_ceilings(machine, cell.device, cell.precision, busy)
    groundwork.measure_ceilings(cell, context_of(launcher, store, cache), 30.0)
    (note,) = store.notes()
    assert re.search(r"were measured by a run on \d{4}-\d\d-\d\d \d\d:\d\d UTC, even when repeated", note)


# --- torch's precompiled headers


@pytest.mark.parametrize(
    ("answer", "noteworthy_s", "note"),
    [
        (HeadersMade(checks_s=1.0), 60.0, ""),
        (
            HeadersMade(checks_s=22.1),
            60.0,
            "which once took 22 s on this machine: builds for eager on cpu were given the answers",
        ),
        (HeadersMade(checks_s=1.0), 0.0, "0 s went into precompiling torch's C++ headers"),
        (
            failed("no g++"),
            60.0,
            "were not precompiled, so its first build does it: no g++",
        ),
        (WorkerEnded(-11), 60.0, "were not precompiled, so its first build does it: "),
        (failed("no compiler", status=Status.UNAVAILABLE), 60.0, ""),
    ],
    ids=["was there", "checks take long", "made", "failed", "died", "nothing to build with"],
)
def test_headers_are_precompiled_before_any_build(
    launcher: ScriptedLauncher,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    answer: object,
    noteworthy_s: float,
    note: str,
) -> None:
    launcher.answers[PrecompileHeaders] = answer
    monkeypatch.setattr(headers_of_torch, "NOTEWORTHY_S", noteworthy_s)
    headers = Headers(store, Silent(), 30.0)
    headers.begin([(CONTEST.cells[0].cell, launcher)])
    assert store.notes() == []
    headers.await_for(CONTEST.cells[0].cell)
    headers.await_all()  # nothing is left to wait for
    assert [note in told for told in store.notes()] == [True] * bool(note)


def test_headers_that_cannot_be_kept_stop_nothing(
    launcher: ScriptedLauncher, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    Headers(store, Silent(), 30.0).begin([(CONTEST.cells[0].cell, launcher)])
    assert "cannot be kept, so that each build makes them" in store.notes()[0]


class OneServer(ScriptedLauncher):
    """Stands for the launchers of a run, and counts the fork servers that are prepared."""

    branched: tuple[tuple[str, ...], bool] | None = None
    note = ""

    def __init__(self, folder: Path, scripts: Mapping[str, Script], machine: ScriptedMachine) -> None:
        super().__init__(folder, scripts, machine)
        self.prepared: list[int] = []

    def prepare(self, epochs: int) -> None:
        self.prepared.append(epochs)

    def await_serving(self, epochs: int = 0) -> None: ...

    def preload_others(self) -> None: ...

    def branch(self, modules: Sequence[str], for_cuda: bool) -> None:
        self.branched = tuple(modules), for_cuda


@pytest.mark.parametrize(
    ("cores", "device", "servers"), [(2, "cpu", [3]), (16, "cpu", [5, 7]), (2, "cuda", [3]), (16, "cuda", [5, 7])]
)
def test_headers_are_made_beside_what_follows(
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    device: str,
    servers: list[int],
) -> None:
    monkeypatch.setattr(measuring, "usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launchers = OneServer(tmp_path, {}, ScriptedMachine())
    launchers.answers[PrecompileHeaders] = HeadersMade(checks_s=22.1)
    cells = [Cell(model="mlp", backend=name, device=Device(device)) for name in ("aotinductor", "onnx")]
    headers = measuring.prepare(launchers, cells, Request(), store, Silent())  # type: ignore[arg-type]
    assert launchers.prepared == servers
    assert launchers.branched == (("torch._inductor.compile_fx",), device == "cuda")
    told = "builds for aotinductor on"
    assert not any(told in note for note in store.notes())
    headers.await_for(cells[0])
    assert any(told in note for note in store.notes())


@pytest.mark.parametrize("budget", ["60s", ""])
def test_a_budget_makes_no_headers_and_tells_of_those_that_are_there(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launchers, jobs = OneServer(tmp_path, {}, ScriptedMachine()), list[PrecompileHeaders]()
    launchers.answers[PrecompileHeaders] = HeadersMade(checks_s=22.1)
    start = launchers.start
    monkeypatch.setattr(launchers, "start", lambda job, log: (jobs.append(job), start(job, log))[1])
    cells = [Cell(model="mlp", backend="aotinductor")]
    request = Request(budget=budget)
    headers = measuring.prepare(launchers, cells, request, store, Silent())  # type: ignore[arg-type]
    assert [job.may_make for job in jobs] == [not budget]
    assert isolation.headers_of_torch().exists() is not bool(budget)
    headers.await_all()
    assert any("which once took 22 s on this machine" in note for note in store.notes())


@pytest.mark.parametrize("left", [0, 20])
def test_damaged_answers_of_the_compiler_are_asked_for_again(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    isolation.headers_of_torch().mkdir(parents=True)
    checks = CompilerChecks(answers={"avx2": True}, seconds=2.0)
    checks.keep("inductor", CPU)
    assert CompilerChecks.known("inductor", CPU) == checks
    (file,) = isolation.headers_of_torch().iterdir()
    os.truncate(file, left)
    assert CompilerChecks.known("inductor", CPU) is None


@pytest.mark.slow
def test_a_worker_that_may_not_make_headers_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ForkLauncher() as server:
        job = PrecompileHeaders(backend="inductor", device=CPU, may_make=False)
        assert server.ask(job, tmp_path / "log", 60.0) == HeadersMade(checks_s=0.0)
    assert not isolation.headers_of_torch().exists()


@pytest.mark.slow
def test_no_build_compiles_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, asked = tmp_path / "g++", tmp_path / "asked"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure(tmp_path / "one", "inductor", "aotinductor")
    made = {file.name for file in isolation.headers_of_torch().glob("*.gch")}
    assert all(CompilerChecks.known(name, CPU) for name in ("inductor", "aotinductor"))
    first = asked.read_text()
    asked.unlink()
    measure(tmp_path / "two", "inductor", "aotinductor", models=["conv"])
    assert made and made == {file.name for file in isolation.headers_of_torch().glob("*.gch")}
    assert programs(first) - programs(asked.read_text()) >= checks()[1]


def programs(log: str) -> set[str]:
    """Return the names of what the compiler was asked to compile, which are hashes of the source and the flags."""
    return set(re.findall(r"/(\w+)\.cpp\b", log))


LISTS_CHECKS = """
import json
from torch._inductor import cpp_builder
from bakeoff.backends.vector_instructions import trust_vector_instructions, try_vector_instructions

names, build = [], cpp_builder.CppBuilder.build
cpp_builder.CppBuilder.build = lambda builder: (names.append(builder._name), build(builder))[1]
trust_vector_instructions({answers})
answers = try_vector_instructions()
print(json.dumps([answers, names]))
"""


def checks(trusting: Mapping[str, bool] | None = None) -> tuple[dict[str, bool], set[str]]:
    """Return what torch finds out in a process with an empty cache, and the programs that it compiles for that."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", LISTS_CHECKS.format(answers=trusting or {})]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    answers, names = json.loads(told.stdout)
    return answers, set(names)


@pytest.mark.slow
def test_where_the_compiler_was_checked_no_build_checks_it_again() -> None:
    answers, names = checks()
    assert answers and names
    assert checks(trusting=answers) == (answers, set())
    wrong = dict.fromkeys(answers, False)
    believed, _ = checks(trusting=wrong)
    assert believed and not any(believed.values())
