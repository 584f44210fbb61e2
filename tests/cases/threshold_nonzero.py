"""A model decides by a threshold that some scores hit exactly: 0.2 in float32 is above 0.2 in float64.

After pytorch/pytorch#128306. Right: the reference has the cell's own type, the doubt is told, and every build passes.
"""

import torch
import torch.nn.functional as F
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


class Warped(nn.Module):
    def forward(self, image, places):
        return F.grid_sample(image, places, mode="nearest", align_corners=True)


def warped(size: int = 16):
    """Every other place is half-way between two pixels. Right: either pixel is, and no other one."""
    ends = torch.linspace(-1, 1, 2 * size - 1)
    places = torch.stack(torch.meshgrid(ends, ends, indexing="xy"), -1)[None]
    return Warped(), (torch.randn(1, 3, size, size), places)


class Cells(nn.Module):
    def forward(self, points):
        return torch.div(points, 0.1, rounding_mode="floor")


def cells(points: int = 64):
    """Points on the edges of cells."""
    return Cells(), torch.randint(0, 50, (points,)) * 0.1


class Octaves(nn.Module):
    def forward(self, sizes):
        return sizes.float().log2().floor().long()


def octaves(count: int = 64):
    """Logarithms that are whole in some libraries alone."""
    return Octaves(), 2 ** torch.randint(0, 20, (count,))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), 1.1))

    def forward(self, x):
        y = x * self.gain
        return y.div_(0.1).round_().mul_(0.1)


def in_place(batch: int = 16):
    """Values half-way between two steps, to which they are rounded in place."""
    return InPlace(), torch.randint(-100, 100, (batch, 40)) * 0.05


class Decimals(Above):
    def forward(self, image):
        return torch.round(torch.sigmoid(image * self.gain), decimals=2)


def decimals(batch: int = 1, size: int = 128):
    """The same in hundredths."""
    return Decimals(), torch.randn(batch, 3, size, size)
