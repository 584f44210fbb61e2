"""A transformer encoder over embeddings: attention, layer normalisation, and two large matrix products."""

from collections.abc import Mapping

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded
from bakeoff.records.errors import UsageError


class Transformer(Family):
    """(batch, seq, dim) -> (batch, seq, dim). The layers are in models/encoder.py."""

    name = "transformer"
    description = "pre-norm transformer encoder layers over embeddings, without mask or dropout"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(128, "positions of a sequence"),
        "dim": Dimension(256, "width of an embedding; heads must divide it"),
        "layers": Dimension(2, "encoder layers"),
        "heads": Dimension(4, "attention heads of a layer"),
        "ffn": Dimension(1024, "width between the two linear layers of a feed-forward block"),
    }

    def check(self, dimensions: Sizes) -> None:
        dim, heads = int(dimensions["dim"]), int(dimensions["heads"])
        if dim % heads:
            raise UsageError(f"{self.name}: heads={heads} does not divide dim={dim}: set one of them so that it does")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from bakeoff.models.encoder import Encoder

        batch, seq, dim, layers, heads, ffn = (int(dimensions[name]) for name in self.dimensions)
        with seeded(seed):
            return LoadedModel(Encoder(layers, dim, heads, ffn).eval(), normal_inputs(batch, seq, dim))
