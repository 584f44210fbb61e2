"""The process of a run, seen from the program: how it is shown, interrupted and ended."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bakeoff.api import run_process
from bakeoff.api.run_process import RunEnded, RunFailed, RunProcess, StartRun, WholeRelay
from bakeoff.measuring.controller.progress import Progress
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.scaling.controller_process import Relay
from tests.support.measuring import Silent

BEGIN = """
import os, signal, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from bakeoff.api.run_process import ProgressEvent, RunEnded, RunFailed
from bakeoff.records.errors import UsageError
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
connection = Connection(int(sys.argv[1]))
begin = connection.recv()
def note(text):
    connection.send(ProgressEvent("note", (text,)))
    connection.recv()
"""

UNTIL_INTERRUPTED = """
try:
    while True:
        note("still measuring")
except KeyboardInterrupt:
    time.sleep(LEAVES_S)
    connection.send(RunEnded(begin.folder))
"""


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    """Fail if the test leaves a process. Those of earlier tests, such as their fork servers, may live on."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def process_doing(patch: pytest.MonkeyPatch, code: str) -> RunProcess:
    """Return a process that does something else than a run."""
    patch.setattr(run_process, "START", BEGIN + code)
    return RunProcess(StartRun(Request(), Path("run"), "test"))


class Stopping(Silent):
    """Someone presses Ctrl-C at the second note, and again at each of `more` later ones."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.left = 1 + more

    def note(self, text: str) -> None:
        super().note(text)
        if len(self.notes) >= 2 and self.left:
            self.left -= 1
            raise KeyboardInterrupt


def test_events_are_shown_until_the_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Silent()
    with process_doing(monkeypatch, "note('one'); note('two'); connection.send(RunEnded(begin.folder))") as process:
        assert process.result(shown) == RunEnded(Path("run"))
    assert shown.notes == ["one", "two"]


def test_an_interruption_gives_the_result_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_doing(monkeypatch, UNTIL_INTERRUPTED.replace("LEAVES_S", "0")) as process:
        assert process.result(Stopping()) == RunEnded(Path("run"))


def test_an_interruption_while_the_process_imports_is_one_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = "note('one'); note('two')\nwhile True: time.sleep(0.01)"
    with process_doing(monkeypatch, imports) as process, pytest.raises(KeyboardInterrupt):
        process.result(Stopping())


@pytest.mark.usefixtures("no_child_is_left")
def test_a_second_interruption_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = "signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: note('still measuring')"
    with process_doing(monkeypatch, forever) as process, pytest.raises(KeyboardInterrupt):
        process.result(Stopping(more=1))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('no memory', flush=True); os.kill(os.getpid(), signal.SIGKILL)", "ended: signal 9 no memory"),
        ("sys.exit('it is broken')", "ended: exit status 1 it is broken"),
    ],
)
def test_a_process_that_dies_is_told_with_its_last_words(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with process_doing(monkeypatch, code) as process, pytest.raises(BakeoffError, match=said):
        process.result(Silent())


def test_an_error_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_doing(monkeypatch, "connection.send(RunFailed(UsageError('write it otherwise')))") as process:
        failed = process.result(Silent())
    assert isinstance(failed, RunFailed) and type(failed.error) is UsageError


@pytest.mark.slow
@pytest.mark.usefixtures("no_child_is_left")
def test_a_program_that_is_gone_ends_the_run_and_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the program leaves while the process of a real run has just begun to ask the machine."""
    live = tmp_path / "live"
    live.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    request: Any = Request(models=("mlp",), devices=("cpu",), backends=("eager",))
    with RunProcess(StartRun(request, tmp_path / "run", "test"), live):
        pass
    assert not live.exists()


def test_each_call_of_a_progress_is_made_again_elsewhere() -> None:
    calls: list[tuple[str, object]] = []

    class Shown(Silent):
        def built(self, cell: Cell, seconds: float, is_cached: bool = False) -> None:
            calls.append(("built", (cell, seconds, is_cached)))

        def tick(self) -> None:
            calls.append(("tick", ()))

    cell, shown = Cell(model="mlp", backend="eager"), Shown()
    relay: Progress = Relay(lambda event: event.show(shown))
    relay.built(cell, 2.0, is_cached=True)
    relay.tick()
    relay.note("one")
    assert calls == [("built", (cell, 2.0, True)), ("tick", ())] and shown.notes == ["one"]


def test_an_interruption_is_heard_once_and_only_while_something_is_measured() -> None:
    cells = [Cell(model="mlp", backend=name) for name in ("eager", "onnx")]
    records = [Record(cell=cell, status=Status.ERROR, reason="scripted") for cell in cells]
    relay, done = WholeRelay(lambda message: None), WholeRelay(lambda message: None)
    relay.planned(cells)
    relay.ended(records[0])
    with pytest.raises(KeyboardInterrupt):
        relay.interrupt(2, None)
    relay.interrupt(2, None)
    done.planned(cells)
    for record in records:
        done.ended(record)
    done.interrupt(2, None)
    assert relay.is_interrupted and not done.is_interrupted
