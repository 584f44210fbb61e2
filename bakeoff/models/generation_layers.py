"""The two graphs of `bakeoff.models.transformer_lm`, over its own layers. This file imports torch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.models.language_layers import DecoderLM


class Prefill(nn.Module):
    """Maps tokens (batch, prompt) to the last position's logits, and keys and values of each layer, with room for
    `context` rows."""

    def __init__(self, language_model: DecoderLM, context: int) -> None:
        super().__init__()
        self.language_model = language_model
        self.context = context

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        lm, length = self.language_model, tokens.shape[1]
        cosines, sines = lm.cosines[:length], lm.sines[:length]
        x, caches = lm.embedding(tokens), []
        layer: Any
        for layer in lm.layers:
            queries, keys, values = layer.project(x, cosines, sines)
            x = layer.finish(x, layer.attention(queries, keys, values))
            caches += [functional.pad(rows, (0, 0, 0, self.context - length)) for rows in (keys, values)]
        return lm.output(lm.norm(x[:, -1])), *caches


class Step(nn.Module):
    """Maps a token (batch, 1), its position (1) and the caches to the logits, and the caches with one row more.

    With `in_place`, it writes the row into the caches that it is given, and returns the logits alone.
    """

    def __init__(self, language_model: DecoderLM) -> None:
        super().__init__()
        self.language_model = language_model
        self.in_place = False

    def forward(self, token: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        lm = self.language_model
        cosines, sines = lm.cosines.index_select(0, position), lm.sines.index_select(0, position)
        seen = (torch.arange(caches[0].shape[2], device=token.device) <= position).view(1, 1, 1, -1)
        x, written = lm.embedding(token), []
        layer: Any
        for number, layer in enumerate(lm.layers):
            queries, key, value = layer.project(x, cosines, sines)
            keys = write_row(caches[2 * number], key, position, self.in_place)
            values = write_row(caches[2 * number + 1], value, position, self.in_place)
            attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
            x = layer.finish(x, attended)
            written += [keys, values]
        logits = lm.output(lm.norm(x[:, -1]))
        return (logits,) if self.in_place else (logits, *written)


def write_row(cache: Tensor, row: Tensor, position: Tensor, in_place: bool) -> Tensor:
    """Return the cache (batch, heads, rows, width) with one row at `position`: the cache itself if `in_place`."""
    if in_place:
        return cache.index_copy_(2, position, row)
    return cache.scatter(2, position.view(1, 1, 1, 1).expand_as(row), row)
