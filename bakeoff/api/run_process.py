"""A whole run in a process of its own, so that nothing in the program that asks for it changes.

The program reads events in the thread that called.
"""

import logging
import os
import shutil
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from bakeoff.commands import run as runs
from bakeoff.measuring.controller.progress import Progress
from bakeoff.models.base import LIVE_MODEL
from bakeoff.models.live_model import weights_bytes
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, first_line, os_reason
from bakeoff.records.schema import Cell, Record
from bakeoff.reports import writer
from bakeoff.reports.console import written_to_the_end
from bakeoff.scaling.controller_process import ControllerProcess, ProgressEvent, Relay, Send, starter
from bakeoff.shipping.export import keep_programs

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


class RunProcess(ControllerProcess):
    """The process of a run, seen from the program."""

    def __init__(self, begin: StartRun, live_model: Path | None = None) -> None:
        """`live_model` is the folder of the program's own model, if that is what is compared."""
        others = {name: value for name, value in os.environ.items() if name != LIVE_MODEL}
        super().__init__(START, begin, others | ({LIVE_MODEL: str(live_model)} if live_model else {}))
        self.is_interrupted = False  # also where nothing was left to measure, and the run was complete
        self._owes_reply = False

    def result(self, progress: Progress) -> RunEnded | RunFailed:
        """Show events until the run has ended. The first KeyboardInterrupt ends the run, and gives what it has; a
        second one, or one before the run has begun, is raised. Raise BakeoffError where the process dies."""
        while True:
            try:
                if self._owes_reply:
                    self._owes_reply = False
                    self.reply()
                wait([self.connection])  # an interruption here loses no part of a message
                message: Message | None = self.receive()
                if not isinstance(message, ProgressEvent):
                    break
                self._owes_reply = True
                message.show(progress)
            except KeyboardInterrupt:
                if self.is_interrupted:
                    raise
                self.is_interrupted = True
                self.interrupt()
        if message is None:
            if self.is_interrupted and self.end() == -signal.SIGINT:  # during its imports
                raise KeyboardInterrupt
            raise BakeoffError(f"the process that directs the run ended: {self.ending()}")
        return message


class WholeRelay(Relay):
    """Passes on to the program what a run reports, and knows what is left to measure."""

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self.is_interrupted = False
        self._left: set[str] | None = None

    def planned(self, cells: Sequence[Cell]) -> None:
        self._left = {cell.id for cell in cells}
        self._send(ProgressEvent("planned", (cells,)))

    def ended(self, record: Record) -> None:
        self._send(ProgressEvent("ended", (record,)))
        if self._left is not None:
            self._left.discard(record.cell.id)

    def interrupt(self, number: int, frame: object) -> None:
        """Handle SIGINT: end the measuring once. Where nothing is left to measure, the report is on its way anyway."""
        if not self.is_interrupted and self._left != set():
            self.is_interrupted = True
            raise KeyboardInterrupt


def main() -> None:
    """Carry out one run for the program that started this process."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # as the command line does
    connection, send = starter()
    try:
        connection.send(_carry_out(connection.recv(), send))
    except (EOFError, ConnectionError):  # the program is gone
        if folder := os.environ.get(LIVE_MODEL):
            shutil.rmtree(folder, ignore_errors=True)


def _carry_out(begin: StartRun, send: Send) -> RunEnded | RunFailed:
    relay = WholeRelay(send)
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
