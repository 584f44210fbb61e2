"""The sizes of outputs depend on the values of the inputs, or an output has no elements.

Right: measured, and every build is right.
"""

import torch
from torch import nn


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(8, 8)

    def forward(self, x):
        return self.scores(x), x[x > 0.2], torch.nonzero(x > 0.2), x[:, :0]


def factory(batch: int = 4):
    return Chosen(), torch.randn(batch, 8)
