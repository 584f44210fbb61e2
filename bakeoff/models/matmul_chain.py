"""A chain of matrix products. Vendor libraries already do these best, so compiling gains little."""

from collections.abc import Mapping

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded


class MatmulChain(Family):
    """(batch, size) -> (batch, size): x @ W1 @ W2 ... The module is in models/small_layers.py."""

    name = "matmul_chain"
    description = "a chain of square matrix products"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(64, "rows per call"),
        "size": Dimension(256, "rows and columns of each matrix"),
        "length": Dimension(4, "matrices in the chain"),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from bakeoff.models.small_layers import Chain

        batch, size, length = (int(dimensions[name]) for name in self.dimensions)
        with seeded(seed):
            return LoadedModel(Chain(size, length).eval(), normal_inputs(batch, size))
