"""What the documents, the workflows and the files for contributors say is what the code does.

Every command in them is run, or there is a reason why not, and prints the JSON of docs/json.md. Commands run in a
folder that looks like a checkout and holds the files that the page has its reader write. `BRIEF` is added to those that
measure, so that they take little time.
"""

import hashlib
import importlib
import inspect
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from typer.main import get_command

import bakeoff
from bakeoff import backends, cli, models
from bakeoff.backends.traps import minor_version
from bakeoff.commands import listing
from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.judging.judgement import judge
from bakeoff.measuring.versions import TESTED_TORCH
from bakeoff.models.libraries import torchvision_of
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.report_file import json_schema
from bakeoff.records.schema import SCHEMA_VERSION, Interval, Ratio
from bakeoff.reports import command_answers
from bakeoff.reports.run_report import print_answers
from tests.docs import commands, json_page
from tests.docs.commands import Command
from tests.reports.samples import cell, ok, over_processes, report
from tests.support import changed
from tests.support.checkout import ROOT

BACKENDS = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
OWN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "SKILL.md")]
PAGES = [
    *OWN,
    *(page for folder in ("docs", "docs/showcase", "plugins/*") for page in sorted(ROOT.glob(f"{folder}/*.md"))),
]
ROOMS = (
    "bakeoff|backends|models|planning|measuring|scaling|shipping|records|judging|reports|doctor|commands|presets|plugins|"
    "harness|examples|benchmarks|docs|docker|tests"
)
"""Where a path in a page begins. Rooms of the package may be named without `bakeoff/`."""
PATH = re.compile(rf"(?<![\w./:-])(?:{ROOMS})/[\w./*-]*\w")
TO_BE_WRITTEN = {
    "bakeoff/backends/exported.py",
    "bakeoff/models/gated.py",
    "tests/backends/test_NAME.py",
    "bakeoff/presets/NAME.toml",
}
"""Paths that a page has its reader write, or that stand for several."""


def test_the_json_schema_in_the_package_is_the_current_one() -> None:
    assert (ROOT / "bakeoff/records/report.schema.json").read_text() == json_schema()


RELEASED_SCHEMAS = {"3.10.0": "87cc712d85558a5d372382345061a5982c4af33536076844498b556702b0379e"}
"""The digests of the schemas of Bakeoff's releases, by their versions."""


def test_a_schema_that_was_released_stays_as_it_is() -> None:
    """A release leaves out unknown fields of a later minor version only."""
    digest = hashlib.sha256(json_schema().encode()).hexdigest()
    assert RELEASED_SCHEMAS.get(SCHEMA_VERSION, digest) == digest


def test_the_page_of_backends_names_every_backend_mode_and_alias() -> None:
    for name in backends.TABLE:
        assert f"`{name}`" in BACKENDS
        for mode in backends.create(name).mode_names()[1:]:
            assert f"`{mode}`" in BACKENDS, f"{name}/{mode}"
    for alias in backends.ALIASES:
        assert f"`{alias}`" in BACKENDS


def test_the_readme_fits_on_a_screen() -> None:
    """A long one of 120 lines. What is longer belongs into a page of docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_links_in_the_documents_lead_to_a_file_and_a_heading() -> None:
    wrong = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                wrong.append(f"{page.name}: {target}#{anchor}")
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_paths_in_the_documents_exist() -> None:
    """Evidence is left out: it names what an earlier commit holds."""
    pages = [page for page in PAGES if page.name != "evidence.md"]
    wrong = [
        f"{page.name}: {path}"
        for page in pages
        for path in PATH.findall(page.read_text(encoding="utf-8"))
        if path not in TO_BE_WRITTEN and not [*ROOT.glob(path), *(ROOT / "bakeoff").glob(path)]
    ]
    assert wrong == []


def test_pages_that_the_code_names_exist() -> None:
    named = {page for file in code() for page in re.findall(r"docs/[\w-]+\.md", file.read_text(encoding="utf-8"))}
    assert "docs/method.md" in named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def code() -> Iterator[Path]:
    yield ROOT / "runner.py"
    for room in ("bakeoff", "plugins", "examples", "benchmarks", "docker", "tests"):
        yield from (ROOT / room).rglob("*.py")


def test_every_dependency_is_pinned_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    wanted = [
        one for one in wanted if not (ROOT / "plugins" / one.removeprefix("bakeoff-")).is_dir()
    ]  # comes from here
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    assert len(normal) == len(pinned)
    for requirement in wanted:
        name = re.split(r"[<>=!~ \[]", requirement)[0]
        assert re.sub(r"[-_.]+", "-", name).lower() in normal, requirement


def test_every_model_of_the_table_can_be_found() -> None:
    for name in models.TABLE:
        assert models.find(name).name == name


def test_the_api_reference_says_what_each_name_is_on_github_too() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    paths = re.findall(r"^<!-- ::: ([\w.]+) -->$", page, re.MULTILINE)
    documented = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths}
    for name, module in documented.items():
        value = getattr(importlib.import_module(module), name)
        is_imported = inspect.isfunction(value) or issubclass(value, Exception)
        assert not is_imported or getattr(bakeoff, name) is value, name
        described = inspect.getdoc(value) or ""
        first = " ".join(described.partition("\n\n")[0].split())
        assert re.search(rf"^\| `{name}(\(\.\.\.\))?` \| {re.escape(first)} \|$", page, re.MULTILINE), name


def test_the_site_leads_to_every_page() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    rendered = {f"showcase/{run}/{name}.md" for run in ("cpu", "h200") for name in ("report", "details")}
    assert named <= pages and pages - named <= rendered


def test_the_showcase_offers_no_command_that_cannot_run() -> None:
    """Its folders hold no builds, so that nothing can be exported from them."""
    for page in (ROOT / "docs/showcase").glob("*/*.md"):
        assert not re.findall(
            r"^bakeoff (?:export|explain|blame|resume|start) .*", page.read_text("utf-8"), re.MULTILINE
        )


def test_the_readme_shows_what_the_showcases_report_says() -> None:
    judgement = judge(report_file.read(ROOT / "docs/showcase/cpu"))
    written = io.StringIO()
    print_answers(judgement, Console(file=written, width=120))
    answers = [line for line in written.getvalue().splitlines() if "→" in line]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(answers) == 3 and [line for line in readme if "→" in line] == answers


WORKFLOW = (ROOT / "docs/gate-workflow.yml").read_text(encoding="utf-8")
GATE_PAGE = (ROOT / "docs/gate.md").read_text(encoding="utf-8") + WORKFLOW


@pytest.fixture
def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW)["jobs"]["gate"]["steps"]


def test_every_step_is_an_action_or_a_script_that_bash_can_read(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        script = re.sub(r"\$\{\{.*?\}\}", "x", step.get("run", ""))
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=20).returncode == 0, script


def test_the_options_of_compare_and_history_on_the_page_exist() -> None:
    commands: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]
    used = re.findall(r"\bbakeoff (compare|history)((?: [^\n|#]+)?)", GATE_PAGE)
    assert {name for name, _ in used} == {"compare", "history"}
    for name, arguments in used:
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", arguments)) <= known


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


def steps_in(path: Path) -> list[dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits_and_scripts_are_read_by_bash(path: Path) -> None:
    assert path.stem == "release" or steps_in(path)
    for line in re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE):
        assert re.fullmatch(r"\./\.github/workflows/\w+\.yml|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    for step in steps_in(path):
        assert subprocess.run(["bash", "-n"], input=step.get("run", ""), text=True, timeout=20).returncode == 0, step


@pytest.mark.parametrize(
    ("tag", "status"), [(f"v{bakeoff.__version__}", 0), ("v9.9.9", 1), (bakeoff.__version__, 1)], ids=str
)
def test_only_a_tag_that_is_the_version_is_released(tag: str, status: int) -> None:
    """The step also looks for the version's section in the changelog."""
    (script,) = (step["run"] for step in steps_in(RELEASE) if "TAG" in step.get("env", {}))
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    assert subprocess.run(bash, cwd=ROOT, env={"TAG": tag, "PATH": "/usr/bin:/bin"}).returncode == status


def test_nothing_is_published_on_pypi_before_it_was_tested_and_tried_from_testpypi() -> None:
    jobs = yaml.safe_load(RELEASE.read_text())["jobs"]
    before, waits_for = [], ["pypi"]
    while waits_for:
        needs = jobs[waits_for.pop()].get("needs", [])
        waits_for += [needs] if isinstance(needs, str) else needs
        before += waits_for
    assert {"version", "test", "build", "testpypi", "try"} <= {*before}
    assert jobs["pypi"]["environment"]["name"] == "pypi"
    publishing = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert publishing == {"testpypi", "pypi"}


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
    assert "tests/judging/test_doubts.py" in changed.select_tests(["bakeoff/judging/doubts.py"])
    chosen = changed.select_tests(["bakeoff/planning/plan.py", "tests/shipping/test_export.py", "docs/method.md"])
    assert chosen[:2] == ["tests/shipping/test_export.py", "tests/planning/test_plan.py"]
    assert set(changed.select_tests([])) == set(changed.ALWAYS), "a file of ALWAYS is gone"
    assert len(changed.select_tests(["bakeoff/records/schema.py"])) <= changed.MOST_FILES + len(changed.ALWAYS)


def test_files_that_are_too_slow_exist() -> None:
    assert {path.name for path in (ROOT / "tests").rglob("test_*.py")} >= changed.TOO_SLOW


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
    assert json_page.PAGE.read_text(encoding="utf-8") == json_page.page(), "run python -m tests.docs.json_page"


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
    model = json_page.MODELS["run" if command == "report" else command.split()[0]]
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
    assert {name.split()[0] for name in leaves} == {name.split()[0] for name in json_page.MODELS} | {"resume", "report"}


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
