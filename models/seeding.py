"""Random numbers that depend only on the seed, and leave other generators alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from models.base import INPUT_SETS, Inputs
from records.device import Device

if TYPE_CHECKING:
    import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's generator for the CPU at `seed` inside the context, and restore its state afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the GPUs, which fork_rng(devices=[]) does not restore
        torch.default_generator.manual_seed(seed)
        yield


def normal_inputs(*shape: int) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets of one standard normal float32 tensor. Call this inside `seeded`."""
    import torch

    return tuple(Inputs((torch.randn(shape),)) for _ in range(INPUT_SETS))


def normal_inputs_on(device: Device, dtype: torch.dtype, seed: int, *shapes: tuple[int, ...]) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets of one standard normal tensor of each shape, drawn on `device` in `dtype`.

    `Family.load_on` uses this where a host would draw and cast hundreds of megabytes for every worker."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    return tuple(Inputs(tuple(drawn(shape) for shape in shapes)) for _ in range(INPUT_SETS))
