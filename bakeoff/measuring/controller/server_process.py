"""A fork server, as the controller sees it: it takes orders, and reports what it has done."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection

from bakeoff.measuring.controller.worker_process import Started
from bakeoff.measuring.messages import Assignment, send
from bakeoff.measuring.server_messages import NOTICE, Branch, Exited, Forked, Notice, Order, Preload, Preloaded
from bakeoff.records.errors import BakeoffError


class CannotPreload(Exception):
    """The fork server ended while it imported what it was asked to, or took too long."""


class ForkServer:
    """A fork server, or a branch of one."""

    def __init__(
        self,
        control: Connection,
        awaited: type[Notice],
        max_preload_s: float,
        how_it_ended: Callable[[], str],
        is_branch: bool = False,
    ) -> None:
        """It says the notice `awaited` when it serves. `how_it_ended` waits for the process once it closed its end."""
        self._is_branch = is_branch
        self.imported: list[str] = []  # beside torch
        self._control = control
        self._awaited: list[type[Notice]] = [awaited]
        self._max_preload_s = max_preload_s
        self._how_it_ended = how_it_ended
        self._forked: list[int] = []
        self._exited: dict[int, int] = {}
        self._is_gone = False

    def preload(self, modules: Sequence[str], for_cuda: bool) -> None:
        """Have it import `modules` before it forks another worker. One that does not import is left out."""
        with contextlib.suppress(OSError):  # the server is gone: waiting for it says so
            self._send(Preload(modules=tuple(modules), for_cuda=for_cuda))
        self._awaited.append(Preloaded)

    def branch(self, modules: Sequence[str], for_cuda: bool) -> ForkServer:
        ours, theirs = Pipe()
        with theirs, contextlib.suppress(OSError):
            self._send(Branch(modules=tuple(modules), for_cuda=for_cuda), theirs.fileno())
        return ForkServer(ours, Preloaded, self._max_preload_s, lambda: "the branch of the fork server ended", True)

    @property
    def is_serving(self) -> bool:
        while self._awaited and self._hears():
            pass
        return not self._awaited

    @property
    def is_gone(self) -> bool:
        """True when it has ended, and everything that it said was read."""
        while self._hears():
            pass
        return self._is_gone

    def await_serving(self) -> None:
        """Wait until everything is imported and workers can be forked. Raises CannotPreload where a module ends the
        server or takes too long, and BakeoffError where it ended otherwise."""
        while self._awaited:
            is_preloading = self._awaited[0] is Preloaded
            if not self._hears(self._max_preload_s if is_preloading else None):
                raise CannotPreload if is_preloading else BakeoffError(self._how_it_ended())

    def fork(self, assignment: Assignment, theirs: Connection) -> Started:
        """Fork a worker, and hand it `assignment` and its end of the pipe, `theirs`. Raises BakeoffError where the
        server is gone."""
        self.await_serving()
        with contextlib.suppress(ConnectionError):  # it is gone, as waiting for its answer says
            self._send(assignment, theirs.fileno())
        while not self._forked:
            if not self._hears(None):
                raise BakeoffError(self._how_it_ended())
        pid = self._forked.pop()
        return pid, partial(self._exit_status, pid)

    def close(self) -> None:
        self._control.close()

    def _send(self, order: Order, descriptor: int | None = None) -> None:
        send(self._control, order)
        if descriptor is not None:  # for the worker or the branch
            reduction.send_handle(self._control, descriptor, 0)

    def _exit_status(self, pid: int, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while pid not in self._exited:
            if self._control.closed:
                return -signal.SIGKILL  # its workers die with it
            if not self._hears(max(0.0, deadline - time.monotonic())):
                if not self._is_gone:
                    return None
                if not self._is_branch:
                    raise BakeoffError(self._how_it_ended())
                return -signal.SIGKILL  # workers die with their parent, and cells go on without a branch
        return self._exited[pid]

    def _hears(self, seconds: float | None = 0.0) -> bool:
        """Take what it says within so many seconds, or whenever that comes. Return False if it says nothing."""
        if self._is_gone or self._control.closed or not self._control.poll(seconds):
            return False
        try:
            notice = NOTICE.validate_json(self._control.recv_bytes())
        except (EOFError, OSError):
            self._is_gone = True
            return False
        if isinstance(notice, Forked):
            self._forked.append(notice.pid)
        elif isinstance(notice, Exited):
            self._exited[notice.pid] = notice.status
        elif type(notice) in self._awaited:
            self._awaited.remove(type(notice))
        if isinstance(notice, Preloaded):
            self.imported += notice.modules
        return True
