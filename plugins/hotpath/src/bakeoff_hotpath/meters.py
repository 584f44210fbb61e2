"""Measures how long calls take, without waiting for the device. This file imports torch."""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

KEPT_CALLS = 64


class Meter(Protocol):
    """A clock. Its marks are moments in the order of the device's work."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Return the time between two marks, or None while the device has not reached the second one."""


class HostMeter:
    """A call on a CPU has ended when it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class DeviceMeter:
    """A call on a GPU has ended when its stream reaches the mark behind it. A mark costs some microseconds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        # both are asked, since they may lie on two streams
        if not (begin.query() and end.query()):
            return None
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3


def meter_for(tensors: list[torch.Tensor]) -> Meter:
    """Return the meter for calls with these tensors: that of the first GPU among them, or the host's."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    return HostMeter() if device is None else DeviceMeter(device)


class Sample:
    """The latest times of one version. Those that the device has not reached yet are asked for again later."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._owed: deque[tuple[Any, Any, int]] = deque(maxlen=KEPT_CALLS)
        self._seconds: deque[float] = deque(maxlen=KEPT_CALLS)

    def add(self, begin: Any, end: Any, calls: int = 1) -> None:
        """Note two marks, with `calls` calls between them."""
        self._owed.append((begin, end, calls))

    def collect(self) -> None:
        """Take over the times that the device has finished meanwhile."""
        while self._owed:
            begin, end, calls = self._owed[0]
            seconds = self._meter.seconds(begin, end)
            if seconds is None:
                break
            self._owed.popleft()
            self._seconds.append(seconds / calls)

    @property
    def seconds(self) -> Sequence[float]:
        """The latest times that were collected, in order."""
        return tuple(self._seconds)

    @property
    def mean_s(self) -> float | None:
        """The mean of one call, for what many calls take together. None where nothing is known."""
        return statistics.fmean(self.seconds) if self._seconds else None

    @property
    def median_s(self) -> float | None:
        """The median of one call. None where nothing is known."""
        return statistics.median(self.seconds) if self._seconds else None


class CallTimer:
    """Times the calls of one path. A training step lasts until the forward of the next step begins."""

    def __init__(self, meter: Meter, is_training: bool) -> None:
        self._meter = meter
        self._is_training = is_training
        self._step: tuple[Any, Sample] | None = None

    def begin(self, calls: int = 1) -> Any:
        """Mark the beginning of a call. `calls` calls were made since the last one that was timed."""
        now = self._meter.mark()
        if self._step is not None:
            begin, sample = self._step
            sample.add(begin, now, calls)
        self._step = None
        return now

    def end(self, begin: Any, sample: Sample) -> None:
        """Note the call that has just returned. A call that is not to count is not ended."""
        if self._is_training:
            self._step = (begin, sample)
        else:
            sample.add(begin, self._meter.mark())
