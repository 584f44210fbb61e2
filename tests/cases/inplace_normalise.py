"""A model writes into its inputs: it normalises the image in place.

After Tencent/ncnn#4338 and pytorch/pytorch#112429. Right: this is told, every call gets fresh values where outputs are
compared, and every build that agrees with eager passes. One that does not write into its input is told as such.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, image):
        image.div_(255.0)
        image.sub_(0.45).div_(0.225)
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))


def factory(batch: int = 4, size: int = 64):
    return Net(), torch.rand(batch, 3, size, size) * 255


class Limited(nn.Module):
    def forward(self, x):
        if x.max() > 20:
            x.clamp_(max=20)
        return x * 2


def limited(batch: int = 4):
    """It writes only where values are large, as they are in none of its own inputs."""
    return Limited(), torch.randn(batch, 8)
