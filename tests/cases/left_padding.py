"""A model whose rows begin with padding, which its mask hides.

Right: a build that answers alike. One that is wrong at the padding alone is wrong, and its reason says so.
"""

import torch
from torch import nn


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, values, attention_mask):
        shown = values * attention_mask[..., None]
        found = self.linear(values) + shown.sum(1, keepdim=True)
        cache = found.unflatten(-1, (4, 4)).transpose(1, 2)  # row, head, place, width
        return found, cache, cache.shape[2]  # a number, which graphs leave out


def factory(batch: int = 4):
    torch.manual_seed(0)
    mask = torch.ones(batch, 6, dtype=torch.int64)
    mask[:, 0] = 0
    return Scores(), {"values": torch.randn(batch, 6, 16), "attention_mask": mask}
