"""The template models: small networks of one kind of work each, over standard normal inputs.

Their layers are in models/template_layers.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.seeding import seeded
from bakeoff.records.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


class Template(Family):
    """A family whose inputs all have the shape of some of its dimensions."""

    may_convolve = False
    shape: ClassVar[tuple[str, ...]]
    """The dimensions that are the shape of an input."""
    arguments: ClassVar[int] = 1

    @abstractmethod
    def module(self, sizes: Sizes) -> nn.Module:
        """Make the module. Torch's generator for the CPU is seeded."""

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        import torch

        shape = [int(dimensions[name]) for name in self.shape]
        with seeded(seed):
            module = self.module(dimensions)
            sets = [Inputs(tuple(torch.randn(shape) for _ in range(self.arguments))) for _ in range(INPUT_SETS)]
        return LoadedModel(module.eval(), tuple(sets))


class MLP(Template):
    """A perceptron so small that a backend's cost per call decides, and not its multiplications."""

    name = "mlp"
    description = "three linear layers with ReLU between them"
    shape = ("batch", "features")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(4, "rows per call"),
        "features": Dimension(256, "width of input and output"),
        "hidden": Dimension(512, "width of the two hidden layers"),
    }

    def module(self, sizes: Sizes) -> nn.Module:
        from torch import nn

        features, hidden = int(sizes["features"]), int(sizes["hidden"])
        return nn.Sequential(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, features),
        )


class Conv(Template):
    """A convolutional network: (batch, channels, size, size) -> (batch, classes, size, size).

    Compilers can fold batch normalisation, fuse ReLU, and choose the memory layout.
    """

    name = "conv"
    description = "two blocks of 3x3 convolution, batch normalisation and ReLU, and a 1x1 convolution"
    may_convolve = True
    shape = ("batch", "channels", "size", "size")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(4, "images per call"),
        "channels": Dimension(3, "channels of an image"),
        "size": Dimension(128, "height and width of an image, in pixels"),
        "width": Dimension(32, "channels between the blocks"),
        "classes": Dimension(8, "channels of the output"),
    }

    def module(self, sizes: Sizes) -> nn.Module:
        from torch import nn

        from bakeoff.models.template_layers import as_after_training

        channels, width, classes = (int(sizes[name]) for name in ("channels", "width", "classes"))
        return nn.Sequential(
            nn.Conv2d(channels, width, kernel_size=3, padding=1),
            as_after_training(nn.BatchNorm2d(width)),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, padding=1),
            as_after_training(nn.BatchNorm2d(width)),
            nn.ReLU(),
            nn.Conv2d(width, classes, kernel_size=1),
        )


class Transformer(Template):
    """An encoder: (batch, seq, dim) -> (batch, seq, dim)."""

    name = "transformer"
    description = "pre-norm transformer encoder layers over embeddings, without mask or dropout"
    shape = ("batch", "seq", "dim")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(128, "positions of a sequence"),
        "dim": Dimension(256, "width of an embedding; heads must divide it"),
        "layers": Dimension(2, "encoder layers"),
        "heads": Dimension(4, "attention heads of a layer"),
        "ffn": Dimension(1024, "width between the two linear layers of a feed-forward block"),
    }

    def check(self, dimensions: Sizes) -> None:
        _require_whole_heads(self.name, dimensions)

    def module(self, sizes: Sizes) -> nn.Module:
        from bakeoff.models.template_layers import Encoder

        return Encoder(*(int(sizes[name]) for name in ("layers", "dim", "heads", "ffn")))


class Attention(Template):
    """Queries, keys and values, each (batch, seq, d_model) -> (batch, seq, d_model). One head, no mask, no weights.

    It shows the cost of its scores, which grow with the square of seq. Training makes the gradients of all three.
    """

    name = "attention"
    description = "single-head softmax attention, written out (naive) or scaled_dot_product_attention (sdpa)"
    shape = ("batch", "seq", "d_model")
    arguments = 3
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(1024, "positions of a sequence"),
        "d_model": Dimension(64, "width of the head"),
        "variant": Dimension("naive", "how it is computed", choices=("naive", "sdpa")),
    }

    def module(self, sizes: Sizes) -> nn.Module:
        from bakeoff.models.template_layers import ATTENTIONS

        return ATTENTIONS[str(sizes["variant"])]()

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        return replace(super().load(dimensions, seed), input_gradients=True)


class AttentionBlock(Template):
    """One attention block written out: three projections, scaled scores, softmax, and the weighted sum."""

    name = "attention_block"
    description = "QKV projections and softmax attention, written out"
    shape = ("batch", "seq", "dim")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(64, "positions of a sequence"),
        "dim": Dimension(128, "width of a position; heads must divide it"),
        "heads": Dimension(4, "attention heads"),
    }

    def check(self, dimensions: Sizes) -> None:
        _require_whole_heads(self.name, dimensions)

    def module(self, sizes: Sizes) -> nn.Module:
        from bakeoff.models.template_layers import WrittenOutAttention

        return WrittenOutAttention(int(sizes["dim"]), int(sizes["heads"]))


class MatmulChain(Template):
    """x @ W1 @ W2 ... Vendor libraries already do these best, so compiling gains little."""

    name = "matmul_chain"
    description = "a chain of square matrix products"
    shape = ("batch", "size")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(64, "rows per call"),
        "size": Dimension(256, "rows and columns of each matrix"),
        "length": Dimension(4, "matrices in the chain"),
    }

    def module(self, sizes: Sizes) -> nn.Module:
        from bakeoff.models.template_layers import Chain

        return Chain(int(sizes["size"]), int(sizes["length"]))


class MixedOps(Template):
    """Elementwise work, reductions, a normalisation and small matrix products in turn, for compilers that fuse."""

    name = "mixed_ops"
    description = "elementwise operations, reductions, a small matrix product and a layer normalisation, repeated"
    shape = ("batch", "features")
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(256, "rows per call"),
        "features": Dimension(256, "width of a row"),
        "rank": Dimension(16, "inner width of the small matrix products"),
        "layers": Dimension(3, "how often the sequence is repeated"),
    }

    def module(self, sizes: Sizes) -> nn.Module:
        from torch import nn

        from bakeoff.models.template_layers import Mixed

        features, rank = int(sizes["features"]), int(sizes["rank"])
        return nn.Sequential(*(Mixed(features, rank) for _ in range(int(sizes["layers"]))))


def _require_whole_heads(model: str, sizes: Sizes) -> None:
    dim, heads = int(sizes["dim"]), int(sizes["heads"])
    if dim % heads:
        raise UsageError(f"{model}: heads={heads} does not divide dim={dim}: set one of them so that it does")
