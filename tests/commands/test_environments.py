"""Environments as contestants: how they are named, made and removed, and that cells of two stand in one contest."""

import sys
from pathlib import Path

import pytest

from bakeoff.commands import environments
from bakeoff.commands.preview import preview
from bakeoff.judging.ranking import baseline_of
from bakeoff.planning.plan import command_for, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell, Status
from tests.support import measuring
from tests.support.measuring import by_label
from tests.support.wheels import wheel

SMALL = {"batch": ("2",), "features": ("8",), "hidden": ("8",)}


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def request(*backends: str, **fields: object) -> Request:
    return Request(**{"models": ("mlp",), "devices": ("cpu",), "backends": backends, **fields})


def test_cells_of_two_environments_stand_in_one_contest() -> None:
    (contest,) = plan(request("onnx@new", "eager", "inductor/freezing@new", env=("new=/x/python",)))
    cells = [planned.cell for planned in contest.cells]
    assert [cell.label for cell in cells] == ["eager", "onnx@new", "inductor/freezing@new"]
    assert len({cell.id for cell in cells}) == 3
    command = command_for(cells[2], contest.cells[2].options)
    assert "--backends eager,inductor/freezing@new" in command and "--env new=/x/python" in command


@pytest.mark.parametrize(
    ("labels", "baseline"),
    [
        (["onnx@a", "eager", "eager@a"], "eager"),
        (["onnx@a", "eager@b", "eager@a"], "eager@b"),
        (["inductor@b", "inductor@a"], "inductor@b"),
        (["inductor", "onnx"], "eager"),
    ],
)
def test_ratios_are_taken_to_eager_or_else_to_the_first_of_several_environments(
    labels: list[str], baseline: str
) -> None:
    parts = [label.partition("@") for label in labels]
    assert baseline_of([Cell(model="mlp", backend=name, environment=where) for name, _, where in parts]) == baseline


@pytest.mark.parametrize(
    ("backends", "env", "said"),
    [
        (("null@old",), (), "unknown environment 'old'"),
        (("null@tcmaloc",), (), "unknown environment 'tcmaloc': did you mean 'tcmalloc'?"),
        (("null@od",), ("old=/x/python",), "did you mean 'old'"),
        (("null",), ("old",), "write NAME=PYTHON"),
        (("null@old",), ("old=/nowhere/python",), "there is no such interpreter"),
    ],
)
def test_an_environment_that_is_not_there_is_refused(
    backends: tuple[str, ...], env: tuple[str, ...], said: str, caches: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        preview(request(*backends, env=env))


def test_an_environment_is_made_measured_and_removed(caches: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing==1: "):
        environments.add("old", ["--no-index", "nothing==1"])
    assert environments.names() == []

    asked = ["--no-index", str(wheel(caches, "matplotlib", "0.0.1"))]
    environments.add("old", asked)
    assert environments.names() == ["old"] and environments.contents("old") == {"matplotlib": "0.0.1"}
    with pytest.raises(UsageError, match="environment old exists"):
        environments.add("old", ["x"])
    assert environments.ensure("old", asked) == environments.python_of("old")
    with pytest.raises(UsageError, match="was not made with x"):
        environments.ensure("old", ["x"])

    report = measuring.measure(caches / "run", "null", "null@old", set=SMALL, processes=1)
    assert [record.status for record in by_label(report).values()] == [Status.OK, Status.OK]
    assert report.environment.versions["matplotlib@old"] == "0.0.1" != report.environment.versions["matplotlib"]
    assert report.environment.versions["torch@old"] == report.environment.versions["torch"]

    environments.remove("old")
    with pytest.raises(UsageError, match="unknown environment 'old'"):
        environments.remove("old")


def test_an_environment_without_torch_is_told_in_one_line(tmp_path: Path) -> None:
    """The interpreter below this virtual environment has none of its packages."""
    bare = Path(sys.executable).resolve()
    with pytest.raises(UsageError, match="it needs torch, numpy, pydantic, psutil and safetensors"):
        measuring.measure(tmp_path / "run", "null@bare", env=(f"bare={bare}",), set=SMALL)
