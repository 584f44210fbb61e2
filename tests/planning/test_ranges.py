"""`--dynamic`: which ranges are taken, what is planned for them, and what a worker finds of the inputs."""

from pathlib import Path
from typing import Any

import pytest

from bakeoff import models
from bakeoff.backends.ranges import OpenAxis
from bakeoff.measuring.worker import open_axes
from bakeoff.measuring.worker.loading import load
from bakeoff.planning.plan import Contest, PlannedCell, command_for, plan
from bakeoff.planning.ranges import parse, ranges_of, spell, with_ends
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell, Range

FACTORY = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(4, width)

    def forward(self, tokens, mask):
        return self.linear(tokens) * mask[..., None]

def plain(batch: int = 2, seq: int = 8, unused: int = 3):
    return Net(4), (torch.randn(batch, 2 * seq, 4), torch.ones(batch, 2 * seq))

def inputs_first(batch: int = 2, seq: int = 8):
    inputs = (torch.randn(batch, seq, 4), torch.ones(batch, seq))
    return Net(4), inputs

def wide(batch: int = 2, width: int = 8):
    return Net(width), (torch.randn(batch, 3, 4), torch.ones(batch, 3))

def fixed(batch: int = 2, seq: int = 8):
    if seq > 10:
        raise ValueError("ten at most")
    return plain(batch, seq)
"""


def planned(**fields: Any) -> list[Contest]:
    asked = {"models": ["transformer"], "devices": ["cpu"], "backends": ["eager", "onnx"], **fields}
    return plan(Request(**asked))


def cells_of(contests: list[Contest]) -> list[PlannedCell]:
    return [cell for contest in contests for cell in contest.cells]


def test_a_range_has_two_ends_and_may_name_the_size_to_build_with() -> None:
    assert parse(["seq=16:512", "batch=1:4:8"]) == {"seq": (16, None, 512), "batch": (1, 4, 8)}
    assert spell({"seq": Range(low=16, built_at=64, high=512)}) == "seq=16:64:512"


@pytest.mark.parametrize("entry", ["seq", "seq=16", "seq=a:b", "seq=16:", "=1:2", "seq=512:16", "seq=4:4", "seq=4:2:8"])
def test_any_other_form_is_told_in_one_line(entry: str) -> None:
    with pytest.raises(UsageError, match=r"^--dynamic [^\n]+$"):
        parse([entry])


@pytest.mark.parametrize(
    ("sizes", "built_at"), [(("16", "64", "512"), 64), (("16", "512"), 512), (("512",), 512), (("16", "8"), 16)]
)
def test_the_build_is_made_at_the_middle_one_of_the_sizes(sizes: tuple[str, ...], built_at: int) -> None:
    found = ranges_of(models.find("transformer"), {"seq": sizes}, parse(["seq=8:512"]))
    assert found == {"seq": Range(low=8, built_at=built_at, high=512)}


def test_two_axes_are_not_built_at_the_same_size_nor_at_one() -> None:
    asked = {"batch": ("1", "8"), "seq": ("8",)}
    found = ranges_of(models.find("transformer"), asked, parse(["batch=1:8", "seq=4:16"]))
    assert (found["batch"].built_at, found["seq"].built_at) == (8, 16)
    alone = ranges_of(models.find("transformer"), {"batch": ("1",)}, parse(["batch=1:8"]))
    assert alone["batch"].built_at == 8


def test_a_range_without_sizes_is_measured_at_its_ends() -> None:
    assert with_ends({"batch": ("2",)}, parse(["seq=16:64"])) == {"batch": ("2",), "seq": ("16", "64")}


def test_one_build_is_planned_beside_builds_for_each_size() -> None:
    contests = planned(set={"seq": ["16", "64"]}, dynamic=["seq=16:64"])
    assert [[one.cell.label for one in contest.cells] for contest in contests] == [
        ["eager", "onnx", "onnx[dynamic]"]
    ] * 2
    cells = [planned.cell for planned in cells_of(contests)]
    assert len({cell.id for cell in cells}) == len(cells)
    dynamic = [cell for cell in cells if cell.dynamic]
    assert len({cell.build_id for cell in dynamic}) == 1
    assert all(cell.build_id == cell.id for cell in cells if not cell.dynamic)
    assert {cell.as_built.dimensions["seq"] for cell in dynamic} == {64}
    assert "--dynamic seq=16:64:64" in command_for(dynamic[0]) and "--dynamic" not in command_for(cells[1])


def test_several_dimensions_vary_at_once() -> None:
    contests = planned(set={"batch": ["1", "8"], "seq": ["16", "64"]}, dynamic=["batch=1:8", "seq=16:64"])
    dynamic = [one.cell for one in cells_of(contests) if one.cell.dynamic]
    assert len(dynamic) == 4 and len({cell.build_id for cell in dynamic}) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dynamic": ["dim=64:130"]}, "heads=4 does not divide dim=130"),
        ({"dynamic": ["sek=16:64"]}, "sek"),
        ({"dynamic": ["seq=0:64"]}, "must be at least 1"),
        ({"dynamic": ["seq=16:64"], "set": {"seq": ["128"]}}, "seq=128 is outside of this range"),
        (
            {"dynamic": ["size=1:2"], "models": ["transformer_lm"]},
            "unknown value for transformer_lm's dimension 'size'",
        ),
    ],
)
def test_a_range_that_the_model_refuses_is_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        planned(**asked)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def cell_of(folder: Path, factory: str, **sizes: tuple[int, int, int]) -> Cell:
    file = folder / "mine.py"
    file.write_text(FACTORY)
    model = f"{file}:{factory}"
    ranges = {name: Range(low=low, built_at=at, high=high) for name, (low, at, high) in sizes.items()}
    return Cell(model=model, dimensions=models.find(model).resolve({}), backend="onnx", dynamic=ranges)


def test_open_axes_are_found_by_comparing_inputs_of_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = open_axes.find(cell_of(tmp_path, "plain", seq=(4, 8, 16)), tmp_path)
    assert not one.weights_vary
    assert one.axes == tuple(OpenAxis(tensor=tensor, axis=1, dimensions=("seq",), low=8, high=32) for tensor in (0, 1))
    two = open_axes.find(cell_of(tmp_path, "plain", batch=(1, 4, 8), seq=(4, 8, 16)), tmp_path)
    assert [(each.axis, each.dimensions, each.low, each.high) for each in two.axes if each.tensor == 1] == [
        (0, ("batch",), 1, 8),
        (1, ("seq",), 8, 32),
    ]


def test_weights_that_are_drawn_after_the_inputs_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_axes.find(cell_of(tmp_path, "inputs_first", seq=(4, 8, 16)), tmp_path).weights_vary


@pytest.mark.parametrize(
    ("factory", "name", "said"),
    [
        ("plain", "unused", "no input of .* changes its shape with unused"),
        ("wide", "width", "the shape of 'linear.weight' of .* changes with width"),
        ("fixed", "seq", "does not load with seq 16: ValueError: ten at most"),
    ],
)
def test_a_range_that_no_build_can_serve_is_refused(
    factory: str, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        open_axes.find(cell_of(tmp_path, factory, **{name: (4, 8, 16)}), tmp_path)


def test_all_sizes_can_have_the_weights_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cell = cell_of(tmp_path, "inputs_first", seq=(4, 8, 16))
    small = cell.model_copy(update={"dimensions": {"batch": 2, "seq": 4}})
    (expected, own, same) = (
        load(one, weights_at=at).module.state_dict()["linear.weight"]
        for one, at in ((cell, {}), (small, {}), (small, {"seq": 8}))
    )
    assert not own.equal(expected) and same.equal(expected)
    assert load(small, weights_at={"seq": 8}).inputs[0].args[0].shape == (2, 4, 4)
