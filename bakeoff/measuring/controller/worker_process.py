"""A worker process, as the controller sees it: its events, its end, and what is left of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections

from bakeoff.measuring import isolation, messages
from bakeoff.measuring.messages import Assignment, Command, Event, PhaseBegun
from bakeoff.records.errors import BakeoffError

LIVENESS_CHECK_S = 1.0
"""A blocking wait looks this often whether the worker is still there. Usually the end of its pipe shows it first."""
MAX_CLOSE_S = 10.0
"""A worker may take this long to leave after closing its pipe: it may dump core, or free a GPU's memory."""

CAN_PAUSE = hasattr(signal, "SIGSTOP")

MAX_DEATH_S = 60.0
"""A worker that was killed may take this long to be gone: the kernel frees its memory and what it holds of a GPU."""

ExitStatus = Callable[[float], int | None]
"""Returns the exit status of a worker, or None if it is still alive after so many seconds."""

Started = tuple[int, ExitStatus]
"""A worker's process id, and what returns its exit status."""


class WorkerEnded(Exception):
    """The worker is gone. `status` is its exit code, or minus the number of the signal that killed it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class DeadlinePassed(Exception):
    """The worker sent nothing in time. It is still alive."""


class Worker:
    """One worker process. Its events come through `receive`, in order."""

    def __init__(
        self, pid: int, connection: Connection, assignment: Assignment, keeps_workspace: bool, exit_status: ExitStatus
    ) -> None:
        self.pid = pid
        self.mark = assignment.mark
        self.workspace = assignment.workspace
        self.is_over = False
        self._connection = connection
        self._keeps_workspace = keeps_workspace
        self._exit_status = exit_status

    def send(self, command: Command) -> None:
        """Send a command. If the worker is gone, the next `receive` says so."""
        with contextlib.suppress(OSError):
            messages.send(self._connection, command)

    def receive(self, deadline: float) -> Event:
        """Wait for the next event until `deadline` (time.monotonic). Raises WorkerEnded or DeadlinePassed."""
        while True:
            remaining = deadline - time.monotonic()
            if self._connection.poll(max(0.0, min(LIVENESS_CHECK_S, remaining))):
                try:
                    return messages.receive_event(self._connection)
                except (EOFError, OSError):
                    status = self._exit_status(MAX_CLOSE_S)
                    raise WorkerEnded(self._kill() if status is None else status) from None
            status = self._exit_status(0.0)
            if status is not None and not self._connection.poll(0):
                raise WorkerEnded(status)
            if remaining <= 0:
                raise DeadlinePassed

    def answer(self, limit_s: float, on_phase: Callable[[str], None] = lambda phase: None) -> Event:
        """Wait for the answer to a short job, and end the worker. Raises WorkerEnded or DeadlinePassed."""
        deadline = time.monotonic() + limit_s
        try:
            while isinstance(event := self.receive(deadline), PhaseBegun):
                on_phase(event.name)
            return event
        finally:
            self.end()

    @staticmethod
    def wait(workers: Sequence[Worker], seconds: float) -> list[Worker]:
        """Wait until some of these have said something or have ended, for so many seconds at most. Return which."""
        by_connection = {worker._connection: worker for worker in workers}
        ready = wait_for_connections(list(by_connection), max(0.0, seconds))
        return [worker for connection, worker in by_connection.items() if connection in ready]

    def pause(self) -> None:
        """Stop the worker's whole process group, with all its threads."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the worker's process group, and do not wait. Its memory is freed meanwhile, and `end` does the rest."""
        if CAN_PAUSE:  # elsewhere there are no process groups
            self._signal_group(signal.SIGKILL)

    def end(self) -> int:
        """Kill the worker with everything it started, remove its own workspace, and return its exit status. Raises
        BakeoffError if it does not die, because a driver or a file system holds it in the kernel."""
        self.is_over = True
        status = self._kill()
        isolation.kill_tree(self.pid, self.mark)  # what was being started meanwhile
        self._connection.close()
        if not self._keeps_workspace:
            shutil.rmtree(self.workspace, ignore_errors=True)
        return status

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _kill(self) -> int:
        isolation.kill_tree(self.pid, self.mark)
        status = self._exit_status(0.0)
        if status is None:
            isolation.kill_alone(self.pid)  # it leads no group yet if it was forked a moment ago
            status = self._exit_status(MAX_DEATH_S)
        if status is None:
            raise BakeoffError(
                f"process {self.pid} was killed {MAX_DEATH_S:.0f} s ago and is not gone: "
                "a driver or a file system holds it"
            )
        return status
