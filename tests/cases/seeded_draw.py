"""The model seeds torch's generator in its forward, so that eager repeats its answer. Float64 draws other numbers.

Right: builds are held against eager in their own precision. A build that draws other numbers is incorrect.
"""

import torch
from torch import nn


class SeededDraw(nn.Module):
    def __init__(self, share=1.0):
        super().__init__()
        self.share = share
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        torch.manual_seed(0)
        return self.linear(x) + self.share * torch.randn_like(x)


def factory(batch: int = 8):
    return SeededDraw(), torch.randn(batch, 64)


def dithered(batch: int = 8):
    return SeededDraw(1e-3), torch.randn(batch, 64)
