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
