"""Answers that torch does not define: memory that nothing wrote, and the one of several values that stays in a place.

Right: eager is never wrong, what is defined is compared, and what is not is told. No winner is sure by it.
"""

import torch
from torch import nn


class Allocates(nn.Module):
    """Fills the first half of the new memory, and answers with some of the second half beside its scores."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        both = torch.empty(len(x), 32)
        both[:, :16] = self.linear(x)
        return both[:, :16], both[:, 8:24]


def factory(batch: int = 8):
    return Allocates(), torch.randn(batch, 32)


class Cells(nn.Module):
    """Puts points into the cells of a grid. Of several points in one cell, any stays."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, points, cells):
        grid = points.new_zeros(8, 16)
        grid[cells] = self.linear(points)
        return grid


def cells(points: int = 4096):
    torch.manual_seed(0)
    return Cells(), (torch.randn(points, 32), torch.randint(0, 8, (points,)))
