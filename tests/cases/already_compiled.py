"""A user gives a module that is wrapped: compiled, in DataParallel, or scripted.

After pytorch/pytorch#184100. Right: the compiled module and DataParallel are unwrapped, and the report says so, so that
eager is eager. A ScriptModule is measured by those who take one; for the others the reason names it.
"""

import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


def factory(batch: int = 8):
    return torch.compile(net()), torch.randn(batch, 64)


def parallel(batch: int = 8):
    return nn.DataParallel(net()), torch.randn(batch, 64)


def scripted(batch: int = 8):
    return torch.jit.script(net()), torch.randn(batch, 64)


def exported(batch: int = 8):
    inputs = torch.randn(batch, 64)
    return torch.export.export(net(), (inputs,)).module(), inputs


class Kept(nn.Module):
    """A part that the user keeps from compilers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)

    @torch.compiler.disable
    def highest(self, hidden):
        return hidden.sort(-1, descending=True).values

    def forward(self, x):
        return self.last(self.highest(self.first(x)))


def kept(batch: int = 8):
    return Kept(), torch.randn(batch, 64)
