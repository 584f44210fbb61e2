"""The energy of a call, from the counters of the hardware: NVML's for a GPU, RAPL's for CPU packages."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from bakeoff.backends.base import Compiled
from bakeoff.measuring.nvml import GpuWatch
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.schema import Energy

BUSY_S = 1.0
"""Seconds of calls back to back. Counters are renewed every 20 to 100 ms, so less would be mostly rounding."""

CALLS_PER_SYNCHRONISATION = 10
IDLE_S = 0.5
SETTLING_S = 0.2
RAPL = Path("/sys/class/powercap")


class Counter(ABC):
    source: str

    @abstractmethod
    def joules(self) -> float | None:
        """Return the energy taken so far, or None where it cannot be read."""


class NvmlCounter(Counter):
    source = "NVML, the whole GPU"

    def __init__(self, index: int) -> None:
        self._watch = GpuWatch(index)

    def joules(self) -> float | None:
        return self._watch.energy_j()


class RaplCounter(Counter):
    """Adds up all CPU packages. A counter that wrapped around between two readings is noticed."""

    source = "RAPL, the CPU packages"

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
    index = device.cuda_index
    return RaplCounter() if index is None else NvmlCounter(index)


def measure(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    counter: Counter,
    idle_w: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy | None:
    """Return the joules per call beyond those of an idle machine, over a second of calls, or None without a counter.

    The idle power is subtracted. Where no `idle_w` is known, the machine idles first, with the model loaded. Inputs are
    bound once.
    """

    def spent(work: Callable[[], None]) -> tuple[float, float]:
        """Return the joules and seconds of `work()`."""
        before_j, begun_ns = counter.joules(), clock.now_ns()
        work()
        after_j, seconds = counter.joules(), (clock.now_ns() - begun_ns) / 1e9
        assert before_j is not None and after_j is not None
        return after_j - before_j, seconds

    calls = 0

    def call_for_a_while() -> None:
        nonlocal calls
        end_ns = clock.now_ns() + int(BUSY_S * 1e9)
        while clock.now_ns() < end_ns:
            # a host that runs far ahead of its device would queue minutes of work
            for _ in range(CALLS_PER_SYNCHRONISATION):
                compiled.run()
            clock.synchronise()
            calls += CALLS_PER_SYNCHRONISATION

    if counter.joules() is None:
        return None
    clock.synchronise()
    if idle_w is None:
        sleep(SETTLING_S)
        idle_j, idle_s = spent(lambda: sleep(IDLE_S))
        idle_w = idle_j / idle_s
    compiled.bind(sets[0])
    busy_j, busy_s = spent(call_for_a_while)
    return Energy(
        joules_per_call=(busy_j - idle_w * busy_s) / calls,
        idle_w=idle_w,
        calls=calls,
        seconds=busy_s,
        source=counter.source,
    )
