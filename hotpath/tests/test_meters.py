"""Times that the device still owes."""

from __future__ import annotations

from hotpath.meters import HostMeter, Sample, meter_for


class Slow:
    """A device that has come as far as `reached`."""

    def __init__(self) -> None:
        self.now = self.reached = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.reached else None


def test_times_count_from_when_the_device_has_reached_them() -> None:
    meter = Slow()
    sample = Sample(meter)
    sample.add(0.0, 1.0)
    sample.add(1.0, 5.0, calls=2)
    sample.settle()
    assert sample.median_s is None and len(sample) == 0
    meter.reached = 2.0
    sample.settle()
    assert sample.median_s == 1.0
    meter.reached = 9.0
    sample.settle()
    assert len(sample) == 2 and sample.median_s == 1.5 and sample.mean_s == 1.5


def test_the_host_owes_nothing() -> None:
    meter = meter_for([])
    assert isinstance(meter, HostMeter)
    sample = Sample(meter)
    sample.add(meter.mark(), meter.mark())
    sample.settle()
    assert sample.median_s is not None and 0 <= sample.median_s < 1
