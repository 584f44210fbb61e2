"""A sample beside the mean and the width that it was drawn from, as in a variational autoencoder.

Right: mean and width are compared as ever. A build that draws other numbers has a sample of the same distribution.
"""

import numpy as np
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.mean = nn.Linear(32, 8)
        self.log_width = nn.Linear(32, 8)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        mean, width = self.mean(hidden), torch.exp(self.log_width(hidden))
        return mean + width * torch.randn_like(width), mean, width


def factory(batch: int = 4):
    torch.manual_seed(0)
    return Encoder(), torch.randn(batch, 16)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.noise = np.random.default_rng(0)

    def forward(self, x):
        return self.linear(x) + torch.from_numpy(self.noise.normal(size=8)).to(x.dtype)


def noisy(batch: int = 4):
    """The generator is restored as a state is, so that builds that draw from it are compared exactly."""
    return Noisy(), torch.randn(batch, 16)
