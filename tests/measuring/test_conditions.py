"""What is read of the machine: around a burst, once for a run, its energy, its memory, and its other programs."""

import contextlib
import mmap
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from bakeoff.judging.environment_changes import within_run
from bakeoff.measuring.controller import environment
from bakeoff.measuring.controller.environment import calibrate_ms
from bakeoff.measuring.controller.others import OtherPrograms, Program, QuietWait, busy_cores, programs_of_others
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.messages import TorchFacts
from bakeoff.measuring.nvml import GpuWatch, max_sm_clock_mhz
from bakeoff.measuring.worker import conditions, energy, memory
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.memory import DeviceMemory
from bakeoff.models.base import Inputs
from bakeoff.records import package
from bakeoff.records.device import CPU
from bakeoff.records.schema import Energy, Environment, Gpu
from bakeoff.truth.traits import keeps_memory
from tests.measuring.test_sampling import FakeTime, Scripted

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


def test_calls_of_slices_that_waited_are_reported_from_quiet_ones() -> None:
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


def test_what_a_machine_does_not_have_is_unknown(tmp_path: Path) -> None:
    seen = conditions.Watch(CPU).end()
    assert (seen.sm_clock_mhz, seen.temperature_c, seen.throttle_reasons) == (None, None, [])
    assert GpuWatch(None).processes() is GpuWatch(None).energy_j() is None
    assert energy.Rapl(tmp_path).joules() is None
    assert environment.capture().torch_threads is None, "torch has not answered"
    assert environment.gpus_of(None) == []


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


def test_a_gpus_clock_and_throttling_are_read_and_the_rest_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
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


class Meter:
    """Ten watts that drift, and some joules for each call, renewed every 20 ms in steps of a millijoule."""

    def __init__(self, calls: Scripted, call_j: float = 0.1, drift_w_per_s: float = 0.0, noise_w: float = 0.0) -> None:
        self.calls, self.call_j, self.drift, self.noise_w = calls, call_j, drift_w_per_s, noise_w
        self.random, self.step, self.noise_j = Random(1), 0, 0.0
        self.told_j = 0.0

    def __call__(self) -> float:
        now_s = self.calls.time.now_ns / 1e9
        while (self.step + 1) * 0.02 <= now_s:
            self.step += 1
            self.noise_j += 0.02 * self.random.gauss(0, self.noise_w)
            exact_j = 10.0 * now_s + self.drift * now_s**2 / 2 + self.noise_j + self.call_j * self.calls.calls
            self.told_j = round(exact_j, 3)
        return self.told_j


@pytest.fixture
def compiled() -> Scripted:
    return Scripted(FakeTime(), lambda call: 0.5)


def measured(compiled: Scripted, joules: Callable[[], float | None]) -> Energy | None:
    clock, counter = Clock(CPU, compiled.time.read), energy.Counter("scripted", joules)
    return energy.measure(compiled, [Inputs((1,))], clock, counter, compiled.time.sleep)


@pytest.mark.parametrize("drift_w_per_s", [0.0, 3.0])
def test_the_energy_of_an_idle_machine_is_subtracted_and_its_drift_and_the_steps_make_no_error(
    compiled: Scripted, drift_w_per_s: float
) -> None:
    found = measured(compiled, Meter(compiled, call_j=0.001, drift_w_per_s=drift_w_per_s))
    assert found.joules_per_call == found.resolved_j == pytest.approx(0.001, rel=0.05)
    assert found.ci95.high - found.ci95.low < 0.1 * found.joules_per_call
    assert found.idle_w == pytest.approx(10.0 + drift_w_per_s * compiled.time.now_ns / 2e9, rel=0.05)
    assert found.turns == energy.MIN_TURNS
    assert found.calls <= compiled.calls
    assert compiled.time.now_ns < 2e9
    assert found.source == "scripted"


def test_noise_takes_more_turns_and_gives_an_interval(compiled: Scripted) -> None:
    found = measured(compiled, Meter(compiled, call_j=0.001, noise_w=1.0))
    assert found.turns == energy.MAX_TURNS
    assert found.ci95.low < 0.001 < found.ci95.high
    assert compiled.time.now_ns < 3e9


def test_less_than_the_counter_resolves_beyond_an_idle_machine_is_no_energy(compiled: Scripted) -> None:
    assert measured(compiled, Meter(compiled, call_j=1e-6, noise_w=1.0)).resolved_j is None


def test_a_counter_that_stands_still_is_not_waited_for(compiled: Scripted) -> None:
    assert measured(compiled, lambda: 1.0).resolved_j is None
    assert compiled.time.now_ns < 4e9


def test_without_a_counter_nothing_is_called(compiled: Scripted) -> None:
    assert measured(compiled, lambda: None) is None
    assert compiled.calls == 0


def test_cpu_packages_are_added_up_even_when_a_counter_wraps(tmp_path: Path) -> None:
    def write(zone: str, microjoules: int) -> None:
        (tmp_path / zone).mkdir(exist_ok=True)
        (tmp_path / zone / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("1000000\n")

    write("intel-rapl:0", 900_000)
    write("intel-rapl:1", 100_000)
    write("intel-rapl:0:0", 500_000)  # the cores of package 0, which are in its figure
    counter = energy.Rapl(tmp_path)
    assert counter.joules() == pytest.approx(1.0)
    write("intel-rapl:0", 100_000)
    assert counter.joules() == pytest.approx(1.2)


FACTS = TorchFacts(torch="9.9.9+cpu", cuda=None, cuda_devices=0, threads=3)


@pytest.fixture
def captured() -> Environment:
    return environment.with_torch(environment.capture(), FACTS, {})


def test_this_machine_is_described(captured: Environment) -> None:
    assert captured.cpu
    assert captured.logical_cores == psutil.cpu_count()
    assert captured.memory_bytes == psutil.virtual_memory().total
    assert captured.python == ".".join(map(str, sys.version_info[:3]))
    assert captured.versions["numpy"] == np.__version__
    assert captured.versions["torch"] == "9.9.9+cpu", "torch's own word, and not its distribution's"
    assert captured.torch_threads == 3


def test_a_gpu_that_does_not_answer_everything_is_described() -> None:
    class Library:
        NVMLError = RuntimeError
        NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", "temperature"
        nvmlDeviceGetCount = staticmethod(lambda: 2)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
        nvmlDeviceGetName = staticmethod(lambda device: b"H200")
        nvmlSystemGetDriverVersion = staticmethod(lambda: "580.1")
        nvmlDeviceGetEnforcedPowerLimit = staticmethod(lambda device: 700_000)

        def __getattr__(self, question: str) -> object:
            def refuse(*_: object) -> None:
                raise RuntimeError("not supported")

            return refuse

    assert environment.gpus_of(Library()) == [
        Gpu(index=index, name="H200", driver="580.1", power_limit_w=700.0) for index in (0, 1)
    ]


def test_variables_that_bear_on_speed_are_kept_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_ALL", "SECRET_TOKEN"):
        monkeypatch.setenv(name, "1")
    kept = environment.with_torch(environment.capture(), FACTS, {}).variables
    assert {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} <= kept.keys()
    assert {"LC_ALL", "SECRET_TOKEN", "PATH", "HOME"}.isdisjoint(kept)


def test_an_exported_tree_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", "/")
    assert environment.git_state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment.git_state(tmp_path) == (None, None)


def test_without_a_commit_a_change_of_bakeoffs_own_files_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "checkout", lambda: None)
    monkeypatch.setattr(package, "PACKAGE", tmp_path)
    (tmp_path / "judging.py").write_text("one")
    before, same = environment.capture(), environment.capture()
    (tmp_path / "judging.py").write_text("two")
    assert within_run(before, same) == []
    (told,) = within_run(before, environment.capture())
    assert told.what == "Bakeoff's source files"


def test_the_same_machine_does_not_differ(captured: Environment) -> None:
    assert within_run(captured, captured.model_copy(update={"git_dirty": True})) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("hostname", "elsewhere", "host: .* -> elsewhere"),
        ("cpu", "another", "CPU: .* -> another"),
        ("usable_cores", 999, "usable cores: .* -> 999"),
        ("torch_threads", 4, "torch threads: 3 -> 4"),
        ("python", "3.99.0", "Python: .* -> 3.99.0"),
        ("versions", {"torch": "0.1"}, "torch: 2.13.0 -> 0.1"),
        ("cuda", "13.0", "CUDA: .* -> 13.0"),
        ("git_commit", "abc", "commit: unknown -> abc"),
        ("governor", "imaginary", "governor: .* -> imaginary"),
        ("variables", {"OMP_NUM_THREADS": "2"}, r"\$OMP_NUM_THREADS: not set -> 2"),
    ],
)
def test_what_changed_is_named(captured: Environment, name: str, value: object, told: str) -> None:
    plain = captured.model_copy(update={"versions": {"torch": "2.13.0"}, "git_commit": None, "variables": {}})
    (change,) = within_run(plain, plain.model_copy(update={name: value}))
    assert re.fullmatch(told, str(change))


@pytest.mark.parametrize("change", [{"name": "A100"}, {"driver": "2"}])
def test_another_gpu_or_driver_is_a_difference_and_its_temperature_is_none(
    captured: Environment, change: dict[str, str]
) -> None:
    gpu = Gpu(index=0, name="H200", driver="1", temperature_c=30)
    with_gpu = captured.model_copy(update={"gpus": [gpu]})
    hotter = captured.model_copy(update={"gpus": [gpu.model_copy(update={"temperature_c": 80, "other_processes": 3})]})
    other = captured.model_copy(update={"gpus": [gpu.model_copy(update=change)]})
    assert within_run(with_gpu, hotter) == []
    assert [found.what for found in within_run(with_gpu, other)] == ["GPUs" if "name" in change else "driver of GPU 0"]
    assert [found.what for found in within_run(with_gpu, captured)] == ["GPUs", "driver of GPU 0"]


NAMES = {1: "init", 7: "trainer"}


def warning(taken_s: dict[int, float], cores: int) -> str:
    """Return the warning after a second in which programs took so many seconds of a CPU."""
    readings: Iterator[dict[int, Program]] = iter(
        [
            {pid: Program(name, 5.0) for pid, name in NAMES.items()},
            {pid: Program(name, 5.0 + taken_s.get(pid, 0.0)) for pid, name in NAMES.items()} | {9: Program("new", 9.0)},
        ]
    )
    seconds = iter([0.0, 1.0, 1.0])
    return OtherPrograms(lambda: next(readings), lambda: next(seconds), lambda _: None).warning(cores)


@pytest.mark.parametrize(("taken_s", "cores", "longer"), [(7.0, 8, 3), (1.0, 2, 2), (2.0, 8, 2)])
def test_a_run_begins_with_a_warning_where_others_keep_cores_busy(taken_s: float, cores: int, longer: int) -> None:
    said = warning({7: taken_s, 1: 0.01}, cores)
    assert f"{taken_s:.0f} of {cores} cores" in said
    assert f"about {longer} times as long" in said
    assert "(trainer, process 7, takes most)" in said


@pytest.mark.parametrize(("taken_s", "cores"), [(0.1, 2), (1.5, 8), (0.0, 1)])
def test_a_quiet_machine_needs_no_warning(taken_s: float, cores: int) -> None:
    assert warning({7: taken_s}, cores) == ""


def test_programs_of_others_are_none_of_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ours:
        found = programs_of_others()
        ours.communicate()
    assert not {os.getpid(), os.getppid(), ours.pid} & found.keys()


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_num"), reason="the system does not report the core of a process")
def test_programs_on_cores_that_we_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times, ours = SimpleNamespace(user=1.0, system=0.5), usable_cores()[0]
    programs = [
        SimpleNamespace(pid=-number, info={"name": "p", "cpu_times": times, "cpu_num": core})
        for number, core in enumerate([ours, max(usable_cores()) + 1000], 1)
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: programs)
    assert programs_of_others() == {-1: Program("p", 1.5)}


def test_busy_cores_are_counted() -> None:
    assert 0.0 <= busy_cores(0.05) <= (os.cpu_count() or 1) + 0.5


def waiting(busy: list[float], left_s: float = 10.0) -> tuple[QuietWait, list[str], Callable[[], float]]:
    """Return what waits, what it says, and its clock, which looking moves on by a second."""
    time_s, said, readings = [0.0], list[str](), iter(busy)

    def look() -> float:
        time_s[0] += 1.0
        return next(readings)

    return QuietWait(left_s, said.append, look, lambda: time_s[0]), said, lambda: time_s[0]


def test_a_run_waits_until_others_rest() -> None:
    quiet, said, now_s = waiting([3.0, 3.0, 0.1, 0.0])
    quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s, len(said)) == (3.0, 7.0, 1)
    quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s, len(said)) == (4.0, 7.0, 1)


def test_a_run_does_not_wait_for_ever() -> None:
    quiet, said, now_s = waiting([3.0] * 20, left_s=5.0)
    for _ in range(2):
        quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s) == (5.0, 0.0)
    assert "measured beside them" in said[-1]


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
