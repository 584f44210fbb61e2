"""A convolutional network. Compilers can fold batch normalisation, fuse ReLU, and choose the memory layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded

if TYPE_CHECKING:
    from torch import nn


class Conv(Family):
    """(batch, channels, size, size) -> (batch, classes, size, size): one score per class and pixel."""

    name = "conv"
    description = "two blocks of 3x3 convolution, batch normalisation and ReLU, and a 1x1 convolution"
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(4, "images per call"),
        "channels": Dimension(3, "channels of an image"),
        "size": Dimension(128, "height and width of an image, in pixels"),
        "width": Dimension(32, "channels between the blocks"),
        "classes": Dimension(8, "channels of the output"),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from torch import nn

        batch, channels, size, width, classes = (int(dimensions[name]) for name in self.dimensions)
        with seeded(seed):
            module = nn.Sequential(
                nn.Conv2d(channels, width, kernel_size=3, padding=1),
                _batch_norm(width),
                nn.ReLU(),
                nn.Conv2d(width, width, kernel_size=3, padding=1),
                _batch_norm(width),
                nn.ReLU(),
                nn.Conv2d(width, classes, kernel_size=1),
            )
            return LoadedModel(module.eval(), normal_inputs(batch, channels, size, size))


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch normalisation with statistics as after training. Folding a fresh one wrongly would not show."""
    import torch
    from torch import nn

    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.0, 0.2)
        norm.get_buffer("running_mean").normal_(0.0, 0.2)
        norm.get_buffer("running_var").uniform_(0.5, 1.5)
    return norm
