"""A layer that is made in the first call, when the width of the input is known.

Right: each process has the same weights, and the model is neither random nor has it a state.
"""

import torch
from torch import nn


class Projects(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = None
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        if self.project is None:
            self.project = nn.Linear(x.shape[-1], 16)
        return self.head(torch.relu(self.project(x)))


def factory(batch: int = 8):
    return Projects(), torch.randn(batch, 32)
