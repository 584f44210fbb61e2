"""The layers of `bakeoff.models.transformer_lm`. This file imports torch, so only workers import it."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.models.decoder_layers import ROPE_BASE, RMSNorm, SwiGLU, turned
from bakeoff.models.template_layers import ATTENTIONS


class DecoderLM(nn.Module):
    """Maps tokens (batch, length) to logits (batch, length, vocabulary). No position sees a later one. It is made on
    the meta device, and `draw` fills it."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, vocabulary: int, dim: int, ffn: int, layers: int, heads: int, attention: str) -> None:
        super().__init__()
        self.head_width = dim // heads
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, ffn, heads, attention) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        self.register_buffer("cosines", torch.empty(0))
        self.register_buffer("sines", torch.empty(0))

    @torch.no_grad()
    def draw(self, generator: torch.Generator, context: int) -> None:
        """Fill the weights, and the tables for `context` positions. A seed gives the same bits on the same device."""
        residual = 1 / math.sqrt(2 * len(self.layers))  # keeps the sum of all layers as large as one
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.normal_(1.0, 0.2, generator=generator)
            elif name == "embedding.weight":
                weight.normal_(generator=generator)
            else:
                ends_a_branch = name.endswith(("attention_output.weight", "down.weight"))
                std = (residual if ends_a_branch else 1.0) / math.sqrt(weight.shape[1])
                weight.normal_(0.0, std, generator=generator)
        device, dtype = self.output.weight.device, self.output.weight.dtype
        frequencies = ROPE_BASE ** -(torch.arange(0, self.head_width, 2, device=device) / self.head_width)
        angles = torch.outer(torch.arange(context, device=device), frequencies).repeat(1, 2)
        self.cosines, self.sines = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cosines, sines = self.cosines[:length], self.sines[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        logits: Tensor = self.output(self.norm(x))
        return logits


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)). Source: Touvron et al., "LLaMA", 2023."""

    def __init__(self, dim: int, ffn: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = RMSNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.attention = ATTENTIONS[attention](is_causal=True)
        self.attention_output = nn.Linear(dim, dim, bias=False)
        self.feed_forward_norm = RMSNorm(dim)
        self.gate_up = nn.Linear(dim, 2 * ffn, bias=False)
        self.activation = SwiGLU()
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        queries, keys, values = self.project(x, cosines, sines)
        return self.finish(x, self.attention(queries, keys, values))

    def project(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, heads, length, width), the first two turned."""
        projected = self.query_key_value(self.attention_norm(x))
        parts = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind()
        return turned(queries, cosines, sines), turned(keys, cosines, sines), values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.attention_output(attended.transpose(1, 2).flatten(start_dim=2))
        x = x + self.down(self.activation(self.gate_up(self.feed_forward_norm(x))))
        return x


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy of each position's next token, in float32 or wider."""
    none = torch.full_like(tokens[:, :1], -100)  # the last position has no next token
    labels = torch.cat((tokens[:, 1:], none), dim=1)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(precise.flatten(0, 1), labels.flatten(), ignore_index=-100)


class LanguagePrefill(nn.Module):
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


class LanguageDecode(nn.Module):
    """Maps a token (batch, 1), its position (1) and the caches to the logits, and the caches with one row more. With
    `in_place`, it writes the row into the given caches, and returns the logits alone."""

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
