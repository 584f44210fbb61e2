"""Eager with batch norms folded into convolutions computes the same, with fewer operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bakeoff.backends.folded_norms import fold_norms
from bakeoff.models.base import Inputs


class Block(nn.Module):
    """Two convolutions with norms, a norm that stands alone, and a convolution that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.second, self.norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.alone = nn.BatchNorm2d(4)
        self.twice, self.after = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(x)))
        return self.after(self.twice(self.twice(self.alone(x))))


def test_norms_behind_convolutions_are_folded_and_no_others() -> None:
    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(2, 3, 12, 12)
    for norm in (part for part in block.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    with torch.inference_mode():
        before = block(x)
        assert fold_norms(block, Inputs((x,))) == 2
        torch.testing.assert_close(block(x), before)
    kinds = [type(block.get_submodule(name)).__name__ for name in ("first.1", "norm", "alone", "after")]
    assert kinds == ["Identity", "Identity", "BatchNorm2d", "BatchNorm2d"]


def test_a_norm_in_training_stays() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert fold_norms(layers, Inputs((torch.randn(2, 3, 8, 8),))) == 0
