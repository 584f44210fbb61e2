"""A perceptron so small that a backend's cost per call decides, and not its multiplications."""

from collections.abc import Mapping

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded


class MLP(Family):
    """(batch, features) -> (batch, features)."""

    name = "mlp"
    description = "three linear layers with ReLU between them"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(4, "rows per call"),
        "features": Dimension(256, "width of input and output"),
        "hidden": Dimension(512, "width of the two hidden layers"),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from torch import nn

        batch, features, hidden = (int(dimensions[name]) for name in ("batch", "features", "hidden"))
        with seeded(seed):
            module = nn.Sequential(
                nn.Linear(features, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, features),
            )
            return LoadedModel(module.eval(), normal_inputs(batch, features))
