"""Operators that call functions, as torch.cond and FlexAttention do. torch compiles them, also in eager.

Right: the model is measured. It refuses to be watched, which is no failure of its own.
"""

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        y = self.linear(x)
        return torch.cond(y.sum() > 0, lambda values: values + 1, lambda values: values.sin(), (y,))


def factory(batch: int = 8):
    return Gated(), torch.randn(batch, 32)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x):
        query, key, value = (each.unflatten(-1, (2, 16)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        found = flex_attention(query, key, value, score_mod=lambda score, b, h, to, of: score + 0.1 * (to - of))
        return found.transpose(1, 2).flatten(2)


def flex(batch: int = 2, length: int = 16):
    return Attention(), torch.randn(batch, length, 32)
