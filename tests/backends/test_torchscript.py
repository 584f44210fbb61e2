"""TorchScript: its artefact, and the calls that specialise it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bakeoff.backends.torchscript import SPECIALISING_CALLS
from bakeoff.records.schema import Cell
from tests.backends.building import Built, built, loaded

CELL = Cell(model="mlp", dimensions={"batch": 3, "features": 32, "hidden": 48}, backend="torchscript")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Built]:
    with built(CELL, tmp_path) as compiled:
        yield compiled


def test_the_artefact_computes_the_same(one: Built) -> None:
    assert one.phases == ("export", "load", "compile")
    (artefact,) = one.context.workspace.iterdir()
    read_back = torch.jit.load(artefact)
    torch.testing.assert_close(read_back(*one.sets[1].tensors()), one.eager(one.sets[1]))


def test_weights_are_frozen_into_the_graph(one: Built) -> None:
    read_back = torch.jit.load(one.context.workspace / "model.pt")
    assert list(read_back.parameters()) == []
    placement = one.compiled.placement()
    assert placement is not None and placement.engines["torchscript"] > 0


calls: list[int] = []


@torch.library.custom_op("bakeoff_tests::noted", mutates_args=())
def noted(rows: torch.Tensor) -> torch.Tensor:
    """Return a copy of the rows, and note the call."""
    calls.append(1)
    return rows.clone()


class Noting(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * noted(rows)


def test_the_first_calls_are_part_of_building(tmp_path: Path) -> None:
    calls.clear()
    model = loaded(Noting(), 4, 4)
    with built(Cell(model="own", backend="torchscript"), tmp_path, model):
        assert len(calls) == 1 + SPECIALISING_CALLS >= 3, "one of them is the trace"
