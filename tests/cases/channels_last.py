"""An image classifier and its input are in channels_last, as PyTorch's guide for CPUs says.

After pytorch/pytorch#141115. Right: every build passes, and all sets of inputs have the layout of the factory's.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(32, 10)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, x):
        return self.head(self.body((x - self.mean) / self.std).mean((2, 3)))


def factory(batch: int = 8, size: int = 64):
    x = torch.rand(batch, 3, size, size).to(memory_format=torch.channels_last)
    return Net().to(memory_format=torch.channels_last), x
