"""Softmax attention alone, written out or fused. It shows the cost of its scores, which grow with the square of seq."""

from collections.abc import Mapping

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.seeding import seeded


class Attention(Family):
    """Queries, keys and values, each (batch, seq, d_model) -> (batch, seq, d_model). One head, no mask, no weights.

    Training makes the gradients of all three.
    """

    name = "attention"
    description = "single-head softmax attention, written out (naive) or scaled_dot_product_attention (sdpa)"
    may_convolve = False
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(1024, "positions of a sequence"),
        "d_model": Dimension(64, "width of the head"),
        "variant": Dimension("naive", "how it is computed", choices=("naive", "sdpa")),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        import torch

        from bakeoff.models.small_layers import ATTENTIONS

        shape = [int(dimensions[name]) for name in ("batch", "seq", "d_model")]
        module = ATTENTIONS[str(dimensions["variant"])]()
        with seeded(seed):
            sets = tuple(Inputs(tuple(torch.randn(shape) for _ in range(3))) for _ in range(INPUT_SETS))
        return LoadedModel(module.eval(), sets, input_gradients=True)
