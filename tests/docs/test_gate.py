"""GitHub, bash and our command line can read the workflow in docs/gate-workflow.yml."""

import re
import subprocess
from typing import Any

import pytest
from typer.main import get_command

from bakeoff import cli
from tests.support.checkout import ROOT

WORKFLOW = (ROOT / "docs/gate-workflow.yml").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/gate.md").read_text(encoding="utf-8") + WORKFLOW


@pytest.fixture
def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    found: list[dict[str, Any]] = yaml.safe_load(WORKFLOW)["jobs"]["gate"]["steps"]
    return found


def test_every_step_is_an_action_or_a_script_that_bash_can_read(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        script = re.sub(r"\$\{\{.*?\}\}", "x", step.get("run", ""))
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=20).returncode == 0, script


def test_the_options_of_compare_and_history_on_the_page_exist() -> None:
    commands: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]
    used = re.findall(r"\bbakeoff (compare|history)((?: [^\n|#]+)?)", PAGE)
    assert {name for name, _ in used} == {"compare", "history"}
    for name, arguments in used:
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", arguments)) <= known
