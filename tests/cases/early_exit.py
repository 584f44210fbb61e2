"""A model decides by the values of its inputs which layers it computes.

After pytorch/pytorch#113444 and ultralytics/yolov5#3050. Right: what is built from a trace has a frozen choice. It is
told with the line, and it is no sure winner.
"""

import torch
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.rest = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        logits = self.head(x)
        if logits.softmax(-1).max() > 0.9:  # sure already
            return logits
        return self.head(self.rest(x))


def factory(batch: int = 1):
    return EarlyExit(), torch.randn(batch, 64)


class Suppressing(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        first, last, score = self.head(x).unbind(-1)
        order = score.argsort(descending=True)
        first, last = first[order], first[order] + 0.1 + last[order].abs()
        overlaps = (first[:, None] < last) & (first < last[:, None])
        keep = torch.ones(len(x), dtype=torch.bool)
        for place in range(len(x)):
            if keep[place]:
                keep[place + 1 :] &= ~overlaps[place, place + 1 :]
        return score[order] * keep


def suppressing(spans: int = 12):
    """Spans that a better one overlaps are left out: what is decided by was written into a tensor of ones."""
    return Suppressing(), torch.randn(spans, 8)


class Dropping(EarlyExit):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


def dropping(batch: int = 16):
    """Random as well. Right: inputs of another branch are called with the seeds that eager had there."""
    return Dropping(), torch.randn(batch, 64)
