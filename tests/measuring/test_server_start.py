"""Fork servers that start before the command line is imported: who takes them, and that nothing is left of them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bakeoff.measuring import probes, session
from bakeoff.measuring.controller import launcher as launching
from bakeoff.measuring.controller import server_start
from bakeoff.measuring.controller.launcher import ForkLauncher, create_launcher
from bakeoff.measuring.controller.server_start import USUAL_SERVERS, StartedServer, early_servers, servers_for
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import MIN_PROCESSES
from bakeoff.reports.command_answers import ErrorAnswer, document

pytestmark = pytest.mark.skipif(not server_start.CAN_FORK, reason="fork servers need Linux")

INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from bakeoff import __main__ as entry
from bakeoff.measuring.controller import server_start

class Interrupting:
    def find_spec(self, name, *_):
        if name == "bakeoff.cli":
            print(len(server_start._early), "server")
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Interrupting())
number = sys.argv[1]
sys.argv[1:] = ["--model", "mlp", "--processes", "1", *sys.argv[2:]]
sys.exit(entry.main())
"""

AND_ONCE_MORE = """
import os, signal
from bakeoff.measuring.controller.server_start import StartedServer

def discard(server, discard=StartedServer.discard):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    discard(server)

StartedServer.discard = discard
"""

SIGNALLED_AT_THE_END = """
import os, signal, sys
from bakeoff import __main__ as entry, cli

def carry_out(begun_s):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 7

cli.main = carry_out
status = entry.main()
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(status)
"""

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
def waiting_servers(number: int = 1) -> Iterator[list[StartedServer]]:
    """Yield servers that wait for launchers. They only sleep. Nothing may be left of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_start, "SERVE", "import time; time.sleep(600)")
        with early_servers(number):
            started = list(server_start._early)
            assert len(started) == number
            yield started
    assert server_start._early == []
    assert all(server.process.returncode is not None for server in started)
    assert not any(server.temporary.exists() for server in started)


@pytest.mark.parametrize(
    ("arguments", "cores", "servers"),
    [
        ("--model mlp", 2, 1),
        ("--model mlp", 16, USUAL_SERVERS),
        ("run --model mlp --out list", 16, USUAL_SERVERS),
        ("resume results/of-a-run", 16, USUAL_SERVERS),
        ("--model mlp --processes 1", 16, 1),
        ("", 16, 0),
        ("list", 16, 0),
        ("report --help", 16, 0),
        ("--model mlp --dry-run", 16, 0),
        ("run --help", 16, 0),
        ("--version", 16, 0),
        ("--model mlp --start-method spawn", 16, 0),
        ("--model mlp --start-method=spawn", 16, 0),
        ("--model mlp --malloc jemalloc", 16, 0),
        ("--model mlp --malloc=jemalloc", 16, 0),
        ("--model mlp --processes=1", 16, 1),
    ],
)
def test_servers_start_for_what_will_fork_workers(
    arguments: str, cores: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_start, "usable_cores", lambda: list(range(cores)))
    assert servers_for(arguments.split()) == servers


def test_as_many_start_as_a_run_with_spare_cores_prepares_and_few_cores_import_torch_once_under_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers of further processes would take cores from the reference, and a short budget may never need them."""
    monkeypatch.setattr(session, "usable_cores", lambda: list(range(16)))
    assert session.servers_of(Request(models=("mlp",))) == USUAL_SERVERS
    monkeypatch.setattr(session, "usable_cores", lambda: [0, 1])
    assert session.servers_of(Request(models=("mlp",))) == MIN_PROCESSES
    assert session.servers_of(Request(models=("mlp",), budget="60s")) == 1


@pytest.mark.parametrize(
    ("arguments", "answers_after_s", "said"),
    [
        ("--model mlp", 0.3, "importing torch"),
        ("--model mlp", 0.0, ""),
        ("--model mlp --quiet", 0.3, ""),
        ("list", 0.3, ""),
    ],
)
def test_a_run_that_waits_for_torch_says_so_once(
    arguments: str, answers_after_s: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_start.start_said(arguments.split(), time.monotonic(), after_s=0.1):
        time.sleep(answers_after_s)
        server_start.torch_answers()
        time.sleep(0.3)
    assert [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()] == [said] * bool(said)


def test_with_json_it_says_so_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with server_start.start_said(["--model", "mlp", "--json"], time.monotonic() - 5.0):
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "[0:05] importing torch\n")


@pytest.mark.parametrize(("number", "also"), [(signal.SIGINT, ""), (signal.SIGTERM, AND_ONCE_MORE)])
def test_a_signal_while_the_command_line_is_imported_is_reported_in_one_line(
    tmp_path: Path, number: int, also: str
) -> None:
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    command = [sys.executable, "-c", also + INTERRUPTED_IMPORT, str(int(number))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (130, "error: interrupted\n")
    assert result.stdout == "1 server\n"
    assert list(tmp_path.iterdir()) == []


def test_a_program_reads_as_json_that_the_import_of_the_command_line_was_interrupted() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, str(int(signal.SIGTERM)), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said, answer = result.stdout.split("\n", 1)
    assert said == "1 server" and answer == document(ErrorAnswer(error="interrupted"), result.returncode) + "\n"


def test_a_signal_does_not_change_the_exit_status_of_the_command(tmp_path: Path) -> None:
    """It comes in a module's `exec`, of which Python keeps a note, and once more after the command has said all."""
    (tmp_path / "signalled.py").write_text(SIGNALLED_AT_THE_END)
    assert subprocess.run([sys.executable, "-m", "signalled"], cwd=tmp_path, timeout=60).returncode == 7


def test_nothing_is_left_of_a_server_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError) as raised:
        StartedServer.start([str(tmp_path / "no-python")])
    assert set(os.listdir("/proc/self/fd")) == before and list(tmp_path.iterdir()) == []
    del raised  # until here its traceback would keep a socket open that nobody had closed


def test_a_command_goes_on_where_no_process_or_folder_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> StartedServer:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(StartedServer, "start", fails)
    with early_servers(2):
        assert server_start._early == []


def test_it_starts_before_the_command_line_is_imported_and_a_usage_error_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "--model", "no-such-model", "--processes", "1"],
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


def test_each_launcher_takes_one_and_then_starts_its_own() -> None:
    with waiting_servers(2) as early, contextlib.ExitStack() as stack:
        launchers = [stack.enter_context(ForkLauncher(max_close_s=0.0)) for _ in range(3)]
        taken = [(launcher.pid, launcher.temporary) for launcher in launchers]
        assert taken[:2] == [(server.process.pid, server.temporary) for server in early]
        assert all(server.process.poll() is None for server in early)


@pytest.mark.parametrize("changes", [{"OMP_NUM_THREADS": "77"}, {"LD_PRELOAD": "libc.so.6"}, {"MY_MODEL_DIR": "/m"}])
def test_all_end_where_a_variable_has_changed(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_servers(2) as early:
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        with ForkLauncher(max_close_s=0.0) as launcher:
            assert launcher.pid not in [server.process.pid for server in early]
            ended = [server.process.returncode for server in early]
            assert ended == [-9, -9], "they would go on importing beside what is measured"


def test_another_interpreter_takes_none() -> None:
    other = [str(Path(sys.executable).resolve()), "-I", "-c", "exec(__import__('sys').argv.pop(1))"]
    with waiting_servers() as early, ForkLauncher(other, max_close_s=0.0), ForkLauncher(max_close_s=0.0) as own:
        assert own.pid == early[0].process.pid


def test_all_end_where_workers_are_spawned() -> None:
    with waiting_servers() as early, create_launcher("spawn"):
        assert early[0].process.returncode == -9


def test_those_that_a_run_does_not_need_end_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "create_launcher", lambda start_method: ForkLauncher(max_close_s=0.0))
    with waiting_servers(3) as early, probes.launchers_for(Request(models=("mlp",)), epochs=2):
        assert [server.process.poll() for server in early] == [None, None, -9]


def test_no_server_is_started_where_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line says which, and how to install it."""
    monkeypatch.setattr(server_start, "NEEDED", ("torch", "no_such_package"))
    with early_servers(1):
        assert server_start._early == []


KILLED_WITH_ITS_SERVER = """
import os, signal, sys, time
from bakeoff.measuring.controller.server_start import StartedServer, command_of

server = StartedServer.start(command_of(sys.executable))
(server.temporary / "artefact").write_text("large")
print(server.temporary, flush=True)
os.kill(server.process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_killed_processes_are_removed_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [*server_start.command_of(sys.executable), KILLED_WITH_ITS_SERVER]
    killed, begun = (Path(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip()) for _ in range(2))
    os.utime(killed / server_start.LOCK, times=(time.time() - 3600,) * 2)
    own = server_start.new_folder()
    others = tmp_path / "bakeoff-of-an-earlier-version"
    others.mkdir()
    with server_start.temporary_folder("live") as live:
        for folder in (own, live):
            os.utime(folder / server_start.LOCK, times=(time.time() - 3600,) * 2)
        with early_servers(0):
            assert [each.exists() for each in (killed, begun, own, live, others)] == [False, True, True, True, True]
    server_start.remove_folder(own)
    for folder in (own, live):
        assert not folder.exists() and folder not in server_start._locks
