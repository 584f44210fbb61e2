"""Times that the device still owes."""

import pytest

from bakeoff_hotpath.meters import CallTimer, HostMeter, Sample, meter_for


class Device:
    """A device that has come as far as `reached`."""

    def __init__(self) -> None:
        self.now = self.reached = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.reached else None


def test_times_count_once_the_device_has_reached_them() -> None:
    meter = Device()
    sample = Sample(meter)
    sample.add(0.0, 1.0)
    sample.add(1.0, 5.0, calls=2)
    sample.collect()
    assert sample.median_s is None and sample.mean_s is None
    meter.reached = 2.0
    sample.collect()
    assert sample.seconds == (1.0,)
    meter.reached = 9.0
    sample.collect()
    assert sample.seconds == (1.0, 2.0) and sample.median_s == sample.mean_s == 1.5


def test_the_host_owes_nothing() -> None:
    meter = meter_for([])
    assert isinstance(meter, HostMeter)
    sample = Sample(meter)
    sample.add(meter.mark(), meter.mark())
    sample.collect()
    assert sample.median_s is not None and 0 <= sample.median_s < 1


@pytest.mark.parametrize(("is_training", "seconds"), [(False, (1.0, 1.0)), (True, (3.0,))])
def test_a_training_step_lasts_until_the_next_forward_begins(is_training: bool, seconds: tuple[float, ...]) -> None:
    meter = Device()
    meter.reached = 100.0
    sample, timer = Sample(meter), CallTimer(meter, is_training)
    for _ in range(2):
        begin = timer.begin()
        meter.now += 1.0
        timer.end(begin, sample)
        meter.now += 2.0
    sample.collect()
    assert sample.seconds == seconds
