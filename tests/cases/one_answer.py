"""Models with one answer to all inputs, as in KernelBench 2/80 and 2/83: a constant is as right as any build.

`gated` has another answer to inputs of another scale, which a constant gets wrong.
"""

import torch
from torch import nn


class Centred(nn.Module):
    """The largest value of each row, less the mean over a dimension of one value: zeros."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        y = self.linear(x).max(1, keepdim=True).values
        return nn.functional.gelu(y - y.mean(1, keepdim=True))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        return (self.linear(x).abs() - 20).relu()


def factory(batch: int = 8):
    return Centred(), torch.randn(batch, 32)


def gated(batch: int = 8):
    return Gated(), torch.randn(batch, 32)


class Beside(nn.Module):
    """A score that varies, and zeros beside it, of which one is a single number."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        y = self.linear(x)
        largest = y.max(1, keepdim=True).values
        return y, nn.functional.gelu(largest - largest.mean(1, keepdim=True)), (y - 9).relu().sum()


def beside(batch: int = 8):
    return Beside(), torch.randn(batch, 32)


class Detector(nn.Module):
    """Scores, and those beyond a threshold that none of the inputs reaches."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        y = self.linear(x)
        return y, y[y > 9]


def detector(batch: int = 8):
    return Detector(), torch.randn(batch, 32)


class Emptied(nn.Module):
    """Scores, and none of them: an output that is empty whatever the inputs are."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        y = self.linear(x)
        return y, y[:0], y[:, torch.tensor([3, 1])]


def emptied(batch: int = 8):
    return Emptied(), torch.randn(batch, 32)


class Kinds(nn.Module):
    """Text in which each token is of one of two kinds."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(2, 32)
        self.linear = nn.Linear(32, 16)

    def forward(self, x, kinds):
        return self.linear(x + self.kinds(kinds))


def kinds(batch: int = 2, length: int = 8):
    """The example has one kind of tokens only. Right: a build that ignores kinds is wrong."""
    return Kinds(), (torch.randn(batch, length, 32), torch.zeros(batch, length, dtype=torch.int64))
