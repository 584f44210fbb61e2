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
