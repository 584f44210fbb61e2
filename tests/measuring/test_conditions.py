"""What is read around a burst, and where threads begin."""

import mmap
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bakeoff.measuring.controller.environment import calibrate_ms
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.nvml import GpuWatch, max_sm_clock_mhz
from bakeoff.measuring.worker import conditions
from bakeoff.records.device import CPU

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's accounts in /proc")


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@linux
def test_a_neighbour_on_the_same_core_shows_as_waiting_and_as_switches() -> None:
    watch = conditions.Watch(CPU)
    before = os.sched_getaffinity(0)
    core = {min(before)}
    os.sched_setaffinity(0, core)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # inherits the core
    try:
        time.sleep(0.2)
        watch.begin()
        spin(0.5)
        seen = watch.end()
    finally:
        neighbour.kill()
        neighbour.wait()
        os.sched_setaffinity(0, before)
    assert seen.wait_share is not None and seen.wait_share > 0.2
    assert seen.cpu_share is not None and 0.9 < seen.wait_share + seen.cpu_share < 1.1
    assert seen.others_cores is not None and seen.others_cores > 0.2
    assert seen.involuntary_switches
    assert seen.steal_share is not None and seen.load is not None


@linux
def test_a_thread_that_has_ended_counts_with_what_it_waited() -> None:
    threads, release = conditions.Threads(), threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    threads.find()
    before_ns = threads.waited_ns()
    release.set()
    thread.join()
    assert threads.are_known and threads.waited_ns() >= before_ns
    threads.close()
    assert not threads.are_known


def test_calls_of_slices_that_waited_are_told_from_quiet_ones() -> None:
    """After ten calls of 1 ms come three of 3 ms whose slice waited 6 ms, four of 2 ms, and two of 1 ms."""
    calls_ns = np.array([1e6] * 10 + [3e6] * 3 + [2e6] * 4 + [1e6] * 2)
    waited_ns = [(0, 0), (7, 0), (7, 0), (10, 30_000), (13, 6_030_000), (17, 6_030_000), (19, 6_030_000)]
    seen = conditions.without_waiting(calls_ns, waited_ns)
    assert (seen["quiet_calls"], seen["quiet_ms"]) == (3 + 2, 1.0), "calls begin cold after waiting, and before a mark"
    assert seen["quiet_wait_share"] == pytest.approx(0.03 / 5)
    assert seen["given_ms"] == pytest.approx(1.0, rel=0.011)


def test_a_rest_of_a_burst_is_too_short_for_a_slice() -> None:
    calls_ns = np.array([9e6, 0.1e6, 0.1e6])
    seen = conditions.without_waiting(calls_ns, [(0, 0), (1, 8_000_000), (3, 8_000_000)])
    assert (seen["quiet_calls"], seen["quiet_wait_share"]) == (1, pytest.approx(8 / 9))


def test_all_calls_are_quiet_where_nothing_waits() -> None:
    seen = conditions.without_waiting(np.array([1e6] * 6), [(0, 0), (2, 0), (4, 9_000), (6, 9_000)])
    assert (seen["quiet_calls"], seen["quiet_ms"]) == (6, 1.0)


@pytest.mark.parametrize(
    ("groups", "folder", "counts", "seconds"),
    [
        ("0::/a/b", "a/b", "nr_throttled 3\nthrottled_usec 2500000", 2.5),
        ("0::/of/the/host", "", "throttled_usec 2500000", 2.5),
        ("2:cpu,cpuacct:/a\n0::/", "cpu/a", "throttled_time 4000000000", 4.0),
        ("0::/a", "a", "usage_usec 5", None),
    ],
)
def test_what_a_quota_has_held_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, folder: str, counts: str, seconds: float | None
) -> None:
    (tmp_path / "groups").write_text(groups)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "cpu.stat").write_text(counts)
    monkeypatch.setattr(conditions, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(conditions, "CGROUP", tmp_path)
    conditions._counts_of_quota.cache_clear()
    assert conditions.throttled_s() == seconds
    conditions._counts_of_quota.cache_clear()


@linux
def test_pages_that_a_process_gets_from_the_kernel_are_counted() -> None:
    watch = conditions.Watch(CPU)
    with mmap.mmap(-1, 1000 * mmap.PAGESIZE) as fresh:
        watch.begin()
        for place in range(0, len(fresh), mmap.PAGESIZE):
            fresh[place] = 1
        seen = watch.end()
    assert seen.page_faults is not None and 1000 <= seen.page_faults < 2000


@linux
def test_a_process_that_sleeps_waits_for_no_core() -> None:
    """On a busy machine it waits when it wakes."""
    watch = conditions.Watch(CPU)
    watch.begin()
    time.sleep(0.5)
    seen = watch.end()
    assert seen.wait_share is not None and seen.wait_share < 0.8


def test_the_calibrating_work_is_fixed_and_takes_milliseconds_at_most() -> None:
    fastest_ms = min(calibrate_ms() for _ in range(20))
    assert 0.05 < fastest_ms < 50


def test_a_cpu_has_no_gpu_to_read() -> None:
    seen = conditions.Watch(CPU).end()
    assert (seen.sm_clock_mhz, seen.temperature_c, seen.throttle_reasons) == (None, None, [])
    assert GpuWatch(None).processes() is None
    assert GpuWatch(None).energy_j() is None


@linux
def test_a_thread_begins_on_the_core_it_was_given_and_is_free_afterwards() -> None:
    before = os.sched_getaffinity(0)
    for core in usable_cores():
        with conditions.beginning_on(core):
            assert os.sched_getaffinity(0) == {core}
        assert os.sched_getaffinity(0) == before
    with pytest.raises(RuntimeError, match="scripted"), conditions.beginning_on(min(before)):
        raise RuntimeError("scripted")
    assert os.sched_getaffinity(0) == before


@linux
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_other_threads_begin_elsewhere_and_those_bound_by_a_runtime_stay() -> None:
    usual = os.sched_getaffinity(0)
    core = min(usual)
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(3)]
    try:
        for thread in threads[:2]:
            thread.start()
        free, bound = (thread.native_id or 0 for thread in threads[:2])
        os.sched_setaffinity(bound, {core})
        with conditions.beginning_on(core):
            assert os.sched_getaffinity(0) == {core}
            assert os.sched_getaffinity(free) == usual - {core}
            assert os.sched_getaffinity(bound) == {core}
            threads[2].start()  # inherits the core that its creator is bound to
        late = threads[2].native_id or 0
        assert [os.sched_getaffinity(thread) for thread in (0, free, late)] == [usual] * 3
        assert os.sched_getaffinity(bound) == {core}
    finally:
        release.set()


@linux
def test_a_core_that_was_taken_away_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    with conditions.beginning_on(100_000):
        assert os.sched_getaffinity(0) == before
    with conditions.beginning_on(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


class Nvml:
    """The part of pynvml that is read, of a card that does not tell its temperature."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlClocksEventReasonSwPowerCap = 0x4
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: object) -> int:
        return 0x1 | 0x40  # idle, which is no throttling, and hot

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:
        return 1200

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        if handle != 1:
            raise self.NVMLError
        return 1980

    def nvmlDeviceGetTemperature(self, handle: object, kind: int) -> int:
        raise self.NVMLError

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:
        return [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        return 2500


def test_a_gpus_clock_and_throttling_are_read_and_the_rest_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    watch = GpuWatch(1, Nvml())
    assert watch.read() == {
        "sm_clock_mhz": 1200,
        "temperature_c": None,
        "throttle_reasons": ["hardware thermal slowdown"],
    }
    assert watch.processes() == 2
    assert watch.energy_j() == 2.5


def test_the_highest_clock_is_nvmls_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert max_sm_clock_mhz(1, lambda: nullcontext(Nvml())) == 1980
    assert max_sm_clock_mhz(2, lambda: nullcontext(Nvml())) is None
    assert max_sm_clock_mhz(1, nullcontext) is None
