"""Models of which float32 leaves little: what remains is rounding, and one library rounds otherwise than another.

Right: such differences are no errors, and are noted where values are lost. A real fault is found beside them.
"""

import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.norm(image)


def factory(size: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """Some groups have one value throughout, as at a black border. Their differences from the mean are rounding."""
    image = torch.randn(2, 8, size, size)
    image[0, :2] = 0.7
    return Normalised(), image


class Spread(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.var(-1)


def spread(batch: int = 8) -> tuple[nn.Module, torch.Tensor]:
    """The spread of values that are nearly equal. Float32 has 16 steps between them."""
    return Spread(), 1000 + 1e-3 * torch.randn(batch, 50)


class LayerNormalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def offset(batch: int = 8) -> tuple[nn.Module, torch.Tensor]:
    """The same after a normalisation: rounding explains how far eager is from float64, which stays the reference."""
    return LayerNormalised(), 3 + 1e-4 * torch.randn(batch, 50)


class Distances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x)


def distances(points: int = 64) -> tuple[nn.Module, torch.Tensor]:
    """Distances from products of matrices: that of a point to itself is the root of a rounding."""
    return Distances(), torch.randn(points, 8)


class Roots(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(-1)
        return (squares[:, None] + squares - 2 * x @ x.mT).sqrt()


def roots(points: int = 64) -> tuple[nn.Module, torch.Tensor]:
    """The same by hand: the root is NaN where rounding makes its argument negative."""
    return Roots(), torch.randn(points, 8)


class Saturated(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy(x.sigmoid(), (y > 0).to(x), reduction="none")


def saturated(batch: int = 64) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Whether a probability is 1 is decided by rounding, and it must not be above."""
    return Saturated(), (20 * torch.randn(batch, 8), torch.randn(batch, 8))


class Whitened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(0)
        values, vectors = torch.linalg.eigh(x.mT @ x / len(x))
        return x @ vectors / (values + 1e-5).sqrt()


def whitened(batch: int = 64) -> tuple[nn.Module, torch.Tensor]:
    """Signs of eigenvectors differ in float64. Right: builds are compared with eager, up to signs."""
    return Whitened(), torch.randn(batch, 8)


class Tiny(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1e-30 * 1e-12 * 1e25 * 1e17


def tiny(batch: int = 8) -> tuple[nn.Module, torch.Tensor]:
    """Products go through numbers below the smallest normal one, which have few digits."""
    return Tiny(), torch.randn(batch, 50)
