"""The difference of two large numbers is lost in float32: eager's answer is off by far more than its own size.

Right: errors are shown against float64, and what is about as far off as eager passes with a doubt. Larger faults are
found.
"""

import torch
from torch import nn


class Variance(nn.Module):
    def forward(self, x):
        y = x + 1e6
        return (y * y).mean(-1) - y.mean(-1) ** 2


def factory(batch: int = 4):
    torch.manual_seed(0)
    return Variance(), torch.randn(batch, 256)


class Running(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


def running(batch: int = 2, length: int = 500_000):
    """Running sums cross zero, where sums in one order are as far off as elsewhere. Eager adds up in float64."""
    torch.manual_seed(0)
    return Running(), torch.randn(batch, length)
