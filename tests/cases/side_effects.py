"""A service's model that logs each call: a line to a file, a line to stdout, and a histogram in a dict.

A trace drops all of it, and is doubted.
"""

import json
import logging
import os
import queue
import tempfile
import threading
import time
import warnings

import torch
from torch import nn

log = logging.getLogger("scores")
ANSWERS = queue.Queue()


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.path = os.path.join(tempfile.gettempdir(), "scores-calls.jsonl")
        self.seen = {"calls": 0}

    def forward(self, x):
        y = self.net(x)
        self.seen["calls"] += 1
        with open(self.path, "a") as file:
            file.write(json.dumps({"n": self.seen["calls"], "mean": round(y.mean().item(), 4)}) + "\n")
        return y


def factory(batch: int = 8):
    return Logged(), torch.randn(batch, 64)


class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)

    def forward(self, x):
        y = self.net(x)
        print(f"batch {tuple(x.shape)} -> {tuple(y.shape)}")  # noqa: T201 -- it is what the model does
        log.warning("%s rows", len(x))
        return y


def printing(batch: int = 8):
    return Printing(), torch.randn(batch, 64)


class HandedOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)
        self.path = os.path.join(tempfile.gettempdir(), "scores-last.pt")

    def forward(self, x):
        y = self.net(x)
        torch.save(y.detach(), self.path)
        ANSWERS.put(len(y))
        warnings.warn("a batch was scored", stacklevel=2)
        return y


def handing_on(batch: int = 8):
    return HandedOn(), torch.randn(batch, 64)


class Keeping(nn.Module):
    """Keeps what it has computed last, as for a picture of it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)

    def forward(self, x):
        self.last = self.net(x)
        return self.last.relu()


def keeping(batch: int = 8):
    return Keeping(), torch.randn(batch, 64)


class Waits(nn.Module):
    """Waits for a device that is not ready at once."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        time.sleep(0.002)
        return self.linear(x)


def waiting(batch: int = 8):
    return Waits(), torch.randn(batch, 32)


class Reporting(nn.Module):
    def forward(self, x):
        thread = threading.Thread(target=lambda: print("scored", len(x)))  # noqa: T201
        thread.start()
        thread.join()
        return x * 2


def reporting(batch: int = 8):
    """It prints in a thread of its own."""
    return Reporting(), torch.randn(batch, 64)
