"""Energy of a call, from counters that the hardware keeps: a GPU's by NVML, a CPU package's by RAPL."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from backends.base import Compiled
from harness.nvml import GpuWatch
from harness.worker.clock import Clock
from models.base import Inputs
from records.device import Device
from records.schema import Energy

SECONDS = 1.0
"""Of calls back to back: counters are renewed every 20 to 100 ms, so that less would be mostly rounding."""

IDLE_S = 0.5
SETTLING_S = 0.2
RAPL = Path("/sys/class/powercap")


class Counter(ABC):
    source: str

    @abstractmethod
    def joules(self) -> float | None:
        """Energy taken so far; None where it cannot be read."""


class NvmlCounter(Counter):
    source = "NVML, the whole GPU"

    def __init__(self, index: int) -> None:
        self._watch = GpuWatch(index)

    def joules(self) -> float | None:
        return self._watch.energy_j()


class RaplCounter(Counter):
    """All CPU packages. Their counters wrap around; one that has done so between two readings is noticed."""

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
        except OSError:  # readable by root only on most systems
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


def measure(compiled: Compiled, sets: Sequence[Inputs], clock: Clock, counter: Counter) -> Energy | None:
    """Joules per call beyond an idle machine, over a second of calls back to back; None without a counter.

    The machine idles first, with the model loaded; its power then is taken off. Inputs are bound once.
    """
    if counter.joules() is None:
        return None
    clock.synchronise()
    time.sleep(SETTLING_S)
    idle_j, idle_s = _spent(counter, lambda: time.sleep(IDLE_S))
    compiled.bind(sets[0])
    calls = 0

    def call_for_a_while() -> None:
        nonlocal calls
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            # a host that runs far ahead of its device would queue minutes of work
            for _ in range(10):
                compiled.run()
            clock.synchronise()
            calls += 10

    busy_j, busy_s = _spent(counter, call_for_a_while)
    idle_w = idle_j / idle_s
    return Energy(
        joules_per_call=(busy_j - idle_w * busy_s) / calls,
        idle_w=idle_w,
        calls=calls,
        seconds=busy_s,
        source=counter.source,
    )


def _spent(counter: Counter, work: Callable[[], None]) -> tuple[float, float]:
    """Joules and seconds of `work()`."""
    before, begun = counter.joules(), time.perf_counter()
    work()
    after, seconds = counter.joules(), time.perf_counter() - begun
    assert before is not None and after is not None
    return after - before, seconds
