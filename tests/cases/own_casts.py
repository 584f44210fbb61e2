"""A model in float32 that computes a part of itself in float16.

Right: a build that rounds there as well. One that leaves the casts out is wrong, and its reason names them.
"""

import torch
from torch import nn


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 16)

    def forward(self, x):
        hidden = torch.relu(self.wide(x)).half()
        return self.narrow((hidden + 0.001 * hidden).float())


def factory(batch: int = 16):
    torch.manual_seed(0)
    return Narrow(), torch.randn(batch, 64)


class HalfNarrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 8).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x).relu().bfloat16()).float()


def mixed(batch: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """Some weights are in bfloat16, and the code casts to that. Right: they stay so in fp32."""
    return HalfNarrow(), torch.randn(batch, 32)


class NarrowOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 256)

    def forward(self, x):
        return self.linear(x).bfloat16()


def narrow_output(batch: int = 512):
    """Of many values, rounding moves a few to the next number of bfloat16. Right: few are no error, and many are."""
    torch.manual_seed(0)
    return NarrowOutput(), torch.randn(batch, 64)


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 256)

    def forward(self, x):
        return self.linear(x).half().cumsum(-1)


def running(batch: int = 8):
    """Running sums in float16. Right: they are rounded, and nothing is decided by that."""
    torch.manual_seed(0)
    return Running(), torch.randn(batch, 64)
