"""Joules per call: counters that wrap, idle power taken off, and none where there is no counter."""

from pathlib import Path
from random import Random

import pytest
import torch

from bakeoff.backends.base import Compiled
from bakeoff.measuring.worker import energy
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import CPU
from bakeoff.records.schema import Energy


class FakeTime:
    """Time that passes only while a call runs or somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Calls(Compiled):
    def __init__(self, time: FakeTime) -> None:
        self.time, self.count = time, 0

    def bind(self, inputs: Inputs) -> None:
        """Nothing to bind."""

    def run(self) -> None:
        self.count += 1
        self.time.sleep(0.0005)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return ()


class Meter(energy.Counter):
    """Ten watts that drift, and some joules for each call, renewed every 20 ms in steps of a millijoule."""

    source = "scripted"

    def __init__(self, calls: Calls, call_j: float = 0.1, drift_w_per_s: float = 0.0, noise_w: float = 0.0) -> None:
        self.calls, self.call_j, self.drift, self.noise_w = calls, call_j, drift_w_per_s, noise_w
        self.random, self.step, self.noise_j = Random(1), 0, 0.0
        self.told_j = 0.0

    def joules(self) -> float | None:
        now_s = self.calls.time.now_s
        while (self.step + 1) * 0.02 <= now_s:
            self.step += 1
            self.noise_j += 0.02 * self.random.gauss(0, self.noise_w)
            exact_j = 10.0 * now_s + self.drift * now_s**2 / 2 + self.noise_j + self.call_j * self.calls.count
            self.told_j = round(exact_j, 3)
        return self.told_j


class StandingStill(energy.Counter):
    source = "stands still"

    def joules(self) -> float | None:
        return 1.0


class NoMeter(energy.Counter):
    source = "none"

    def joules(self) -> float | None:
        return None


def measured(compiled: Calls, counter: energy.Counter) -> Energy | None:
    clock = Clock(CPU, compiled.time.now_ns)
    return energy.measure(compiled, [Inputs((1,))], clock, counter, compiled.time.sleep)


@pytest.mark.parametrize("drift_w_per_s", [0.0, 3.0])
def test_the_energy_of_an_idle_machine_is_subtracted_and_its_drift_and_the_steps_make_no_error(
    drift_w_per_s: float,
) -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, Meter(compiled, call_j=0.001, drift_w_per_s=drift_w_per_s))
    assert found is not None and found.ci95 is not None
    assert found.joules_per_call == found.resolved_j == pytest.approx(0.001, rel=0.05)
    assert found.ci95.high - found.ci95.low < 0.1 * found.joules_per_call
    assert found.idle_w == pytest.approx(10.0 + drift_w_per_s * compiled.time.now_s / 2, rel=0.05)
    assert found.turns == energy.MIN_TURNS
    assert found.calls <= compiled.count
    assert compiled.time.now_s < 2.0
    assert found.source == "scripted"


def test_noise_takes_more_turns_and_gives_an_interval() -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, Meter(compiled, call_j=0.001, noise_w=1.0))
    assert found is not None and found.ci95 is not None
    assert found.turns == energy.MAX_TURNS
    assert found.ci95.low < 0.001 < found.ci95.high
    assert compiled.time.now_s < 3.0


def test_less_than_the_counter_can_tell_from_an_idle_machine_is_not_resolved() -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, Meter(compiled, call_j=1e-6, noise_w=1.0))
    assert found is not None
    assert found.resolved_j is None


def test_a_counter_that_stands_still_is_not_waited_for() -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, StandingStill())
    assert found is not None and found.resolved_j is None
    assert compiled.time.now_s < 4.0


def test_without_a_counter_nothing_is_called() -> None:
    compiled = Calls(FakeTime())
    assert measured(compiled, NoMeter()) is None
    assert compiled.count == 0


def test_cpu_packages_are_added_up_even_when_a_counter_wraps(tmp_path: Path) -> None:
    def write(zone: str, microjoules: int) -> None:
        (tmp_path / zone).mkdir(exist_ok=True)
        (tmp_path / zone / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("1000000\n")

    write("intel-rapl:0", 900_000)
    write("intel-rapl:1", 100_000)
    write("intel-rapl:0:0", 500_000)  # the cores of package 0, which are in its figure
    counter = energy.RaplCounter(tmp_path)
    assert counter.joules() == pytest.approx(1.0)
    write("intel-rapl:0", 100_000)
    assert counter.joules() == pytest.approx(1.2)


def test_a_machine_without_rapl_has_no_energy(tmp_path: Path) -> None:
    assert energy.RaplCounter(tmp_path).joules() is None
