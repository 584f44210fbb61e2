"""Starting, watching and ending the children of cells: forked from a server, or spawned afresh."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from harness import isolation, messages
from harness.messages import Assignment, Command, Event, Exited, Forked, Job, Notice, Order, Preload, Preloaded, Serving
from harness.plan import StartMethod
from records.errors import BakeoffError

ROOT = Path(__file__).resolve().parents[2]
WATCH_S = 1.0
"""How often a blocking wait looks whether the child is still there; end of file on its pipe usually tells first."""
PRELOADING_S = 120.0
"""How long a fork server may take to import what it was asked to."""
CLOSING_S = 10.0
"""How long a child may take to leave after closing its pipe: dumping core, freeing a GPU's memory."""

FURTHER_AT_ONCE = 2
"""Servers for epochs that were not prepared for. Importing torch takes a core some seconds, so that two at once hardly
take longer than one; and whoever needed a fourth process mostly needed a fifth (trials of equals, docs/aa)."""

CAN_FORK = hasattr(os, "fork") and sys.platform == "linux"
CAN_PAUSE = hasattr(signal, "SIGSTOP")


class WorkerEnded(Exception):
    """The child is gone. `status` is its exit code, or minus the number of the signal that killed it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class DeadlinePassed(Exception):
    """The child sent nothing in time. It still lives."""


class CannotPreload(Exception):
    """The fork server ended, or was not through in time, while it imported what it was asked to."""


class Worker(ABC):
    """One child process. Its messages come through `receive`, in order."""

    def __init__(self, pid: int, connection: Connection, mark: str, workspace: Path, keeps: bool) -> None:
        self.pid = pid
        self.mark = mark
        self.workspace = workspace
        self.is_over = False
        self._keeps_workspace = keeps
        self._connection = connection

    def send(self, command: Command) -> None:
        """Send a command. If the worker is gone, the next `receive` says so."""
        with contextlib.suppress(OSError):
            messages.send(self._connection, command)

    def receive(self, deadline: float) -> Event:
        """Wait for the next event until `deadline` (time.monotonic). Raises WorkerEnded or DeadlinePassed."""
        while True:
            remaining = deadline - time.monotonic()
            if self._connection.poll(max(0.0, min(WATCH_S, remaining))):
                try:
                    return messages.receive_event(self._connection)
                except (EOFError, OSError):
                    raise WorkerEnded(self._reap()) from None
            status = self._exit_status()
            if status is not None and not self._connection.poll(0):
                raise WorkerEnded(status)
            if remaining <= 0:
                raise DeadlinePassed

    def pause(self) -> None:
        """Stop the child's whole process group, spinning threads and all."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def end(self) -> int:
        """Kill the child with everything it started, and return its exit status. A workspace of its own goes too."""
        isolation.kill_tree(self.pid, self.mark)
        status = self._wait()
        isolation.kill_tree(self.pid, self.mark)  # what was being started while the first blow fell
        self._connection.close()
        if not self._keeps_workspace:
            shutil.rmtree(self.workspace, ignore_errors=True)
        self.is_over = True
        return status

    def _reap(self) -> int:
        """Its exit status, now that its pipe is closed; one that lives on without a pipe is killed."""
        give_up = time.monotonic() + CLOSING_S
        while (status := self._exit_status()) is None:
            if time.monotonic() > give_up:
                isolation.kill_tree(self.pid, self.mark)
                return self._wait()
            time.sleep(0.01)
        return status

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    @abstractmethod
    def _exit_status(self) -> int | None:
        """Its exit status if it has ended, without waiting."""

    @abstractmethod
    def _wait(self) -> int:
        """Wait for its end."""


class Launcher(ABC):
    """A context manager that starts children; leaving it ends all of them and removes their folders."""

    start_method: str

    def __init__(self) -> None:
        # resolved: a socket or a compiler that sees the path through a link would take it for another
        self.temporary = Path(tempfile.mkdtemp(prefix="bakeoff-")).resolve()
        self._children: list[Worker] = []

    def start(self, job: Job, log: Path, workspace: Path | None = None) -> Worker:
        """Start a worker that does `job`, and send its output to the file `log`.

        A `workspace` that is given stays when the worker has ended. Otherwise it gets one that is removed with it.
        """
        mark = uuid.uuid4().hex
        keeps = workspace is not None
        workspace = isolation.make_workspace(workspace or self.temporary / mark[:12])
        assignment = Assignment(
            job=job,
            mark=mark,
            workspace=workspace,
            log=log.resolve(),
            cwd=Path.cwd(),
            environment=isolation.child_environment(os.environ, workspace, mark),
        )
        ours, theirs = Pipe()
        try:
            child = self._start(assignment, ours, theirs, keeps)
        finally:
            theirs.close()
        self._children.append(child)
        return child

    def ask(self, job: Job, log: Path, limit_s: float) -> Event:
        """Start a worker for a short job, return its one event, and end it. Raises what `Worker.receive` raises."""
        worker = self.start(job, log)
        try:
            return worker.receive(time.monotonic() + limit_s)
        finally:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:  # what does not end well keeps nothing else from ending
            stack.callback(shutil.rmtree, self.temporary, ignore_errors=True)
            stack.callback(self._close)
            for child in self._children:
                if not child.is_over:
                    stack.callback(child.end)

    @property
    @abstractmethod
    def note(self) -> str:
        """What a reader of the report should know of how children were started."""

    @abstractmethod
    def _start(self, assignment: Assignment, ours: Connection, theirs: Connection, keeps: bool) -> Worker: ...

    @abstractmethod
    def _close(self) -> None: ...


class Launchers:
    """The launchers of a run, one per epoch. A context manager; leaving it leaves all of them.

    Children of one fork server share the layout of its memory, and with it most of what makes one process a few per
    cent faster than an equal one: each epoch has a server of its own, whose addresses the kernel has drawn anew.
    """

    def __init__(self, start_method: StartMethod) -> None:
        self._start_method = start_method
        self._launchers = [launcher(start_method)]
        self._further: dict[int, ForkLauncher] = {}  # by epoch: those that were not prepared for
        self._modules: tuple[str, ...] = ()

    @property
    def first(self) -> Launcher:
        return self._launchers[0]

    def preload(self, modules: Sequence[str]) -> None:
        """Have every fork server import `modules`, for a run whose children do not use CUDA.

        A server that does not live through it is replaced by one that imports torch alone.
        """
        self._modules = tuple(dict.fromkeys(modules))
        for each in self._launchers:
            if isinstance(each, ForkLauncher):
                each.preload(self._modules)

    def prepare(self, epochs: int) -> None:
        """Have launchers for so many epochs. Their servers import torch beside one another; nobody waits for them."""
        while len(self._launchers) < epochs and isinstance(self.first, ForkLauncher):
            further = ForkLauncher()
            further.preload(self._modules)
            self._launchers.append(further)

    @property
    def are_serving(self) -> bool:
        """Whether nobody would have to wait for them."""
        return all(each.is_serving for each in self._launchers if isinstance(each, ForkLauncher))

    def await_serving(self, epochs: int | None = None) -> None:
        """Block until the servers of so many epochs (default: all there are) have imported what they are to import."""
        for place, each in enumerate(self._launchers[:epochs]):
            if isinstance(each, ForkLauncher):
                self._launchers[place] = self._serving(each)

    def _serving(self, server: ForkLauncher) -> ForkLauncher:
        try:
            server.await_serving()
        except CannotPreload:
            server.__exit__(None, None, None)
            self._modules = ()
            server = ForkLauncher()
            try:
                server.await_serving()
            except BakeoffError:
                server.__exit__(None, None, None)
                raise
        return server

    def of_epoch(self, epoch: int) -> Launcher:
        """The launcher of this epoch. Those that were not prepared for start by twos, and are let go once another epoch
        has come: each holds a torch.

        A spawned child is a process of its own anyway: those launchers are all the same one. Raises BakeoffError where
        a server does not start.
        """
        self.await_serving()
        if epoch < len(self._launchers) or not isinstance(self.first, ForkLauncher):
            return self._launchers[min(epoch, len(self._launchers) - 1)]
        if epoch not in self._further:
            self._leave_further(list(self._further))
            self._start_further(range(epoch, epoch + FURTHER_AT_ONCE))
        self._leave_further([before for before in self._further if before < epoch])
        return self._further[epoch]

    def _start_further(self, epochs: range) -> None:
        """Start a server for each of `epochs`, all at once. Raises BakeoffError where the first one does not start;
        nobody has asked for the others yet."""
        try:
            for epoch in epochs:
                self._further[epoch] = ForkLauncher()
                self._further[epoch].preload(self._modules)
        except OSError as error:
            self._leave_further(list(self._further))
            raise BakeoffError(f"no further fork server could be started: {error}") from None
        for epoch in epochs:
            try:
                self._further[epoch] = self._serving(self._further[epoch])
            except BakeoffError:  # nobody is to take for one that serves what does not
                self._leave_further([later for later in epochs if later >= epoch])
                if epoch == epochs.start:
                    raise
                return

    def _leave_further(self, epochs: Sequence[int]) -> None:
        with contextlib.ExitStack() as stack:
            for epoch in epochs:
                stack.push(self._further.pop(epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the last one first: the first one's folder holds what the others' children work on
        with contextlib.ExitStack() as stack:
            for each in self._launchers:
                stack.push(each)
            self._leave_further(list(self._further))


def launcher(start_method: StartMethod) -> Launcher:
    """The launcher for `start_method`; `auto` forks where the platform can. Raises BakeoffError where it cannot."""
    if start_method == "spawn" or (start_method == "auto" and not CAN_FORK):
        return SpawnLauncher()
    if not CAN_FORK:
        raise BakeoffError(f"--start-method forkserver needs Linux, and this is {sys.platform}: use spawn")
    return ForkLauncher()


class ForkLauncher(Launcher):
    start_method = "forkserver"

    def __init__(self) -> None:
        super().__init__()
        self._imported: list[str] = []
        self._exited: dict[int, int] = {}
        self._buffer = b""
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [
                    *_python(),
                    "from harness.worker.forkserver import main; main()",
                    str(theirs.fileno()),
                    str(self.temporary),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=isolation.allowed(os.environ),
                start_new_session=True,
            )
        self._awaited: list[type[Notice]] = [Serving]

    @property
    def note(self) -> str:
        packages = dict.fromkeys(name.partition(".")[0] for name in self._imported)
        imported = f"{' and '.join(['torch', *packages])} and nothing else"
        return (
            f"every cell ran in children forked from servers that had imported {imported}; each of its "
            "processes came from a server of its own, with memory laid out anew"
        )

    def preload(self, modules: Sequence[str]) -> None:
        """Have the server import `modules` before it forks another child. One that does not import is left out."""
        if modules:
            with contextlib.suppress(OSError):  # it is gone: waiting for it says so
                self._send(Preload(modules=tuple(modules)))
            self._awaited.append(Preloaded)

    @property
    def is_serving(self) -> bool:
        """Whether children can be forked without waiting."""
        while self._awaited and self._readable():
            self._note(self._answer())
        return not self._awaited

    def await_serving(self) -> None:
        """Block until all is imported and children can be forked. Several servers started at once import at once.

        Raises CannotPreload where what it was asked to import ends the server, or takes too long.
        """
        while self._awaited:
            is_preloading = self._awaited[0] is Preloaded
            if is_preloading and not self._readable(PRELOADING_S):
                raise CannotPreload
            try:
                self._note(self._answer())
            except BakeoffError:
                if is_preloading:
                    raise CannotPreload from None
                raise

    def _send(self, order: Order, *descriptors: int) -> None:
        messages.send_order(self._control, order, *descriptors)

    def _start(self, assignment: Assignment, ours: Connection, theirs: Connection, keeps: bool) -> Worker:
        self.await_serving()
        self._send(assignment, theirs.fileno())
        while not isinstance(notice := self._answer(), Forked):
            self._note(notice)
        return ForkedWorker(self, notice.pid, ours, assignment.mark, assignment.workspace, keeps)

    def exit_status(self, pid: int, wait: bool) -> int | None:
        while pid not in self._exited:
            if not wait and not self._readable():
                return None
            self._note(self._answer())
        return self._exited[pid]

    def _note(self, notice: Notice) -> None:
        if isinstance(notice, Exited):
            self._exited[notice.pid] = notice.status
        elif type(notice) in self._awaited:
            self._awaited.remove(type(notice))
        if isinstance(notice, Preloaded):
            self._imported += notice.modules

    def _readable(self, seconds: float = 0.0) -> bool:
        """Whether an answer comes within `seconds`."""
        if b"\n" in self._buffer:
            return True
        readable, _, _ = select.select([self._control], [], [], seconds)
        return bool(readable) and bool(self._control.recv(1, socket.MSG_PEEK))  # nothing: the server is gone

    def _answer(self) -> Notice:
        while b"\n" not in self._buffer:
            part = self._control.recv(65536)
            if not part:
                raise BakeoffError(
                    f"the fork server ended (status {self._server.wait()}): its last words are above; "
                    "try --start-method spawn"
                )
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return messages.parse_notice(line)

    def _close(self) -> None:
        self._control.close()
        try:
            self._server.wait(CLOSING_S)
        except subprocess.TimeoutExpired:  # it is stuck in an import, and does not hear
            self._server.kill()
            self._server.wait()


class ForkedWorker(Worker):
    def __init__(
        self, server: ForkLauncher, pid: int, connection: Connection, mark: str, workspace: Path, keeps: bool
    ) -> None:
        super().__init__(pid, connection, mark, workspace, keeps)
        self._server = server

    def _exit_status(self) -> int | None:
        return self._server.exit_status(self.pid, wait=False)

    def _wait(self) -> int:
        status = self._server.exit_status(self.pid, wait=True)
        assert status is not None
        return status


class SpawnLauncher(Launcher):
    start_method = "spawn"

    @property
    def note(self) -> str:
        return (
            "every cell ran in children spawned as fresh interpreters, each of which pays for `import torch`; if such "
            "a run is killed, what its children started and its temporary folder stay behind"
        )

    def _start(self, assignment: Assignment, ours: Connection, theirs: Connection, keeps: bool) -> Worker:
        command = [*_python(), "from harness.worker.main import spawned; spawned()", str(theirs.fileno())]
        environment = {**isolation.allowed(os.environ), isolation.MARK: assignment.mark}
        if sys.platform == "win32":
            os.set_handle_inheritable(theirs.fileno(), True)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, close_fds=False)
        else:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        messages.send(ours, assignment)
        return SpawnedWorker(process, ours, assignment.mark, assignment.workspace, keeps)

    def _close(self) -> None:
        """Nothing outlives the children."""


class SpawnedWorker(Worker):
    def __init__(
        self, process: subprocess.Popen[bytes], connection: Connection, mark: str, workspace: Path, keeps: bool
    ) -> None:
        super().__init__(process.pid, connection, mark, workspace, keeps)
        self._process = process

    def _exit_status(self) -> int | None:
        return self._process.poll()

    def _wait(self) -> int:
        return self._process.wait()


def _python() -> list[str]:
    """An interpreter that finds this checkout, and nothing in the folder it happens to be started from."""
    return [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r});" + "exec(sys.argv.pop(1))"]
