"""Each call changes buffers on which no answer depends: running statistics and a counter.

Right: a build that answers rightly but leaves these buffers as they were is incorrect.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("variance", torch.ones(16))
        self.register_buffer("positions", None)

    def forward(self, x):
        if self.positions is None:
            self.positions = torch.arange(16.0)  # a cache, which is no state
        self.calls += 1
        normal = F.batch_norm(self.linear(x), self.mean, self.variance, training=True)
        return normal + self.positions


def factory(batch: int = 8):
    torch.manual_seed(0)
    return Counted(), torch.randn(batch, 16)


class Tenth(nn.Module):
    """Answers otherwise in each tenth call, which no check makes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * torch.where(self.calls % 10 == 0, 2.0, 1.0)


def tenth(batch: int = 8):
    return Tenth(), torch.randn(batch, 16)


class Observed(nn.Module):
    """Notes the largest and the smallest value, which further inputs of the same range do not change."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.observer = torch.ao.quantization.MinMaxObserver()

    def forward(self, x):
        return self.observer(self.linear(x))


def observed(batch: int = 8):
    torch.manual_seed(0)
    return Observed(), torch.randn(batch, 16)
