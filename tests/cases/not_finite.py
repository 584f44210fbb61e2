"""All answers are NaN, or have no elements. Right: nothing was checked, this is said, and no build is blamed."""

import torch
from torch import nn


class Overflowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x)
        return torch.log(-1 - y.abs())


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x)[:, :0]


def factory(batch: int = 4):
    torch.manual_seed(0)
    return Overflowing(), torch.randn(batch, 16)


def empty(batch: int = 4):
    torch.manual_seed(0)
    return Empty(), torch.randn(batch, 16)


class Beyond(nn.Module):
    def forward(self, x):
        return (x * 1e20).square()


def beyond(batch: int = 8):
    """Some values are beyond float32. Right: they are infinite, which is decided by the type and not by rounding."""
    torch.manual_seed(0)
    return Beyond(), torch.randn(batch, 16)
