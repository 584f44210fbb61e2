"""Workers: what they see, what they leave behind, and how their end is known. Most tests run forked and spawned."""

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from bakeoff.measuring import messages
from bakeoff.measuring.controller.launcher import ForkLauncher, Launcher, Launchers
from bakeoff.measuring.controller.server_process import CannotPreload
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Started, Worker, WorkerEnded
from bakeoff.models.base import Inputs
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Cell
from bakeoff.truth.reference import Reference
from tests.measuring import quick_server

DIMENSIONS = {"batch": 2, "features": 8, "hidden": 8}
SAMPLING = SamplingPlan(processes=1, most_processes=1, rounds=2, burst_s=0.01, burst_calls=3, warm_up_s=0.02)
Awaited = TypeVar("Awaited", bound=messages.Event)


@pytest.fixture(scope="module", params=[ForkLauncher])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    os.environ["NVIDIA_TF32_OVERRIDE"] = "1"  # what a worker must not inherit
    try:
        with request.param() as started:
            yield started
    finally:
        del os.environ["NVIDIA_TF32_OVERRIDE"]


SPAWNED = pytest.param(Launcher, marks=pytest.mark.slow)
by_either = pytest.mark.parametrize("launcher", [ForkLauncher, SPAWNED], indirect=True, scope="module")
"""For what depends on how a process is started. The rest is tested with forks, which cost less."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from bakeoff import models
    from bakeoff.truth.calls import run_eager

    loaded = models.find("mlp").load(DIMENSIONS, 0)
    doubled: tuple[Inputs, ...] = tuple(one.map(lambda tensor: tensor.double()) for one in loaded.inputs)
    with torch.inference_mode():
        exact = run_eager(loaded.module.double(), doubled)
    path = tmp_path_factory.mktemp("reference") / "reference.pt"
    Reference(exact, (1e-6,)).save(path)
    return path


def start(launcher: Launcher, mode: str, reference: Path, folder: Path, is_first: bool = True) -> Worker:
    cell = Cell(model="mlp", dimensions=DIMENSIONS, backend="null", mode=mode)
    shared_folder = folder / "shared"
    job = messages.MeasureCell(
        cell=cell, reference=reference, sampling=SAMPLING, shared_folder=shared_folder, is_first=is_first
    )
    worker = launcher.start(job, folder / "worker.log")
    worker.send(messages.Build())
    worker.send(messages.BeginWarmUp())
    return worker


def until(worker: Worker, kind: type[Awaited], seconds: float = 60.0) -> Awaited:
    while True:
        event = worker.receive(time.monotonic() + seconds)
        if isinstance(event, kind):
            return event
        assert not isinstance(event, messages.Failed), event


def processes_of(worker: Worker) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark(process) == worker.mark]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("BAKEOFF_CELL")
    except psutil.Error:
        return None


@by_either
def test_a_worker_takes_bursts_on_command_and_has_a_session_and_a_log_of_its_own(
    launcher: Launcher, reference: Path, tmp_path: Path
) -> None:
    worker = start(launcher, "noisy-output", reference, tmp_path)
    ready = until(worker, messages.Ready)  # 100,000 characters on its stdout have spoilt no message
    assert ready.accuracy.passed
    assert os.getsid(worker.pid) == worker.pid
    assert os.getpgid(worker.pid) == worker.pid
    assert (tmp_path / "worker.log").stat().st_size >= 100_000
    worker.send(messages.TakeBurst())
    samples = until(worker, messages.BurstMeasured).samples_ns
    assert len(samples) >= 3
    assert all(sample >= 1e6 for sample in samples)
    worker.send(messages.MeasureFurther(with_device_time=True, throughput_blocks=1))
    throughput = until(worker, messages.FurtherMeasured).throughput
    assert 0 < throughput.calls_per_s < 1300  # a call takes a millisecond, or longer on a busy machine
    worker.send(messages.Finish())
    assert until(worker, messages.Finished).accuracy_after.passed
    assert worker.end() in (0, -9)  # it leaves by itself, or is helped


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_process_reports_where_it_ran(
    launcher: Launcher, reference: Path, tmp_path: Path, is_first: bool
) -> None:
    worker = start(launcher, "fallback", reference, tmp_path, is_first)
    assert (until(worker, messages.Ready).placement is not None) == is_first
    worker.send(messages.Finish())
    assert (until(worker, messages.Finished).placement is not None) == is_first
    worker.end()


@pytest.mark.parametrize(
    ("launcher", "crashes"),
    [(ForkLauncher, False), (ForkLauncher, True), pytest.param(Launcher, True, marks=pytest.mark.slow)],
    indirect=["launcher"],
    scope="module",
)
def test_nothing_of_a_worker_survives_its_end(
    launcher: Launcher, crashes: bool, reference: Path, tmp_path: Path
) -> None:
    worker = start(launcher, "grandchildren", reference, tmp_path)
    until(worker, messages.Ready)
    sleepers = [process for process in processes_of(worker) if process.pid != worker.pid]
    assert len(sleepers) >= 3  # in its group, in a session of their own, and orphaned
    workspace = worker.workspace
    assert workspace.exists()
    if crashes:
        os.kill(worker.pid, 11)
        with pytest.raises(WorkerEnded) as ended:
            worker.receive(time.monotonic() + 30)
        assert ended.value.status == -11
    worker.end()
    psutil.wait_procs(sleepers, timeout=5)
    assert [process for process in sleepers if process.is_running() and process.status() != "zombie"] == []
    assert not workspace.exists()


def test_a_stopped_worker_does_not_run_goes_on_when_resumed_and_can_be_ended(
    launcher: Launcher, reference: Path, tmp_path: Path
) -> None:
    worker = start(launcher, "default", reference, tmp_path)
    until(worker, messages.Ready)
    worker.pause()
    worker.send(messages.TakeBurst())
    with pytest.raises(DeadlinePassed):
        worker.receive(time.monotonic() + 0.3)
    assert psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
    worker.resume()
    assert until(worker, messages.BurstMeasured).samples_ns
    worker.pause()
    assert worker.end() == -9


def test_a_worker_of_a_failing_role_says_why(launcher: Launcher, tmp_path: Path) -> None:
    worker = launcher.start(messages.TryBackend(backend="no-such", device="cpu"), tmp_path / "worker.log")
    event = worker.receive(time.monotonic() + 60)
    assert isinstance(event, messages.Failed)
    assert "unknown backend 'no-such'" in event.failure.text
    worker.end()


@pytest.mark.slow
def test_leaving_the_launcher_ends_workers_and_removes_its_folder(reference: Path, tmp_path: Path) -> None:
    with Launcher() as launcher:
        worker = start(launcher, "hang", reference, tmp_path)
        until(worker, messages.PhaseBegun)
    assert not psutil.pid_exists(worker.pid) or psutil.Process(worker.pid).status() == "zombie"
    assert not launcher.temporary.exists()


def test_a_worker_that_leads_no_group_yet_can_be_ended(tmp_path: Path) -> None:
    """A worker that was forked a moment ago is such a process. Its end was waited for without limit once."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

    class Young(Launcher):
        def _start(self, *_: object) -> Started:
            return process.pid, lambda seconds: process.wait(seconds) if seconds else process.poll()

    try:
        with Young() as launcher:
            assert launcher.start(messages.ProbeTorch(), tmp_path / "log").end() == -9
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_does_not_die_is_reported_and_not_waited_for_again(tmp_path: Path) -> None:
    """A driver or a file system may hold a process that was killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)

    class Holding(Launcher):
        def _start(self, *_: object) -> Started:
            return process.pid, lambda seconds: None

    with Holding() as launcher:
        worker = launcher.start(messages.ProbeTorch(), tmp_path / "log")
        with pytest.raises(BakeoffError, match=f"process {process.pid} was killed 60 s ago and is not gone"):
            worker.end()
        assert worker.is_over
    assert not launcher.temporary.exists()
    assert process.wait(timeout=10) == -9


def test_a_workspace_that_was_given_stays_when_its_worker_has_ended(
    launcher: Launcher, reference: Path, tmp_path: Path
) -> None:
    worker = launcher.start(
        messages.TryBackend(backend="eager", device="cpu"), tmp_path / "worker.log", tmp_path / "kept"
    )
    until(worker, messages.Tried)
    worker.end()
    assert (tmp_path / "kept" / "cache").is_dir()


# --- one launcher for each epoch


class Server(Launcher):
    """A launcher that serves at once, or fails in the way it was told."""

    start_method = "scripted"
    is_per_epoch = True
    note = ""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.is_closed = False
        self.preloaded: Sequence[str] = ()
        self.branched: Sequence[str] = ()

    def preload(self, modules: Sequence[str], for_cuda: bool) -> None:
        self.preloaded = modules

    def branch(self, modules: Sequence[str], for_cuda: bool) -> None:
        self.branched = modules

    def await_serving(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _start(self, *_: object) -> Started:
        raise NotImplementedError

    def _close(self) -> None:
        self.is_closed = True


class Servers:
    """Makes launchers, and keeps them."""

    def __init__(self, *failures: Exception | None) -> None:
        self.made: list[Server] = []
        self._failures = failures

    def __call__(self, start_method: str) -> Server:
        number = len(self.made)
        self.made.append(Server(self._failures[number] if number < len(self._failures) else None))
        return self.made[-1]

    def alive(self) -> list[bool]:
        return [not server.is_closed for server in self.made]


def test_each_epoch_has_a_launcher_of_its_own_and_the_same_one_whenever_it_is_asked_for() -> None:
    servers = Servers()
    with Launchers("forkserver", servers) as launchers:
        launchers.prepare(3)
        assert [launchers.of_epoch(epoch) for epoch in (0, 1, 2, 1)] == [servers.made[place] for place in (0, 1, 2, 1)]
    assert not any(servers.alive())
    assert not any(server.temporary.exists() for server in servers.made)


def test_servers_beyond_those_prepared_start_by_twos_and_stay_until_there_are_too_many() -> None:
    """Contests begin at the first epoch again, wherever the one before ended."""
    servers = Servers()
    with Launchers("forkserver", servers) as launchers:
        for epoch, started in ((0, 1), (1, 3), (2, 3), (1, 3), (5, 5), (4, 6), (5, 6), (8, 8)):
            launchers.of_epoch(epoch)
            assert servers.alive() == [True] * started
        assert launchers.of_epoch(5) is servers.made[3], "a server that is there is not started again"
        launchers.of_epoch(10)
        assert servers.alive() == [True, True, True, False, False, *[True] * 5], "those of the epochs 5 and 6 ended"
        assert [launchers.of_epoch(epoch) for epoch in (1, 2)] == servers.made[1:3], "the next contest finds them"


def test_a_server_does_not_end_while_workers_of_its_epoch_may_be_alive() -> None:
    """Processes of two further epochs load beside those of one."""
    servers = Servers()
    with Launchers("forkserver", servers) as launchers:
        for epoch in range(1, 24):
            alive = [launchers.of_epoch(each) for each in range(max(0, epoch - 2), epoch)]
            launchers.of_epoch(epoch)
            assert not any(isinstance(each, Server) and each.is_closed for each in alive)
            assert sum(servers.alive()) <= 1 + 8
    assert not any(servers.alive())


def test_a_further_server_that_does_not_start_ends_what_asked_for_it() -> None:
    servers = Servers(None, BakeoffError("the fork server ended"))
    with Launchers("forkserver", servers) as launchers:
        with pytest.raises(BakeoffError, match="the fork server ended"):
            launchers.of_epoch(1)
        assert servers.alive() == [True, False, False]
        assert launchers.of_epoch(1) is servers.made[3]


def test_a_spare_server_that_does_not_start_ends_nothing() -> None:
    servers = Servers(None, None, BakeoffError("the fork server ended"))
    with Launchers("forkserver", servers) as launchers:
        assert launchers.of_epoch(1) is servers.made[1]
        assert servers.alive() == [True, True, False]
        assert launchers.of_epoch(2) is servers.made[3]


def test_a_server_that_does_not_survive_its_imports_is_replaced_by_one_without_them() -> None:
    servers = Servers(CannotPreload())
    with Launchers("forkserver", servers) as launchers:
        launchers.preload(["module", "module"], for_cuda=False)
        launchers.await_serving()
        assert servers.alive() == [False, True]
        assert [server.preloaded for server in servers.made] == [("module",), ()]
        assert launchers.first is servers.made[1]


def test_the_last_server_may_fork_while_the_others_import() -> None:
    servers = Servers()
    with Launchers("forkserver", servers) as launchers:
        launchers.prepare(3)
        launchers.preload(["module"], for_cuda=True, except_last=True)
        assert [server.preloaded for server in servers.made] == [("module",), ("module",), ()]
        servers.made[0].preloaded = ["asked once"]
        launchers.preload(["module"], for_cuda=True)
        assert [server.preloaded for server in servers.made] == [["asked once"], ("module",), ("module",)]


@pytest.mark.parametrize(("prepared", "branches"), [(2, 2), (7, 5)])
def test_only_the_first_prepared_servers_branch(prepared: int, branches: int) -> None:
    servers = Servers()
    with Launchers("forkserver", servers) as launchers:
        launchers.prepare(prepared)
        launchers.branch(["module", "module"], for_cuda=True)
        launchers.of_epoch(prepared)
        expected = [("module",) if place < branches else () for place in range(prepared + 2)]
        assert [server.branched for server in servers.made] == expected


def test_spawned_workers_need_one_launcher_only() -> None:
    with Launchers("spawn") as launchers:
        launchers.prepare(3)
        assert launchers.of_epoch(5) is launchers.first


# --- fork servers

QUICK = quick_server.command()


def imports(server: ForkLauncher, folder: Path) -> bool:
    """Have a worker import a module."""
    return until(server.start(messages.TryImport(module="json"), folder / "log"), messages.Tried).reason == ""


def test_two_servers_lay_out_their_memory_differently(launcher: ForkLauncher) -> None:
    def address(server: ForkLauncher) -> str:
        """Where the dynamic loader put the C library."""
        maps = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
        return next(line.split("-")[0] for line in maps if "libc.so" in line)

    with ForkLauncher(QUICK) as second:
        assert not second.is_serving
        for server in (launcher, second):
            server.await_serving()
            assert server.is_serving
        assert address(launcher) != address(second)


def test_a_server_that_does_not_start_is_reported_with_its_status() -> None:
    python = [sys.executable, "-c", "raise SystemExit(3)"]
    with ForkLauncher(python) as server, pytest.raises(BakeoffError, match=r"the fork server ended \(status 3\)"):
        server.await_serving()


def test_a_server_that_was_killed_is_reported_with_the_signal() -> None:
    with ForkLauncher(QUICK) as server:
        os.kill(server.pid, 9)
        with pytest.raises(BakeoffError, match=r"killed by signal 9 \(SIGKILL\)$"):
            server.await_serving()


def test_a_server_that_died_before_it_was_asked_to_preload_is_reported_as_one_that_ended() -> None:
    with Launchers("forkserver", lambda _: ForkLauncher(QUICK)) as launchers:
        assert isinstance(launchers.first, ForkLauncher)
        launchers.first.await_serving()
        os.kill(launchers.first.pid, 9)
        psutil.wait_procs([psutil.Process(launchers.first.pid)], timeout=0.2)
        launchers.preload(["xmlrpc.server"], for_cuda=False)
        launchers.await_serving()  # by another server, since this one could not preload
        assert "had imported torch and nothing else" in launchers.first.note


MODULES = {
    "exiting_module": "import sys; sys.exit(3)",
    "dying_module": "import os; os._exit(3)",
    "stuck_module": "import time; time.sleep(3600)",
    "threading_module": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "curious_module": (
        "import os\nprint('heard by nobody')\nopen(os.path.join(os.path.dirname(__file__), 'seen'), 'w').write("
        "repr([os.environ.get(name) for name in ('HF_HUB_OFFLINE', 'CUDA_VISIBLE_DEVICES', 'XDG_CACHE_HOME')]))"
    ),
}


def write_modules(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    patch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_modules(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def shared_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def branching(shared_modules: Path) -> Iterator[ForkLauncher]:
    """A server that finds the shared modules. Each test has it branch anew, whatever became of the branch before."""
    with pytest.MonkeyPatch.context() as patch:
        write_modules(shared_modules, patch)
        with ForkLauncher(QUICK, max_preload_s=1.0, max_close_s=2.0) as server:
            yield server


def test_modules_are_imported_for_all_workers_and_as_in_one_and_what_does_not_import_is_left_out(modules: Path) -> None:
    with ForkLauncher(QUICK) as server:
        server.preload(["no.such.module", "exiting_module", "curious_module", "xmlrpc.server"])
        assert imports(server, modules)
        assert "had imported torch and curious_module and xmlrpc and nothing else" in server.note
        offline, devices, cache = ast.literal_eval((modules / "seen").read_text())
        assert (offline, devices) == ("1", "")
        assert cache.startswith(str(server.temporary))


@pytest.mark.parametrize(
    "module",
    ["dying_module", *(pytest.param(f"{kind}_module", marks=pytest.mark.slow) for kind in ("stuck", "threading"))],
)
def test_a_module_that_ends_or_stops_the_server_cannot_be_preloaded(modules: Path, module: str) -> None:
    with ForkLauncher(QUICK, max_preload_s=1.0, max_close_s=0.5) as server:
        server.preload([module])
        with pytest.raises(CannotPreload):
            server.await_serving()


def test_a_server_that_imports_is_not_waited_for_at_the_end(modules: Path) -> None:
    with ForkLauncher(QUICK, max_close_s=60.0) as server:
        process = psutil.Process(server.pid)
        server.preload(["stuck_module"])
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 5 and not process.is_running()


LOOKING = """
import pathlib, sys
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
address = next(line.split("-")[0] for line in maps if "libc.so" in line)
print(["xmlrpc.server" in sys.modules, address], file=open({path!r}, "w"))
"""


def test_only_workers_of_the_branch_have_imported_its_modules_and_all_share_a_layout(modules: Path) -> None:
    (modules / "looking_module.py").write_text(LOOKING.format(path=str(modules / "seen")))

    def seen(*imports: str) -> tuple[bool, str]:
        worker = server.start(messages.TryImport(module="looking_module"), modules / "log", imports=imports)
        assert until(worker, messages.Tried).reason == "" and worker.workspace.is_relative_to(server.temporary)
        worker.end()
        return ast.literal_eval((modules / "seen").read_text())

    with ForkLauncher(QUICK) as server:
        server.branch(["xmlrpc.server", "no.such.module"])
        (has_it, address), (has_it_not, same_address) = seen("xmlrpc.server"), seen("json.tool")
        assert has_it and not has_it_not and address == same_address
        assert server.server_for([]) is server.server_for(["no.such.module"])
        assert "builds import xmlrpc.server came from forks" in server.branch_note
        assert "had imported torch and nothing else" in server.note
        hanging = server.start(messages.TryImport(module="stuck_module"), modules / "log", imports=["xmlrpc.server"])
        process = psutil.Process(hanging.pid)
    assert not process.is_running(), "it ends with the launcher"


def test_a_branch_that_cannot_import_is_done_without(branching: ForkLauncher, tmp_path: Path) -> None:
    for module in ("dying_module", "stuck_module", "threading_module"):
        branching.branch([module])
        assert branching.server_for([module]) is branching.server_for([])
        assert branching.branch_note == ""
        assert imports(branching, tmp_path)


def test_a_branch_that_dies_later_is_done_without(branching: ForkLauncher, tmp_path: Path) -> None:
    branching.branch(["xmlrpc.server"])
    worker = branching.start(messages.TryImport(module="stuck_module"), tmp_path / "log", imports=["xmlrpc.server"])
    for process in psutil.Process(branching.pid).children():
        process.kill()
    deadline = time.monotonic() + 20
    while branching.server_for(["xmlrpc.server"]) is not branching.server_for([]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(WorkerEnded) as ended:
        until(worker, messages.Tried)
    assert ended.value.status == -9
    assert imports(branching, tmp_path)


def test_a_branch_that_dies_while_it_is_to_fork_is_done_without(branching: ForkLauncher, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        before = psutil.Process(branching.pid).children()
        branching.branch(["xmlrpc.server"])
        branching.server_for(["xmlrpc.server"])  # which waits for it
        (branch,) = set(psutil.Process(branching.pid).children()).difference(before)
        branch.suspend()
        job = messages.TryImport(module="json")
        starting = pool.submit(branching.start, job, tmp_path / "log", imports=["xmlrpc.server"])
        time.sleep(0.3)
        assert not starting.done(), "the branch has not read the order"
        branch.kill()
        until(starting.result(timeout=20), messages.Tried)
        assert branching.server_for(["xmlrpc.server"]) is branching.server_for([])


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(("answers", "is_initialised"), [pytest.param(3, False, marks=pytest.mark.slow), (0, True)])
def test_a_server_whose_modules_initialise_the_driver_cannot_fork_for_cuda(
    modules: Path, branching: ForkLauncher, shared_modules: Path, answers: int, is_initialised: bool
) -> None:
    (modules / "driver.c").write_text(f"int cuDeviceGetCount(int *count) {{ return {answers}; }}")
    library = modules / "driver.so"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(modules / "driver.c")]
    subprocess.run(command, check=True)
    (modules / "touching_module.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r})")
    with ForkLauncher(QUICK) as server:
        server.preload(["touching_module", "curious_module"], for_cuda=True)
        if is_initialised:
            with pytest.raises(CannotPreload):
                server.await_serving()
            shutil.copy(modules / "touching_module.py", shared_modules)
            branching.branch(["touching_module"], for_cuda=True)
            assert branching.server_for(["touching_module"]) is branching.server_for([])
        else:
            server.await_serving()
            assert "touching_module" in server.note
            devices = ast.literal_eval((modules / "seen").read_text())[1]
            server.branch(["curious_module"], for_cuda=True)
            assert server.server_for(["curious_module"]) is not server.server_for([])
            assert devices == os.environ.get("CUDA_VISIBLE_DEVICES"), "modules see the GPUs that workers will use"


@pytest.mark.slow
def test_a_module_that_asks_for_a_gpus_version_gets_it_from_nvml(modules: Path) -> None:
    (modules / "pynvml.py").write_text(
        "class NVMLError(Exception): ...\n"
        "def nvmlInit(): ...\n"
        "def nvmlShutdown(): ...\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetCudaComputeCapability(card): return [9, card]\n"
    )
    asked = (
        "[torch.cuda.get_device_capability(device) for device in (None, 1, 'cuda', 'cuda:2', torch.device('cuda:3'))]"
    )
    found = "map(torch.cuda.get_device_properties, (torch.cuda.current_device(), 2))"
    properties = f"[(one.major, one.minor) for one in {found}]"
    (modules / "asking_module.py").write_text(
        f"import torch\nprint([{asked}, {properties}], file=open({str(modules / 'told')!r}, 'w'))\n"
        "kept = torch.cuda.get_device_properties, torch.cuda.current_device\n"
    )
    (modules / "later_module.py").write_text(
        "import asking_module, torch\n"
        "def answer(function):\n"
        "    try:\n"
        "        return function()\n"
        "    except Exception as error:\n"
        "        return type(error).__name__\n"
        "properties, current_device = asking_module.kept\n"
        "ours = answer(current_device), answer(lambda: str(properties(0)))\n"
        "asked = torch.cuda.get_device_properties\n"
        "torchs = answer(torch.cuda.current_device), answer(lambda: str(asked(0)))\n"
        f"print([ours, torchs], file=open({str(modules / 'later')!r}, 'w'))\n"
    )
    with ForkLauncher() as server:
        server.preload(["asking_module"], for_cuda=True)
        server.await_serving()
        until(server.start(messages.TryImport(module="later_module"), modules / "worker.log"), messages.Tried)
    kept, torchs = ast.literal_eval((modules / "later").read_text())
    assert kept == torchs, "what a module has kept asks torch, once nothing is imported any more"
    versions = [(9, 0), (9, 1), (9, 0), (9, 2), (9, 3)]
    assert ast.literal_eval((modules / "told").read_text()) == [versions, [(9, 0), (9, 2)]]


@pytest.mark.slow
def test_a_forked_worker_is_ready_in_a_fraction_of_what_a_spawned_one_takes(tmp_path: Path) -> None:
    def seconds(launcher: Launcher) -> float:
        begun = time.monotonic()
        worker = launcher.start(messages.ProbeTorch(), tmp_path / "worker.log")
        until(worker, messages.TorchFacts)
        taken = time.monotonic() - begun
        worker.end()
        return taken

    with ForkLauncher() as fork, Launcher() as spawn:
        assert min(seconds(fork) for _ in range(3)) < 0.3 * seconds(spawn)


def test_a_second_branch_of_a_server_ends_the_first_one(branching: ForkLauncher) -> None:
    branching.branch(("json",))
    first = branching.server_for(("json",))
    branching.branch(("csv",))
    assert first._control.closed, "its socket is closed"
    branching.await_branch()
    assert branching.server_for(("csv",)) not in (first, branching.server_for(()))
