"""Every command prints one JSON document, whose keys are those of docs/json.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bakeoff import cli
from bakeoff.commands import listing
from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.records import report_file
from bakeoff.records.schema import Interval, Ratio
from bakeoff.reports import command_answers
from tests.docs.json_page import MODELS, PAGE, page
from tests.reports.samples import cell, ok, over_processes, report
from tests.support.checkout import ROOT


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
