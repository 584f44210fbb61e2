"""A model's answer depends on rounding alone: the condition number of a singular matrix.

After pytorch/pytorch#150114. Right: the doubt is told, and nothing passes for which no value could be compared.
"""

import torch
from torch import nn


class Cond(nn.Module):
    def forward(self, x):
        return torch.linalg.cond(torch.arctan(x))


def factory(batch: int = 4):
    return Cond(), torch.ones(batch, 2, 2)
