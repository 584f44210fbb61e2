"""What the machine did while a burst was taken: read before and after it, never during it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.nvml import GpuWatch
from records.device import Device
from records.schema import Conditions

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")


class Watch:
    """Reads what bears on this process' speed. `begin` before a burst, `end` after it."""

    def __init__(self, device: Device) -> None:
        self._gpu = GpuWatch(device.cuda_index)
        self._cores = os.cpu_count() or 1
        self.begin()

    def begin(self) -> None:
        self._waited_ns = waited_ns()
        self._stolen_s = stolen_s()
        self._switches = involuntary_switches()
        self._begun = time.perf_counter()

    def end(self) -> Conditions:
        """What has happened since `begin`."""
        seconds = time.perf_counter() - self._begun
        waited, stolen, switches = waited_ns(), stolen_s(), involuntary_switches()
        return Conditions(
            wait_share=_difference(waited, self._waited_ns, 1e9 * seconds),
            steal_share=_difference(stolen, self._stolen_s, seconds * self._cores),
            involuntary_switches=None if switches is None or self._switches is None else switches - self._switches,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            **self._gpu.read(),
        )


@contextlib.contextmanager
def beginning_on(core: int | None) -> Iterator[None]:
    """Inside it the calling thread runs on `core`, and the other threads of its process on others; afterwards all of
    them where they like again, which at first is there.

    Where the threads of a process happen to lie decides, for as long as nobody moves them, whether two-threaded calls
    of 150 µs take 250: left alone, processes differ by that for seconds. And one that is woken on the caller's core
    waits for as long as the caller spins for it: 15 to 20 ms, in the first call after the process was stopped.

    Threads that a runtime has bound to cores of its choice before stay there.
    """
    if core is None:
        yield
        return
    usual = os.sched_getaffinity(0)
    others = usual - {core}
    bound = {thread for thread in _threads() if _cores_of(thread) != usual}
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # it was taken from us since it was asked for
        yield
        return
    _move((thread for thread in _threads() - bound if _cores_of(thread) == usual), others)
    try:
        yield
    finally:
        # with those begun meanwhile, which have inherited what their creator was bound to
        _move((thread for thread in _threads() - bound if _cores_of(thread) in ({core}, others)), usual)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else {threading.get_native_id()}


def _cores_of(thread: int) -> set[int]:
    """Where a thread may run; nowhere if it has just ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _move(threads: Iterable[int], cores: set[int]) -> None:
    for thread in threads:
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(thread, cores)


def waited_ns() -> int | None:
    """Nanoseconds that threads of this process were ready to run and had no core, by the scheduler's own account."""
    if not TASKS.exists():
        return None
    total = 0
    for task in TASKS.iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # a thread that has just ended, or a kernel without this account
            continue
    return total


def stolen_s() -> float | None:
    """Seconds, over all cores, that the hypervisor gave to others while we had work."""
    if not STAT.exists():
        return None
    fields = STAT.read_text().partition("\n")[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else None


def involuntary_switches() -> int | None:
    """How often a thread of this process was taken off its core before it wanted to wait."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _difference(now: float | None, before: float | None, scale: float) -> float | None:
    return None if now is None or before is None else max(0.0, now - before) / scale
