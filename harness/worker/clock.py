"""The one clock. Every latency in every report is: synchronise, read, run, synchronise, read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from records.device import Device

now_ns = time.perf_counter_ns


class Clock:
    """A device's clock. On CUDA the cell has a stream of its own, and synchronising means that stream."""

    def __init__(self, device: Device) -> None:
        import torch

        self.device = torch.device(device.kind, device.cuda_index or 0) if device.is_cuda else torch.device(device)
        self.synchronise: Callable[[], None] = _nothing
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.stream = torch.cuda.Stream(self.device)
            self.synchronise = self.stream.synchronize

    def on_stream(self) -> AbstractContextManager[object]:
        """Inside it, the current stream is the cell's own."""
        import torch

        return torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Seconds of the block, work on the device included; the list yielded is filled when it ends."""
        seconds: list[float] = []
        self.synchronise()
        start_ns = now_ns()
        yield seconds
        self.synchronise()
        seconds.append((now_ns() - start_ns) / 1e9)


def _nothing() -> None:
    """A CPU's call has ended when it returns."""
