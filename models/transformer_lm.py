"""A decoder language model of the sizes that are trained and served: RoPE, RMSNorm, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from records.device import CPU, Device

if TYPE_CHECKING:
    import torch

VOCABULARY = 10_000


@dataclass(frozen=True)
class Size:
    """`dim` wide, `ffn` in the feed-forward block, `layers` deep, `heads` attention heads."""

    dim: int
    ffn: int
    layers: int
    heads: int

    @property
    def parameters(self) -> int:
        """Weights of all layers, of the embedding and of the output, which are not tied."""
        layer = 4 * self.dim**2 + 3 * self.dim * self.ffn + 2 * self.dim
        return self.layers * layer + 2 * VOCABULARY * self.dim + self.dim


SIZES = {
    "tiny": Size(64, 176, 2, 4),
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "2.7B": Size(2560, 10240, 32, 32),
    "1B": Size(2048, 5632, 20, 16),
    "10B": Size(4096, 14336, 41, 32),
    "40B": Size(8192, 22016, 49, 64),
}
"""`tiny` is for tests. Those named by their parameters have 3.41 (the name is the one it is known by; a gated block has
more), 1.07, 10.06 and 39.83 thousand million."""

STREAM = 8
"""Lengths in a stream, from an eighth of the context to all of it."""


class TransformerLM(Family):
    """Tokens (batch, context) -> logits (batch, context, 10000). The layers are in models/language_layers.py.

    The loss is the cross entropy of each position's next token, as Hugging Face computes it from labels that are the
    tokens: the last position has none. Weights are drawn on the cell's device in its type, from the seed: the same bits
    on the same device, others on another one.
    """

    name = "transformer_lm"
    description = "decoder language model (RoPE, RMSNorm, SwiGLU; vocabulary 10,000)"
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(4, "sequences per call"),
        "context": Dimension(128, "tokens of a sequence, the longest one of a stream"),
        "size": Dimension("small", f"one of {', '.join(SIZES)}", choices=tuple(SIZES)),
        "attention": Dimension("sdpa", "how attention is computed", choices=("sdpa", "naive")),
        "lengths": Dimension(
            "fixed",
            "fixed: every call has `context` tokens; stream: eight lengths take turns",
            choices=("fixed", "stream"),
        ),
    }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        import torch

        return self.load_on(dimensions, seed, CPU, torch.float32)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        import torch

        from models.language_layers import DecoderLM, next_token_loss

        size, context = SIZES[str(dimensions["size"])], int(dimensions["context"])
        generator = torch.Generator(device).manual_seed(seed)
        with torch.device("meta"):
            module = DecoderLM(VOCABULARY, size.dim, size.ffn, size.layers, size.heads, str(dimensions["attention"]))
        module = module.to(dtype).to_empty(device=device)
        module.draw(generator, context)
        sets = tuple(
            Inputs((torch.randint(VOCABULARY, (int(dimensions["batch"]), length), generator=generator, device=device),))
            for length in lengths(context, str(dimensions["lengths"]))
        )
        return LoadedModel(module.eval(), sets, next_token_loss, is_layerwise=True, padded_axis=1)


def lengths(context: int, kind: str) -> list[int]:
    """The length of each input set. Those of a stream are no multiples of a power of two, and come in no order."""
    if kind == "fixed":
        return [context] * INPUT_SETS
    step = max(1, context // STREAM)
    up = [max(2, step * number - (number * 5) % 7) for number in range(1, STREAM)] + [context]
    return [up[(3 * place) % STREAM] for place in range(STREAM)]
