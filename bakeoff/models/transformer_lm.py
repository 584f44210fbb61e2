"""A decoder language model with RoPE, RMSNorm and SwiGLU, in sizes that people train and serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bakeoff.models import streams
from bakeoff.models.base import INPUT_SETS, Decoder, Dimension, Drawn, Inputs, LoadedModel, Sizes
from bakeoff.models.generation import context_of
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device

if TYPE_CHECKING:
    from bakeoff.models.language_layers import DecoderLM

VOCABULARY = 10_000


@dataclass(frozen=True)
class Size:
    dim: int
    ffn: int
    layers: int
    heads: int

    @property
    def parameters(self) -> int:
        """The number of weights of all layers, the embedding and the output, which are not tied."""
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
"""`tiny` is for tests. The sizes named by their parameters have 3.41, 1.07, 10.06 and 39.83 billion. "2.7B" is the name
that size is known by, and its gated block has more."""


class TransformerLM(Drawn):
    """Tokens (batch, context) -> logits (batch, context, 10000). The loss is the cross entropy of each position's next
    token, which the last one lacks. Weights are drawn on the cell's device and depend on it."""

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

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        from bakeoff.models.language_layers import next_token_loss

        context = int(dimensions["context"])
        generator = torch.Generator(device).manual_seed(seed)
        module = _drawn(dimensions, generator, dtype, context)
        sets = tuple(
            Inputs((torch.randint(VOCABULARY, (int(dimensions["batch"]), length), generator=generator, device=device),))
            for length in lengths(context, str(dimensions["lengths"]))
        )
        return LoadedModel(module, sets, next_token_loss, is_layerwise=True)

    def decoder_dimensions(self) -> Mapping[str, Dimension]:
        return {"size": self.dimensions["size"]}

    def load_decoder(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> Decoder:
        from bakeoff.models.language_layers import LanguageDecode, LanguagePrefill

        context = context_of(dimensions)
        module = _drawn({**dimensions, "attention": "sdpa"}, torch.Generator(device).manual_seed(seed), dtype, context)
        return Decoder(LanguagePrefill(module, context).eval(), LanguageDecode(module).eval(), torch.arange(VOCABULARY))


def _drawn(dimensions: Sizes, generator: torch.Generator, dtype: torch.dtype, context: int) -> DecoderLM:
    """Return the language model of these dimensions with random weights, on the generator's device."""
    from bakeoff.models.language_layers import DecoderLM

    size = SIZES[str(dimensions["size"])]
    with torch.device("meta"):
        module = DecoderLM(VOCABULARY, size.dim, size.ffn, size.layers, size.heads, str(dimensions["attention"]))
    module = module.to(dtype).to_empty(device=generator.device)
    module.draw(generator, context)
    return module.eval()


def lengths(context: int, kind: str) -> list[int]:
    """Return the length of each input set. A stream has lengths from an eighth of the context to all of it."""
    if kind == "fixed":
        return [context] * INPUT_SETS
    return streams.sizes_between(min(context, max(2, context // streams.SIZES)), context)
