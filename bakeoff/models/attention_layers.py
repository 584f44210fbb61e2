"""Attention in two ways, for `attention` and `transformer_lm`. This file imports torch."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Naive(nn.Module):
    """softmax(queries keysᵀ / √width) values over the last two dimensions, written out. It stores all scores."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
        if self.is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(dim=-1) @ values


class Fused(nn.Module):
    """The same attention by scaled_dot_product_attention, which stores no scores."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if queries.dim() == 4:
            return functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        # torch's fused kernels need four dimensions
        queries, keys, values = (tensor.unsqueeze(1) for tensor in (queries, keys, values))
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal).squeeze(1)


ATTENTIONS: dict[str, type[Naive] | type[Fused]] = {"naive": Naive, "sdpa": Fused}
