"""A whole run in a process of its own, so that nothing in the program that asks for it changes.

The process sends an event and waits for a reply. The program works only while the process waits, and so takes no time
from what is measured. It reads events in the thread that called, and needs no signal handler, no thread and no fork.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bakeoff.commands import run as runs
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.server_start import command_of
from bakeoff.models.base import LIVE_MODEL
from bakeoff.models.live_model import weights_bytes
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, first_line, os_reason
from bakeoff.records.schema import Cell, Record
from bakeoff.reports import writer
from bakeoff.reports.console import written_to_the_end
from bakeoff.scaling.place_process import ProgressEvent, Relay, Tell
from bakeoff.shipping.export import keep_programs

MAX_LEAVE_S = 30.0
"""The process may take this long to end its workers after an interruption."""

START = """
from bakeoff.measuring.controller.server_start import early_servers, usual_servers
with early_servers(usual_servers()):
    from bakeoff.api.run_process import main
    main()
"""


@dataclass(frozen=True)
class StartRun:
    """What the process is started for."""

    request: Request
    folder: Path | None
    command: str
    begun_s: float | None = None  # when it was asked for, on the monotonic clock, which all processes share


@dataclass(frozen=True)
class RunEnded:
    """The report lies in this folder."""

    folder: Path


@dataclass(frozen=True)
class RunFailed:
    """There is no report. Without an error, the run was interrupted before it measured anything."""

    error: BakeoffError | None


Message = ProgressEvent | RunEnded | RunFailed


class RunProcess:
    """The process of a run, seen from the program. It is a context manager: leaving it ends the process."""

    def __init__(self, begin: StartRun, live_model: Path | None = None) -> None:
        """`live_model` is the folder of the program's own model, if that is what is compared."""
        self.is_interrupted = False  # also where nothing was left to measure, and the run was complete
        self._owes_reply = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving; it has no name, so that nothing is left behind
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*command_of(sys.executable), START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=_with_live_model(os.environ, live_model),
                start_new_session=True,  # Ctrl-C reaches the program alone, which then ends this
            )
        self._connection.send(begin)

    def result(self, progress: Progress) -> RunEnded | RunFailed:
        """Show events until the run has ended. The first KeyboardInterrupt ends the run, and gives what it has.

        Raises KeyboardInterrupt for a second one, and for one before the run has begun. Raises BakeoffError where the
        process dies.
        """
        while True:
            try:
                if self._owes_reply:
                    self._owes_reply = False
                    self._connection.send(None)
                wait([self._connection])  # an interruption here loses no part of a message
                message: Message = self._connection.recv()
                if not isinstance(message, ProgressEvent):
                    return message
                self._owes_reply = True
                getattr(progress, message.method)(*message.arguments)
            except KeyboardInterrupt:
                if self.is_interrupted:
                    raise
                self.is_interrupted = True
                self._process.send_signal(signal.SIGINT)
            except (EOFError, ConnectionError):
                if self.is_interrupted and self._process.wait() == -signal.SIGINT:  # during its imports
                    raise KeyboardInterrupt from None
                raise BakeoffError(f"the process that directs the run ended: {self._how_it_ended()}") from None

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with self._log, self._connection:
            if self._process.poll() is None:
                self._connection.close()  # it ends when nobody listens any more
                try:
                    self._process.wait(MAX_LEAVE_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()  # its fork servers notice that, and end what they have started
                    self._process.wait()

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        return " ".join([f"signal {-status}" if status < 0 else f"exit status {status}", *said])


def _with_live_model(variables: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    others = {name: value for name, value in variables.items() if name != LIVE_MODEL}
    return others | ({LIVE_MODEL: str(folder)} if folder else {})


class WholeRelay(Relay):
    """Tells the program everything that a run tells, and knows what is left to measure."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self.is_interrupted = False
        self._left: set[str] | None = None

    def planned(self, cells: Sequence[Cell]) -> None:
        self._left = {cell.id for cell in cells}
        self._tell(ProgressEvent("planned", (cells,)))

    def ended(self, record: Record) -> None:
        super().ended(record)
        if self._left is not None:
            self._left.discard(record.cell.id)

    def interrupt(self, number: int, frame: object) -> None:
        """Handle SIGINT: end the measuring once. Where nothing is left to measure, the report is on its way anyway."""
        if not self.is_interrupted and self._left != set():
            self.is_interrupted = True
            raise KeyboardInterrupt


def main() -> None:
    """Carry out one run for the program that started this process, through the pipe whose number is the argument."""
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        connection.send(_carry_out(connection))
    except (EOFError, ConnectionError):  # the program is gone
        if folder := os.environ.get(LIVE_MODEL):
            shutil.rmtree(folder, ignore_errors=True)


def _carry_out(connection: Connection) -> RunEnded | RunFailed:
    begin: StartRun = connection.recv()

    def tell(message: object) -> None:
        connection.send(message)
        connection.recv()

    relay = WholeRelay(tell)
    signal.signal(signal.SIGINT, relay.interrupt)
    try:
        report, store = runs.run(begin.request, begin.folder, begin.command, relay, begin.begun_s)
        with written_to_the_end():
            writer.write(report, store.root)
            live_models = os.environ.get(LIVE_MODEL)
            size_bytes = weights_bytes(Path(live_models)) if live_models else None
            if size_bytes is not None and not begin.request.no_artifacts and not relay.is_interrupted:
                keep_programs(report, store.root, of_all=size_bytes <= begin.request.artifact_limit.size_bytes)
    except KeyboardInterrupt:
        return RunFailed(None)
    except BakeoffError as error:
        return RunFailed(error)
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        file = f"{error.filename}: " if error.filename else ""
        return RunFailed(BakeoffError(f"{file}{os_reason(error)}; what was measured is kept"))
    except Exception as error:
        traceback.print_exc()
        return RunFailed(BakeoffError(f"the run failed: {type(error).__name__}: {first_line(error)}"))
    return RunEnded(store.root.resolve())
