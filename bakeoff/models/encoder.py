"""The layers of `bakeoff.models.transformer`. This file imports torch, so only workers import it.

`nn.TransformerEncoder` is not used. In eager inference it takes a fused path (`_transformer_encoder_layer_fwd`) that
exporters do not take, so the eager cell and the compiled cells would compute different graphs.
"""

from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """`layers` encoder layers and a last normalisation: (batch, seq, dim) -> (batch, seq, dim)."""

    def __init__(self, layers: int, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(EncoderLayer(dim, heads, ffn) for _ in range(layers)))
        self.norm = _layer_norm(dim)

    def forward(self, embeddings: Tensor) -> Tensor:
        normalised: Tensor = self.norm(self.layers(embeddings))
        return normalised


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.attention_norm = _layer_norm(dim)
        self.attention = Attention(dim, heads)
        self.feed_forward_norm = _layer_norm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, ffn), nn.GELU(), nn.Linear(ffn, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class Attention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.per_head = (heads, dim // heads)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # unlike view, unflatten and flatten put no batch or sequence length into the exported graph
        query, key, value = (
            part.unflatten(-1, self.per_head).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        projected: Tensor = self.output(attended.transpose(1, 2).flatten(start_dim=2))
        return projected


def _layer_norm(dim: int) -> nn.LayerNorm:
    """Return a layer normalisation with weights as after training. Leaving out fresh ones, 1 and 0, would not show."""
    norm = nn.LayerNorm(dim)
    nn.init.normal_(norm.weight, mean=1.0, std=0.2)
    nn.init.normal_(norm.bias, std=0.2)
    return norm
