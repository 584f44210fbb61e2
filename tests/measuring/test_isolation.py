"""What a worker may see, and that all that it starts is ended."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from bakeoff.measuring import isolation
from bakeoff.measuring.controller.environment import capture
from bakeoff.measuring.variables import own_digests, variables_of_libraries, with_variables
from bakeoff.measuring.worker.compiler_checks import tools
from bakeoff.records.text import with_option

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
