"""Models that look up answers, and weights that hide what they are multiplied with, are found."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bakeoff.measuring.messages import ComputeReference
from bakeoff.measuring.worker import reference
from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS, ModelTraits, Recall
from bakeoff.truth.calls import AlikeCalls, call
from bakeoff.truth.reference import traits_in
from bakeoff.truth.tiny_weights import tiny_weights_of
from bakeoff.truth.traits import recall_of
from tests.support.cells import case

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.kept: dict[Any, Any] = {}
        self._forward_of = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward_of(self, x)


def found(forward: Forward, given: torch.Tensor | None = None, traits: ModelTraits = NO_TRAITS) -> Recall | None:
    """Return what is told of a model that was called twice with its inputs."""
    model, inputs = Model(forward).eval(), Inputs((torch.randn(4, 8) if given is None else given,))
    with torch.inference_mode():
        for _ in range(2):
            call(model, inputs)
        return recall_of(model, inputs, AlikeCalls(model, traits))


OUTSIDE: dict[bytes, torch.Tensor] = {}


def by_content(m: Any, x: torch.Tensor) -> torch.Tensor:
    key = x.numpy().tobytes()
    if key not in OUTSIDE:
        OUTSIDE[key] = m.linear(x.float()).sin()
    return OUTSIDE[key]


def the_last_one(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.kept.get("key") is not x:
        m.kept = {"key": x, "answer": m.linear(x).sin()}
    return m.kept["answer"]  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4)
def scaled(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values).sin() * 2


def a_part(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) + scaled(tuple(x[0].tolist()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("forward", [by_content, the_last_one, a_part])
def test_answers_that_are_kept_anywhere_are_found(forward: Forward) -> None:
    recall = found(forward)
    assert recall is not None and recall.again < recall.operators


def test_answers_to_whole_numbers_are_found() -> None:
    assert found(by_content, torch.arange(32).view(4, 8)) is not None


def fills_a_table(m: Any, x: torch.Tensor) -> torch.Tensor:
    if x.shape not in m.kept:
        m.kept[x.shape] = torch.arange(8.0).sin()
    return m.linear(x) + m.kept[x.shape]  # type: ignore[no-any-return]


TURN = itertools.count()


def every_second_call(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x.sin() if next(TURN) % 2 else x)  # type: ignore[no-any-return]


def as_long_as_it_is_large(m: Any, x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 1:
        x = m.linear(x) * 0.5
    return x


def as_often_as_drawn(m: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(torch.randint(1, 1000, ()))):
        x = x.sin()
    return x


@pytest.mark.parametrize(
    ("forward", "traits"),
    [
        (lambda m, x: m.linear(x), NO_TRAITS),
        (fills_a_table, NO_TRAITS),
        (every_second_call, NO_TRAITS),
        (as_long_as_it_is_large, NO_TRAITS),
        (as_often_as_drawn, ModelTraits(is_random=True)),
    ],
)
def test_what_computes_each_answer_keeps_none(forward: Forward, traits: ModelTraits) -> None:
    assert found(forward, traits=traits) is None
    assert found(forward, traits=traits) is None, "with the other turn first"


def flat_only(m: Any, x: torch.Tensor) -> torch.Tensor:
    if x[0, 0] > x[-1, -1]:
        raise ValueError("these are not sorted")
    return by_content(m, x)


def test_whole_numbers_stay_where_the_model_does_not_take_others() -> None:
    assert found(flat_only, torch.arange(32).view(4, 8)) is None
    assert found(flat_only, torch.arange(32.0).view(4, 8)) is not None


@pytest.mark.usefixtures("restored_switches")
def test_the_reference_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "outputs.pt"
    reference.compute(ComputeReference(cell=case("answer_cache.py:factory"), reference=path), tmp_path, tmp_path)
    assert traits_in(path).recall is not None


Looked = Callable[["Scaled", torch.Tensor], torch.Tensor]


class Scaled(nn.Module):
    def __init__(self, value: float, forward: Looked) -> None:
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
