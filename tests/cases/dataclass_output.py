"""A model returns a dataclass that torch.utils._pytree does not know.

After huggingface/transformers#28222 and pytorch/pytorch#147400. Right: every tensor in it is compared, and a build that
returns fewer outputs is `incorrect`.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Detections:
    boxes: torch.Tensor
    scores: torch.Tensor


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.box = nn.Linear(64, 4)
        self.cls = nn.Linear(64, 3)

    def forward(self, x):
        f = torch.relu(self.body(x))
        return f, Detections(self.box(f), self.cls(f).softmax(-1))


def factory(batch: int = 16):
    return Detector(), torch.randn(batch, 32)


def only(batch: int = 16):
    class Only(Detector):
        def forward(self, x):
            return super().forward(x)[1]

    return Only(), torch.randn(batch, 32)


def numbered(batch: int = 16):
    class Numbered(Detector):
        def forward(self, x):
            f, found = super().forward(x)
            return f, found.boxes, int(found.scores.argmax())

    return Numbered(), torch.randn(batch, 32)
