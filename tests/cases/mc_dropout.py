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


class Usual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(64, 10), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(self.linear(x))


def kept_on(batch: int = 32):
    """Dropout alone is in training mode. Right: it is said that inference is measured in eval mode."""
    model = Usual().eval()
    model.dropout.train()
    return model, torch.randn(batch, 64)


class Paths(nn.Module):
    def forward(self, x):
        return x * torch.bernoulli(torch.full((x.shape[0], 1), 0.95)) / 0.95


def paths(batch: int = 4):
    """Most calls drop nothing. Right: a build with other numbers is not taken for one that draws none."""
    return Paths(), torch.randn(batch, 64)


class Dithered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x) + 1e-6 * torch.randn_like(x)


def dithered(batch: int = 8):
    """Noise that is little more than rounding. Right: it is random all the same."""
    torch.manual_seed(0)
    return Dithered(), torch.randn(batch, 16)
