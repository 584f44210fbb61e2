"""The energy of a call, from the counters of the hardware: NVML's for a GPU, RAPL's for CPU packages."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bakeoff.backends.base import Compiled
from bakeoff.measuring.nvml import GpuWatch
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.schema import Energy, Interval

BUSY_S = 0.19
"""Seconds of calls back to back in one turn, from a step of the counter to another one. It is a little less than two
steps of 100 ms: a third one would often be waited for if it were as much."""

IDLE_S = 0.09
SETTLING_S = 0.05
"""What the counter says of the power follows this much later."""

MIN_TURNS = 3
MAX_TURNS = 5
STUDENT_95 = {3: 4.303, 4: 3.182, 5: 2.776}
"""Half the width of a 95 % interval over so many turns, in standard errors."""

WANTED_HALF_WIDTH = 0.05
"""There are further turns until the interval is within this share of the energy."""

STEP_LIMIT_S = 0.15
"""Counters step every 1 to 100 ms. One that stands still for longer is not waited for."""

IDLE_STEP_S = 0.002
RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Counter:
    source: str
    joules: Callable[[], float | None]  # the energy taken so far, or None where it cannot be read
    batch_s: float = 0.002  # of calls between two readings. A reading should take a small part of them


class Rapl:
    """Adds up all CPU packages. A counter that wrapped around between two readings is noticed."""

    def __init__(self, root: Path = RAPL) -> None:
        self._packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        self._last: dict[Path, int] = {}
        self._wrapped: dict[Path, int] = {}

    def joules(self) -> float | None:
        if not self._packages:
            return None
        try:
            return sum(self._microjoules(package) for package in self._packages) / 1e6
        except OSError:  # on most systems only root may read it
            return None

    def _microjoules(self, package: Path) -> int:
        now = int((package / "energy_uj").read_text())
        if now < self._last.get(package, 0):
            turn = int((package / "max_energy_range_uj").read_text())
            self._wrapped[package] = self._wrapped.get(package, 0) + turn
        self._last[package] = now
        return now + self._wrapped.get(package, 0)


def counter_for(device: Device) -> Counter:
    if (index := device.cuda_index) is None:
        return Counter("RAPL, the CPU packages", Rapl().joules)
    # a reading takes up to 4 ms in a virtual machine
    return Counter("NVML, the whole GPU", GpuWatch(index).energy_j, batch_s=0.005)


@dataclass(frozen=True)
class _Span:
    joules: float
    seconds: float
    calls: int

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


def measure(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    counter: Counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy | None:
    """Return the joules per call beyond those of an idle machine, with their interval, or None without a counter."""

    wait_for_batch = clock.mark()

    def idle() -> int:
        sleep(IDLE_STEP_S)
        return 0

    def call() -> int:
        """Queue a batch, and wait for the one before: the device works while the counter is read."""
        nonlocal wait_for_batch
        wait_for_last = wait_for_batch
        for _ in range(batch):
            compiled.run()
        wait_for_batch = clock.mark()
        wait_for_last()
        return batch

    if counter.joules() is None:
        return None
    compiled.bind(sets[0])
    for _ in range(2):  # in a first call a library may begin
        with clock.timed() as call_s:
            compiled.run()
    # a host that runs far ahead of its device would queue minutes of work
    batch = max(1, round(counter.batch_s / max(call_s[0], 1e-6)))
    turns: list[_Span] = []
    idle_w = [_span(counter, clock, idle, IDLE_S).watts]
    middle, half = 0.0, math.inf
    while len(turns) < MIN_TURNS or (len(turns) < MAX_TURNS and half > WANTED_HALF_WIDTH * middle):
        # Idling and working take turns, so that a slow drift divides out.
        turns.append(_span(counter, clock, call, BUSY_S))
        idle_w.append(_span(counter, clock, idle, IDLE_S).watts)
        around_w = [(before + after) / 2 for before, after in itertools.pairwise(idle_w)]
        per_call = [(turn.joules - own * turn.seconds) / turn.calls for turn, own in zip(turns, around_w, strict=True)]
        if len(turns) >= MIN_TURNS:
            middle = statistics.fmean(per_call)
            half = STUDENT_95[len(turns)] * statistics.stdev(per_call) / math.sqrt(len(turns))
    return Energy(
        joules_per_call=middle,
        ci95=Interval(low=middle - half, high=middle + half),
        turns=len(turns),
        idle_w=statistics.fmean(idle_w),
        calls=sum(turn.calls for turn in turns),
        seconds=sum(turn.seconds for turn in turns),
        source=counter.source,
    )


def _span(counter: Counter, clock: Clock, work: Callable[[], int], seconds: float) -> _Span:
    """Work until the counter steps, then for `seconds` and until it steps again. Return what it said in between."""

    def until_step(from_s: float) -> tuple[float, float, int]:
        """Work up to `from_s` and on to the next step. Return the reading, its time, and the calls."""
        made = 0
        before_j, end_s = counter.joules(), from_s + STEP_LIMIT_S
        while True:
            made += work()
            now_j, now_s = counter.joules(), clock.now_ns() / 1e9
            assert now_j is not None
            if now_s >= end_s or (now_s >= from_s and now_j != before_j):
                return now_j, now_s, made
            if now_s < from_s:
                before_j = now_j

    begun_j, begun_s, _ = until_step(clock.now_ns() / 1e9 + SETTLING_S)
    ended_j, ended_s, calls = until_step(begun_s + seconds)
    return _Span(ended_j - begun_j, ended_s - begun_s, calls)
