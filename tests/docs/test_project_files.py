"""What GitHub and contributors read: workflows, templates, citation, pre-commit hooks and the Makefile."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
from click.testing import CliRunner, Result

import bakeoff
from bakeoff.backends.traps import minor_version
from bakeoff.measuring.versions import TESTED_TORCH
from bakeoff.models.libraries import torchvision_of
from tests.support import changed
from tests.support.checkout import ROOT

yaml = pytest.importorskip("yaml")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = ROOT / ".github/workflows/release.yml"
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SCHEMAS = {
    "vendor.github-workflows": [*WORKFLOWS, ROOT / "docs/gate-workflow.yml"],
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [ROOT / ".github/dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
    "vendor.compose-spec": [ROOT / "compose.yaml"],
}
"""Schemas that check-jsonschema brings along, and the files that follow them. No network is needed."""

ACTIONLINT = shutil.which("actionlint")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema: str) -> None:
    assert SCHEMAS[schema]
    done = validate(schema, *SCHEMAS[schema])
    assert done.exit_code == 0, done.output


def test_the_check_finds_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(RELEASE.read_text().replace("runs-on:", "runs-at:"))
    assert validate("vendor.github-workflows", RELEASE, wrong).exit_code == 1


def validate(schema: str, *paths: Path) -> Result:
    return CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, paths)])


@pytest.mark.skipif(ACTIONLINT is None, reason="actionlint is not installed: its package downloads it from GitHub")
def test_actionlint_has_nothing_to_say() -> None:
    done = subprocess.run([str(ACTIONLINT), *map(str, WORKFLOWS)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def steps(path: Path) -> list[dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits_and_scripts_are_read_by_bash(path: Path) -> None:
    assert path.stem == "release" or steps(path)
    for line in re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE):
        assert re.fullmatch(r"\./\.github/workflows/\w+\.yml|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    for step in steps(path):
        assert subprocess.run(["bash", "-n"], input=step.get("run", ""), text=True, timeout=20).returncode == 0, step


@pytest.mark.parametrize(
    ("tag", "status"), [(f"v{bakeoff.__version__}", 0), ("v9.9.9", 1), (bakeoff.__version__, 1)], ids=str
)
def test_only_a_tag_that_is_the_version_is_released(tag: str, status: int) -> None:
    """The step also looks for the version's section in the changelog."""
    (script,) = (step["run"] for step in steps(RELEASE) if "TAG" in step.get("env", {}))
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    assert subprocess.run(bash, cwd=ROOT, env={"TAG": tag, "PATH": "/usr/bin:/bin"}).returncode == status


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "bakeoff.__version__"}
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_tested_pythons_are_those_of_the_metadata() -> None:
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = (int(minor) for minor in re.fullmatch(r">=3\.(\d+),<3\.(\d+)", requires).groups())  # type: ignore[union-attr]
    matrix = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in range(low, high)]


def test_both_ends_of_the_range_of_torch_are_tested_and_named() -> None:
    entries = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    files = [entry["constraints"] for entry in entries["include"]]
    pinned = [dict(re.findall(r"^(\w+)==(.+)$", (ROOT / file).read_text(), re.MULTILINE)) for file in files]
    assert tuple(minor_version(each["torch"]) for each in pinned) == TESTED_TORCH
    for each in pinned:
        assert torchvision_of(each["torch"]) == f"torchvision=={minor_version(each['torchvision'])}.*"
    for page in ("README.md", "docs/getting-started.md"):
        assert " to ".join(TESTED_TORCH) in (ROOT / page).read_text(), page


def test_a_commits_hooks_are_the_tools_of_make() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks:
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{tool}" in makefile, tool


def test_make_help_names_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^make ([\w-]+) +\S", done.stdout, re.MULTILINE) == targets.split()


def test_a_changed_file_brings_its_tests() -> None:
    assert "tests/judging/test_builds.py" in changed.select_tests(["bakeoff/judging/builds.py"])
    chosen = changed.select_tests(["bakeoff/planning/places.py", "tests/shipping/test_export.py", "docs/method.md"])
    assert chosen[:2] == ["tests/shipping/test_export.py", "tests/planning/test_places.py"]
    assert set(changed.select_tests([])) == set(changed.ALWAYS), "a file of ALWAYS is gone"
    assert len(changed.select_tests(["bakeoff/records/schema.py"])) <= changed.MOST_FILES + len(changed.ALWAYS)


def test_files_that_are_too_slow_exist() -> None:
    assert {path.name for path in (ROOT / "tests").rglob("test_*.py")} >= changed.TOO_SLOW
