"""A model that puts its results into the dict that it is given, and replaces an entry, as matchers of features do.

Right: each call gets a dict of its own, so that all calls see the same values.
"""

import torch
from torch import nn


class Describes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, batch):
        batch["features"] = self.linear(batch["image"])
        batch["image"] = batch["image"] * 0.5
        return batch


def factory(batch: int = 8):
    return Describes(), ({"image": torch.randn(batch, 32)},)


class TakesOut(Describes):
    def forward(self, batch):
        return self.linear(batch.pop("image"))


def taking(batch: int = 8):
    return TakesOut(), ({"image": torch.randn(batch, 32), "id": torch.arange(batch)},)
