"""int8 is calibrated with data that are not judged: of the user's `calibrate`, or recorded calls."""

from pathlib import Path

import pytest
import torch

import bakeoff
from bakeoff.measuring.worker.loading import calibration_of, load
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell

NET = """
import torch


def factory(batch: int = 2, width: int = 4):
    return torch.nn.Linear(width, 2), torch.full((batch, width), 1.0)

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cell_of(precision: str = "int8", **fields: object) -> Cell:
    asked = {
        "models": ("net.py:factory",),
        "devices": ("cpu",),
        "backends": ("eager",),
        "precision": tuple(precision.split(",")),
    }
    return plan(Request(**{**asked, **fields}))[0].cells[0].cell  # type: ignore[arg-type]


def values(sets: tuple[Inputs, ...]) -> list[float]:
    return [float(one.tensors()[0].flatten()[0]) for one in sets]


def test_calibrate_gives_the_data_and_what_is_judged_is_left_out(folder: Path) -> None:
    calibrate = (
        "def calibrate(batch):\n    for value in (1.0, 5.0, 6.0):\n        yield torch.full((batch, 4), value)\n"
    )
    (folder / "net.py").write_text(NET + calibrate)
    model = load(cell_of(set={"batch": ("3",)}))
    assert values(model.calibration) == [5.0, 6.0] and model.calibration[0].args[0].shape == (3, 4)
    assert model.forms == ("is calibrated for int8 with 2 calls from calibrate() in net.py, without 1 that are judged",)
    assert [one.args[0].dtype for one in calibration_of(model, cell_of())] == [torch.float32] * 2
    assert load(cell_of("fp32")).calibration == () and load(cell_of("fp32")).forms == ()


def test_recorded_calls_are_shared_out(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    calls = [bakeoff.Call(torch.full((2, 4), float(value))) for value in range(5)]
    bakeoff.Calls.of(calls).save("calls.pt")
    model = load(cell_of(inputs="calls.pt"))
    assert (values(model.inputs), values(model.calibration)) == ([0.0, 1.0, 2.0], [3.0, 4.0])
    assert "2 calls from the recorded calls in calls.pt, none of which is judged" in model.forms[0]
    assert values(load(cell_of("fp32", inputs="calls.pt")).inputs) == [0.0, 1.0, 2.0, 3.0, 4.0]
    beside_int8 = load(cell_of(inputs="calls.pt", precision="fp32,int8"))
    assert values(beside_int8.inputs) == [0.0, 1.0, 2.0]  # all precisions of a contest are judged by the same calls
    assert beside_int8.calibration == () and beside_int8.forms == load(cell_of("fp32", inputs="calls.pt")).forms
    bakeoff.Calls.of(calls[:2]).save("calls.pt")
    model = load(cell_of(inputs="calls.pt"))
    assert len(model.inputs) == bakeoff.INPUT_SETS and values(model.calibration) == [1.0]


def test_without_data_of_its_own_the_report_says_so(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    model = load(cell_of())
    assert model.calibration == () and "with its own input sets, all but the last one" in model.forms[0]


def test_a_function_that_calibrates_int8_is_not_called_for_other_precisions(folder: Path) -> None:
    (folder / "net.py").write_text(NET + "def calibrate():\n    raise OSError('no data')\n")
    assert load(cell_of(precision="fp32,int8")).calibration == ()
    with pytest.raises(OSError, match="no data"):
        load(cell_of())


@pytest.mark.parametrize(
    ("calibrate", "told"),
    [
        ("def calibrate():\n    return []\n", "calibrate.. returned nothing"),
        ("def calibrate(batch):\n    return [torch.ones(batch, 4)]\n", "every call is also judged"),
        ("def calibrate():\n    return [torch.ones(9, 4)]\n", r"call 0 has a tensor of shape \(9, 4\) for \(2, 4\)"),
        ("def calibrate(bacth):\n    return []\n", "unknown parameter of calibrate.. .*'bacth': did you mean 'batch'"),
    ],
)
def test_data_that_cannot_calibrate_are_refused(folder: Path, calibrate: str, told: str) -> None:
    (folder / "net.py").write_text(NET + calibrate)
    with pytest.raises(UsageError, match=told):
        load(cell_of())
