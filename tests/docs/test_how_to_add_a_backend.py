"""Follows docs/how-to-add-a-backend.md and docs/adding-a-model.md, in a copy of the checkout."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from bakeoff import backends
from bakeoff.records import report_file
from bakeoff.records.schema import Status
from tests.docs import commands
from tests.support.checkout import ROOT
from tests.support.distributions import distribute

PAGE = (ROOT / "docs/how-to-add-a-backend.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


FILE, ROW = blocks("python")
(COMMANDS,) = blocks("bash")
RUN, SUITE = (shlex.split(command) for command in COMMANDS.splitlines())
(ENTRY_POINT,) = blocks("toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"bakeoff/backends/exported.py": FILE}
    copy = commands.copy_checkout(tmp_path_factory.mktemp("checkout"), files, "bakeoff/backends/__init__.py", ROW)
    shutil.copytree(ROOT / "tests/backends", copy / "tests/backends", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.slow
def test_the_run_measures_the_new_backend(checkout: Path, tmp_path: Path) -> None:
    tiny = ["--set", "batch=2", "--set", "features=16", "--set", "hidden=16", "--min-time", "0.02", "--processes", "1"]
    done = commands.follow([*RUN, *tiny, "--out", str(tmp_path / "run")], checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record.cell.backend: record for record in report_file.read(tmp_path / "run").records}
    assert {name: record.status for name, record in records.items()} == {"eager": Status.OK, "exported": Status.OK}
    exported = records["exported"]
    assert [phase.name for phase in exported.phases] == ["export", "load", "first_call"]
    assert exported.placement is not None and exported.placement.engines == {"torch.export": 5}
    assert exported.memory is not None and exported.memory.artifact_bytes


@pytest.mark.slow
def test_the_suite_covers_the_new_backend(checkout: Path) -> None:
    done = commands.follow([*SUITE, "-p", "no:cacheprovider"], checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 30, done.stdout


@pytest.mark.slow
def test_the_suite_covers_it_as_a_distribution_of_its_own(tmp_path: Path) -> None:
    (points,) = tomllib.loads(ENTRY_POINT)["project"]["entry-points"].items()
    group, ((name, target),) = points[0], points[1].items()
    assert group == backends.ENTRY_POINTS
    module = tmp_path / Path(*target.partition(":")[0].split(".")).with_suffix(".py")
    module.parent.mkdir()
    module.write_text(FILE)
    distribute(name, target, tmp_path, "your-package")
    quick = ["-k", f"{name} and (mlp or introduces or imports)", "-p", "no:cacheprovider"]
    done = commands.follow([*SUITE[: SUITE.index("-k")], *quick], ROOT, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 10, done.stdout


MODEL_PAGE = ROOT / "docs/adding-a-model.md"
(MODEL_ROW,) = (line for line in MODEL_PAGE.read_text().splitlines(keepends=True) if line.startswith('    "gated": '))
LIST, MODEL_RUN = (command.text.split() for command in commands.commands(MODEL_PAGE))


@pytest.fixture(scope="module")
def checkout_with_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.copy_checkout(
        tmp_path_factory.mktemp("checkout"), commands.files(MODEL_PAGE), "bakeoff/models/__init__.py", MODEL_ROW
    )


@pytest.mark.slow
def test_the_run_measures_the_new_model(checkout_with_model: Path, tmp_path: Path) -> None:
    done = commands.follow(
        [*MODEL_RUN, "--min-time", "0.02", "--processes", "1", "--out", str(tmp_path / "run")], checkout_with_model
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = report_file.read(tmp_path / "run").records
    assert {(record.cell.model, record.cell.dimensions["features"], record.cell.backend) for record in records} == {
        ("gated", 128, "eager"),
        ("gated", 128, "torchscript"),
    }
    assert {record.status for record in records} == {Status.OK}


@pytest.mark.slow
def test_it_is_listed(checkout_with_model: Path) -> None:
    done = commands.follow(LIST, checkout_with_model)
    assert done.returncode == 0, done.stderr
    assert " gated " in done.stdout and "gated linear unit" in done.stdout
