"""The modules of attention, attention_block, matmul_chain and mixed_ops. Workers import it, and with it torch."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Chain(nn.Module):
    """Multiplies (batch, size) by one matrix after another. The variance of the result stays near 1."""

    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(size, size) / math.sqrt(size) for _ in range(length))

    def forward(self, rows: Tensor) -> Tensor:
        for matrix in self.matrices:
            rows = rows @ matrix
        return rows


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


class WrittenOutAttention(nn.Module):
    """Maps (batch, seq, dim) to the same shape by softmax(QKᵀ / √d)V, without the fused operator."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, positions: Tensor) -> Tensor:
        query, key, value = (self._by_head(layer(positions)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        attended = torch.softmax(scores, dim=-1) @ value
        return attended.transpose(1, 2).reshape(positions.shape)

    def _by_head(self, projected: Tensor) -> Tensor:
        """Reshape (batch, seq, dim) to (batch, heads, seq, dim / heads)."""
        batch, seq, dim = projected.shape
        return projected.view(batch, seq, self.heads, dim // self.heads).transpose(1, 2)


class Mixed(nn.Module):
    """Mixes each row (batch, features) with its standardised form by a gate of two small products, and normalises
    it."""

    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(features, rank)
        self.up = nn.Linear(rank, features)
        self.norm = _layer_norm(features)
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(features))

    def forward(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(dim=-1, keepdim=True)
        standardised = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
        gate = torch.sigmoid(self.up(torch.tanh(self.down(standardised))))
        mixed = gate * torch.relu(rows * self.scale) + (1 - gate) * standardised
        normalised: Tensor = self.norm(rows + mixed)
        return normalised


def _layer_norm(features: int) -> nn.LayerNorm:
    """Return a layer normalisation with weights as after training. Leaving out fresh ones, 1 and 0, would not show."""
    norm = nn.LayerNorm(features)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.0, 0.2)
    return norm
