"""A selective scan in chunks, as in Mamba2: sums of exponentials, whose values span many powers of ten.

Right is what eager computes, in small values as well as in large ones. A build that answers zeros for a part of them is
wrong, although they are nothing beside the largest values.
"""

import torch
from torch import nn


class Scan(nn.Module):
    """What a state space layer remembers of a sequence, chunk by chunk (after the minimal version of Mamba2)."""

    def __init__(self, heads: int, width: int, state: int, chunk: int):
        super().__init__()
        self.heads, self.width, self.state, self.chunk = heads, width, state, chunk
        self.decay = nn.Parameter(torch.randn(heads))
        self.project = nn.Linear(heads * width, heads * width + 2 * state + heads)

    def forward(self, x):
        batch, length, _ = x.shape
        values, keys, queries, steps = self.project(x).split(
            [self.heads * self.width, self.state, self.state, self.heads], -1
        )
        chunks = length // self.chunk
        logs = (steps * self.decay).view(batch, chunks, self.chunk, self.heads).permute(0, 3, 1, 2)
        sums = logs.cumsum(-1)
        mask = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device).tril()
        weights = (sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, -torch.inf).exp()
        values = values.view(batch, chunks, self.chunk, self.heads, self.width)
        keys = keys.view(batch, chunks, self.chunk, self.state)
        queries = queries.view(batch, chunks, self.chunk, self.state)
        scores = torch.einsum("bcln,bcsn,bhcls->bhcls", queries, keys, weights)
        return torch.einsum("bhcls,bcshp->bclhp", scores, values)


def factory(batch: int = 2, length: int = 256, heads: int = 8, width: int = 16, state: int = 16, chunk: int = 64):
    return Scan(heads, width, state, chunk), torch.randn(batch, length, heads * width)
