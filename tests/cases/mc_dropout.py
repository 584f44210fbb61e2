"""A model is random: its dropout is active in eval mode.

After onnx/onnx#4855 and microsoft/onnxruntime#5549. Right: it is told that two calls of eager differ, no winner is
sure, and a build without the dropout is `incorrect`.
"""

import torch
import torch.nn.functional as F
from torch import nn


class MonteCarlo(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.a, self.b = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.b(F.dropout(torch.relu(self.a(x)), 0.5, training=True))


def factory(batch: int = 32):
    return MonteCarlo(), torch.randn(batch, 64)
