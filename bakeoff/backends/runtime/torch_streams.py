"""A CUDA stream of its own for work that uses fixed buffers or a library's own stream, in order with its callers'."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .contract import Artifact, Execution

Tensors = Sequence[torch.Tensor]


def as_tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the memory of an array, which has words for a type that NumPy lacks."""
    tensor: torch.Tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


def sample_tensors(artifact: Artifact, device: torch.device | str) -> list[torch.Tensor]:
    pairs = zip(artifact.sample(), artifact.inputs, strict=True)
    return [as_tensor(array, getattr(torch, spec.type)).to(device, copy=True) for array, spec in pairs]


class OwnStream:
    """A stream that waits for the caller's current stream before work, and lets that one wait for it afterwards. Memory
    belongs to the caller's stream, so the caching allocator needs no record of this one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Make the block's work the next one on the stream, and the caller's stream wait for it."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


def copy(sources: Tensors, targets: Tensors) -> None:
    for source, target in zip(sources, targets, strict=True):
        if 0 in target.stride():  # an expanded tensor holds each value once
            once = tuple(slice(None if stride else 1) for stride in target.stride())
            source, target = source[once], target[once]
        target.copy_(source, non_blocking=True)


class Replayed(Execution):
    """Calls over fixed buffers, such as those of a CUDA graph. Binding copies the inputs there."""

    def __init__(self, buffers: Tensors, results: Tensors, run: Callable[[], None], stream: torch.cuda.Stream) -> None:
        self._buffers, self._results, self._run, self.stream = buffers, results, run, stream

    def bind(self, inputs: Tensors) -> None:
        copy(inputs, self._buffers)

    def run(self) -> None:
        self._run()

    def results(self) -> Tensors:
        return self._results
