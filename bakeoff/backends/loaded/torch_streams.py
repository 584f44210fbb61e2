"""A CUDA stream of its own for work that uses fixed buffers or a library's own stream, in order with its callers'."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from bakeoff.backends.loaded.contract import Artifact


def sample_tensors(artifact: Artifact, device: torch.device | str) -> list[torch.Tensor]:
    tensors = []
    for array, spec in zip(artifact.sample(), artifact.inputs, strict=True):
        tensor = torch.from_numpy(array)
        wanted: torch.dtype = getattr(torch, spec.type)
        tensors.append((tensor if tensor.dtype is wanted else tensor.view(wanted)).to(device, copy=True))
    return tensors


class OwnStream:
    """A stream that waits for the caller's current stream before work, and lets that one wait for it afterwards.

    So inputs may come from any stream, and outputs are ready on the caller's. Memory is allocated and freed on the
    caller's stream, which waits, so the caching allocator needs to know nothing of this one.
    """

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

    def copy(self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
