"""A model keeps state from call to call: the left context of a stream, in a buffer.

After pytorch/pytorch#111676 and #114967. Right: this is told with the buffer's name, every compared call begins with
the same state, and a build that does not keep the state is `incorrect`.
"""

import itertools
import queue

import numpy as np
import torch
from torch import nn

STEPS = itertools.count()
COUNTED = np.zeros(1)


class Streaming(nn.Module):
    def __init__(self, channels=16, context=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, context + 1)
        self.context = context
        self.register_buffer("past", torch.zeros(1, channels, context))

    def forward(self, chunk):
        joined = torch.cat((self.past.expand(chunk.shape[0], -1, -1), chunk), -1)
        self.past.copy_(joined[:1, :, -self.context :])
        return torch.relu(self.conv(joined))


def factory(batch: int = 2, frames: int = 32):
    return Streaming(), torch.randn(batch, 16, frames)


class Stepping(nn.Module):
    """Its state is an iterator of the file, which no copy of the module has."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x) * 0.9 ** next(STEPS)


def stepping(batch: int = 8):
    return Stepping(), torch.randn(batch, 16)


class Delayed(nn.Module):
    """It answers what it was given six calls before, from a queue."""

    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.line = queue.Queue()
        for _ in range(6):
            self.line.put(torch.zeros(shape))

    def forward(self, x):
        self.line.put(x)
        return x + self.linear(self.line.get())


def delayed(batch: int = 8):
    return Delayed((batch, 16)), torch.randn(batch, 16)


class Counting(nn.Module):
    """It counts its calls in an array of NumPy that is a variable of the file."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        COUNTED[0] += 1
        return self.linear(x) * float(COUNTED[0])


def counting(batch: int = 8):
    return Counting(), torch.randn(batch, 16)


class Scaled(nn.Module):
    """It divides by the largest value that it has seen, as an observer of ranges does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("largest", torch.zeros(16))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.amax(0)))
        return self.linear(x) / (1 + self.largest)


def scaled(batch: int = 8):
    return Scaled(), torch.randn(batch, 16)


class Drifting(nn.Module):
    """Changes its own weights in each call, as fast weights and self-organising maps do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.linear.weight.add_(0.01 * y.mean(0)[:, None])
        return y


def drifting(batch: int = 8):
    return Drifting(), torch.randn(batch, 32)


class Pixels(nn.Module):
    """Averages its last three frames, and answers with whole numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.frames = []

    def forward(self, x):
        self.frames = [*self.frames, x][-3:]
        return (torch.sigmoid(self.linear(torch.stack(self.frames).mean(0))) * 65535).round().to(torch.int32)


def pixels(batch: int = 64):
    """Right: what rounding moves by one is no error, as in a model without state."""
    torch.manual_seed(0)
    return Pixels(), torch.randn(batch, 64)
