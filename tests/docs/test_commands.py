"""Every command in the documents is run, in the order of its page, or there is a reason why not.

The commands run in a folder that looks like a checkout and holds the files that the page has its reader write. `BRIEF`
is added to those that measure, so that they take little time.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bakeoff import cli
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from tests.docs import commands
from tests.docs.commands import Command
from tests.support.checkout import ROOT

BRIEF = "--min-time 0.02 --processes 1"
FEW_TRIALS = "--trials 1"
GIVEN = {"docs/gate.md": {"results/base": "docs/showcase/cpu", "results/new": "docs/showcase/cpu"}}
"""Reports that a page expects to exist."""

SHOWN_ONLY = {"README.md"}
"""Pages whose runs take minutes. `test_what_measures_can_be_planned` covers their commands."""


class Planned(BaseException):
    """Raised in place of the run that would begin now."""


def pages() -> list[Any]:
    with_commands = dict.fromkeys(command.page for command in commands.ALL if not commands.reason(command))
    return [pytest.param(page, marks=pytest.mark.slow) for page in with_commands if page not in SHOWN_ONLY]


def measures(command: Command) -> bool:
    """Return whether this is the default command of Bakeoff, which measures."""
    words = arguments(command)
    return words is not None and (not words or words[0].startswith("--"))


def arguments(command: Command) -> list[str] | None:
    """Return what Bakeoff is given, or None for another program. What follows `>` is the shell's."""
    typed = [*itertools.takewhile(lambda word: word != ">", shlex.split(command.text))]
    program = next((place for place, word in enumerate(typed[:3]) if word in ("runner.py", "bakeoff")), None)
    return None if program is None else typed[program + 1 :]


@pytest.mark.parametrize("page", pages())
@pytest.mark.timeout(1800)
def test_a_pages_commands_work(page: str, tmp_path: Path) -> None:
    checkout = looks_like_a_checkout(tmp_path / "checkout")
    for target, source in GIVEN.get(page, {}).items():
        shutil.copytree(ROOT / source, checkout / target)
    for name, text in commands.files(ROOT / page).items():
        (checkout / name).write_text(text, encoding="utf-8")
    programs = environment(tmp_path / "bin")
    for command in commands.ALL:
        if command.page == page and not commands.reason(command):
            done = subprocess.run(["bash", "-ec", briefly(command)], cwd=checkout, env=programs, **CAPTURED)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 900}


def looks_like_a_checkout(folder: Path) -> Path:
    """Make a folder with this checkout's code and none of its results."""
    folder.mkdir()
    for name in ("runner.py", "examples", "docs", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which `python` is the one that runs this test, and `bakeoff` is this checkout's."""
    folder.mkdir()
    program = folder / "bakeoff"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/runner.py" "$@"\n')
    program.chmod(0o755)
    path = [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(path)}


def briefly(command: Command) -> str:
    if measures(command):
        return f"{command.text} {BRIEF}"
    return f"{command.text} {FEW_TRIALS}" if " selfcheck " in command.text else command.text


# an environment that stands after an @ is there only when the command before it was run
PLANNED = [one for one in commands.ALL if measures(one) and not re.search(r"--dry-run|@", one.text)]


@pytest.mark.parametrize("command", PLANNED, ids=str)
def test_what_measures_can_be_planned(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_signals: None
) -> None:
    """The runner reads the command, up to the moment at which it would start the first process."""
    monkeypatch.chdir(looks_like_a_checkout(tmp_path / "checkout"))
    for name, text in commands.files(ROOT / command.page).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    given: list[Request] = []

    def stop(request: Request, *others: object) -> None:
        given.append(request)
        raise Planned

    monkeypatch.setattr("bakeoff.commands.run.run", stop)
    monkeypatch.setattr("bakeoff.planning.config.require_names", lambda request: None)
    with pytest.raises(Planned):
        cli.main(arguments(command) or [])
    (request,) = given
    if any(word in command.text for word in ("exported", "gated", "hf:", "zoo")):
        return  # a backend or model of the page's own, or that is not installed here: reading the request is enough
    assert plan(request.model_copy(update={"devices": request.devices or ("cpu",)}))


@pytest.mark.parametrize("command", commands.ALL, ids=str)
def test_a_command_is_run_or_there_is_a_reason(command: Command) -> None:
    is_run = command.page in {param.values[0] for param in pages()}
    assert is_run or commands.reason(command) or (command.page in SHOWN_ONLY and measures(command))


@pytest.mark.parametrize("pattern", commands.NOT_RUN)
def test_a_reason_is_of_a_command_that_is_there(pattern: str) -> None:
    assert any(re.search(pattern, command.text) for command in commands.ALL)


def test_every_page_with_commands_is_known() -> None:
    assert {command.page for command in commands.ALL} >= {"README.md", "docs/recipes.md", "docs/gate.md"}
    assert set(commands.FOLLOWED) <= {command.page for command in commands.ALL}
    for reason in commands.FOLLOWED.values():
        assert (ROOT / reason.split()[0]).exists()


def test_commands_are_read_as_they_are_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ python runner.py --model mlp   # so\n its output\n```\n"
        "```sh\nmake bench ARGS=\"-k '#1'\"\n\nfirst \\\n    second\n```\n"
        "`a.py`:\n\n```python\nx = 1\n```\n"
    )
    assert [command.text for command in commands.commands(page, tmp_path)] == [
        "python runner.py --model mlp",
        "make bench ARGS=\"-k '#1'\"",
        "first second",
    ]
    assert commands.files(page) == {"a.py": "x = 1\n"}
