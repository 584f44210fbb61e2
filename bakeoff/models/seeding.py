"""Random numbers that depend only on the seed, and leave other generators alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bakeoff.models.base import INPUT_SETS, Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's generator for the CPU at `seed` inside the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the GPUs, which fork_rng(devices=[]) does not restore
        torch.default_generator.manual_seed(seed)
        yield


def normal_inputs(*shape: int) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets of one standard normal float32 tensor. Call this inside `seeded`."""
    return tuple(Inputs((torch.randn(shape),)) for _ in range(INPUT_SETS))


def normal_inputs_on(device: Device, dtype: torch.dtype, seed: int, *shapes: tuple[int, ...]) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets of one standard normal tensor of each shape, drawn on `device` in `dtype`, where a host
    would take long for hundreds of megabytes in every worker."""
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    return tuple(Inputs(tuple(drawn(shape) for shape in shapes)) for _ in range(INPUT_SETS))


def padded_at_the_end(batch: int, seq: int) -> torch.Tensor:
    """Return an attention mask. The first row is a full text, and each other one has a random part of its length."""
    lengths = torch.randint((seq + 1) // 2, seq + 1, (batch, 1))
    lengths[0] = seq
    return (torch.arange(seq) < lengths).to(torch.int64)


def make_as_trained(module: torch.nn.Module, sets: Sequence[Inputs], called: torch.nn.Module | None = None) -> None:
    """Give a fresh module values that training would leave, so that errors show in outputs. Call this inside `seeded`.
    Statistics are measured over the first rows of two sets, by calling `called` if it is given."""
    with torch.no_grad():
        for weight in module.parameters():
            # a last scale of zero hides all that comes before it, so constant weights are changed a little
            if weight.is_floating_point() and weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                weight.add_(torch.randn(weight.shape), alpha=0.02)
        module.eval()
        # with fresh statistics, the signal of a deep network falls below every tolerance
        if norms := [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]:
            momenta = [norm.momentum for norm in norms]
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # for the mean over all calls
                norm.train()
            pairs = zip(sets[0].tensors(), sets[1].tensors(), strict=True)
            first_rows = iter([torch.cat((ours[:4], theirs[:4])) for ours, theirs in pairs])
            rows = sets[0].map(lambda _: next(first_rows))
            (called or module)(*rows.args, **rows.kwargs)
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
                norm.eval()
