"""Bisections, environments and kept builds, and scripts that run unchanged while their modules are recorded."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bakeoff import cli
from bakeoff.commands import bisection, environments
from bakeoff.commands.bisection import BisectionState
from bakeoff.commands.env_and_cache import used_at
from bakeoff.commands.preview import preview
from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.judging.ranking import baseline_of
from bakeoff.measuring.controller.build_cache import CachedBuild
from bakeoff.models.script_watch import Watch, watched
from bakeoff.planning.plan import command_for, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Status
from bakeoff.reports.bisection import conclusion
from tests.conftest import CommandLine
from tests.support import measuring
from tests.support.measuring import by_label
from tests.support.wheels import wheel

ONE_CELL = Request(models=("mlp",), devices=("cpu",), backends=("eager",))
MODEL = """
import time

import torch

try:
    from toy import SECONDS
except ModuleNotFoundError:  # where the reference is computed
    SECONDS = 0.0


class Spinning(torch.nn.Module):
    def forward(self, x):
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            pass
        return x + 1


def factory():
    return Spinning(), torch.ones(4)
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have pip find a toy alone. It takes twice as long from version 1.2 on, and version 1.3 does not install."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for minor in range(1, 6):
        wheel(folder, "toy", f"1.{minor}", f"SECONDS = {0.002 if minor >= 2 else 0.001}")
    (folder / "toy-1.3-py3-none-any.whl").write_bytes(b"no archive")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return folder


def begin(folder: Path, request: Request = ONE_CELL, good: str = "1.0", bad: str = "1.9") -> Path:
    versions = [f"1.{minor}" for minor in range(1, 9)]
    return bisection.begin(request, "toy", good, bad, versions, folder)


def slow_from(minor: int, taken: list[str]) -> Callable[[BisectionState, str, Path], TriedVersion]:
    def take(kept: BisectionState, version: str, folder: Path) -> TriedVersion:
        taken.append(version)
        is_slow = int(version.partition(".")[2]) >= minor
        return TriedVersion(version=version, call=Call.SLOW if is_slow else Call.FAST)

    return take


def test_a_killed_bisection_goes_on_with_the_step_that_was_not_finished(tmp_path: Path) -> None:
    folder = begin(tmp_path / "out")
    assert bisection.is_in(folder) and not bisection.is_in(tmp_path)
    taken: list[str] = []
    take = slow_from(7, taken)

    def killed_in_the_third(kept: BisectionState, version: str, folder: Path) -> TriedVersion:
        if len(taken) == 2:
            raise KeyboardInterrupt
        return take(kept, version, folder)

    told: list[str] = []
    found = bisection.go_on(folder, killed_in_the_third, lambda found, step: told.append(step.version))
    assert told == taken and len(taken) == 2
    assert found.next_version is not None and conclusion(found).startswith("Not finished")

    found = bisection.go_on(folder, take, lambda found, step: told.append(step.version))
    assert told == taken and len(set(taken)) == len(taken)
    assert found.first_slow is not None and found.first_slow.version == "1.7"
    assert bisection.go_on(folder, killed_in_the_third, lambda found, step: None) == found  # nothing is left


def test_a_step_that_was_interrupted_is_not_kept(tmp_path: Path) -> None:
    folder = begin(tmp_path / "out")
    found = bisection.go_on(folder, lambda kept, version, folder: None, lambda found, step: None)
    assert found == Bisection(package="toy", backend="eager", versions=found.versions)


@pytest.mark.parametrize(
    ("changed", "good", "said"),
    [
        ({"models": ("mlp", "conv")}, "1.0", "follows one cell, and these are 2"),
        ({"backends": ("eager/all",)}, "1.0", "follows one cell"),
        ({"backends": ("eager@old",), "env": {"old": "python"}}, "1.0", "of its own: leave out @old"),
        ({}, "1.9", "--good 1.9 has to be older than --bad 1.9"),
        ({}, "new", "'new' is not a version"),
    ],
)
def test_what_cannot_be_bisected_is_refused(changed: dict[str, object], good: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        begin(tmp_path / "out", ONE_CELL.model_copy(update=changed), good)
    assert list(tmp_path.iterdir()) == []


def test_versions_between_two_are_in_order_and_each_is_one() -> None:
    listed = ["2.10.0", "2.9.1", "2.9", "2.13.0", "2.14.0", "2.12.1", "2.11.0", "2.11"]
    assert bisection.from_good_to_bad(listed, "2.9", "2.13") == ("2.9", "2.9.1", "2.10.0", "2.11", "2.12.1", "2.13")


def test_released_versions_come_from_pip(toys: Path) -> None:
    assert sorted(bisection.released_versions("toy")) == ["1.1", "1.2", "1.3", "1.4", "1.5"]
    with pytest.raises(UsageError, match="pip finds no versions"):
        bisection.released_versions("nothing-of-this-name")


@pytest.mark.slow
def test_a_planted_slow_version_is_found(toys: Path, command_line: CommandLine, own_servers: None) -> None:
    Path("spinning.py").write_text(MODEL)
    asked = ("--backend", "eager", "--package", "toy", "--good", "1.1", "--bad", "1.5")
    briefly = ("--devices", "cpu", "--min-time", "0.1", "--processes", "1", "--out", "found")
    status, out, err = command_line("bisect", *asked, "--model", "spinning.py:factory", *briefly)
    assert status == 0, out + err
    told = [line.split(", ")[0] for line in out.splitlines() if line.startswith("toy ")]
    assert told == ["toy 1.5: slow", "toy 1.3: skipped", "toy 1.2: slow", told[-1]]
    assert told[-1].startswith("toy 1.2 is the first slow version: eager takes ")
    assert environments.names() == ["toy-1.1", "toy-1.2", "toy-1.5"]
    status, again, _ = command_line("resume", "found")
    assert (status, again.splitlines()[-1]) == (0, out.splitlines()[-1])


@pytest.mark.parametrize("options", [("--backends", "onnx"), ("--model", "mlp,conv")])
def test_the_command_line_wants_one_cell(options: tuple[str, str], command_line: CommandLine) -> None:
    asked = ("--backend", "eager", "--package", "toy", "--good", "1", "--bad", "2")
    status, _, err = command_line("bisect", *asked, *options)
    assert status == 2 and "a bisection follows one" in err


def test_a_good_version_that_does_not_install_ends_it(toys: Path, tmp_path: Path) -> None:
    folder = bisection.begin(ONE_CELL, "toy", "1.3", "1.5", ["1.4"], tmp_path / "out")

    def take(kept: BisectionState, version: str, folder: Path) -> TriedVersion | None:
        return bisection.measure_step(kept, version, folder, progress=pytest.fail)

    with pytest.raises(BakeoffError, match=r"toy==1\.3: "):
        bisection.go_on(folder, take, lambda found, step: None)


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
        (("null@old",), ("old=false",), "--env old=false runs no worker; it needs torch"),
    ],
)
def test_an_environment_that_is_not_there_is_refused(
    backends: tuple[str, ...], env: tuple[str, ...], said: str, caches: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        preview(request(*backends, env=env))


@pytest.mark.slow
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


def test_an_environment_without_torch_is_reported_in_one_line(tmp_path: Path) -> None:
    """The interpreter below this virtual environment has none of its packages."""
    bare = Path(sys.executable).resolve()
    with pytest.raises(UsageError, match="it needs torch, numpy, pydantic, psutil and safetensors"):
        measuring.measure(tmp_path / "run", "null@bare", env=(f"bare={bare}",), set=SMALL)


BUILT = datetime(2026, 11, 29, 12, 54, tzinfo=UTC)


@pytest.mark.parametrize(("claimed_s", "expected_s"), [(-60.0, 0.0), (3600.0, 3600.0)])
def test_no_build_was_used_before_it_was_built(claimed_s: float, expected_s: float) -> None:
    """A cell claims the folder of its build before there is one."""
    build = CachedBuild("key", "mlp: onnx", BUILT.isoformat(timespec="seconds"), 10, BUILT.timestamp() + claimed_s)
    assert datetime.fromisoformat(used_at(build)).timestamp() == BUILT.timestamp() + expected_s


NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x, *, scale=1.0):
        return self.layers(x) * scale
"""
SCRIPT = """
import sys
import torch
from torch import nn
from net import Net


class Last(nn.Module):  # lives in __main__
    def forward(self, x):
        return x.softmax(-1)


net, loss = torch.compile(Net()), nn.MSELoss()
for step in range(int(sys.argv[1])):
    loss(net(torch.randn(4, 8), scale=2.0), torch.zeros(4, 8)).backward()
net.eval()
with torch.no_grad():
    for batch in (1, 1, 3):
        Last()(net(torch.randn(batch, 8)))
print("the script's own output, with", sys.argv[1:])
"""


@pytest.fixture
def script(command_line: CommandLine) -> Iterator[Path]:
    Path("net.py").write_text(NET)
    path = Path("train.py")
    path.write_text(SCRIPT)
    yield path
    sys.modules.pop("net", None)


def answer_of(command_line: CommandLine, *arguments: object) -> dict[str, Any]:
    status, out, err = command_line("run-script", "--json", *arguments)
    document: dict[str, Any] = json.loads(out)
    assert status == document["exit_status"], err
    return document


def test_modules_are_found_with_their_inputs_and_their_mode(script: Path, command_line: CommandLine) -> None:
    before = nn.Module.__call__, sys.argv, list(sys.path)
    answer = answer_of(command_line, script, "5", "--lr=1", "--find")
    assert (nn.Module.__call__, sys.argv, sys.path) == before
    found = {one["name"]: one for one in answer["modules"]}
    told = {name: (one["mode"], one["calls"], one["instances"], one["sizes"]) for name, one in found.items()}
    assert told == {
        "Net": ("training", 5, 1, {"4x8": 5}),
        "MSELoss": ("training", 5, 1, {"4x8": 5}),
        "Net#2": ("inference", 3, 1, {"1x8": 2, "3x8": 1}),
        "Last": ("inference", 3, 3, {"1x8": 2, "3x8": 1}),
    }
    assert found["Net"]["called_at"] == "train.py:15"
    assert 0 < found["Net"]["seconds"] < answer["seconds"] and 0 < found["Net"]["share"] < 1
    assert found["Last"]["command"] == "bakeoff run-script --module 'Last' train.py -- 5 --lr=1"
    assert (answer["failure"], answer["recorded"], answer["exit_status"]) == ("", "", 0)
    assert not list(Path().glob("recorded*"))


@pytest.mark.parametrize("name", ["Net#2", pytest.param("Last", marks=pytest.mark.slow)])
def test_a_recording_loads_in_a_contest(name: str, script: Path, command_line: CommandLine) -> None:
    answer = answer_of(command_line, script, "1", "--module", name, "--out", "kept")
    assert answer["recorded"] == name and answer["command"].startswith("bakeoff --model kept/model.py:factory")
    words = answer["command"].split()[1:]
    briefly = ("--backends", "eager", "--devices", "cpu", "--min-time", "0.05", "--processes", "1", "--json")
    status, out, err = command_line(*words, *briefly)
    assert status == 0, err
    assert [size["name"] for size in json.loads(out)["mixes"][0]["sizes"]] == ["1x8", "3x8"]


def test_without_a_name_what_takes_most_is_recorded_for_its_task(command_line: CommandLine) -> None:
    Path("one.py").write_text("import torch\ntorch.nn.Linear(4, 4)(torch.ones(2, 4))")
    answer = answer_of(command_line, "one.py")
    assert answer["recorded"] == "Linear"
    assert answer["command"] == (
        "bakeoff --model recorded-Linear/model.py:factory --inputs recorded-Linear/calls.pt --task train_step"
    )


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        ("sys.exit(0)", ""),
        ("sys.exit(3)", "it exited with 3"),
        ("sys.exit('no data')", "it exited with no data"),
        ("raise ValueError('too cold')", "ValueError: too cold"),
        ("raise KeyboardInterrupt", "it was interrupted"),
    ],
)
def test_a_script_that_ends_otherwise_still_gives_its_table(
    end: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.py").write_text(f"import sys, torch\ntorch.nn.ReLU()(torch.ones(2))\n{end}")
    assert cli.main(["run-script", "short.py", "--find"]) == (1 if failure else 0)
    said = capsys.readouterr()
    assert "short.py:2" in said.out and (f"short.py failed: {failure}" in said.out) == bool(failure)
    assert ("Traceback" in said.err) == failure.startswith("ValueError")  # as Python prints it


def test_what_cannot_be_recorded_is_said(command_line: CommandLine) -> None:
    Path("odd.py").write_text("import torch\ntorch.nn.Identity()(iter([1]))")
    status, out, _ = command_line("run-script", "odd.py")
    assert status == 0 and "Identity cannot be recorded: args[0] is a list_iterator" in " ".join(out.split())
    status, out, err = command_line("run-script", "odd.py", "--module", "Identitty")
    assert status == 2 and "did you mean 'Identity'?" in err and "odd.py:2" in out
    status, _, err = command_line("run-script", "nowhere.py")
    assert (status, err) == (2, "error: no script nowhere.py\n")


def test_inputs_are_kept_within_a_bound_and_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.models.script_watch.LIMIT_BYTES", 4096)
    watch, modules = Watch(), [nn.ReLU(inplace=True), nn.Tanh(), nn.Sigmoid()]
    with watched(watch):
        for module in modules:
            for _ in range(20):
                module(-torch.ones(128))
    assert [len(row.calls) for row in watch.rows.values()] == [4, 2, 1]
    (kept, *_) = next(iter(watch.rows.values())).calls
    assert kept.args[0].eq(-1).all()
    assert all(row.module is None for row in watch.rows.values())
