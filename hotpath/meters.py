"""How long calls take, without waiting for the device. Imports torch."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

KEPT = 64


class Meter(Protocol):
    """Marks are moments in the order of the device's work."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Between two marks; None while the device has not reached the second one."""


class HostMeter:
    """A CPU's call has ended when it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class DeviceMeter:
    """A GPU's call has ended when its stream gets to the mark behind it. A mark costs some microseconds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        # both: they may lie on two streams
        if not (begin.query() and end.query()):
            return None
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3


def meter_for(tensors: list[torch.Tensor]) -> Meter:
    """For calls with these tensors. The clock is that of the first GPU among them."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    return HostMeter() if device is None else DeviceMeter(device)


class Sample:
    """The latest measured times of one version; those that the device still owes are asked for again later."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._owed: deque[tuple[Any, Any, int]] = deque(maxlen=KEPT)
        self._seconds: deque[float] = deque(maxlen=KEPT)

    def add(self, begin: Any, end: Any, calls: int = 1) -> None:
        """`calls` calls lie between the two marks."""
        self._owed.append((begin, end, calls))

    def settle(self) -> list[tuple[float, int]]:
        """What has become known since: seconds, and over how many calls."""
        known = []
        while self._owed:
            begin, end, calls = self._owed[0]
            seconds = self._meter.seconds(begin, end)
            if seconds is None:
                break
            self._owed.popleft()
            self._seconds.append(seconds / calls)
            known.append((seconds, calls))
        return known

    def __len__(self) -> int:
        return len(self._seconds)

    @property
    def seconds(self) -> Sequence[float]:
        """Of the latest calls that are known, in their order."""
        return tuple(self._seconds)

    @property
    def mean_s(self) -> float | None:
        """Of one call; None where nothing is known. What calls take together is told by the mean."""
        return statistics.fmean(self._seconds) if self._seconds else None

    @property
    def median_s(self) -> float | None:
        """Of one call; None where nothing is known."""
        return statistics.median(self._seconds) if self._seconds else None
