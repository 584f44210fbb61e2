"""A process with torch imported and nothing else done, which forks the child of each cell.

A fresh interpreter pays seconds for `import torch`; a fork of this one pays milliseconds. Only torch is preloaded:
importing Inductor touches CUDA, and after that no fork of this process could use it. Where no child is to use CUDA, the
parent may ask for what loading the run's models imports, too.

The server talks over a socket: the parent sends a job with the child's end of its pipe attached, the server answers
with the child's pid, and reports the exit of every child. When the parent's end closes, whichever way the parent died,
the server kills what is left, removes the run's temporary folder and leaves.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve until the parent's end of the socket closes. argv: number of the socket's descriptor, temporary folder."""
    control = socket.socket(fileno=int(sys.argv[1]))
    temporary = sys.argv[2]
    import torch  # noqa: F401 - preloading it is what this process is for

    from harness import isolation
    from harness.worker import main as worker  # noqa: F401 - the children's own code, so that they need not import it

    _freeze()
    isolation.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    marks: dict[int, str] = {}
    _tell(control, {"kind": "serving"})
    while True:
        readable, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            for pid, status in _ended():
                mark = marks.pop(pid, None)
                if mark is not None:
                    isolation.kill_tree(pid, mark)
                    _tell(control, {"kind": "exited", "pid": pid, "status": os.waitstatus_to_exitcode(status)})
        if control.fileno() in readable:
            job, descriptors = _next_job(control)
            if job is None:
                break
            if "preload" in job:
                with _as_a_child(Path(temporary) / "preload"):
                    imported = _imported(job["preload"])
                _freeze()
                _tell(control, {"kind": "preloaded", "modules": imported})
                continue
            pid = os.fork()
            if pid == 0:
                _become_child(control, [wake_read, wake_write], job, descriptors[0])
            os.close(descriptors[0])
            marks[pid] = job["mark"]
            _tell(control, {"kind": "forked", "pid": pid})
    for pid, mark in marks.items():
        isolation.kill_tree(pid, mark)
    for process in isolation.descendants(os.getpid()):  # those that fit no cell any more
        with contextlib.suppress(Exception):
            process.kill()
    shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _as_a_child(workspace: Path) -> Iterator[None]:
    """Inside it, libraries find the variables of a child, no GPU to wake up, and a file to talk to."""
    from harness import isolation

    isolation.make_workspace(workspace)
    before = dict(os.environ)
    os.environ.update(isolation.child_environment(before, workspace, ""), CUDA_VISIBLE_DEVICES="")
    try:
        with _output_to(workspace / "log"):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for number, _ in kept:
            os.dup2(descriptor, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)
        os.close(descriptor)


def _imported(modules: list[str]) -> list[str]:
    """Those of `modules` that import here. What is wrong with another one, the child that needs it says in its log."""
    found = []
    for name in modules:
        # a library's own way to say that something is missing is of any type
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
            found.append(name)
    return found


def _freeze() -> None:
    """Have the collector of a child not touch, and so copy, the pages that it shares with this process."""
    gc.collect()
    gc.freeze()


def _become_child(control: socket.socket, pipes: list[int], job: dict[str, Any], descriptor: int) -> None:
    """Run the job in this freshly forked process; never returns."""
    from harness.worker import main as worker

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        control.close()
        for pipe in pipes:
            os.close(pipe)
        worker.main(Connection(descriptor), job)
    finally:
        # the exit handlers registered so far belong to the server
        os._exit(1)


def _ended() -> list[tuple[int, int]]:
    """Pids and wait statuses of the children that ended; orphans that were adopted are reaped along the way."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def _next_job(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next job and the descriptors that came with it; None at the end of the parent."""
    size = array.array("I")
    try:
        header, descriptors, _, _ = socket.recv_fds(control, size.itemsize, 1)
        if len(header) < size.itemsize:
            return None, []
        size.frombytes(header)
        body = b""
        while len(body) < size[0]:
            part = control.recv(size[0] - len(body))
            if not part:
                return None, descriptors
            body += part
    except OSError:
        return None, []
    job: dict[str, Any] = json.loads(body)
    return job, descriptors


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the parent is gone: the next read says so
        control.sendall(json.dumps(message).encode() + b"\n")
