"""Modes with images and weights in channels_last memory."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bakeoff.backends.base import ANYWHERE, Mode, Suits
from bakeoff.backends.memory_format import converted_inputs, converted_module
from bakeoff.models.base import Inputs
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import built, loaded

LAST = torch.channels_last


def in_order(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=LAST)


def test_a_copy_has_its_convolutions_in_order_and_the_callers_module_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    with torch.inference_mode():
        copy = converted_module(module)
    assert in_order(copy[0].weight) and not in_order(module[0].weight)
    assert torch.equal(copy[0].weight, module[0].weight)
    assert not copy[0].weight.is_inference()
    assert copy[3].weight is module[3].weight, "only what changes its place takes memory twice"
    assert copy[1].running_mean is module[1].running_mean


def test_only_tensors_of_four_dimensions_are_put_in_order() -> None:
    given = Inputs((torch.randn(2, 3, 4, 4), torch.randn(2, 3)), {"mask": torch.ones(2, 3, 4, dtype=torch.long)})
    images, *others = converted_inputs(given).tensors()
    assert in_order(images) and torch.equal(images, given.args[0]) and not in_order(given.args[0])
    assert all(found is tensor for found, tensor in zip(others, given.tensors()[1:], strict=True))


def test_a_model_without_convolution_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A user's own model is only known once it is loaded."""
    model = loaded(nn.Linear(3, 2), 1, 2, 2, 3, sets=1)
    cell = Cell(model="mine.py:factory", backend="eager", mode="channels-last")
    with pytest.raises(Unsupported, match=r"^the model has no 2-D convolution"), built(cell, tmp_path, model):
        pass


def test_the_record_says_which_order_was_in_force(tmp_path: Path) -> None:
    model = loaded(nn.Conv2d(3, 4, 3), 1, 3, 8, 8, sets=1)
    cell = Cell(model="mine.py:factory", backend="torchscript", mode="channels-last")
    with built(cell, tmp_path, model) as one:
        assert one.compiled.settings()["memory_format"] == "channels_last"
        assert in_order(one.call(one.sets[0])[0])


def test_a_variant_carries_the_name_of_its_mode_and_is_worth_trying_for_convolutions() -> None:
    plain = Mode(worth_trying=ANYWHERE, any_size=True).in_channels_last()
    assert plain == Mode(
        "channels-last", worth_trying=Suits(convolutions=True), channels_last_of="default", any_size=True
    )
    graph = Mode("cuda-graph", worth_trying=Suits("cuda"), captures=True).in_channels_last()
    assert (graph.name, graph.plain_name, graph.captures) == ("cuda-graph-channels-last", "cuda-graph", True)
    assert graph.worth_trying == Suits("cuda", convolutions=True)
    assert Mode("other").in_channels_last().worth_trying is None
