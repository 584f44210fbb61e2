"""Other programs that keep cores busy: what they take when a run begins, and waiting until they rest."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from bakeoff.measuring.cores import usable_cores
from bakeoff.records.text import counted

WINDOW_S = 0.3
"""What others take is counted for at least this long."""

BUSY_SHARE = 0.25
"""A run begins with a warning if others keep this share of the cores busy."""

QUIET_CORES = 0.2
"""The machine is quiet while others keep at most this many cores busy."""


@dataclass(frozen=True)
class Program:
    name: str
    cpu_s: float  # that it has taken


Programs = Mapping[int, Program]
"""The programs by the number of their process."""


@dataclass
class OtherPrograms:
    """Counts from now on what other programs take of the cores. Those outside of our container are not seen."""

    read: Callable[[], Programs] = field(default_factory=lambda: programs_of_others)
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._begun_s, self._before = self.now_s(), self.read()

    def warning(self, cores: int, will_wait: bool = False) -> str:
        """Say what keeps the cores busy, how much longer a run takes, and what to do; or nothing. With `will_wait`, it
        does not advise to wait."""
        if (left_s := self._begun_s + WINDOW_S - self.now_s()) > 0:
            self.sleep(left_s)
        seconds, after = self.now_s() - self._begun_s, self.read()
        cores_of = {
            pid: (program.cpu_s - self._before[pid].cpu_s) / seconds
            for pid, program in after.items()
            if pid in self._before
        }
        share = sum(cores_of.values()) / cores
        if share < BUSY_SHARE:
            return ""
        most = max(cores_of, key=lambda pid: cores_of[pid])
        busy = f"{min(cores, round(share * cores)) or 'part'} of {counted(cores, 'core')}"
        longer = 1 + 2 * min(1.0, share)  # rounds that were disturbed are repeated
        wait = "" if will_wait else ", or let the run wait: --wait-for-quiet 10m"
        return (
            f"other programs keep {busy} busy: the run will take about {longer:.0f} times as long, and may stay "
            f"undecided. Stop them ({after[most].name}, process {most}, takes most){wait}"
        )


def programs_of_others() -> Programs:
    """Return the processes that are neither ours nor began us, and that last ran on a core that we may use."""
    us, cores = psutil.Process(), usable_cores()
    ours = {us.pid, *(process.pid for process in [*us.children(recursive=True), *us.parents()])}
    attributes = ["name", "cpu_times", *(["cpu_num"] if hasattr(psutil.Process, "cpu_num") else [])]
    # Where the system does not report the core of a process, those on all cores count.
    return {
        process.pid: Program(
            process.info["name"] or "?", process.info["cpu_times"].user + process.info["cpu_times"].system
        )
        for process in psutil.process_iter(attributes)
        if process.pid not in ours and process.info["cpu_times"] and process.info.get("cpu_num", cores[0]) in cores
    }


def busy_cores(seconds: float = WINDOW_S) -> float:
    """Return how many of the cores that we may use anything keeps busy, over the next `seconds`."""
    before, begun_s = _busy_s(), time.monotonic()
    time.sleep(seconds)
    return (_busy_s() - before) / (time.monotonic() - begun_s)


def _busy_s() -> float:
    times = psutil.cpu_times(percpu=True)
    ours = [times[core] for core in usable_cores() if core < len(times)] or times
    names = ("user", "nice", "system", "irq", "softirq")
    return sum(getattr(core, name, 0.0) for core in ours for name in names)


@dataclass
class QuietWait:
    left_s: float
    note: Callable[[str], None]
    busy_cores: Callable[[], float] = busy_cores
    now_s: Callable[[], float] = time.monotonic

    def wait(self, tick: Callable[[], None], at_most_s: float = math.inf) -> None:
        self.left_s = min(self.left_s, max(0.0, at_most_s))
        begun_s, was_busy = self.now_s(), False
        while self.left_s > 0 and self.busy_cores() > QUIET_CORES:
            if self.now_s() - begun_s >= self.left_s:
                self.left_s = 0.0
                self.note("--wait-for-quiet is over, and other programs still run: measured beside them")
                return
            if not was_busy:
                self.note("waiting until other programs rest (--wait-for-quiet)")
            was_busy = True
            tick()
        self.left_s -= (self.now_s() - begun_s) if was_busy else 0.0
