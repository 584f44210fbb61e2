"""`--inputs calls.pt` and `--inputs sample.npz`, for a model of any source."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bakeoff
from bakeoff.measuring.worker.loading import load
from bakeoff.models import find_for
from bakeoff.planning.plan import command_for, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)

    def forward(self, ids, mask=None):
        return self.linear(ids)


def factory(batch: int = 1, width: int = 4):
    return Net(width), torch.randn(batch, width)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(*batches: int) -> bakeoff.Calls:
    return bakeoff.Calls.of([bakeoff.Call(torch.full((batch, 4), float(batch))) for batch in batches])


def request(**fields: object) -> Request:
    return Request(**{"models": ("net.py:factory",), "devices": ("cpu",), "backends": ("eager",), **fields})


def test_recorded_calls_make_a_contest_of_each_size(folder: Path) -> None:
    recorded(8, 2, 2, 2).save("calls.pt")
    contests = plan(request(inputs="calls.pt"))
    cells = [contest.cells[0].cell for contest in contests]
    assert [cell.dimensions for cell in cells] == [{"call": "2x4"}, {"call": "8x4"}]
    assert [(cell.recorded.calls, cell.recorded.of_calls) for cell in cells if cell.recorded] == [(3, 4), (1, 4)]
    assert "--set call=2x4" in command_for(cells[0]) and "--inputs calls.pt" in command_for(cells[0])
    assert len(plan(request(inputs="calls.pt", set={"call": ("8x4",)}))) == 1


def test_only_the_most_frequent_sizes_are_measured(folder: Path) -> None:
    recorded(*range(1, 12), 12, 12).save("calls.pt")
    contests = plan(request(inputs="calls.pt"))
    assert len(contests) == 8 and contests[0].cells[0].cell.dimensions == {"call": "12x4"}


def test_the_recorded_calls_of_a_size_are_its_input_sets(folder: Path) -> None:
    recorded(8, 2, 2, 2).save("calls.pt")
    first, second = (contest.cells[0].cell for contest in plan(request(inputs="calls.pt", set={"width": ("4",)})))
    assert first.dimensions == {"call": "2x4", "width": 4}
    sets = load(first).inputs
    assert len(sets) == 3 and all(one.args[0].eq(2).all() and one.args[0].shape == (2, 4) for one in sets)
    made = load(second).inputs  # of a single call, further sets are made
    assert len(made) == bakeoff.INPUT_SETS and made[0].args[0].eq(8).all()
    assert len({float(one.args[0].sum()) for one in made}) == bakeoff.INPUT_SETS


def test_arrays_are_arguments_by_the_names_of_parameters(folder: Path) -> None:
    np.savez("sample.npz", ids=np.ones((5, 4)), mask=np.ones(5, dtype=bool))
    (contest,) = plan(request(inputs="sample.npz"))
    cell = contest.cells[0].cell
    assert cell.dimensions == {"call": "5x4+5"}
    first = load(cell).inputs[0]
    assert first.args == () and {name: value.dtype for name, value in first.kwargs.items()} == {
        "ids": torch.float32,
        "mask": torch.bool,
    }


def test_a_wrong_name_is_told_with_the_nearest_one(folder: Path) -> None:
    np.savez("sample.npz", idz=np.ones((5, 4)))
    (contest,) = plan(request(inputs="sample.npz"))
    with pytest.raises(UsageError, match=r"unknown parameter of Net.forward in sample.npz 'idz': did you mean 'ids'"):
        load(contest.cells[0].cell)


@pytest.mark.slow
def test_models_of_other_sources_take_them_too(folder: Path) -> None:
    bakeoff.Calls.of(torch.ones(3, 3, 8, 8)).save("calls.pt")
    family = find_for("timm:resnet18", "inference", "calls.pt")
    assert family.resolve({}) == {"call": "3x3x8x8"}
    cell = plan(Request(models=("mlp",), devices=("cpu",), backends=("eager",), inputs="calls.pt"))[0].cells[0].cell
    assert load(cell).inputs[0].args[0].shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"inputs": "none.pt"}, "no file none.pt"),
        ({"inputs": "net.py"}, "is no file of calls"),
        ({"inputs": "text.npz"}, "cannot read text.npz"),
        ({"inputs": "calls.pt", "set": {"call": ("9x9",)}}, "did you mean|known: 2x4"),
        ({"inputs": "calls.pt", "set": {"batch": ("stream:2:8",)}}, "sizes are those of the file"),
        ({"inputs": "calls.pt", "dynamic": ["batch=1:8"]}, "each size is built"),
        ({"inputs": "calls.pt", "task": "generate", "models": ("transformer_lm",)}, "leave it out"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_measured(folder: Path, fields: dict[str, object], told: str) -> None:
    recorded(2).save("calls.pt")
    (folder / "text.npz").write_text("no arrays")
    with pytest.raises(UsageError, match=told):
        plan(request(**fields))


def test_a_factory_may_leave_its_inputs_to_the_file(folder: Path) -> None:
    (folder / "net.py").write_text(NET.replace(", torch.randn(batch, width)", ""))
    recorded(2, 2).save("calls.pt")
    with_file, alone = (plan(request(**fields))[0].cells[0].cell for fields in ({"inputs": "calls.pt"}, {}))
    assert len(load(with_file).inputs) == 2
    with pytest.raises(UsageError, match=r"gives a module alone: return \(nn.Module, example inputs\), or name"):
        load(alone)
