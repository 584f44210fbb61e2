"""Scores that depend on what no call sees of its inputs: the process, a clock of another library, or a hidden count.

Eager is the model, and never wrong. What it answers elsewhere is no reference, so that nothing can be compared.
"""

import array
import os

import numpy as np
import torch
from torch import nn


class Offset(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.linear = nn.Linear(32, 4)
        self.read = read

    def forward(self, x):
        return self.linear(x) + self.read()


def process(batch: int = 16):
    return Offset(lambda: float(os.getpid() % 1009)), torch.randn(batch, 32)


def clock(batch: int = 16):
    return Offset(lambda: float(np.datetime64("now", "ms").astype(int) % 100_003)), torch.randn(batch, 32)


COUNTED = array.array("q", [0])


def count_call():
    COUNTED[0] += 1
    return 0.1 * COUNTED[0]


def counter(batch: int = 16):
    return Offset(count_call), torch.randn(batch, 32)


LATE = array.array("q", [0])


def is_late():
    """Return 1 from the third call in this process on, as a clock of a library may go on late."""
    LATE[0] += 1
    return float(LATE[0] > 2)


def late(batch: int = 16):
    return Offset(is_late), torch.randn(batch, 32)
