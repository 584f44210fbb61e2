"""A bisection keeps each step, goes on after it was killed, and finds a version that was planted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bakeoff.commands import bisection, environments
from bakeoff.commands.bisection import BisectionState
from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.reports.bisection import conclusion
from tests.conftest import CommandLine
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
