"""Every command in the documents is run, or there is a reason why not, and prints the JSON of docs/json.md.

The commands run in a folder that looks like a checkout and holds the files that the page has its reader write. `BRIEF`
is added to those that measure, so that they take little time.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bakeoff import cli
from bakeoff.commands import listing
from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.schema import Interval, Ratio
from bakeoff.reports import command_answers
from tests.docs import commands
from tests.docs.commands import Command
from tests.docs.json_page import MODELS, PAGE, page
from tests.reports.samples import cell, ok, over_processes, report
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


def test_the_page_is_the_current_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.docs.json_page"


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """The folders of two runs of the same cells."""
    for name, day in (("first", 11), ("second", 12)):
        records = [ok(cell("eager"), over_processes(2.0)), ok(cell("onnx"), over_processes(1.0, seed=day))]
        made = report(records, run_id=name, created_at=f"2026-11-{day}T12:00:00+00:00")
        report_file.write_json(made, tmp_path / "runs" / name)
    return [str(tmp_path / "runs" / name) for name in ("first", "second")]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run a command, and return its one document, which has its exit status inside."""
    capsys.readouterr()
    exit_status = cli.main([*arguments, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["exit_status"] == exit_status
    return document


@pytest.mark.parametrize(
    "command", ["report", "compare", "history", "machines", "list", "publish", "env list", "cache list"]
)
def test_a_command_prints_one_document(
    command: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    arguments = {
        "report": runs[:1],
        "compare": runs,
        "history": [str(tmp_path / "runs"), "--out", out],
        "machines": runs,
        "list": [],
        "publish": [*runs, "--out", out],
    }.get(command, [])
    document = printed(capsys, *command.split(), *arguments)
    model = MODELS["run" if command == "report" else command.split()[0]]
    assert document.pop("exit_status") == 0
    assert document.keys() == model.model_fields.keys()
    assert model.model_validate(document)


def test_every_command_takes_json(capsys: pytest.CaptureFixture[str]) -> None:
    known = vars(get_command(cli.app))["commands"]
    leaves = {
        f"{name} {below}".strip(): leaf
        for name, command in known.items()
        for below, leaf in getattr(command, "commands", {"": command}).items()
    }
    for name, command in leaves.items():
        assert any("--json" in parameter.opts for parameter in command.params), name
        assert printed(capsys, *name.split(), "--no-such-option")["exit_status"] == 2
    assert {name.split()[0] for name in leaves} == {name.split()[0] for name in MODELS} | {"resume", "report"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["resume", "nowhere"],
        ["report", "nowhere"],
        ["export", "nowhere"],
        ["start", "nowhere"],
        ["explain", "nowhere"],
        ["blame", "nowhere", "onnx"],
        ["reproduce", "nowhere", "onnx"],
        ["publish", "nowhere"],
        ["history", "nowhere"],
        ["machines", "nowhere", "neither"],
        ["inspect", "nowhere.py:make"],
        ["env", "remove", "nowhere"],
        ["run", "--model", "no-such-model"],
        ["run", "--model", "mlp", "--require", "start_s<1", "--dry-run"],
        ["bisect", "--model", "mlp"],
    ],
)
def test_a_failure_is_one_document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, *arguments)
    assert document.keys() == {"error", "exit_status"} and document["exit_status"] in (1, 2)


def test_an_interruption_and_a_fault_of_ours_are_documents_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: BaseException) -> Any:
        def list_everything(available: object) -> None:
            raise error

        return list_everything

    monkeypatch.setattr(listing, "answer", failing(KeyboardInterrupt()))
    assert printed(capsys, "list") == {"error": "interrupted", "exit_status": 130}
    monkeypatch.setattr(listing, "answer", failing(KeyError("a fault")))
    assert printed(capsys, "list") == {"error": "KeyError: 'a fault'", "exit_status": 1}


def test_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "compare", "nowhere", "nowhere")["error"].startswith("no report at nowhere")
    assert printed(capsys, "compare")["exit_status"] == 2


@pytest.mark.parametrize(("page", "commands"), [("AGENTS.md", 5), ("SKILL.md", 6)])
def test_the_pages_for_programs_name_commands_that_exist(page: str, commands: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)bakeoff ([a-z][a-z-]+)", text, re.MULTILINE))
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    assert len(named) == commands and named <= known


def test_the_skill_has_the_front_matter_of_agent_skills() -> None:
    _, matter, body = (ROOT / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in matter.splitlines())
    assert fields.keys() == {"name", "description"} and re.fullmatch(r"[a-z0-9-]{1,64}", fields["name"])
    assert len(fields["description"]) <= 1024 and "Use it to" in fields["description"]
    assert len(body.splitlines()) < 40 and "AGENTS.md" in body


def test_answers_that_take_long_to_measure_have_their_keys(tmp_path: Path) -> None:
    ratio = Ratio(value=1.3, ci95=Interval(low=1.2, high=1.4), paired=True, processes=5)
    slow = TriedVersion(version="1.1", call=Call.SLOW, over_good=ratio)
    fast = TriedVersion(version="1.0.5", call=Call.FAST, over_good=ratio, below_bad=ratio)
    bisected = Bisection(package="onnxruntime", backend="onnx", versions=("1.0", "1.0.5", "1.1"), steps=(slow, fast))
    answer = command_answers.of_bisection(bisected, tmp_path)
    assert answer.first_slow == "1.1" and [step.call for step in answer.steps] == ["slow", "fast"]
    assert answer.conclusion.startswith("onnxruntime 1.1 is the first slow version")
