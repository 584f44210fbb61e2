"""The model keeps its answers by the content of their inputs, as some services do. New inputs take far longer.

Right: it is told that inputs that come again are looked up, and no winner is sure.
"""

import torch
from torch import nn


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.answers = {}

    def forward(self, x):
        key = x.cpu().numpy().tobytes()
        if key not in self.answers:
            self.answers[key] = self.linear(self.linear(x)).sin()
        return self.answers[key]


def factory(batch: int = 8):
    return Cached(), torch.randn(batch, 64)
