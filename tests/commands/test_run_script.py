"""A user's script runs unchanged; the modules that it calls are listed, and one of them becomes a contest."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bakeoff.models.script_watch import Watch, watched
from tests.conftest import CommandLine

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


@pytest.mark.parametrize("name", ["Net#2", "Last"])
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
    from bakeoff import cli

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
