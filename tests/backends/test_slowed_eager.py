"""Copies of eager that are slower by the share that their names say."""

import statistics
import time

import pytest
from slowed_eager import EagerSlowedBy3Percent, Slowed

from bakeoff import backends
from bakeoff.backends.base import Compiled
from benchmarks.aa import SLOWER_COPIES


class Spinning(Compiled):
    """Notes how long each of its calls took."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    def bind(self, inputs: object) -> None: ...

    def run(self) -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.001:
            pass
        self.taken_s.append(time.perf_counter() - begun)

    def outputs(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_each_call_is_longer_by_the_share_of_its_own_time(share: float) -> None:
    inner = Spinning()
    slowed = Slowed(inner, share)
    ratios = []
    for _ in range(50):
        begun = time.perf_counter()
        slowed.run()
        ratios.append((time.perf_counter() - begun) / inner.taken_s[-1])
    assert min(ratios) >= 1 + share
    assert statistics.median(ratios) == pytest.approx(1 + share, abs=0.02)


def test_the_copies_are_those_that_the_benchmark_asks_for() -> None:
    for factor, name in SLOWER_COPIES.items():
        copy = backends.create(name)
        assert isinstance(copy, EagerSlowedBy3Percent)
        assert 1 + copy.slower_by == pytest.approx(factor)
