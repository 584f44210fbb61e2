"""A fork server that is started before the command line is imported: who takes it, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bakeoff.measuring.controller import server_start
from bakeoff.measuring.controller.launcher import ForkLauncher, create_launcher
from bakeoff.measuring.controller.server_start import StartedServer, early_server, will_fork

pytestmark = pytest.mark.skipif(not server_start.CAN_FORK, reason="fork servers need Linux")

COMMAND = """
import sys
from bakeoff.measuring.controller.server_start import StartedServer

def start(command, start=StartedServer.start):
    started = start(command)
    print(started.process.pid, *(name for name in ("bakeoff.cli", "pydantic", "typer", "numpy") if name in sys.modules))
    return started

StartedServer.start = start
from bakeoff.__main__ import main
sys.exit(main())
"""
"""Runs the command line, and prints the pid of each fork server, and what had been imported when it was started."""


@contextlib.contextmanager
def waiting_server() -> Iterator[StartedServer]:
    """Yield a server that waits for a launcher. It only sleeps. Nothing may be left of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_start, "SERVE", "import time; time.sleep(600)")
        with early_server():
            (started,) = server_start._early
            yield started
    assert server_start._early == []
    assert started.process.returncode is not None
    assert not started.temporary.exists()


@pytest.mark.parametrize(
    ("arguments", "forks"),
    [
        ("--model mlp", True),
        ("run --model mlp --out list", True),
        ("resume results/of-a-run", True),
        ("", False),
        ("list", False),
        ("report --help", False),
        ("--model mlp --dry-run", False),
        ("run --help", False),
        ("--version", False),
        ("--model mlp --start-method spawn", False),
        ("--model mlp --start-method=spawn", False),
        ("--model mlp --malloc jemalloc", False),
    ],
)
def test_a_server_starts_for_what_will_fork_workers(arguments: str, forks: bool) -> None:
    assert will_fork(arguments.split()) is forks


def test_it_starts_before_the_command_line_is_imported_and_a_usage_error_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "--model", "no-such-model"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    pid, *imported = ended.stdout.split()
    assert imported == []
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "unknown model 'no-such-model'" in ended.stderr
    assert not psutil.pid_exists(int(pid))
    assert list(tmp_path.iterdir()) == []


def test_the_first_launcher_takes_it_and_the_second_starts_its_own() -> None:
    with waiting_server() as early, ForkLauncher(max_close_s=0.0) as first, ForkLauncher(max_close_s=0.0) as second:
        assert (first.pid, first.temporary) == (early.process.pid, early.temporary)
        assert second.pid != early.process.pid
        assert early.process.poll() is None


@pytest.mark.parametrize("changes", [{"OMP_NUM_THREADS": "77"}, {"LD_PRELOAD": "libc.so.6"}, {"MY_MODEL_DIR": "/m"}])
def test_it_ends_where_a_variable_has_changed(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_server() as early:
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        with ForkLauncher(max_close_s=0.0) as launcher:
            assert launcher.pid != early.process.pid
            assert early.process.returncode == -9, "it would go on importing beside what is measured"


def test_it_ends_where_another_interpreter_is_asked_for() -> None:
    other = [str(Path(sys.executable).resolve()), "-I", "-c", "exec(__import__('sys').argv.pop(1))"]
    with waiting_server() as early, ForkLauncher(other, max_close_s=0.0) as launcher:
        assert launcher.pid != early.process.pid
        assert early.process.returncode == -9


def test_it_ends_where_workers_are_spawned() -> None:
    with waiting_server() as early, create_launcher("spawn"):
        assert early.process.returncode == -9


def test_no_server_is_started_where_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line says which, and how to install it."""
    monkeypatch.setattr(server_start, "NEEDED", ("torch", "no_such_package"))
    with early_server():
        assert server_start._early == []
