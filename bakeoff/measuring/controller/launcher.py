"""The ways to start workers: forked from a server, or spawned as fresh interpreters."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from bakeoff.measuring import isolation, messages
from bakeoff.measuring.controller.server_process import CannotPreload, ForkServer
from bakeoff.measuring.controller.server_start import (
    CAN_FORK,
    command_of,
    discard_early,
    new_folder,
    remove_folder,
    take_or_start,
)
from bakeoff.measuring.controller.worker_process import Started, Worker
from bakeoff.measuring.messages import Assignment, Event, Job
from bakeoff.measuring.server_messages import Serving
from bakeoff.measuring.variables import allowed_variables
from bakeoff.planning.request import StartMethod
from bakeoff.records.errors import BakeoffError, os_reason

MAX_PRELOAD_S = 120.0
"""A fork server may take this long to import what it was asked to."""
MAX_CLOSE_S = 10.0
"""A fork server may take this long to leave after its socket was closed."""

FURTHER_SERVERS_AT_ONCE = 2
"""Servers that are started together for epochs beyond the prepared ones. Two hardly take longer than one, and a contest
that needs a fourth process mostly needs a fifth."""

MOST_FURTHER_SERVERS = 6
"""So many further servers stay for later contests. Each process keeps torch in memory."""

MOST_AHEAD = 2
"""So many processes of a cell are loaded for later epochs at most, since each holds memory."""

MOST_BRANCHES = 5
"""Maximum number of fork servers with a branch. Each may hold 160 MB of its own (Inductor of torch 2.13)."""


class Launcher:
    """Starts workers as fresh interpreters. It is a context manager: leaving it ends all of them and removes their
    folders."""

    start_method = "spawn"
    is_per_epoch = False
    """Each epoch needs a launcher of its own."""

    def __init__(self, python: str = sys.executable, temporary: Path | None = None) -> None:
        """`temporary` is a folder for temporary files, by default a new one."""
        self.temporary = temporary or new_folder()
        self._python = command_of(python)
        self._workers: list[Worker] = []

    def start(self, job: Job, log: Path, workspace: Path | None = None, imports: Sequence[str] = ()) -> Worker:
        """Start a worker that does `job` and writes to the file `log`. Its workspace stays only if it is given. It has
        imported the modules `imports`, where there is a branch that has."""
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
            pid, exit_status = self._start(assignment, imports, ours, theirs)
        finally:
            theirs.close()
        worker = Worker(pid, ours, assignment, keeps, exit_status)
        self._workers.append(worker)
        return worker

    def ask(self, job: Job, log: Path, limit_s: float, on_phase: Callable[[str], None] = lambda phase: None) -> Event:
        """Start a worker for a short job, return its answer, and end it. Raises what `Worker.answer` raises."""
        return self.start(job, log).answer(limit_s, on_phase)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # each step is taken even if another one fails
            stack.callback(remove_folder, self.temporary)
            stack.callback(self._close)
            for worker in self._workers:
                if not worker.is_over:
                    stack.callback(worker.end)

    @property
    def note(self) -> str:
        """What a reader of the report should know of how workers were started."""
        return (
            "every cell ran in processes spawned as fresh interpreters, each of which pays for `import torch`; if such "
            "a run is killed, what its processes started stays behind"
        )

    @property
    def branch_note(self) -> str:
        """What a reader should know of workers that come from a branch, or nothing."""
        return ""

    def begin_close(self) -> None:
        """Have its server leave if no worker is alive, and do not wait. None can be started after it."""

    def preload(self, modules: Sequence[str], for_cuda: bool) -> None:
        """Import `modules` for all workers, where they share what was imported. `for_cuda`: some will use CUDA."""

    def branch(self, modules: Sequence[str], for_cuda: bool) -> None:
        """Import `modules` for the workers that ask for them, and for no others. This does not wait."""

    @property
    def is_serving(self) -> bool:
        """True when a worker can be started without waiting."""
        return True

    def await_serving(self) -> None:
        """Wait until workers can be started. Raises CannotPreload or BakeoffError where that does not come."""

    def await_branch(self) -> None:
        """Wait until workers can be started in the branch, or until it has failed."""

    def _start(self, assignment: Assignment, imports: Sequence[str], ours: Connection, theirs: Connection) -> Started:
        """Start the process, and hand it `assignment` and its end of the pipe, `theirs`."""
        start = partial(
            subprocess.Popen[bytes],
            [*self._python, "from bakeoff.measuring.worker.main import spawned; spawned()", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**allowed_variables(os.environ), isolation.MARK: assignment.mark},
        )
        if sys.platform == "win32":
            os.set_handle_inheritable(theirs.fileno(), True)
            process = start(close_fds=False)
        else:
            process = start(pass_fds=[theirs.fileno()], start_new_session=True)
        messages.send(ours, assignment)

        def status_within(seconds: float) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return process.returncode

        return process.pid, status_within

    def _close(self) -> None:
        """End what outlives the workers."""


class Launchers:
    """The launchers of a run, one for each epoch. It is a context manager: leaving it leaves all of them."""

    def __init__(
        self,
        start_method: StartMethod,
        new_launcher: Callable[[StartMethod], Launcher] | None = None,
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        """`pythons` are the interpreters of named environments, each of which has fork servers of its own."""
        self._start_method: StartMethod = start_method
        self._new_launcher = new_launcher or create_launcher
        # Workers of one server share its layout of memory, which changes speed by a few per cent.
        self._launchers = [self._new_launcher(start_method)]  # the first one: a server may have been started for it
        self._others = {
            name: Launchers(start_method, partial(create_launcher, python=python))
            for name, python in (pythons or {}).items()
        }
        self._further: dict[int, Launcher] = {}  # by epoch, beyond the prepared ones
        self._modules: tuple[str, ...] = ()
        self._for_cuda = False
        self._preloading: list[Launcher] = []  # that have been ordered to load these modules

    @property
    def first(self) -> Launcher:
        return self._launchers[0]

    @property
    def last(self) -> Launcher:
        """The last one that was prepared, whose epoch comes last."""
        return self._launchers[-1]

    def of_environment(self, name: str) -> Launchers:
        return self._others[name] if name else self

    def preload(self, modules: Sequence[str], for_cuda: bool, except_last: bool = False) -> None:
        """Have every fork server import `modules`, for workers of which some will use CUDA, or none. With
        `except_last`, the last one goes on forking until another call."""
        wanted = tuple(dict.fromkeys(modules)), for_cuda
        if wanted != (self._modules, self._for_cuda):
            self._preloading.clear()
        self._modules, self._for_cuda = wanted
        for launcher in self._launchers[: -1 if except_last else None]:
            if launcher not in self._preloading:
                # A server that does not survive this is replaced by one that imports torch alone.
                launcher.preload(self._modules, for_cuda)
                self._preloading.append(launcher)
        for others in self._others.values():
            others.preload(modules, for_cuda)

    def branch(self, modules: Sequence[str], for_cuda: bool) -> None:
        """Have the prepared fork servers branch, so that only the workers of cells that need `modules` import them."""
        # Without a branch, as in named environments and further epochs, such workers import them themselves.
        for launcher in self._launchers[:MOST_BRANCHES]:
            launcher.branch(tuple(dict.fromkeys(modules)), for_cuda)

    def prepare(self, epochs: int) -> None:
        """Have launchers for so many epochs. Their servers import torch at the same time, and this does not wait."""
        while len(self._launchers) < epochs and self.first.is_per_epoch:
            self._launchers.append(self._started())
        for others in self._others.values():
            others.prepare(epochs)

    @property
    def are_serving(self) -> bool:
        mine = all(launcher.is_serving for launcher in self._launchers)
        return mine and all(others.are_serving for others in self._others.values())

    def await_serving(self, epochs: int | None = None) -> None:
        """Wait until the servers of so many epochs have imported what they are to, or of all with their branches."""
        for place, launcher in enumerate(self._launchers[:epochs]):
            self._launchers[place] = self._serving(launcher)
            if epochs is None:
                self._launchers[place].await_branch()
        for others in self._others.values():
            others.await_serving(epochs)

    def of_epoch(self, epoch: int) -> Launcher:
        """Return the launcher of this epoch, and start its server if need be. Raises BakeoffError where that fails."""
        # Spawned workers are processes of their own anyway, so that one launcher serves all epochs.
        if epoch < len(self._launchers) or not self.first.is_per_epoch:
            place = min(epoch, len(self._launchers) - 1)
            self._launchers[place] = self._serving(self._launchers[place])
            return self._launchers[place]
        if epoch not in self._further:
            following = range(epoch, epoch + FURTHER_SERVERS_AT_ONCE)
            if len(self._further) >= MOST_FURTHER_SERVERS:
                # workers of the epochs before may be alive; and of the others, most contests need the lowest
                spare = sorted(other for other in self._further if not epoch - MOST_AHEAD <= other < following.stop)
                self._leave_further(spare[-FURTHER_SERVERS_AT_ONCE:])
            self._start_further([number for number in following if number not in self._further])
        return self._further[epoch]

    def _started(self) -> Launcher:
        started = self._new_launcher(self._start_method)
        started.preload(self._modules, self._for_cuda)
        self._preloading.append(started)
        return started

    def _serving(self, server: Launcher) -> Launcher:
        """Return the server when it serves, or another one if importing modules has ended it."""
        try:
            server.await_serving()
        except CannotPreload:
            server.__exit__()
            self._modules = ()
            server = self._started()
            try:
                server.await_serving()
            except BakeoffError:
                server.__exit__()
                raise
        return server

    def _start_further(self, epochs: Sequence[int]) -> None:
        """Start a server for each of `epochs`. Raises BakeoffError where the first does not start; others are spare."""
        try:
            for epoch in epochs:
                self._further[epoch] = self._started()
        except OSError as error:
            self._leave_further([epoch for epoch in epochs if epoch in self._further])
            raise BakeoffError(f"no further fork server could be started: {os_reason(error)}") from None
        for epoch in epochs:
            try:
                self._further[epoch] = self._serving(self._further[epoch])
            except BakeoffError:
                self._leave_further([later for later in epochs if later >= epoch])
                if epoch == epochs[0]:
                    raise
                return

    def _leave_further(self, epochs: Sequence[int]) -> None:
        with contextlib.ExitStack() as stack:
            for epoch in epochs:
                stack.push(self._further.pop(epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # all servers leave side by side
            for launcher in (*self._launchers, *self._further.values()):
                launcher.begin_close()
        # the last one first: the first one's folder holds what the workers of the others use
        with contextlib.ExitStack() as stack:
            for launcher in self._launchers:
                stack.push(launcher)
            for others in self._others.values():
                stack.push(others)
            self._leave_further(list(self._further))


def create_launcher(start_method: StartMethod, python: str = sys.executable) -> Launcher:
    """Return a launcher of workers that `python` runs. `auto` forks where the platform can. Raises BakeoffError where
    `forkserver` cannot."""
    if start_method == "spawn" or (start_method == "auto" and not CAN_FORK):
        discard_early()
        return Launcher(python)
    if not CAN_FORK:
        raise BakeoffError(f"--start-method forkserver needs Linux, and this is {sys.platform}: use spawn")
    return ForkLauncher(command_of(python))


class ForkLauncher(Launcher):
    """Starts workers as forks of a server that has imported torch."""

    start_method = "forkserver"
    is_per_epoch = True

    def __init__(
        self,
        python: Sequence[str] | None = None,
        max_preload_s: float = MAX_PRELOAD_S,
        max_close_s: float = MAX_CLOSE_S,
    ) -> None:
        self._started = take_or_start(python or command_of(sys.executable))
        super().__init__(temporary=self._started.temporary)
        self._max_close_s = max_close_s
        self._control = Connection(self._started.control.detach())
        self._server = ForkServer(self._control, Serving, max_preload_s, self._how_it_ended)
        self._branch: ForkServer | None = None  # until it fails

    @property
    def pid(self) -> int:
        return self._started.process.pid

    @property
    def note(self) -> str:
        packages = dict.fromkeys(["torch", *(name.partition(".")[0] for name in self._server.imported)])
        imported = f"{' and '.join(packages)} and nothing else"
        return (
            f"every cell ran in processes forked from servers that had imported {imported}; each of its "
            "processes came from a server of its own, with memory laid out anew"
        )

    @property
    def branch_note(self) -> str:
        if (branch := self._serving_branch()) is None:
            return ""
        packages = " and ".join(dict.fromkeys(".".join(name.split(".")[:2]) for name in branch.imported))
        return f"cells whose builds import {packages} came from forks of these servers, in which that was done already"

    def preload(self, modules: Sequence[str], for_cuda: bool = False) -> None:
        """Have the server import `modules` before it forks another worker. One that does not import is left out."""
        if modules:
            self._server.preload(modules, for_cuda)

    def branch(self, modules: Sequence[str], for_cuda: bool = False) -> None:
        """Have the server branch. An earlier branch of it ends."""
        self._end_branch()
        self._branch = self._server.branch(modules, for_cuda)

    def server_for(self, imports: Sequence[str]) -> ForkServer:
        """Return the branch, if it has imported these modules, or else the server."""
        if imports and (branch := self._serving_branch()) and set(imports) <= set(branch.imported):
            return branch
        return self._server

    def _serving_branch(self) -> ForkServer | None:
        """Wait until the branch can fork workers, and return it, or None where there is none or it has failed."""
        if self._branch is not None:
            try:
                self._branch.await_serving()
                has_failed = self._branch.is_gone
            except (CannotPreload, BakeoffError):
                has_failed = True
            if has_failed:
                self._end_branch()
        return self._branch

    def _end_branch(self) -> None:
        if self._branch is not None:
            self._branch.close()
            self._branch = None

    @property
    def is_serving(self) -> bool:
        return self._server.is_serving and (self._branch is None or self._branch.is_gone or self._branch.is_serving)

    def await_serving(self) -> None:
        self._server.await_serving()

    def await_branch(self) -> None:
        self._serving_branch()

    def _start(self, assignment: Assignment, imports: Sequence[str], ours: Connection, theirs: Connection) -> Started:
        if (server := self.server_for(imports)) is not self._server:
            try:
                return server.fork(assignment, theirs)
            except BakeoffError:  # the branch has ended meanwhile
                self._end_branch()
        return self._server.fork(assignment, theirs)

    def _how_it_ended(self) -> str:
        status = self._started.process.wait()
        if status < 0:
            return f"the fork server was killed by signal {-status} ({signal.Signals(-status).name})"
        return f"the fork server ended (status {status}): its last words are above; try --start-method spawn"

    def begin_close(self) -> None:
        if all(worker.is_over for worker in self._workers):
            self._control.close()

    def _close(self) -> None:
        self._end_branch()
        # one that still imports would not hear, and has no worker
        max_close_s = self._max_close_s if self._server.is_serving else 0.0
        self._control.close()
        self._started.end(max_close_s)
