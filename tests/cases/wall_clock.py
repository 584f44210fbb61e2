"""A score that decays with the age of an item by the wall clock, and one whose switch is a variable or a file.

Eager is right: compared calls see the same time. A build that froze the time, the variable or the file is doubted.
"""

import os
import pathlib
import time

import torch
from torch import nn


class Aged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 1)
        self.born = time.time() - 100.0

    def forward(self, x):
        return self.linear(x) * 0.99 ** (time.time() - self.born)


def factory(batch: int = 16):
    return Aged(), torch.randn(batch, 32)


class Hourly(nn.Module):
    """Changes only by the minute: a run of two minutes sees it, a check of seconds does not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 4)

    def forward(self, x):
        return self.linear(x) + float(int(time.time()) // 20 % 7)


def slow(batch: int = 16):
    return Hourly(), torch.randn(batch, 32)


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 4)

    def forward(self, x):
        scale = float(os.environ.get("SCORE_SCALE", "2"))
        table = pathlib.Path(__file__).with_name("wall_clock_bias.txt").read_text()
        return self.linear(x) * scale + torch.tensor([float(v) for v in table.split()], dtype=x.dtype)


def switch(batch: int = 16):
    return Switch(), torch.randn(batch, 32)


class Ageing(nn.Module):
    """Answers by the time since its first call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 1)
        self.born = None

    def forward(self, x):
        self.born = self.born or time.monotonic()
        return self.linear(x) * 0.5 ** ((time.monotonic() - self.born) / 3600)


def ageing(batch: int = 16):
    return Ageing(), torch.randn(batch, 32)


class Improving(nn.Module):
    """Takes further steps until two milliseconds are over."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        y, end_s = x, time.perf_counter() + 0.002
        while time.perf_counter() < end_s:
            y = torch.tanh(self.linear(y) + x)
        return y


def deadline(batch: int = 16):
    return Improving(), torch.randn(batch, 32)
