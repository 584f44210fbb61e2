"""What the documents say is what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import backends
import models
from harness.controller.launcher import ROOT
from records.report_file import json_schema

BACKENDS = (ROOT / "docs/backends.md").read_text()


def test_the_json_schema_in_docs_is_the_current_one() -> None:
    assert (ROOT / "docs/report.schema.json").read_text() == json_schema()


def test_the_page_of_backends_names_every_backend_mode_and_alias() -> None:
    for name in backends.TABLE:
        assert f"`{name}`" in BACKENDS
        for mode in list(backends.create(name).modes)[1:]:
            assert f"`{mode}`" in BACKENDS, f"{name}/{mode}"
    for alias in backends.ALIASES:
        assert f"`{alias}`" in BACKENDS


def test_the_readme_fits_on_a_screen() -> None:
    """A large one: 90 lines, of which the report that it shows are a third."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_dependency_is_pinned_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    assert len(normal) == len(pinned)
    for requirement in wanted:
        name = re.split(r"[<>=!~ \[]", requirement)[0]
        assert re.sub(r"[-_.]+", "-", name).lower() in normal, requirement


def test_nothing_generic_is_installed_into_site_packages() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tool == {"packages": [], "py-modules": []}
    for name in ("backends", "models", "harness", "records", "judging", "reports"):
        module = __import__(name)
        assert Path(module.__file__ or "").is_relative_to(ROOT)


def test_every_model_of_the_table_can_be_found() -> None:
    for name in models.TABLE:
        assert models.find(name).name == name
