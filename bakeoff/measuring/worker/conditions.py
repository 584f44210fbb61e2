"""What the machine did during a burst. It is read before and after the burst, never in it."""

import contextlib
import functools
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.nvml import GpuWatch
from bakeoff.records.device import Device
from bakeoff.records.schema import Conditions

Values = np.ndarray[Any, np.dtype[np.float64]]

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")
CONTROL_GROUPS = Path("/proc/self/cgroup")
CGROUP = Path("/sys/fs/cgroup")
OF_QUOTA = {"throttled_usec": 1e6, "throttled_time": 1e9}
"""The names of the time that a quota has taken, and how many of it are a second."""

IDLE, IO_WAIT, STEAL = 3, 4, 7
"""Places of these times in a line of /proc/stat, behind its name."""

MIN_SLICE_NS = 1_000_000
"""A slice of a burst is at least this long: a thread keeps a core for about 3 ms where others want it, too."""

SLICE_PER_READING = 50
"""A slice takes at least this many times as long as reading what threads waited: 1 µs for each thread."""

SAME_WAIT_SHARE = 0.02
"""Slices whose threads waited at most this much more of their time than those of the best one are as quiet as it."""


class Watch:
    """Reads what this process was given: call `begin` before a burst, `mark` between calls, and `end` after it."""

    def __init__(self, device: Device) -> None:
        self._gpu = GpuWatch(device.cuda_index)
        self._runs_beside = device.is_cuda  # a call goes on while its thread waits
        self._threads = Threads()
        self.begin()

    def begin(self) -> None:
        self._cores = usable_cores()
        self._quota_s = throttled_s()
        self._stolen_s, self._busy_s = stolen_and_busy_s(self._cores)
        self._counts = switches_and_page_faults()
        self._threads.find()
        self._marks = [(0, self._threads.waited_ns())]
        self._caller_s, self._cpu_s = time.thread_time(), time.process_time()
        self._begun = time.perf_counter()
        self.slice_ns = MIN_SLICE_NS

    def mark(self, calls: int) -> None:
        """Note how long threads have waited up to now, after so many calls. `slice_ns` says when to call it again."""
        begun_ns = time.perf_counter_ns()
        self._marks.append((calls, self._threads.waited_ns()))
        self.slice_ns = max(MIN_SLICE_NS, SLICE_PER_READING * (time.perf_counter_ns() - begun_ns))

    def end(self, samples_ns: Sequence[int] = ()) -> Conditions:
        """Return what has happened since `begin`. `samples_ns` are the calls, which `mark` divided into slices."""
        seconds, cpu_s = time.perf_counter() - self._begun, time.process_time() - self._cpu_s
        caller_s = time.thread_time() - self._caller_s
        quota_s, counts = throttled_s(), switches_and_page_faults()
        stolen_s, busy_s = stolen_and_busy_s(self._cores)
        self._threads.find()
        waited_ns = self._threads.waited_ns()
        quiet: dict[str, Any] = {}
        if samples_ns and self._threads.are_known:
            calls_ns = np.maximum(1.0, np.array(samples_ns, dtype=np.float64))
            quiet |= without_waiting(calls_ns, [*self._marks, (len(samples_ns), waited_ns)])
        switches, page_faults = (
            None if now is None or before is None else now - before
            for now, before in zip(counts, self._counts, strict=True)
        )
        busy_cores = _difference(busy_s, self._busy_s, seconds)
        return Conditions(
            wait_share=_difference(waited_ns, self._marks[0][1], 1e9 * seconds) if self._threads.are_known else None,
            cpu_share=cpu_s / seconds,
            caller_share=caller_s / seconds,
            others_cores=None if busy_cores is None else max(0.0, busy_cores - cpu_s / seconds),
            throttled_share=_difference(quota_s, self._quota_s, seconds),
            steal_share=_difference(stolen_s, self._stolen_s, seconds * (os.cpu_count() or 1)),
            involuntary_switches=switches,
            page_faults=page_faults,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            **quiet | ({"given_ms": None} if self._runs_beside else {}),
            **self._gpu.read(),
        )


class Threads:
    """What the scheduler counts of the waiting of each thread of this process, also of those that have ended."""

    def __init__(self) -> None:
        # Files stay open, since opening them takes ten times as long as reading.
        self._files: dict[int, int] = {}
        self._waited_ns: dict[int, int] = {}

    def find(self) -> None:
        for thread in _threads() - self._files.keys() if TASKS.exists() else ():
            with contextlib.suppress(OSError):  # it has just ended, or the kernel does not count
                self._files[thread] = os.open(TASKS / str(thread) / "schedstat", os.O_RDONLY)

    @property
    def are_known(self) -> bool:
        return bool(self._files)

    def waited_ns(self) -> int:
        for thread, file in list(self._files.items()):
            try:
                self._waited_ns[thread] = int(os.pread(file, 64, 0).split()[1])
            except (OSError, IndexError):  # it has ended
                os.close(self._files.pop(thread))
        return sum(self._waited_ns.values())

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


def without_waiting(samples_ns: Values, marks: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
    """Return fields of `Conditions`: what calls of quiet slices took, and all calls without their slice's waiting. A
    slice is between two marks: the number of calls so far, and the nanoseconds of waiting so far."""
    calls, waited_ns = np.diff(np.array(marks, dtype=np.float64), axis=0).T
    has_calls = calls > 0
    begins = np.array([begin for begin, _ in marks[:-1]])[has_calls]
    slices_ns = np.add.reduceat(samples_ns, begins)
    shares = np.maximum(waited_ns[has_calls], 0.0) / slices_ns
    before = np.concatenate([[float(np.average(shares, weights=slices_ns))], shares[:-1]])
    # Calls after a slice with waiting can take twice as long: caches are cold, and other threads asleep.
    with_before = np.where(slices_ns >= MIN_SLICE_NS / 2, np.maximum(shares, before), np.inf)
    per_call = calls[has_calls].astype(int)
    given_ns = samples_ns * np.maximum(0.0, 1 - np.repeat(shares, per_call))
    found: dict[str, Any] = {"given_ms": float(np.median(given_ns)) / 1e6}
    if (least := with_before.min()) < np.inf:
        is_quiet = np.repeat(with_before, per_call) <= least + SAME_WAIT_SHARE
        quiet_ns = samples_ns[is_quiet]
        found |= {"quiet_calls": len(quiet_ns), "quiet_ms": float(np.median(quiet_ns)) / 1e6}
        found["quiet_wait_share"] = float(np.average(np.repeat(with_before, per_call)[is_quiet], weights=quiet_ns))
    return found


@contextlib.contextmanager
def beginning_on(core: int | None) -> Iterator[None]:
    """Keep the calling thread on `core` and the process' other threads elsewhere inside the block; then free them."""
    if core is None:
        yield
        return
    # Without this, threads keep chance places for seconds: two-threaded calls of 150 µs can take 250 µs.
    usual = os.sched_getaffinity(0)
    others = usual - {core}
    # Threads that a runtime has bound to cores stay where they are.
    bound = {thread for thread in _threads() if _cores_of(thread) != usual}
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # this core was taken from us in the meantime
        yield
        return
    # A thread that is woken on the caller's core waits 15 to 20 ms while the caller spins for it.
    _move((thread for thread in _threads() - bound if _cores_of(thread) == usual), others)
    try:
        yield
    finally:
        # threads that were started in the block have inherited where their creator was bound to
        _move((thread for thread in _threads() - bound if _cores_of(thread) in ({core}, others)), usual)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else {threading.get_native_id()}


def _cores_of(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _move(threads: Iterable[int], cores: set[int]) -> None:
    for thread in threads:
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(thread, cores)


def waited_ns() -> int | None:
    threads = Threads()
    threads.find()
    found_ns = threads.waited_ns() if threads.are_known else None
    threads.close()
    return found_ns


def stolen_and_busy_s(cores: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the seconds in which the hypervisor ran others while this machine had work, over all cores, and those in
    which these `cores` did anything, ours included."""
    if not STAT.exists():
        return None, None
    ticks = os.sysconf("SC_CLK_TCK")
    counts = re.findall(r"^(cpu\d*) +(.+)$", STAT.read_text(), re.MULTILINE)
    lines = {name: [int(field) for field in fields.split()] for name, fields in counts}
    own = [lines[name] for core in cores if len(lines.get(name := f"cpu{core}", ())) > STEAL]
    busy = sum(sum(fields[:STEAL]) - fields[IDLE] - fields[IO_WAIT] for fields in own)
    everywhere = lines.get("cpu", ())
    return everywhere[STEAL] / ticks if len(everywhere) > STEAL else None, busy / ticks if own else None


def throttled_s() -> float | None:
    """Return the seconds that the quota of this process' control group has held it, or None without one."""
    try:
        counts = dict(line.split() for line in (_counts_of_quota() or Path()).read_text().splitlines())
    except (OSError, ValueError):
        return None
    return next((int(counts[name]) / scale for name, scale in OF_QUOTA.items() if name in counts), None)


@functools.cache
def _counts_of_quota() -> Path | None:
    """Return where the kernel counts what it holds. In a container, its own group may be the root of the mount."""
    try:
        groups = dict(line.split(":", 2)[1:] for line in CONTROL_GROUPS.read_text().splitlines())
    except (OSError, ValueError):
        return None
    old = [(CGROUP / "cpu", path) for names, path in groups.items() if "cpu" in names.split(",")]
    mounts = [*old, *([(CGROUP, groups[""])] if "" in groups else [])]
    files = [folder / "cpu.stat" for mount, path in mounts for folder in (mount / path.lstrip("/"), mount)]
    return next((file for file in files if file.exists()), None)


def switches_and_page_faults() -> tuple[int | None, int | None]:
    """Return how often a thread of this process was taken off its core while it had work, and how many pages of memory
    it got from the kernel."""
    try:
        import resource
    except ImportError:  # Windows
        return None, None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nivcsw, usage.ru_minflt


def _difference(now: float | None, before: float | None, scale: float) -> float | None:
    return None if now is None or before is None else max(0.0, now - before) / scale
