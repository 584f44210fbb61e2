"""The one clock. Every latency in every report is: synchronise, read, run, synchronise, read."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

from bakeoff.records.device import Device


class Clock:
    """A clock that can wait for a device. On CUDA the cell has its own stream, and `synchronise` waits for that."""

    def __init__(self, device: Device, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Tests pass a `now_ns` of their own."""
        self.now_ns = now_ns
        self.device = torch.device(device.kind, device.cuda_index or 0) if device.is_cuda else torch.device(device)
        self.synchronise: Callable[[], None] = _nothing
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.stream = torch.cuda.Stream(self.device)
            self.synchronise = self.stream.synchronize

    def on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext()

    def mark(self) -> Callable[[], None]:
        """Return a function that waits for what has been queued on the stream so far."""
        if self.stream is None:
            return _nothing
        event = torch.cuda.Event()
        event.record(self.stream)
        return event.synchronize

    @contextlib.contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Time the block in seconds, with its work on the device. The yielded list is filled when the block ends."""
        seconds: list[float] = []
        self.synchronise()
        start_ns = self.now_ns()
        yield seconds
        self.synchronise()
        seconds.append((self.now_ns() - start_ns) / 1e9)


def _nothing() -> None:
    """Return at once: a call on the CPU has ended when it returns."""
