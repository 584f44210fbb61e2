"""A service's model that answers with a request's id beside its scores: another text in each call.

Right: eager agrees with itself. A graph returns no text, and is told as incorrect.
"""

import uuid

import torch
from torch import nn


class Identified(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 4)

    def forward(self, x):
        return {"id": uuid.uuid4().hex, "scores": self.linear(x)}


def factory(batch: int = 8):
    return Identified(), torch.randn(batch, 32)


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 4)

    def forward(self, x):
        scores = self.linear(x)
        return ["cat", "dog", "owl", "cow"][int(scores[0].argmax())], scores


def labelled(batch: int = 8):
    """A text that the largest score chooses. Right: a graph, which returns tensors only, is incorrect for that."""
    torch.manual_seed(0)
    return Labelled(), torch.randn(batch, 32)
