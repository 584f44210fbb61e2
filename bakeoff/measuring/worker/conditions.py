"""What the machine did during a burst. It is read before and after the burst, never in it."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bakeoff.measuring.nvml import GpuWatch
from bakeoff.records.device import Device
from bakeoff.records.schema import Conditions

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")


class Watch:
    """Reads what affects the speed of this process: call `begin` before a burst and `end` after it."""

    def __init__(self, device: Device) -> None:
        self._gpu = GpuWatch(device.cuda_index)
        self._cores = os.cpu_count() or 1
        self.begin()

    def begin(self) -> None:
        self._waited_ns = waited_ns()
        self._stolen_s = stolen_s()
        self._counts = switches_and_page_faults()
        self._begun = time.perf_counter()

    def end(self) -> Conditions:
        """Return what has happened since `begin`."""
        seconds = time.perf_counter() - self._begun
        waited, stolen, counts = waited_ns(), stolen_s(), switches_and_page_faults()
        switches, page_faults = (_risen(now, before) for now, before in zip(counts, self._counts, strict=True))
        return Conditions(
            wait_share=_difference(waited, self._waited_ns, 1e9 * seconds),
            steal_share=_difference(stolen, self._stolen_s, seconds * self._cores),
            involuntary_switches=switches,
            page_faults=page_faults,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            **self._gpu.read(),
        )


@contextlib.contextmanager
def beginning_on(core: int | None) -> Iterator[None]:
    """Keep the calling thread on `core` and the process' other threads elsewhere inside the block; then free them.

    After the block they may run anywhere, and usually stay for a while. Without this, threads keep chance places for
    seconds: two-threaded calls of 150 µs can take 250 µs. A thread that is woken on the caller's core waits 15 to 20 ms
    while the caller spins for it. Threads that a runtime has bound to cores stay where they are.
    """
    if core is None:
        yield
        return
    usual = os.sched_getaffinity(0)
    others = usual - {core}
    bound = {thread for thread in _threads() if _cores_of(thread) != usual}
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # this core was taken from us in the meantime
        yield
        return
    _move((thread for thread in _threads() - bound if _cores_of(thread) == usual), others)
    try:
        yield
    finally:
        # threads that were started in the block have inherited where their creator was bound to
        _move((thread for thread in _threads() - bound if _cores_of(thread) in ({core}, others)), usual)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else {threading.get_native_id()}


def _cores_of(thread: int) -> set[int]:
    """Return the cores that a thread may run on: none if it has just ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _move(threads: Iterable[int], cores: set[int]) -> None:
    for thread in threads:
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(thread, cores)


def waited_ns() -> int | None:
    """Return the nanoseconds that threads of this process were ready and had no core, as the scheduler counts them."""
    if not TASKS.exists():
        return None
    total = 0
    for task in TASKS.iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended, or the kernel does not count
            continue
    return total


def stolen_s() -> float | None:
    """Return the seconds, over all cores, in which the hypervisor ran others while this machine had work."""
    if not STAT.exists():
        return None
    fields = STAT.read_text().partition("\n")[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else None


def switches_and_page_faults() -> tuple[int | None, int | None]:
    """Return how often a thread of this process was taken off its core while it had work, and how many pages of memory
    it got from the kernel."""
    try:
        import resource
    except ImportError:  # Windows
        return None, None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nivcsw, usage.ru_minflt


def _risen(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _difference(now: float | None, before: float | None, scale: float) -> float | None:
    return None if now is None or before is None else max(0.0, now - before) / scale
