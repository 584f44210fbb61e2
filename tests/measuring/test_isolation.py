"""What a worker may see and starts with, also in a project whose folders have our rooms' names."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bakeoff import models
from bakeoff.commands import environments
from bakeoff.commands.environments import with_interpreters
from bakeoff.measuring import isolation, malloc
from bakeoff.measuring.controller.environment import capture
from bakeoff.measuring.controller.launcher import CAN_FORK
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.variables import allowed_variables, own_digests, variables_of_libraries, with_variables
from bakeoff.measuring.worker.compiler_checks import tools
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Malloc, Request
from bakeoff.records import report_file
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.text import with_option
from bakeoff.scaling.cluster import ControllerDied, measure_on_node
from tests.support.checkout import ROOT
from tests.support.measuring import by_label, measure
from tests.support.wheels import wheel

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCHINDUCTOR_FREEZING",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCH_COMPILE_DISABLE",
        "TORCH_LOGS",
        "http_proxy",
        "HTTPS_PROXY",
        "MASTER_ADDR",
        "HF_TOKEN",
        "ORT_DISABLE_ALL",
        "PYTHONSTARTUP",
    ],
)
def test_a_variable_that_could_decide_a_result_is_left_out(name: str, tmp_path: Path) -> None:
    assert name not in isolation.child_environment({name: "1"}, tmp_path, "mark")


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CXX", "OMP_NUM_THREADS", "MKL_VERBOSE", "LC_ALL"],
)
def test_what_a_process_needs_to_work_is_passed_on(name: str, tmp_path: Path) -> None:
    assert isolation.child_environment({name: "1"}, tmp_path, "mark")[name] == "1"


@pytest.mark.parametrize("name", ["MY_MODEL_DIR", "DATABASE_PASSWORD", "model_size"])
def test_a_variable_of_the_users_own_is_passed_on_and_its_value_recorded_nowhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "a value of mine")
    assert isolation.child_environment(os.environ, tmp_path, "mark")[name] == "a value of mine"
    assert "a value of mine" not in capture().model_dump_json()
    assert name not in variables_of_libraries(os.environ), "builds of other values can be used again"


def test_digests_of_variables_are_salted_and_can_be_compared() -> None:
    given = {"MY_TOKEN": "secret", "MY_OTHER_TOKEN": "secret"}
    digests = own_digests(["MY_TOKEN", "MY_OTHER_TOKEN", "MY_UNSET"], given)
    assert digests == own_digests(digests, given) and digests["MY_UNSET"] == ""
    assert digests["MY_TOKEN"] != digests["MY_OTHER_TOKEN"]
    assert hashlib.sha256(b"secret").hexdigest()[:16] not in digests.values()


def test_variables_that_change_a_result_are_part_of_the_command() -> None:
    given = {"OMP_PLACES": "{0}, {1}", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "HOME": "/root", "LD_PRELOAD": "x.so"}
    command = with_variables("bakeoff --model mlp", given)
    assert command == "LD_PRELOAD=x.so OMP_NUM_THREADS=1 OMP_PLACES='{0}, {1}' bakeoff --model mlp"
    assert with_option(command, "--seed", "1") == f"{command} --seed 1"
    with_malloc = "bakeoff --model mlp --malloc jemalloc"  # which preloads its own
    assert with_variables(with_malloc, {"LD_PRELOAD": "x.so"}) == with_malloc


def test_weights_that_torch_hub_has_downloaded_are_found(tmp_path: Path) -> None:
    """`XDG_CACHE_HOME`, where it looks otherwise, is a folder of the worker's own."""
    assert isolation.child_environment({"TORCH_HOME": "/weights"}, tmp_path, "mark")["TORCH_HOME"] == "/weights"
    assert isolation.child_environment({"XDG_CACHE_HOME": "/c"}, tmp_path, "mark")["TORCH_HOME"] == "/c/torch"


def test_every_cache_lies_in_the_workspace_whatever_the_user_has_set(tmp_path: Path) -> None:
    names = (
        "TMPDIR",
        "XDG_CACHE_HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TORCH_EXTENSIONS_DIR",
    )
    made = isolation.child_environment(dict.fromkeys(names, "/shared"), tmp_path, "mark")
    folders = [Path(made[name]) for name in names]
    assert all(folder.is_relative_to(tmp_path) for folder in folders)
    assert len(set(folders)) == len(folders)


def test_a_cell_neither_asks_the_network_nor_loses_its_mark(tmp_path: Path) -> None:
    made = isolation.child_environment({isolation.MARK: "other", "HF_HUB_OFFLINE": "0"}, tmp_path, "mark")
    assert (made[isolation.MARK], made["HF_HUB_OFFLINE"]) == ("mark", "1")


def test_a_workspace_is_made_with_its_folders_empty(tmp_path: Path) -> None:
    workspace = isolation.make_workspace(tmp_path / "cell")
    made = isolation.child_environment({}, workspace, "mark")
    assert {path.name for path in workspace.iterdir()} == {"tmp", "cache", "artifact"}
    assert Path(made["TMPDIR"]).is_dir() and Path(made["XDG_CACHE_HOME"]).is_dir()
    assert all(list((workspace / name).iterdir()) == [] for name in ("cache", "artifact"))


def test_where_torch_has_precompiled_nothing_a_worker_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert list((isolation.make_workspace(tmp_path / "cell") / "tmp").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


def test_a_worker_shares_only_the_headers_that_torch_has_precompiled_for_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    isolation.headers_of_torch().mkdir(parents=True)
    workspace = isolation.make_workspace(tmp_path / "cell")
    assert isolation.make_workspace(tmp_path / "cell") == workspace, "a second worker may use it again"
    isolation.headers_of_torch(tmp_path / "used" / "tmp").parent.mkdir(parents=True)
    isolation.make_workspace(tmp_path / "used")  # torch has kept something else beside it
    assert isolation.headers_of_torch(tmp_path / "used" / "tmp").is_symlink()
    theirs = Path(default_cache_dir()) / "precompiled_headers"
    assert isolation.headers_of_torch() == theirs and theirs.is_dir()
    monkeypatch.setattr(tempfile, "tempdir", str(workspace / "tmp"))
    (Path(default_cache_dir()) / "precompiled_headers" / "made.h").touch()
    assert (theirs / "made.h").exists()
    assert [path.name for path in (workspace / "tmp").rglob("*") if not path.is_symlink()] == [theirs.parent.name]


def test_checks_of_the_compiler_are_for_one_torch_and_one_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of what torch compiles hold both paths. A marker without them had each build check again, for 7 s."""
    here, there = "/here/torch/__init__.py", "/there/torch/__init__.py"
    found = [tools(torch_file) for torch_file in (here, there, here)]
    assert found[0] == found[2] != found[1]
    compiler = tmp_path / "c++"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with_compiler = tools(here)
    os.utime(compiler, (1, 1))  # it was replaced
    assert len({found[0], with_compiler, tools(here)}) == 3


def test_a_marked_process_that_left_both_group_and_tree_is_killed() -> None:
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    starter = f"import subprocess; print(subprocess.Popen({SLEEP!r}, start_new_session=True, {quiet}).pid)"
    started = subprocess.run(
        [sys.executable, "-c", starter],
        env={isolation.MARK: "of-this-test"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    orphan = psutil.Process(int(started.stdout))
    bystander = subprocess.Popen(SLEEP, env={isolation.MARK: "of-another"})
    leader = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        assert orphan.is_running() and orphan.ppid() != leader.pid
        isolation.kill_tree(leader.pid, "of-this-test")
        assert leader.wait(timeout=10) == -9
        give_up = time.monotonic() + 10
        while orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert bystander.poll() is None
    finally:
        for process in (bystander, leader):
            process.kill()
            process.wait()


def test_a_process_that_is_gone_can_be_killed_again() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    gone.wait()
    isolation.kill_tree(gone.pid, "a mark that nobody bears")


FREED_AND_TAKEN = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def take():
    taken = libc.malloc(50_000_000)
    ctypes.memset(taken, 1, 50_000_000)
    libc.free(taken)
take(), take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def at_start() -> dict[str, str]:
    """Return what decides the allocator of processes that are started now."""
    variables = allowed_variables(os.environ)
    return {name: value for name, value in variables.items() if name.startswith(("LD_PRELOAD", "MALLOC_"))}


def test_processes_that_a_run_starts_get_the_allocator_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setitem(malloc.LIBRARIES, "jemalloc", ("libc.so.6", "libc6"))  # it is there for certain
    expected: dict[Malloc, dict[str, str]] = {
        "": {"MALLOC_ARENA_MAX": "2"},
        "glibc": {},
        "glibc-tuned": dict(malloc.KEEPING_MEMORY),
        "jemalloc": {"LD_PRELOAD": "libc.so.6"},
    }
    for name, variables in expected.items():
        with malloc.in_force(name):
            assert at_start() == variables
        assert at_start() == {"MALLOC_ARENA_MAX": "2"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a shell and glibc's variables")
def test_rows_of_an_allocator_have_an_interpreter_that_starts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    request = with_interpreters(Request(models=("mlp",), backends=("eager", "eager@glibc", "eager@glibc-tuned")))
    assert request.env.keys() == {"glibc", "glibc-tuned"}
    tell = "import os, sys; print(os.environ.get('MALLOC_TRIM_THRESHOLD_'), sys.prefix)"
    for name, threshold in {"glibc": "None", "glibc-tuned": "1073741824"}.items():
        told = subprocess.run([request.env[name], "-c", tell], capture_output=True, text=True, check=True).stdout
        assert told.split() == [threshold, sys.prefix]
    (contest,) = plan(request.model_copy(update={"devices": ("cpu",)}))
    assert [planned.cell.label for planned in contest.cells] == ["eager", "eager@glibc", "eager@glibc-tuned"]


def test_a_library_that_can_only_be_there_from_the_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("loading it here may fail for its static TLS"))
    monkeypatch.setitem(malloc.LIBRARIES, "jemalloc", ("libc.so.6", "libc6"))
    assert malloc.variables_of("jemalloc") == {"LD_PRELOAD": "libc.so.6"}


def test_a_library_that_is_not_here_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(malloc.LIBRARIES, "tcmalloc", ("libnowhere.so.9", "libnowhere9"))
    with pytest.raises(UsageError, match=r"^tcmalloc: libnowhere.so.9 is not here .*: apt-get install libn"):
        malloc.variables_of("tcmalloc")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_a_tuned_glibc_keeps_what_is_freed() -> None:
    faults: dict[Malloc, int] = {}
    names: tuple[Malloc, ...] = ("glibc", "glibc-tuned")
    for name in names:
        with malloc.in_force(name):
            done = subprocess.run([sys.executable, "-c", FREED_AND_TAKEN], capture_output=True, text=True, check=True)
        faults[name] = int(done.stdout)
    assert faults["glibc"] > 100 * max(1, faults["glibc-tuned"])


OWN_ROOMS = {path.parent.name for path in (ROOT / "bakeoff").glob("*/__init__.py")} - {"models", "reports"}
"""Our rooms, but for those that the project has, too."""

FACTORY = """
from typing import NamedTuple

class Widths(NamedTuple):
    x: torch.Tensor
    scale: torch.Tensor

class Lazy(Detector):
    def forward(self, widths):
        from records import offset
        return super().forward(widths.x) * widths.scale + offset()

def lazy(batch: int = 1):
    import os
    from judging import depth
    with open(os.environ["MY_WIDTHS"], encoding="utf-8") as lines:
        width = int(lines.read())
    return Lazy().eval(), (Widths(torch.randn(batch, width), torch.ones(depth())),)
"""

ROOMS = {"records": "def offset():\n    return 0.25\n", "judging": "def depth():\n    return 1\n"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand above the project, which has a package for each of our rooms, and return its folder."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "tests/cases/project", folder)
    for room in OWN_ROOMS:
        (folder / room).mkdir()
        (folder / room / "__init__.py").write_text(ROOMS.get(room, ""))
    with (folder / "detect.py").open("a") as file:
        file.write(FACTORY)
    (tmp_path / "widths.txt").write_text("64")
    monkeypatch.setenv("MY_WIDTHS", "widths.txt")
    monkeypatch.chdir(tmp_path)
    return folder


def measured(folder: Path, *backends: str, **fields: object) -> Report:
    report = measure(folder, *backends, models=["project/detect.py:lazy"], **fields)
    ended = {label: (record.status, record.reason) for label, record in by_label(report).items()}
    assert ended == dict.fromkeys(backends, (Status.OK, ""))
    return report


@pytest.mark.parametrize("start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_both_kinds_and_one_that_loads_what_another_one_packaged(start_method: str, project: Path) -> None:
    if start_method == "forkserver" and not CAN_FORK:
        pytest.skip("only Linux has fork servers")
    measured(project / "run", "torchscript", "null-packaged", start_method=start_method)


@pytest.mark.slow
def test_the_process_that_compiles_hot_paths(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bakeoff_hotpath import handover
    from bakeoff_hotpath.compiling import child_environment

    for name in ("detect", "models", "models.common", "reports", "utils", *OWN_ROOMS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = models.find("project/detect.py:lazy").load({"batch": 1}, seed=0)
    handover.write(project / "task", loaded.module, loaded.inputs[0].args, {}, is_training=False)
    code = (
        "from pathlib import Path; from bakeoff_hotpath import handover; task = handover.read(Path('task'));"
        "print(type(task.module).__module__, tuple(task.module(*task.args).shape))"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=project, env=child_environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout == "bakeoff_user_detect (1, 64)\n", done.stderr


@pytest.mark.slow
def test_an_environment_beside_ours(project: Path, own_servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "caches"))
    environments.add("beside", [str(wheel(project, "some_library", "1.0"))])
    measured(project / "run", "eager", "eager@beside", env=(f"beside={environments.python_of('beside')}",))


@pytest.mark.slow
def test_a_controller_of_a_place(project: Path) -> None:
    measured(project / "run", "eager", devices=(f"cpu:{usable_cores()[0]}",))


class Remote:
    """Stands for the mailbox of a driver: calling it remotely keeps the message."""

    def __init__(self, calls: list[object]) -> None:
        self._calls = calls

    def remote(self, *arguments: object) -> None:
        self._calls.append(arguments[2])


@pytest.mark.slow
def test_a_node_of_a_cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of Ray runs in another folder than the driver, on a node that sees the driver's folder or does not."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda refs: None, get_gpu_ids=list))
    asked = {"models": ["project/detect.py:lazy"], "backends": ["eager"], "devices": ["cpu"]}
    request = Request.model_validate({**asked, "processes": 1, "min_time_s": 0.05})
    (contest,) = plan(request)
    told: list[Any] = []
    home = SimpleNamespace(receive=Remote(told))
    started_in = Path.cwd()
    monkeypatch.chdir(project)
    measure_on_node(request, contest, 0, home, started_in)
    ((record,),) = (each.arguments for each in told if getattr(each, "method", "") == "ended")
    assert isinstance(record, Record)
    assert record.status is Status.OK, record.reason
    elsewhere = project / "only-on-the-driver"
    with pytest.raises(
        ControllerDied, match=rf"no file project/detect\.py.*has no folder {elsewhere}, so files of your"
    ):
        measure_on_node(request, contest, 0, home, elsewhere)


BRIEFLY = ("--backends", "eager", "--devices", "cpu", "--processes", "1", "--min-time", "0.05", "--out", "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "model"),
    [(["-m", "bakeoff"], "detect:factory"), ([str(ROOT / "runner.py")], "reports.net:factory")],
    ids=["module", "module in a package"],
)
def test_a_controller_that_finds_packages_of_the_same_names(program: list[str], model: str, project: Path) -> None:
    """The checkout's own `models`, `backends` and `reports` are on the path of `runner.py`."""
    code = "from detect import factory as made\n\ndef factory():\n    return made()\n"
    (project / "reports/net.py").write_text(code)
    environment = {**os.environ, **({"PYTHONPATH": str(ROOT)} if "-m" in program else {})}
    command = [sys.executable, *program, "--model", model, *BRIEFLY]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = report_file.read(project / "run").records
    assert record.status is Status.OK, record.reason
