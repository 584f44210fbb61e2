"""A choice by a mask of ones, which a trace freezes. The input sets go both ways, because the mask differs in them.

Right: a build without the branch is wrong, and what keeps it is right.
"""

import torch
from torch import nn


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x, mask):
        y = self.linear(x)
        if mask.all():
            return y
        return y * mask[..., None]


def factory(batch: int = 1):
    torch.manual_seed(0)
    return Skipping(), (torch.randn(batch, 5, 16), torch.ones(batch, 5, dtype=torch.bool))
