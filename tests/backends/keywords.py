"""A user's model with keywords in another order than the signature's, a mask, a constant, and nested outputs, one of
them whole numbers."""

import torch
from torch import Tensor, nn


def factory(batch: int = 4, keys: int = 6, width: int = 16) -> tuple[nn.Module, dict[str, Tensor | float]]:
    mask = torch.arange(keys) < 1 + torch.arange(batch).unsqueeze(1)
    inputs = {
        "temperature": 0.5,
        "mask": mask,
        "keys": torch.randn(batch, keys, width),
        "query": torch.randn(batch, width),
    }
    return Retrieval(width), inputs


class Retrieval(nn.Module):
    """Attends to the keys that the mask allows, and names the best of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(
        self, query: Tensor, keys: Tensor, mask: Tensor, temperature: float = 1.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        scores = (keys @ self.project(query).unsqueeze(-1)).squeeze(-1) / temperature
        weights = scores.masked_fill(~mask, -1e4).softmax(dim=-1)
        return (weights.unsqueeze(1) @ keys).squeeze(1), {"weights": weights, "best": weights.argmax(dim=-1)}
