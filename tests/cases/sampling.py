"""A sample beside the mean and the width that it was drawn from, as in a variational autoencoder.

Right: mean and width are compared as ever. A build that draws other numbers has a sample of the same distribution.
"""

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
