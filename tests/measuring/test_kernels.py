"""What a GPU does during a call: sums of a trace."""

import pytest

from bakeoff.judging.intervals import covered
from bakeoff.measuring.worker import kernels
from bakeoff.measuring.worker.clock import Clock
from bakeoff.records.device import CPU


def test_what_is_summed_is_one_call_of_several() -> None:
    # two calls: a product, a copy on another stream that overlaps it, and a second product after a pause
    call = [("gemm", 0.0, 400.0), ("copy", 300.0, 500.0), ("gemm", 800.0, 1000.0)]
    traced = call + [(name, begun + 5000, ended + 5000) for name, begun, ended in call]
    found = kernels.summed(traced, calls=2)
    assert found is not None
    assert (found.busy_ms, found.kernels, found.calls) == (pytest.approx(0.7), 3, 2)
    assert [(kernel.name, kernel.share) for kernel in found.longest] == [("gemm", 0.75), ("copy", 0.25)]


def test_only_the_longest_kernels_are_kept() -> None:
    found = kernels.summed([(f"kernel {number}", 0.0, float(number)) for number in range(1, 9)], calls=1)
    assert found is not None
    assert [kernel.name for kernel in found.longest] == ["kernel 8", "kernel 7", "kernel 6"]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0.0), ([(1, 3), (2, 5)], 4.0), ([(4, 5), (0, 1)], 2.0), ([(0, 9), (1, 2), (3, 4)], 9.0)],
)
def test_time_is_covered_once(spans: list[tuple[float, float]], expected: float) -> None:
    assert covered(spans) == expected


def test_nothing_traced_is_nothing_known() -> None:
    assert kernels.summed([], calls=3) is None
    assert kernels.trace(None, (), Clock(CPU)) is None  # type: ignore[arg-type]  # it must not be called
