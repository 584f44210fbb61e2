"""A model's answer depends on rounding alone: the condition number of a singular matrix.

After pytorch/pytorch#150114. Right: the doubt is told, and nothing passes for which no value could be compared.
"""

import torch
from torch import nn


class Cond(nn.Module):
    def forward(self, x):
        return torch.linalg.cond(torch.arctan(x))


class Cancelled(nn.Module):
    """In float32 the small number is lost, and a division by zero is left, with every library of linear algebra."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / ((x + 1e-9) - x)


def cancelled(batch: int = 4) -> tuple[nn.Module, torch.Tensor]:
    return Cancelled(), torch.ones(batch, 2)


def factory(batch: int = 4):
    return Cond(), torch.ones(batch, 2, 2)


class Axes(nn.Module):
    def forward(self, x):
        return torch.linalg.eigh(x @ x.mT)


def axes(batch: int = 4, size: int = 4):
    """Eigenvectors have any sign. Right: other signs are no error, and are noted."""
    return Axes(), torch.randn(batch, size, size)


class Angles(nn.Module):
    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        return torch.atan2(spectrum.imag, spectrum.real)


def angles(batch: int = 4, size: int = 64):
    """Pi and minus pi are one angle, of the mean for example. Right: either is no error, and is noted."""
    return Angles(), torch.randn(batch, size)
