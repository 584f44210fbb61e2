"""The two graphs of an unmodified decoder of transformers. This file imports torch.

transformers gets a cache whose layers are nothing but the tensors that the graph was given, and explicit positions and
masks, so that it keeps no state. Its interface for attention functions gets one that does not repeat keys in a step.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache, LinearAttentionLayer, StaticLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bakeoff.models.language_layers import write_row

SLIDING = "sliding_attention"

GROUPED = "grouped_sdpa"
"""The name of `grouped_attention` among transformers' attention functions."""


def group_queries(language_model: Any) -> None:
    """Have a model that uses `scaled_dot_product_attention` take `grouped_attention` instead."""
    if language_model.config.get_text_config()._attn_implementation == "sdpa":
        AttentionInterface.register(GROUPED, grouped_attention)
        AttentionMaskInterface.register(GROUPED, sdpa_mask)
        language_model.set_attn_implementation(GROUPED)


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' `sdpa` does, but where each sequence has one query, repeat no key and no value for the
    heads that share them. Source: Ainslie et al., "GQA", 2023."""
    batch, heads, length, width = query.shape
    is_shared = key.shape[1] != heads
    if length != 1 or not is_shared or attention_mask is None or attention_mask.shape[1] != 1:
        unchanged: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return unchanged
    # repeating would move the cache many times, so heads that share a key attend together
    grouped = query.reshape(batch, key.shape[1], -1, width)
    attended = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return attended.reshape(batch, 1, heads, -1), None


class Rows(StaticLayer):  # type: ignore[misc]
    """Keys and values of one layer, which `write` makes of the old and the new ones."""

    def __init__(self, keys: Tensor, values: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(max_cache_len=keys.shape[2])
        self.keys, self.values = self.rows = keys, values
        self.is_initialized = True
        self._write = write

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.rows = (
            self._write(self.rows[0], key_states),
            self._write(self.rows[1], value_states),
        )
        return self.rows

    def get_seq_length(self) -> int:
        return 0  # positions and masks are given


def cache_of(language_model: Any, older: str, layers: list[Any]) -> dict[str, Any]:
    """Return the arguments that give a model a cache of these layers. It is `cache` since transformers 5.24."""
    name = "cache" if "cache" in inspect.signature(language_model.forward).parameters else older
    return {name: Cache(layers=layers), "use_cache": True}


class Attending(nn.Module):
    def __init__(self, language_model: Any, context: int) -> None:
        super().__init__()
        self.language_model = language_model
        self.context = context

    def call(self, tokens: Tensor, positions: Tensor, layers: list[Rows]) -> Tensor:
        cache = cache_of(self.language_model, "past_key_values", list(layers))
        logits: Tensor = self.language_model(
            input_ids=tokens,
            position_ids=positions[None],
            attention_mask=self._masks(positions),
            **cache,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]

    def _masks(self, positions: Tensor) -> Tensor | Mapping[str, Tensor]:
        """Return the mask (1, 1, positions, context), or one for each kind of layer if some see only a window."""
        config, dtype = self.language_model.config.get_text_config(), self.language_model.dtype
        behind = positions[:, None] - torch.arange(self.context, device=positions.device)[None]

        def mask(is_seen: Tensor) -> Tensor:
            # filled in its own type: float64's lowest value does not pass through float32
            return torch.zeros_like(is_seen, dtype=dtype).masked_fill(~is_seen, torch.finfo(dtype).min)[None, None]

        kinds = set(getattr(config, "layer_types", None) or ())
        window: Any = getattr(config, "sliding_window", None)
        if SLIDING not in kinds:
            return mask((behind >= 0) & (behind < window) if window else behind >= 0)
        return {"full_attention": mask(behind >= 0), SLIDING: mask((behind >= 0) & (behind < window))}


class HuggingFacePrefill(Attending):
    """Maps tokens to the last position's logits, and keys and values of each layer, with room for `context` rows."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        length, config = tokens.shape[1], self.language_model.config.get_text_config()

        def padded(_: Tensor, rows: Tensor) -> Tensor:
            return functional.pad(rows, (0, 0, 0, self.context - length))

        nothing = torch.zeros((1, 1, self.context, 1), device=tokens.device)
        layers = [Rows(nothing, nothing, padded) for _ in range(config.num_hidden_layers)]
        logits = self.call(tokens, torch.arange(length, device=tokens.device), layers)
        return logits, *(cache for layer in layers for cache in layer.rows)


class HuggingFaceDecode(Attending):
    """Maps a token, its position and the caches to the logits, and the caches with one row more. With `in_place`, it
    writes the row into the given caches, and returns the logits alone."""

    def __init__(self, language_model: Any, context: int) -> None:
        super().__init__(language_model, context)
        self.in_place = False

    def forward(self, token: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        def write(cache: Tensor, row: Tensor) -> Tensor:
            return write_row(cache, row, position, self.in_place)

        layers = [Rows(keys, values, write) for keys, values in zip(caches[::2], caches[1::2], strict=True)]
        logits = self.call(token, position, layers)
        if self.in_place:
            return (logits,)
        return logits, *(cache for layer in layers for cache in layer.rows)


class State(LinearAttentionLayer):  # type: ignore[misc]
    def __init__(self, convolution: Tensor, recurrent: Tensor) -> None:
        super().__init__()
        self.conv_states[0], self.recurrent_states[0] = convolution.clone(), recurrent.clone()
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = True
        self.has_previous_state[0] = True
        self.conv_kernel_size[0] = convolution.shape[-1]


class Recurrent(nn.Module):
    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model = language_model

    def call(self, tokens: Tensor, layers: list[Any]) -> tuple[Tensor, ...]:
        cache = cache_of(self.language_model, "cache_params", layers)
        answer = self.language_model(input_ids=tokens, **cache, logits_to_keep=1)
        states = [state for layer in layers for state in (layer.conv_states[0], layer.recurrent_states[0])]
        return answer.logits[:, -1], *states


class RecurrentPrefill(Recurrent):
    """Maps tokens to the last position's logits, and the two states of each layer."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        layers = [LinearAttentionLayer() for _ in range(self.language_model.config.num_hidden_layers)]
        return self.call(tokens, layers)


class RecurrentStep(Recurrent):
    """Maps a token, its position and the states of all layers to the logits and the next states."""

    def forward(self, token: Tensor, position: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        layers = [State(*pair) for pair in zip(states[::2], states[1::2], strict=True)]
        logits, *states_after = self.call(token, layers)
        # no position is needed, but an exporter would drop an input that nothing uses
        return logits + 0.0 * position.to(logits.dtype), *states_after


def dense_experts(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute every expert for every token, then the weighted sum of the chosen ones: every exporter takes that."""
    routed = torch.zeros(x.shape[0], self.num_experts, dtype=weights.dtype, device=x.device)
    routed = routed.scatter(1, chosen, weights)
    hidden = torch.matmul(x[None], self.gate_up_proj.transpose(1, 2))
    of_experts = torch.matmul(self._apply_gate(hidden), self.down_proj.transpose(1, 2))
    return (of_experts * routed.t()[:, :, None].to(of_experts.dtype)).sum(0).to(x.dtype)
