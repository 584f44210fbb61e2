"""One attention block written out: three projections, scaled scores, softmax, and the weighted sum."""

from collections.abc import Mapping

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded
from bakeoff.records.errors import UsageError


class AttentionBlock(Family):
    """(batch, seq, dim) -> (batch, seq, dim). The module is in models/small_layers.py."""

    name = "attention_block"
    description = "QKV projections and softmax attention, written out"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(64, "positions of a sequence"),
        "dim": Dimension(128, "width of a position; heads must divide it"),
        "heads": Dimension(4, "attention heads"),
    }

    def check(self, dimensions: Sizes) -> None:
        dim, heads = int(dimensions["dim"]), int(dimensions["heads"])
        if dim % heads:
            raise UsageError(f"{self.name}: heads={heads} does not divide dim={dim}: set one of them so that it does")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from bakeoff.models.small_layers import WrittenOutAttention

        batch, seq, dim, heads = (int(dimensions[name]) for name in self.dimensions)
        with seeded(seed):
            return LoadedModel(WrittenOutAttention(dim, heads).eval(), normal_inputs(batch, seq, dim))
