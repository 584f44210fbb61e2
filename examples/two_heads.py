"""A small ranking model with several inputs, one of them whole numbers, and several outputs.

To measure it:

    python runner.py --model examples/two_heads.py:factory --set batch=64
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def factory(
    batch: int = 32, features: int = 64, items: int = 1000, hidden: int = 128
) -> tuple[nn.Module, dict[str, Tensor]]:
    """From (batch, features) and (batch,) item ids to a click's logit and a dwell time, both (batch,)."""
    inputs = {"user": torch.randn(batch, features), "item": torch.randint(items, (batch,))}
    return TwoHeads(features, items, hidden), inputs


class TwoHeads(nn.Module):
    """A shared trunk over a user's features and an item's embedding, and one head for each prediction."""

    def __init__(self, features: int, items: int, hidden: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, hidden)
        self.trunk = nn.Sequential(
            nn.Linear(features + hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.click = nn.Linear(hidden, 1)
        self.dwell = nn.Sequential(nn.Linear(hidden, 1), nn.Softplus())

    def forward(self, user: Tensor, item: Tensor) -> dict[str, Tensor]:
        shared = self.trunk(torch.cat((user, self.items(item)), dim=-1))
        return {"click": self.click(shared).squeeze(-1), "dwell": self.dwell(shared).squeeze(-1)}
