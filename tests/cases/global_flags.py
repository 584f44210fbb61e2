"""The file of a model changes torch's global settings when it is imported.

Right: every backend uses the same number of threads, and the report says the number in force.
"""

import torch
from torch import nn

torch.set_num_threads(1)
torch.set_flush_denormal(True)
torch.backends.mkldnn.enabled = True


def factory(batch: int = 64, width: int = 1024):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), torch.randn(batch, width)
