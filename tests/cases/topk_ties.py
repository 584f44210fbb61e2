"""A model returns the top-k of scores of which many are equal.

After openvinotoolkit/openvino#35898 and pytorch/pytorch#187116. Right: indices that choose equal values are right.
"""

import torch
from torch import nn


class Retrieval(nn.Module):
    def __init__(self, k=10):
        super().__init__()
        self.k = k

    def forward(self, scores):
        return torch.topk(scores, self.k, dim=-1)


def factory(batch: int = 16, items: int = 500):
    return Retrieval(), (torch.rand(batch, items) * 8).round() / 8


class Ranked(nn.Module):
    """What stands beside equal scores depends on their order, which is of no meaning."""

    def forward(self, scores, values):
        places = torch.argsort((scores * 99).round(), dim=-1, descending=True)
        return values.gather(-1, places), values.sum(-1)


def ranked(batch: int = 4, items: int = 200):
    """Other values are taken by the order of equal scores. Right: another order is no error, and is noted."""
    return Ranked(), (torch.rand(batch, items), torch.randn(batch, items))


class Suppressed(nn.Module):
    """Keeps the best boxes that do not overlap a better one."""

    def forward(self, starts, scores):
        order, kept = scores.argsort(descending=True), []
        while len(order):
            kept.append(order[0])
            order = order[(starts[order] - starts[order[0]]).abs() > 1]
        return torch.stack(kept)


def suppressed(boxes: int = 20):
    """Inputs that take another way have equal scores only. Right: any of these may be the best one there."""
    torch.manual_seed(0)
    return Suppressed(), (10 * torch.rand(boxes), torch.rand(boxes))
