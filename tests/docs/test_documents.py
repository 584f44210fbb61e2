"""What the documents say is what the code does."""

import importlib
import inspect
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

import bakeoff
from bakeoff import backends, models
from bakeoff.judging.judgement import judge
from bakeoff.records import report_file
from bakeoff.records.report_file import json_schema
from bakeoff.reports.run_report import print_answers
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
