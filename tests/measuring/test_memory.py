"""The device memory that counts as a worker's own."""

import contextlib
import os
from types import SimpleNamespace

import pytest

from bakeoff.measuring.worker import memory
from bakeoff.measuring.worker.memory import DeviceMemory
from bakeoff.truth.traits import keeps_memory


class Driver:
    """Stands for NVML: a device of which `used` bytes are in use, and what it knows of single processes."""

    def __init__(self) -> None:
        self.used = 0
        self.processes: list[SimpleNamespace] = []

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=self.used)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return self.processes


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(memory, "nvml", lambda: contextlib.nullcontext(found))
    monkeypatch.setattr(memory, "handle", lambda library, index: index)
    return found


def test_what_others_load_before_a_build_is_not_the_workers_own(driver: Driver) -> None:
    driver.used = 5
    mine = DeviceMemory(0)
    driver.used += 10 + 40  # the model of this worker, and those of its neighbours
    mine.leave_out_others(own_bytes=10)
    driver.used += 3  # the build
    mine.sample()
    assert (mine.peak_bytes, mine.source) == (13, "growth of the device's memory in use")


def test_the_drivers_account_of_the_process_goes_first(driver: Driver) -> None:
    mine = DeviceMemory(0)
    driver.used = 50
    driver.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=12), SimpleNamespace(pid=0, usedGpuMemory=38)]
    mine.sample()
    assert (mine.peak_bytes, mine.source) == (12, "driver, this process")


@pytest.mark.parametrize(
    ("sizes", "grows"), [([8, 16, 24, 32], True), ([8, 16, 16, 16], False), ([8, 24, 16, 32], False)]
)
def test_memory_that_each_call_adds_to_grows(sizes: list[int], grows: bool) -> None:
    calls: list[int] = []
    assert keeps_memory(lambda: calls.append(1), lambda: sizes[len(calls) - 1]) is grows
