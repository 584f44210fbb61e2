"""Elementwise work, reductions, a normalisation and small matrix products in turn, for compilers that fuse."""

from collections.abc import Mapping

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded


class MixedOps(Family):
    """(batch, features) -> (batch, features). The module is in models/small_layers.py."""

    name = "mixed_ops"
    description = "elementwise operations, reductions, a small matrix product and a layer normalisation, repeated"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(256, "rows per call"),
        "features": Dimension(256, "width of a row"),
        "rank": Dimension(16, "inner width of the small matrix products"),
        "layers": Dimension(3, "how often the sequence is repeated"),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from torch import nn

        from bakeoff.models.small_layers import Mixed

        batch, features, rank, layers = (int(dimensions[name]) for name in self.dimensions)
        with seeded(seed):
            module = nn.Sequential(*(Mixed(features, rank) for _ in range(layers)))
            return LoadedModel(module.eval(), normal_inputs(batch, features))
