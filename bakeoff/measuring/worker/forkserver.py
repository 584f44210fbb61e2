"""A process that has imported torch, and forks workers in milliseconds, where `import torch` takes seconds.

No fork can use CUDA once its parent has initialised the driver, so NVML answers torch's questions about GPUs meanwhile.
A server ends if its driver is initialised all the same, or if a thread was started. When the controller's end of the
socket closes, the server kills what is left, removes the run's temporary folder and leaves.
"""

import contextlib
import ctypes
import gc
import os
import pkgutil
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from bakeoff.measuring import isolation, server_messages
from bakeoff.measuring.messages import Assignment, send
from bakeoff.measuring.nvml import compute_capability
from bakeoff.measuring.worker import main as worker
from bakeoff.measuring.worker.sampling import freeze_garbage, no_garbage_collection

DRIVER = "libcuda.so.1"
NOT_INITIALIZED = 3
"""What every function of CUDA's driver returns before `cuInit`: CUDA_ERROR_NOT_INITIALIZED."""


def main() -> NoReturn:
    """Serve until the controller's end of the socket closes. The process' arguments are the number of the socket's
    descriptor and the temporary folder."""
    control = Connection(int(sys.argv[1]))
    temporary = Path(sys.argv[2])
    isolation.ignore_torchs_own_warning()
    import torch  # noqa: F401 - this process exists to import it

    freeze_garbage()  # or a collection in a worker would touch, and so copy, the pages shared with this process
    gc.enable()  # it was off while torch was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = Server(control, temporary)
    _send(control, server_messages.Serving())
    server.serve()
    shutil.rmtree(temporary, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # To take torch and the models' libraries down takes a third of a second, which the controller waits for.
    os._exit(0)


class Server:
    """Takes orders from a socket, and forks workers. A branch is a fork of a server that is a server, too."""

    def __init__(self, control: Connection, temporary: Path) -> None:
        self._control = control
        self._temporary = temporary
        self._pid = os.getpid()
        self._marks: dict[int, str] = {}  # of the workers that run, by process id
        isolation.adopt_orphans()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Take orders until the socket closes. Then kill what is left of the workers."""
        while True:
            readable, _, _ = select.select([self._control.fileno(), self._wake_read], [], [])
            if self._wake_read in readable:
                self._note_ended()
            if self._control.fileno() in readable:
                try:
                    received = server_messages.receive_order(self._control)
                except (EOFError, OSError):  # the controller is gone
                    break
                if not self._do(*received):
                    break
        for pid, mark in self._marks.items():
            isolation.kill_tree(pid, mark)
        for process in isolation.descendants(os.getpid()):  # branches, and processes that belong to no cell any more
            with contextlib.suppress(Exception):
                process.kill()

    def preload(self, order: server_messages.Preload | server_messages.Branch) -> bool:
        with _as_a_worker(self._temporary / "preload", order.for_cuda), no_garbage_collection():
            imported = []
            for name in order.modules:
                # A library may raise anything to say that something is missing. The worker that needs it logs that.
                with contextlib.suppress(Exception, SystemExit):
                    # A dotted name may also be that of something which a library imports when it is first asked for.
                    pkgutil.resolve_name(name)
                    imported.append(name)
        # A fork has none of its parent's threads, and whatever they held stays locked in it.
        if (order.for_cuda and has_initialised_cuda()) or threading.active_count() > 1:
            return False
        freeze_garbage()
        _send(self._control, server_messages.Preloaded(modules=tuple(imported)))
        return True

    def _do(self, order: server_messages.Order, descriptor: int) -> bool:
        if isinstance(order, server_messages.Preload):
            return self.preload(order)
        pid = os.fork()
        if pid == 0:
            try:
                self._become(order, descriptor)
            finally:
                # without exit handlers, because they belong to the server
                os._exit(1)
        os.close(descriptor)
        if isinstance(order, Assignment):
            self._marks[pid] = order.mark
            _send(self._control, server_messages.Forked(pid=pid))
        return True

    def _note_ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with contextlib.suppress(ChildProcessError):  # there is no child
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # adopted orphans are reaped, too
                pid, status = ended
                if mark := self._marks.pop(pid, None):
                    isolation.kill_tree(pid, mark)
                    _send(self._control, server_messages.Exited(pid=pid, status=os.waitstatus_to_exitcode(status)))

    def _become(self, order: Assignment | server_messages.Branch, descriptor: int) -> None:
        """Be a worker or a branch in a fork: close what belongs to this server, and end with it."""
        isolation.die_with_parent()
        if os.getppid() != self._pid:  # it has ended already, and the kernel reports that to nobody
            os._exit(1)
        signal.set_wakeup_fd(-1)
        self._control.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        if isinstance(order, server_messages.Branch):
            branch = Server(Connection(descriptor), self._temporary)
            if branch.preload(order):
                branch.serve()
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            worker.main(Connection(descriptor), order)


@contextlib.contextmanager
def _as_a_worker(workspace: Path, for_cuda: bool) -> Iterator[None]:
    """Show libraries the variables of a worker, and a GPU only if workers use one. What they print goes to a file."""
    isolation.make_workspace(workspace)
    before = dict(os.environ)
    os.environ.update(isolation.child_environment(before, workspace, ""))
    os.environ.update({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if for_cuda else {"CUDA_VISIBLE_DEVICES": ""})
    os.environ["TORCH_WARM_POOL"] = "0"  # some versions of Inductor start compiling processes when it is imported
    try:
        with _output_to(workspace / "log"), versions_by_nvml() if for_cuda else contextlib.nullcontext():
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class PropertiesByNvml:
    """Stands for torch's properties of a GPU. NVML answers for the version, and torch for everything else."""

    def __init__(self, version: tuple[int, int], ask_torch: Callable[[], Any]) -> None:
        self.major, self.minor = version
        self._ask_torch = ask_torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask_torch(), name)


@contextlib.contextmanager
def versions_by_nvml() -> Iterator[None]:
    """Have NVML answer which version a GPU has, so that torch does not initialise CUDA for that."""
    # Importing torchao asks for it, also through `torch.utils._triton.has_triton`; transformers imports torchao.
    import torch

    cuda, is_importing = torch.cuda, True
    answered = ("current_device", "get_device_capability", "get_device_properties")
    asked = {name: getattr(cuda, name) for name in answered}

    def version_of(device: Any) -> tuple[int, int] | None:
        number = torch.device(device).index if isinstance(device, str | torch.device) else device
        return compute_capability(number if isinstance(number, int) else 0) if is_importing else None

    # a module that is imported meanwhile may keep these functions, and gets torch's answers from them later
    def current_device() -> int:
        return 0 if is_importing else asked["current_device"]()

    def capability(device: Any = None) -> tuple[int, int]:
        return version_of(device) or asked["get_device_capability"](device)

    def properties(device: Any = None) -> Any:
        version = version_of(device)
        ask = partial(asked["get_device_properties"], device)
        return PropertiesByNvml(version, ask) if version else ask()

    cuda.current_device, cuda.get_device_capability, cuda.get_device_properties = current_device, capability, properties
    try:
        yield
    finally:
        is_importing = False
        for name, function in asked.items():
            setattr(cuda, name, function)
        if interface := sys.modules.get("torch._dynamo.device_interface"):
            interface.caching_worker_device_properties.clear()  # workers ask torch


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


def has_initialised_cuda() -> bool:
    try:
        loaded = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # nothing has loaded it
        return False
    return bool(loaded.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED)


def _send(control: Connection, notice: server_messages.Notice) -> None:
    with contextlib.suppress(OSError):  # the controller is gone, as the next read will show
        send(control, notice)
