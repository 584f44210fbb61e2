"""A controller in a process of its own: both ends of the pipe between it and the process that started it.

The controller sends a message and waits for a reply. The other process works only while the controller waits, and so
takes no time from what is measured. It needs no thread, no signal handler and no fork.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.server_start import command_of
from bakeoff.records.schema import Record

MAX_LEAVE_S = 30.0
"""A controller may take this long to end its workers after an interruption."""

Send = Callable[[object], Any]
"""Sends a message and returns the reply to it."""


@dataclass(frozen=True)
class ProgressEvent:
    """A call of a method of the run's progress, which is made in the process that started the controller."""

    method: str
    arguments: tuple[object, ...]
    named: dict[str, object] = field(default_factory=dict)

    @property
    def record(self) -> Record | None:
        """The record of the cell that has ended, or None for another event."""
        return next((argument for argument in self.arguments if isinstance(argument, Record)), None)

    def show(self, progress: Progress) -> None:
        getattr(progress, self.method)(*self.arguments, **self.named)


class Relay:
    """The progress that a controller reports to: each call of a method of `Progress` is sent as an event."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *arguments, **named: self._send(ProgressEvent(method, arguments, named))


def starter() -> tuple[Connection, Send]:
    """Return the pipe to the process that started this one, whose number is the argument, and what sends through it."""
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def send(message: object) -> Any:
        connection.send(message)
        return connection.recv()

    return connection, send


class ControllerProcess:
    """The process of a controller, seen from the one that started it. It is a context manager: leaving it ends it."""

    def __init__(self, code: str, begin: object, variables: Mapping[str, str], folder: Path | None = None) -> None:
        """Start the Python `code` in `folder`, to which the paths of models are relative, or in the current folder, and
        send it the message `begin`."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end; without a name, nothing is left behind
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*command_of(sys.executable), code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=variables,
                cwd=folder,
                start_new_session=True,  # Ctrl-C reaches the process here alone, which then ends the controller
            )
        self.connection.send(begin)

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            return None

    def reply(self, reply: object = None) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended meanwhile, which `receive` reports
            self.connection.send(reply)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the process, which ends when nobody listens any more, and return its status."""
        self.connection.close()
        try:
            return self._process.wait(MAX_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its fork servers notice that, and end what they have started
            return self._process.wait()

    def ending(self) -> str:
        """Wait for the process, and return how it ended, with the last line that it wrote."""
        status = self.end()
        with self._log:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        return " ".join([f"signal {-status}" if status < 0 else f"exit status {status}", *said])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._log.close()
