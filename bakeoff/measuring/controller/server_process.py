"""A fork server, as the controller sees it: it takes orders, and tells what it has done."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection

from bakeoff.measuring import server_messages
from bakeoff.measuring.controller.worker_process import Started
from bakeoff.measuring.messages import Assignment
from bakeoff.measuring.server_messages import Branch, Exited, Forked, Notice, Order, Preload, Preloaded
from bakeoff.records.errors import BakeoffError


class CannotPreload(Exception):
    """The fork server ended while it imported what it was asked to, or took too long."""


class ForkServer:
    """A fork server, or a branch of one."""

    def __init__(
        self,
        control: socket.socket,
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
        self._exited: dict[int, int] = {}
        self._buffer = b""

    def preload(self, modules: Sequence[str], for_cuda: bool) -> None:
        """Have it import `modules` before it forks another worker. One that does not import is left out."""
        with contextlib.suppress(OSError):  # the server is gone: waiting for it says so
            self._send(Preload(modules=tuple(modules), for_cuda=for_cuda))
        self._awaited.append(Preloaded)

    def branch(self, modules: Sequence[str], for_cuda: bool) -> ForkServer:
        """Have it fork a server that imports `modules`, too."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            self._send(Branch(modules=tuple(modules), for_cuda=for_cuda), theirs.fileno())
        return ForkServer(ours, Preloaded, self._max_preload_s, lambda: "the branch of the fork server ended", True)

    @property
    def is_serving(self) -> bool:
        while self._awaited and self._readable():
            self._note(self._answer())
        return not self._awaited

    @property
    def is_gone(self) -> bool:
        """True when it has ended, and everything that it said was read."""
        readable, _, _ = select.select([self._control], [], [], 0.0)
        return bool(readable) and not self._received(1, socket.MSG_PEEK)

    def await_serving(self) -> None:
        """Wait until everything is imported and workers can be forked. Raises CannotPreload where a module ends the
        server or takes too long, and BakeoffError where it ended otherwise."""
        while self._awaited:
            is_preloading = self._awaited[0] is Preloaded
            if is_preloading and not self._readable(self._max_preload_s):
                raise CannotPreload
            try:
                self._note(self._answer())
            except BakeoffError:
                if is_preloading:
                    raise CannotPreload from None
                raise

    def fork(self, assignment: Assignment, theirs: Connection) -> Started:
        """Fork a worker, and hand it `assignment` and its end of the pipe, `theirs`. Raises BakeoffError where the
        server is gone."""
        self.await_serving()
        with contextlib.suppress(ConnectionError):  # it is gone, as waiting for its answer says
            self._send(assignment, theirs.fileno())
        while not isinstance(notice := self._answer(), Forked):
            self._note(notice)
        return notice.pid, partial(self._exit_status, notice.pid)

    def close(self) -> None:
        """Have it kill its workers and leave."""
        self._control.close()

    def _send(self, order: Order, *descriptors: int) -> None:
        server_messages.send_order(self._control, order, *descriptors)

    def _exit_status(self, pid: int, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while pid not in self._exited:
            if self._control.fileno() < 0:
                return -signal.SIGKILL  # it was closed, and its workers die with it
            if not self._readable(max(0.0, deadline - time.monotonic())) and not self.is_gone:
                return None
            try:
                self._note(self._answer())
            except BakeoffError:
                if not self._is_branch:
                    raise
                return -signal.SIGKILL  # workers die with their parent, and cells go on without a branch
        return self._exited[pid]

    def _note(self, notice: Notice) -> None:
        if isinstance(notice, Exited):
            self._exited[notice.pid] = notice.status
        elif type(notice) in self._awaited:
            self._awaited.remove(type(notice))
        if isinstance(notice, Preloaded):
            self.imported += notice.modules

    def _readable(self, seconds: float = 0.0) -> bool:
        if b"\n" in self._buffer:
            return True
        readable, _, _ = select.select([self._control], [], [], seconds)
        return bool(readable) and bool(self._received(1, socket.MSG_PEEK))

    def _received(self, size: int, flags: int = 0) -> bytes:
        """Wait for what the server says, and return it, or nothing when the server is gone."""
        try:
            return self._control.recv(size, flags)
        except ConnectionResetError:  # it ended with an order unread
            return b""

    def _answer(self) -> Notice:
        while b"\n" not in self._buffer:
            part = self._received(65536)
            if not part:
                raise BakeoffError(self._how_it_ended())
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return server_messages.parse_notice(line)
