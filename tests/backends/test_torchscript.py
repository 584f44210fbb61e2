"""TorchScript: its artefact, and the calls that specialise it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backends.torchscript import SPECIALISING_CALLS
from records.schema import Cell
from tests.backends.building import Built, built

CELL = Cell(model="mlp", dimensions={"batch": 3, "features": 32, "hidden": 48}, backend="torchscript")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Built]:
    with built(CELL, tmp_path) as compiled:
        yield compiled


def test_the_artefact_computes_the_same(one: Built) -> None:
    assert one.phases == ("export", "compile")
    (artefact,) = one.context.workspace.iterdir()
    read_back = torch.jit.load(artefact)
    torch.testing.assert_close(read_back(*one.sets[1].tensors()), one.eager(one.sets[1]))


def test_weights_are_frozen_into_the_graph(one: Built) -> None:
    read_back = torch.jit.load(one.context.workspace / "model.pt")
    assert list(read_back.parameters()) == []
    placement = one.compiled.placement()
    assert placement is not None and placement.engines["torchscript"] > 0


def test_the_first_calls_are_part_of_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    freeze = torch.jit.freeze

    def counting(traced: torch.jit.ScriptModule) -> object:
        frozen = freeze(traced)

        class Counted:
            _c = frozen._c
            graph = frozen.graph

            def __call__(self, *tensors: torch.Tensor) -> object:
                calls.append(1)
                return frozen(*tensors)

            def save(self, *where: object) -> None:
                frozen.save(*where)

        return Counted()

    monkeypatch.setattr(torch.jit, "freeze", counting)
    monkeypatch.setattr(torch.jit, "save", lambda frozen, path: frozen.save(path))
    with built(CELL, tmp_path):
        assert len(calls) == SPECIALISING_CALLS >= 2
