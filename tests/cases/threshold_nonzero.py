"""A model decides by a threshold that some scores hit exactly: 0.2 in float32 is above 0.2 in float64.

After pytorch/pytorch#128306. Right: the reference has the cell's own type, the doubt is told, and every build passes.
"""

import torch
from torch import nn


class Above(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, scores):
        return torch.nonzero((scores * self.gain) > 0.2)


def factory(batch: int = 16, classes: int = 50):
    return Above(), (torch.rand(batch, classes) * 20).round() / 20


class Dense(Above):
    def forward(self, scores):
        return ((scores * self.gain) > 0.2).to(torch.int64).sum(1)


def dense(batch: int = 16, classes: int = 50):
    """The same with a fixed shape: a count of detections."""
    return Dense(), (torch.rand(batch, classes) * 20).round() / 20


class Picture(Above):
    def forward(self, image):
        return (torch.sigmoid(image * self.gain) * 255).round().to(torch.uint8)


def picture(batch: int = 1, size: int = 128):
    """Rounding moves a few pixels over an edge. Right: as few others are no error, and more are."""
    return Picture(), torch.randn(batch, 3, size, size)
