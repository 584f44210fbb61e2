"""Joules per call: counters that wrap, idle power taken off, and none where there is no counter."""

from __future__ import annotations

from pathlib import Path

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
    """Ten watts always, and a tenth of a joule for each call."""

    source = "scripted"

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def joules(self) -> float | None:
        return 10.0 * self.calls.time.now_s + 0.1 * self.calls.count


class NoMeter(energy.Counter):
    source = "none"

    def joules(self) -> float | None:
        return None


def measured(compiled: Calls, counter: energy.Counter, idle_w: float | None = None) -> Energy | None:
    clock = Clock(CPU, compiled.time.now_ns)
    return energy.measure(compiled, [Inputs((1,))], clock, counter, idle_w, compiled.time.sleep)


def test_the_energy_of_an_idle_machine_is_subtracted() -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, Meter(compiled))
    assert found is not None
    assert found.joules_per_call == pytest.approx(0.1)
    assert found.idle_w == pytest.approx(10.0)
    assert found.calls == compiled.count == 2000
    assert found.seconds == pytest.approx(energy.BUSY_S)
    assert found.source == "scripted"


def test_idle_power_that_is_known_is_not_measured_again() -> None:
    compiled = Calls(FakeTime())
    found = measured(compiled, Meter(compiled), idle_w=9.0)
    assert found is not None
    assert found.idle_w == 9.0
    assert found.joules_per_call == pytest.approx(0.1 + 1.0 / found.calls)
    assert compiled.time.now_s == pytest.approx(found.seconds)


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
