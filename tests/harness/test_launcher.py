"""Children: what they see, what they leave behind, and how their end is known. Each test runs forked and spawned."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

import harness.controller.launcher
from harness.controller.launcher import (
    DeadlinePassed,
    ForkLauncher,
    Launcher,
    Launchers,
    SpawnLauncher,
    Worker,
    WorkerEnded,
)
from harness.messages import (
    BurstTaken,
    Event,
    Failed,
    Finish,
    Finished,
    MeasureCell,
    PhaseBegun,
    PhaseEnded,
    ProbeTorch,
    Ready,
    TakeBurst,
    TorchFacts,
    Tried,
    TryBackend,
)
from harness.sampling_plan import SamplingPlan
from harness.worker.accuracy import Reference
from models.base import Inputs
from records.errors import BakeoffError
from records.schema import Cell

DIMENSIONS = {"batch": 2, "features": 8, "hidden": 8}
SAMPLING = SamplingPlan(processes=1, most_processes=1, rounds=2, burst_s=0.01, burst_calls=3, warm_up_s=0.02)
Awaited = TypeVar("Awaited", bound=Event)


@pytest.fixture(scope="module", params=[ForkLauncher, SpawnLauncher], ids=["forkserver", "spawn"])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    os.environ["NVIDIA_TF32_OVERRIDE"] = "1"  # what a child must not inherit
    try:
        with request.param() as started:
            yield started
    finally:
        del os.environ["NVIDIA_TF32_OVERRIDE"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    import models
    from harness.worker.reference import run_eager

    loaded = models.find("mlp").load(DIMENSIONS, 0)
    doubled: tuple[Inputs, ...] = tuple(one.map(lambda tensor: tensor.double()) for one in loaded.inputs)
    with torch.inference_mode():
        exact = run_eager(loaded.module.double(), doubled)
    path = tmp_path_factory.mktemp("golden") / "golden.safetensors"
    Reference(exact, (1e-6,)).save(path)
    return path


def start(launcher: Launcher, mode: str, golden: Path, folder: Path) -> Worker:
    cell = Cell(model="mlp", dimensions=DIMENSIONS, backend="null", mode=mode)
    job = MeasureCell(cell=cell, reference=golden, sampling=SAMPLING, shared_folder=folder / "shared")
    return launcher.start(job, folder / "child.log")


def until(child: Worker, kind: type[Awaited], seconds: float = 60.0) -> Awaited:
    while True:
        event = child.receive(time.monotonic() + seconds)
        if isinstance(event, kind):
            return event
        assert not isinstance(event, Failed), event


def processes_of(child: Worker) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark(process) == child.mark]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("BAKEOFF_CELL")
    except psutil.Error:
        return None


def test_a_child_takes_bursts_on_command_and_finishes(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "default", golden, tmp_path)
    ready = until(child, Ready)
    assert ready.accuracy.passed
    child.send(TakeBurst())
    samples = until(child, BurstTaken).samples_ns
    assert len(samples) >= 3
    assert all(1e6 <= sample < 20e6 for sample in samples)
    child.send(Finish(in_full=True))
    throughput = until(child, Finished).throughput
    assert throughput is not None
    assert 0 < throughput.calls_per_s < 1300  # a call takes a millisecond, or longer on a busy machine
    assert child.end() in (0, -9)  # it leaves by itself, or is helped


def test_phases_are_announced_before_they_start_and_timed(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "default", golden, tmp_path)
    seen = []
    while not isinstance(event := child.receive(time.monotonic() + 60), Ready):
        assert isinstance(event, PhaseBegun | PhaseEnded)
        seen.append((type(event), event.name))
    timed = [name for kind, name in seen if kind is PhaseEnded]
    assert timed == ["export", "compile", "load", "first_call"]
    for name in timed:
        assert seen.index((PhaseBegun, name)) < seen.index((PhaseEnded, name))
    child.end()


def test_a_segmentation_fault_is_known_by_its_signal(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "crash-in-load", golden, tmp_path)
    with pytest.raises(WorkerEnded) as ended:
        until(child, Ready)
    assert ended.value.status == -11
    child.end()
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "child.log").read_text()


def test_a_hang_passes_the_deadline_and_can_be_ended(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "hang", golden, tmp_path)
    assert until(child, PhaseBegun).name == "probe"
    with pytest.raises(DeadlinePassed):
        until(child, Ready, seconds=1.5)
    assert child.end() == -9


def test_nothing_of_a_child_survives_its_end(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "grandchildren", golden, tmp_path)
    until(child, Ready)
    sleepers = [process for process in processes_of(child) if process.pid != child.pid]
    assert len(sleepers) >= 3  # in its group, in a session of their own, and orphaned
    workspace = child.workspace
    assert workspace.exists()
    child.end()
    psutil.wait_procs(sleepers, timeout=5)
    assert [process for process in sleepers if process.is_running() and process.status() != "zombie"] == []
    assert not workspace.exists()


def test_grandchildren_die_even_if_the_child_crashed(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "grandchildren", golden, tmp_path)
    until(child, Ready)
    sleepers = [process for process in processes_of(child) if process.pid != child.pid]
    os.kill(child.pid, 11)
    with pytest.raises(WorkerEnded) as ended:
        child.receive(time.monotonic() + 30)
    assert ended.value.status == -11
    child.end()
    psutil.wait_procs(sleepers, timeout=5)
    assert [process for process in sleepers if process.is_running() and process.status() != "zombie"] == []


def test_a_stopped_child_does_not_run_and_goes_on_when_resumed(
    launcher: Launcher, golden: Path, tmp_path: Path
) -> None:
    child = start(launcher, "default", golden, tmp_path)
    until(child, Ready)
    child.pause()
    child.send(TakeBurst())
    with pytest.raises(DeadlinePassed):
        child.receive(time.monotonic() + 0.3)
    assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
    child.resume()
    assert until(child, BurstTaken).samples_ns
    child.end()


def test_a_stopped_child_can_be_ended(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "default", golden, tmp_path)
    until(child, Ready)
    child.pause()
    assert child.end() == -9


def test_a_child_has_a_session_and_a_log_of_its_own(launcher: Launcher, golden: Path, tmp_path: Path) -> None:
    child = start(launcher, "noisy-output", golden, tmp_path)
    until(child, Ready)  # 100,000 characters on its stdout have spoilt no message
    assert os.getsid(child.pid) == child.pid
    assert os.getpgid(child.pid) == child.pid
    assert (tmp_path / "child.log").stat().st_size >= 100_000
    child.end()


def test_a_child_of_a_failing_role_says_why(launcher: Launcher, tmp_path: Path) -> None:
    child = launcher.start(TryBackend(backend="no-such", device="cpu"), tmp_path / "child.log")
    event = child.receive(time.monotonic() + 60)
    assert isinstance(event, Failed)
    assert "unknown backend 'no-such'" in event.reason
    child.end()


def test_leaving_the_launcher_ends_children_and_removes_its_folder(golden: Path, tmp_path: Path) -> None:
    with SpawnLauncher() as launcher:
        child = start(launcher, "hang", golden, tmp_path)
        until(child, PhaseBegun)
    assert not psutil.pid_exists(child.pid) or psutil.Process(child.pid).status() == "zombie"
    assert not launcher.temporary.exists()


def test_a_workspace_that_was_given_stays_when_its_child_has_ended(
    launcher: Launcher, golden: Path, tmp_path: Path
) -> None:
    child = launcher.start(TryBackend(backend="eager", device="cpu"), tmp_path / "child.log", tmp_path / "kept")
    until(child, Tried)
    child.end()
    assert (tmp_path / "kept" / "cache").is_dir()


def test_each_epoch_has_a_server_of_its_own_and_the_same_one_whenever_it_is_asked_for(tmp_path: Path) -> None:
    def addresses(launcher: Launcher) -> str:
        """Where the dynamic loader put the C library in a child."""
        assert isinstance(launcher, ForkLauncher)
        maps = Path(f"/proc/{launcher._server.pid}/maps").read_text().splitlines()
        return next(line.split("-")[0] for line in maps if "libc.so" in line)

    with Launchers("forkserver") as launchers:
        launchers.prepare(3)
        assert len({addresses(launchers.of_epoch(epoch)) for epoch in range(4)}) == 4
        assert launchers.of_epoch(1) is launchers.of_epoch(1)
        folders = [launchers.of_epoch(epoch).temporary for epoch in range(4)]
        assert launchers.of_epoch(3).temporary == folders[3]
    assert not any(folder.exists() for folder in folders)


def test_servers_beyond_those_prepared_start_by_twos_and_are_let_go_once_another_epoch_has_come() -> None:
    """Contests begin at the first epoch again, wherever the one before ended."""
    started: list[ForkLauncher] = []

    def alive() -> list[bool]:
        return [server._server.poll() is None for server in started]

    with Launchers("forkserver") as launchers:
        launchers.prepare(1)
        for epoch, expected in (
            (1, [True, True]),
            (2, [False, True]),
            (3, [False, False, True, True]),
            (2, [False, False, False, False, True, True]),
        ):
            server = launchers.of_epoch(epoch)
            started += [one for one in launchers._further.values() if one not in started]
            assert server in started
            assert alive() == expected
    assert not any(alive())
    assert not any(server.temporary.exists() for server in started)


@pytest.mark.parametrize("which", [0, 1])
def test_a_further_server_that_does_not_start_ends_what_asked_for_it_and_a_spare_nothing(
    monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    python = harness.controller.launcher._python
    calls: list[int] = []

    def failing() -> list[str]:
        calls.append(1)
        return [sys.executable, "-c", "raise SystemExit(3)"] if len(calls) == which + 1 else python()

    with Launchers("forkserver") as launchers:
        launchers.await_serving()
        with monkeypatch.context() as patch:
            patch.setattr("harness.controller.launcher._python", failing)
            if which == 0:
                with pytest.raises(BakeoffError, match="the fork server ended"):
                    launchers.of_epoch(1)
            else:
                launchers.of_epoch(1)
        assert len(launchers._further) == which
        server = launchers.of_epoch(1)
        until(server.start(ProbeTorch(), server.temporary / "probe.log"), TorchFacts)


def test_servers_are_waited_for_once() -> None:
    with Launchers("forkserver") as launchers:
        launchers.prepare(2)
        assert not launchers.are_serving
        launchers.await_serving()
        assert launchers.are_serving


def test_a_server_that_died_before_it_was_asked_to_preload_is_told_as_one_that_ended() -> None:
    with Launchers("forkserver") as launchers:
        assert isinstance(launchers.first, ForkLauncher)
        launchers.first._server.kill()
        launchers.first._server.wait()
        launchers.preload(["xmlrpc.server"])
        with pytest.raises(BakeoffError, match="the fork server ended"):
            launchers.first.start(ProbeTorch(), launchers.first.temporary / "probe.log")


def test_what_a_models_loading_imports_is_imported_by_every_server_and_what_does_not_import_is_left_out() -> None:
    with Launchers("forkserver") as launchers:
        launchers.await_serving(1)
        assert "had imported torch and nothing else" in launchers.first.note
        launchers.preload(["no.such.module", "xmlrpc.server"])
        for epoch in range(2):
            server = launchers.of_epoch(epoch)
            server.start(ProbeTorch(), server.temporary / "probe.log").end()
            assert "had imported torch and xmlrpc and nothing else" in server.note


def test_a_module_that_ends_its_process_when_it_is_imported_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exiting_module.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "dying_module.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Launchers("forkserver") as launchers:
        launchers.preload(["exiting_module", "dying_module"])
        launchers.await_serving()
        child = launchers.first.start(ProbeTorch(), launchers.first.temporary / "probe.log")
        until(child, TorchFacts)
        assert "had imported torch and nothing else" in launchers.first.note


@pytest.mark.slow
def test_a_module_that_never_ends_its_import_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stuck_module.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("harness.controller.launcher.PRELOADING_S", 0.5)
    monkeypatch.setattr("harness.controller.launcher.CLOSING_S", 0.5)
    with Launchers("forkserver") as launchers:
        launchers.preload(["stuck_module"])
        launchers.await_serving()
        until(launchers.first.start(ProbeTorch(), launchers.first.temporary / "probe.log"), TorchFacts)


def test_what_is_imported_for_children_is_imported_as_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "curious_module.py").write_text(
        "import os\nprint('heard by nobody')\nopen(os.path.join(os.path.dirname(__file__), 'seen'), 'w').write("
        "repr([os.environ.get(name) for name in ('HF_HUB_OFFLINE', 'CUDA_VISIBLE_DEVICES', 'XDG_CACHE_HOME')]))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the user's"))
    with Launchers("forkserver") as launchers:
        launchers.preload(["curious_module"])
        launchers.await_serving()
        offline, devices, cache = ast.literal_eval((tmp_path / "seen").read_text())
        assert (offline, devices) == ("1", "")
        assert cache.startswith(str(launchers.first.temporary))


def test_spawned_children_need_one_launcher_only() -> None:
    with Launchers("spawn") as launchers:
        assert launchers.of_epoch(5) is launchers.first


def test_a_forked_child_is_ready_in_a_fraction_of_what_a_spawned_one_takes(tmp_path: Path) -> None:
    def seconds(launcher: Launcher) -> float:
        begun = time.monotonic()
        child = launcher.start(ProbeTorch(), tmp_path / "child.log")
        until(child, TorchFacts)
        taken = time.monotonic() - begun
        child.end()
        return taken

    with ForkLauncher() as fork, SpawnLauncher() as spawn:
        assert min(seconds(fork) for _ in range(3)) < 0.3 * min(seconds(spawn) for _ in range(2))
