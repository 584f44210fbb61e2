"""A model returns a learned parameter as it is, as CLIP does with `logit_scale`.

Right: every build passes.
"""

import torch
from torch import nn


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(64, 32), nn.Linear(48, 32)
        self.logit_scale = nn.Parameter(torch.tensor(2.65))

    def forward(self, image, text):
        return self.image(image), self.text(text), self.logit_scale


def factory(batch: int = 8):
    return TwoTower(), (torch.randn(batch, 64), torch.randn(batch, 48))
