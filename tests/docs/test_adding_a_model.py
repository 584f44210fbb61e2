"""Follows docs/adding-a-model.md: its file, its row and its commands, in a copy of the checkout."""

from pathlib import Path

import pytest

from bakeoff.records import report_file
from bakeoff.records.schema import Status
from tests.docs import commands
from tests.support.checkout import ROOT

PAGE = ROOT / "docs/adding-a-model.md"
(ROW,) = (line for line in PAGE.read_text().splitlines(keepends=True) if line.startswith('    "gated": '))
LIST, RUN = (command.text.split() for command in commands.commands(PAGE))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout and add the page's file and row."""
    return commands.copy_checkout(
        tmp_path_factory.mktemp("checkout"), commands.files(PAGE), "bakeoff/models/__init__.py", ROW
    )


@pytest.mark.slow
def test_the_run_measures_the_new_model(checkout: Path, tmp_path: Path) -> None:
    done = commands.follow([*RUN, "--min-time", "0.02", "--processes", "1", "--out", str(tmp_path / "run")], checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    records = report_file.read(tmp_path / "run").records
    assert {(record.cell.model, record.cell.dimensions["features"], record.cell.backend) for record in records} == {
        ("gated", 128, "eager"),
        ("gated", 128, "torchscript"),
    }
    assert {record.status for record in records} == {Status.OK}


@pytest.mark.slow
def test_it_is_listed(checkout: Path) -> None:
    done = commands.follow(LIST, checkout)
    assert done.returncode == 0, done.stderr
    assert " gated " in done.stdout and "gated linear unit" in done.stdout
