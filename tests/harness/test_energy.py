"""Joules per call: counters that wrap, idle power taken off, and none where there is no counter."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from backends.base import Compiled
from harness.worker import energy
from harness.worker.clock import Clock
from models.base import Inputs
from records.device import CPU


class Calls(Compiled):
    def __init__(self) -> None:
        self.count = 0

    def bind(self, inputs: Inputs) -> None:
        """Nothing to bind."""

    def run(self) -> None:
        self.count += 1
        time.sleep(0.0005)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return ()


class Meter(energy.Counter):
    """Ten watts always, and a tenth of a joule for each call."""

    source = "scripted"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def joules(self) -> float | None:
        return 10.0 * time.perf_counter() + 0.1 * self._calls.count


class NoMeter(energy.Counter):
    source = "none"

    def joules(self) -> float | None:
        return None


def test_what_an_idle_machine_takes_is_not_the_calls() -> None:
    compiled = Calls()
    found = energy.measure(compiled, [Inputs((1,))], Clock(CPU), Meter(compiled))
    assert found is not None
    assert found.joules_per_call == pytest.approx(0.1, rel=0.05)
    assert found.idle_w == pytest.approx(10.0, rel=0.05)
    assert found.calls == compiled.count > 100
    assert found.seconds == pytest.approx(energy.SECONDS, rel=0.3)
    assert found.source == "scripted"


def test_without_a_counter_nothing_is_called() -> None:
    compiled = Calls()
    assert energy.measure(compiled, [Inputs((1,))], Clock(CPU), NoMeter()) is None
    assert compiled.count == 0


def test_packages_are_added_up_their_parts_are_not_and_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
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
