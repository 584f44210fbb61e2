"""Random numbers that the same seed gives again, bit for bit, without disturbing anybody else's."""

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
    """Inside, torch's generator for the CPU starts at `seed`; on leaving, it continues as if nothing had happened."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that also seeds the GPUs, which fork_rng(devices=[]) would not put back.
        torch.default_generator.manual_seed(seed)
        yield


def normal_inputs(*shape: int) -> tuple[Inputs, ...]:
    """`INPUT_SETS` sets of one standard normal float32 tensor of `shape`. Call it inside `seeded`."""
    import torch

    return tuple(Inputs((torch.randn(shape),)) for _ in range(INPUT_SETS))


def normal_inputs_on(device: Device, dtype: torch.dtype, seed: int, *shapes: tuple[int, ...]) -> tuple[Inputs, ...]:
    """`INPUT_SETS` sets of one standard normal tensor of each shape, drawn where and as they are used: for
    `Family.load_on`, where a host would draw and cast hundreds of megabytes for every process."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    return tuple(Inputs(tuple(drawn(shape) for shape in shapes)) for _ in range(INPUT_SETS))
