"""The start of a fork server's process. A command's first ones start before the command line is imported.

`import torch` takes longer than everything that comes before a run, so it begins first. This file imports no other
library, and little of Bakeoff.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

from bakeoff.measuring.cores import SPARE_CORES, usable_cores
from bakeoff.measuring.variables import allowed_variables
from bakeoff.records.atomic_file import locked
from bakeoff.records.package import import_statement

CAN_FORK = hasattr(os, "fork") and sys.platform == "linux"

SERVE = "import gc; gc.disable(); from bakeoff.measuring.worker.forkserver import main; main()"
"""Collecting garbage while torch is imported would take a tenth of the time, and finds none."""

NEEDED = ("torch", "pydantic", "psutil")
"""Without one of these a fork server could only die. The command line says in one line which is missing."""

USUAL_SERVERS = 5
"""So many a run prepares where there are cores to spare and --processes is not given."""

SILENT_S = 1.8
"""A run that waits for torch so long says so."""

MEASURING = ("run", "resume")
NOT_FORKING = frozenset({"-h", "--help", "--version", "--dry-run", "spawn", "--start-method=spawn", "--malloc"})
"""Words of a command line that measures nothing, or does it without such fork servers."""


def command_of(python: str) -> list[str]:
    """Return the command of an interpreter that has imported this package, and finds nothing in the current folder."""
    return [python, "-P", "-c", f"{import_statement()}; exec(sys.argv.pop(1))"]


OURS = "bakeoff-"
"""The names of temporary folders begin so."""

LOCK = "bakeoff-temporary.lock"
"""The file in such a folder that is locked while the process lives that made it. No folder of a user has it."""

NOT_LOCKED_YET_S = 60.0
"""A process locks its folder within this time of making it."""

_locks: dict[Path, IO[bytes] | None] = {}


def new_folder(prefix: str = OURS) -> Path:
    """Make a folder for temporary files, where TMPDIR says."""
    # resolved: a socket or a compiler that sees the path through a link would take it for another
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    _locks[folder] = locked(folder / LOCK)
    return folder


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock := _locks.pop(folder, None):
        lock.close()


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    folder = new_folder(f"{OURS}{kind}-")
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_left_folders() -> None:
    """Remove the folders of processes that were killed, with all that would have removed them."""
    for path in Path(tempfile.gettempdir()).glob(f"{OURS}*/{LOCK}"):
        with contextlib.suppress(OSError):  # it is another user's, or gone
            if time.time() - path.stat().st_mtime > NOT_LOCKED_YET_S and (lock := locked(path)):
                shutil.rmtree(path.parent, ignore_errors=True)
                lock.close()


@dataclass(frozen=True)
class StartedServer:
    command: Sequence[str]
    variables: Mapping[str, str]
    temporary: Path  # the launcher's folder, which the server removes when it outlives the controller
    control: socket.socket
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, command: Sequence[str]) -> Self:
        """Start a server that the interpreter of `command` runs. It gets those variables that a worker may see."""
        variables = allowed_variables(os.environ)
        with contextlib.ExitStack() as undo:
            temporary = new_folder()
            undo.callback(remove_folder, temporary)
            control, theirs = socket.socketpair()
            undo.enter_context(control)
            with theirs:
                process = subprocess.Popen(
                    [*command, SERVE, str(theirs.fileno()), str(temporary)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=variables,
                    start_new_session=True,
                )
            undo.pop_all()
        return cls(command, variables, temporary, control, process)

    def end(self, max_close_s: float) -> None:
        """Close its socket, and kill it if it has not left after so many seconds. Its folder stays."""
        self.control.close()
        try:
            self.process.wait(max_close_s)
        except subprocess.TimeoutExpired:  # it is in an import, and does not hear
            self.process.kill()
            self.process.wait()

    def discard(self) -> None:
        self.end(max_close_s=0.0)
        remove_folder(self.temporary)


_early: list[StartedServer] = []
"""The servers that wait for the first launchers."""


_unsaid: list[threading.Timer] = []
"""What says that a run still imports torch, until it has."""


def servers_for(arguments: Sequence[str]) -> int:
    """Return how many fork servers a command line most likely needs at once. A wrong guess costs a few seconds."""
    names_command = bool(arguments) and not arguments[0].startswith("-")
    measures = arguments[0] in MEASURING if names_command else bool(arguments)
    words = {*arguments, *(word.partition("=")[0] for word in arguments)}
    if not measures or not NOT_FORKING.isdisjoint(words):
        return 0
    return 1 if "--processes" in words else usual_servers()


def usual_servers() -> int:
    """Return how many fork servers a run of the usual kind starts at once. Further ones would delay the first."""
    return USUAL_SERVERS if len(usable_cores()) >= SPARE_CORES else 1


@contextlib.contextmanager
def early_servers(number: int) -> Iterator[None]:
    """Start fork servers for the first launchers that are made in the block, and remove what killed processes have
    left. No server outlives the block."""
    try:
        if CAN_FORK and all(map(importlib.util.find_spec, NEEDED)):
            with contextlib.suppress(OSError):  # the launcher that needs one tries again, and says why
                for _ in range(number):
                    _early.append(StartedServer.start(command_of(sys.executable)))
        remove_left_folders()
        yield
    finally:
        with signals_ignored():
            discard_early()


@contextlib.contextmanager
def start_said(arguments: Sequence[str], begun_s: float, after_s: float = SILENT_S) -> Iterator[None]:
    """Say in the block what a run waits for, unless `torch_answers` is called within `after_s` seconds of its begin."""
    if not servers_for(arguments) or "--quiet" in arguments:
        yield
        return

    def say() -> None:
        stream = sys.stderr if "--json" in arguments else sys.stdout
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"[0:{time.monotonic() - begun_s:02.0f}] importing torch", file=stream, flush=True)

    timer = threading.Timer(max(0.0, begun_s + after_s - time.monotonic()), say)
    timer.daemon = True
    timer.start()
    _unsaid.append(timer)
    try:
        yield
    finally:
        torch_answers()


def torch_answers() -> None:
    """Note that a process has imported torch: the run says itself what comes next."""
    while _unsaid:
        _unsaid.pop().cancel()


def signals_ignored() -> AbstractContextManager[None]:
    """Have SIGINT and SIGTERM pass, for what is quick and must come to its end. Many send one right after the other."""
    return signals_answered_by(signal.SIG_IGN)


@contextlib.contextmanager
def signals_answered_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Answer SIGINT and SIGTERM so inside of the block, which the main thread runs."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def discard_early() -> None:
    while _early:
        _early.pop().discard()


def take_or_start(command: Sequence[str]) -> StartedServer:
    """Return a server that was started early, if it was started as it would be now, or start one."""
    # An allocator, for example, is chosen by variables that are read when a process starts.
    if _early and _early[0].variables != allowed_variables(os.environ):
        discard_early()
    if _early and _early[0].command == command:
        return _early.pop(0)
    return StartedServer.start(command)
