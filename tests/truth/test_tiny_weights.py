"""Weights that hide what they are multiplied with are told from those that are added."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS
from bakeoff.truth.calls import AlikeCalls
from bakeoff.truth.tiny_weights import tiny_weights_of

Forward = Callable[["Scaled", torch.Tensor], torch.Tensor]


class Scaled(nn.Module):
    def __init__(self, value: float, forward: Forward) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.weight = nn.Parameter(torch.full((4,), value))
        self.forward_of = forward
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_of(self, self.norm(self.linear(x)))


@pytest.mark.parametrize(
    ("value", "forward", "hides"),
    [
        (0.0, lambda self, x: x + self.weight * x, True),
        (1e-6, lambda self, x: x + x.mul(self.weight), True),
        (0.0, lambda self, x: x + self.weight.tanh()[None] * x, True),
        (0.0, lambda self, x: x + F.layer_norm(x, (4,), self.weight, torch.ones(4)), True),
        (0.0, lambda self, x: x + x @ self.weight[:, None], True),
        (0.0, lambda self, x: F.layer_norm(x, (4,), torch.ones(4), self.weight), False),
        (0.0, lambda self, x: F.linear(x, torch.eye(4), bias=self.weight), False),
        (0.0, lambda self, x: x + self.weight * 0.1, False),
        (0.0, lambda self, x: torch.cat([self.weight.expand(1, 4), x]), False),
        (0.0, lambda self, x: x * self.weight.sigmoid(), False),
        (1e-6, lambda self, x: x * 1e6 * self.weight, False),
        (0.1, lambda self, x: x + self.weight * x, False),
        (0.0, lambda self, x: F.layer_norm(x, (4,), None) * self.weight, True),
    ],
)
def test_weights_that_hide_what_they_scale_are_named(value: float, forward: Any, hides: bool) -> None:
    module = Scaled(value, forward)
    with torch.inference_mode():
        found = tiny_weights_of(module, Inputs((torch.randn(3, 4),)), AlikeCalls(module, NO_TRAITS))
    assert found == (("weight",) if hides else ())


def test_the_weights_of_zero_of_layers_are_named_and_not_their_biases() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2), nn.Embedding(3, 2))
    for parameter in layers.parameters():
        nn.init.zeros_(parameter)
    module = layers[:4].eval()
    found = tiny_weights_of(module, Inputs((torch.randn(2, 3, 4, 4),)), AlikeCalls(module, NO_TRAITS))
    assert found == ("0.weight", "1.weight", "3.weight")
