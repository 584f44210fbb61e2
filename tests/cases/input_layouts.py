"""Inputs in several memory layouts: every other column, a transposed view, an expanded row, channels_last, one tensor
given twice. A build that was made for other strides answers wrongly."""

import torch
from torch import nn


class Mixes(nn.Module):
    def forward(self, strided, transposed, expanded, image, first, second):
        own = strided.clone()
        own.mul_(2)
        mixed = own @ transposed + expanded
        return mixed + first * 3, image.sigmoid() * second.mean(), (first - second / 2).t()


def factory(batch: int = 8):
    x = torch.randn(batch, 2 * batch)
    image = torch.randn(2, 4, batch, batch).to(memory_format=torch.channels_last)
    twice = torch.randn(batch, batch)
    return Mixes(), (x[:, ::2], x[:, 1::2].t(), torch.randn(1, batch).expand(batch, -1), image, twice, twice)


class Appends(nn.Module):
    """Writes into one input, and then reads another one that is a view of it."""

    def forward(self, cache, last, x):
        cache[:, -1] += x
        return last * 2 + x, cache.sum(1)


def aliased(batch: int = 8):
    cache = torch.randn(batch, 5, 8)
    return Appends(), (cache, cache[:, -1], torch.randn(batch, 8))
