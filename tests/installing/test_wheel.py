"""The wheel and the sdist, an installed Bakeoff, and what `import bakeoff` gives and costs.

So it does with a distribution of somebody else's that is installed beside it.
"""

import ast
import shutil
import statistics
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bakeoff
from bakeoff.records import report_file
from bakeoff.records.schema import Status
from tests.installing.conftest import BRIEFLY, Installed, build
from tests.support.checkout import ROOT, python


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_brings_one_name(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names_in(wheel)}
    (about,) = tops - {"bakeoff"}
    assert about.endswith(".dist-info")


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    package = ROOT / "bakeoff"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    packed = {name for name in names_in(wheel) if name.startswith("bakeoff/")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in files}
    assert {"bakeoff/py.typed", "bakeoff/records/report.schema.json", "bakeoff/presets/zoo/bert/config.json"} <= packed


def test_the_sdist_builds_and_has_no_tests(distributions: Path, wheel: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "bakeoff/py.typed"} <= {*names}
    assert not [name for name in names if name.startswith(("tests", "docs", "models", "backends", "reports"))]
    modules = {name for name in names_in(wheel) if name.startswith("bakeoff/")}
    assert modules <= {*names}


def requirements_of(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = message_from_bytes(archive.read(file))
    return [Requirement(line) for line in text.get_all("Requires-Dist", [])]


def test_no_torch_from_the_oldest_on_is_replaced(wheel: Path) -> None:
    requirements = requirements_of(wheel)
    (torch,) = (requirement for requirement in requirements if requirement.name == "torch")
    assert torch.marker is None
    assert all(torch.specifier.contains(version) for version in ("2.8.0a0+34c6371d24.nv25.8", "2.10.0+cpu", "9.9.9"))
    assert [requirement for requirement in requirements if "==" in str(requirement.specifier)] == []
    for plug_in in ROOT.glob("plugins/*/pyproject.toml"):
        asked = map(Requirement, tomllib.loads(plug_in.read_text())["project"]["dependencies"])
        assert [one.specifier for one in asked if one.name == "torch"] == [torch.specifier], plug_in


def test_the_extra_for_cpus_keeps_the_torch_that_is_there(wheel: Path) -> None:
    """Nothing that it brings, directly or not, asks for a torch of its own."""
    asked = {one.name for one in requirements_of(wheel) if one.marker and one.marker.evaluate({"extra": "cpu"})}
    seen: set[str] = set()
    while waiting := asked - seen:
        name = waiting.pop()
        seen.add(name)
        try:
            needed = [Requirement(line) for line in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue  # it is not for this version of Python, or this machine
        asked |= {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    assert {"onnxruntime", "openvino", "numpy"} <= seen
    assert "torch" not in seen


@pytest.mark.slow
def test_an_installed_bakeoff_measures_a_project_with_folders_of_the_same_names(
    installed: Installed, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "tests/cases/project", project := tmp_path / "project")
    before = {path.name for path in project.iterdir()}
    out = installed.run("bakeoff", "--model", "detect.py:factory", *COMPARED, cwd=project)
    assert "torchscript" in out and {path.name for path in project.iterdir()} - before <= {"results", "__pycache__"}
    (folder,) = (project / "results").iterdir()
    records = report_file.read(folder).records
    assert [(record.status, record.reason) for record in records] == [(Status.OK, "")] * 2
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_python_runs_an_installed_bakeoff_as_a_module(installed: Installed, tmp_path: Path) -> None:
    assert "torchscript" in installed.run("python", "-m", "bakeoff", "--model", "mlp", *COMPARED, cwd=tmp_path)


COMPARED = ("--backends", "eager,torchscript", *BRIEFLY)


@pytest.mark.slow
def test_an_installed_bakeoff_finds_its_presets_and_their_models(installed: Installed, tmp_path: Path) -> None:
    options = ["--preset", "serving", "--model", "presets/zoo/networks.py:dlrm", "--devices", "cpu"]
    planned = installed.run("bakeoff", *options, "--dry-run", cwd=tmp_path)
    # without the preset, dlrm has batch 2048 and further backends
    assert "networks.py:dlrm (batch 1, " in planned and "fp32: eager, onnx, openvino (" in planned


# --- a distribution of somebody else's, with a backend and a family of models

PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bakeoff-example"
version = "1.0"
dependencies = ["bakeoff"]

[project.entry-points."bakeoff.backends"]
traced = "bakeoff_example:Traced"

[project.entry-points."bakeoff.models"]
gated = "bakeoff_example:Gated"

[tool.setuptools]
py-modules = ["bakeoff_example"]
"""

MODULE = '''
"""A backend and a family of models for Bakeoff."""

from bakeoff import (
    ANYWHERE,
    Backend,
    Callables,
    Dimension,
    Family,
    LoadedModel,
    Mode,
    Suits,
    normal_inputs,
    seeded,
    torch_available,
)


class Traced(Backend):
    name = "traced"
    description = "torch.jit.trace, without any pass"
    modes = (Mode(worth_trying=ANYWHERE), Mode("optimised", {"is_optimised": True}, Suits("cpu")))

    def available(self, device):
        return torch_available(device)

    def build(self, module, inputs, context):
        import torch

        is_optimised = self.mode(context.cell.mode).options.get("is_optimised", False)
        with context.phase("compile"), torch.jit.optimized_execution(is_optimised):
            return Callables(torch.jit.trace(module, inputs.args))


class Gated(Family):
    name = "gated"
    description = "a gated linear unit"
    dimensions = {"batch": Dimension(4, "rows per call"), "features": Dimension(16, "width")}

    def load(self, dimensions, seed):
        from torch import nn

        batch, features = (int(dimensions[name]) for name in ("batch", "features"))
        with seeded(seed):
            module = nn.Sequential(nn.Linear(features, 2 * features), nn.GLU())
            return LoadedModel(module.eval(), normal_inputs(batch, features))
'''


@pytest.mark.slow
def test_a_backend_of_ours_that_is_another_distribution(wheel: Path, tmp_path: Path) -> None:
    """Without it, its name says what to install. With it, it is a backend as any other, which `all` leaves out."""
    environment = Installed(tmp_path / "environment")
    environment.install(wheel)
    planned = ["bakeoff", "--model", "mlp", "--backends", "eager,hotpath", "--devices", "cpu", "--dry-run"]
    with pytest.raises(AssertionError, match=r"a distribution of its own, .*: pip install bakeoff-hotpath"):
        environment.run(*planned, cwd=tmp_path)
    project = shutil.copytree(
        ROOT / "plugins/hotpath", tmp_path / "hotpath", ignore=shutil.ignore_patterns("*.egg-info")
    )
    build(project, tmp_path / "dist", "--wheel")
    environment.install(*(tmp_path / "dist").glob("*.whl"))
    assert "fp32: eager, hotpath" in environment.run(*planned, cwd=tmp_path)
    environment.run(
        "python", "-c", "import sys, bakeoff_hotpath as path; sys.exit('bakeoff' in sys.modules)", cwd=tmp_path
    )


@pytest.mark.slow
def test_a_plug_in_brings_its_backend_and_its_model(installed: Installed, tmp_path: Path) -> None:
    project = tmp_path / "plug-in"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "bakeoff_example.py").write_text(MODULE)
    build(project, tmp_path / "dist", "--wheel")
    installed.install(*(tmp_path / "dist").glob("*.whl"))

    listed = installed.run("bakeoff", "list", cwd=tmp_path)
    assert "traced" in listed and "gated" in listed and "features (16)" in listed

    measured = ["--model", "gated", "--backends", "traced,traced/optimised", "--set", "features=8", *BRIEFLY]
    out = installed.run("bakeoff", *measured, "--out", "run", cwd=tmp_path)
    assert "traced/optimised" in out
    records = {record.cell.label: record for record in report_file.read(tmp_path / "run").records}
    assert {label: (record.status, record.reason) for label, record in records.items()} == dict.fromkeys(
        ("traced", "traced/optimised"), (Status.OK, "")
    )
    assert {record.cell.dimensions["features"] for record in records.values()} == {8}


MAX_IMPORT_S = 0.2


@pytest.mark.parametrize("name", bakeoff.__all__)
def test_every_name_is_what_its_module_defines(name: str) -> None:
    value = getattr(bakeoff, name)
    (module,) = (module for module, names in bakeoff._MODULES.items() if name in names)
    assert value is getattr(sys.modules[module], name)
    assert name in dir(bakeoff)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(bakeoff.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = [
        (node.module, alias.name, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert seen == [(module, name, name) for module, names in bakeoff._MODULES.items() for name in names]
    assert len(bakeoff.__all__) == len(set(bakeoff.__all__)) == len(seen)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'bakeoff' has no attribute 'Backends'"):
        bakeoff.Backends  # noqa: B018


def test_importing_it_is_quick() -> None:
    code = "import time; begun = time.process_time(); import bakeoff; print(time.process_time() - begun)"
    assert statistics.median(float(python(code)) for _ in range(3)) < MAX_IMPORT_S


PLANS = """import pathlib, tempfile
import bakeoff.cli, bakeoff.commands.selfcheck, bakeoff.measuring.controller.contest_run
from bakeoff import models
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
file = pathlib.Path(tempfile.mkdtemp(), "mine.py")
file.write_text("import torch\\ndef factory(batch: int = 1): ...\\n")
named = (*models.TABLE, f"{file}:factory")
contests = plan(Request(models=named, backends=("all/all",), devices=("cpu", "cuda")))
assert len(contests) == 2 * len(named)
for family in map(models.find, models.TABLE):
    family.resolve({next(iter(family.dimensions)): "48"})
"""
MEASURES_NOTHING = [["--help"], ["run", "--help"], ["run", "--nonsense"], ["--model", "cnv"], ["--backends", "onx"]]
ONLY_FOR_A_RUN = "numpy jinja2 psutil bakeoff.reports.writer bakeoff.judging.fit"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import bakeoff", "torch numpy onnx pydantic bakeoff.backends"),
        ("from bakeoff import Backend, BuildContext, Compiled, Dimension, Family, LoadedModel, Mode, Suits", "torch"),
        ("from bakeoff import backends", "torch numpy onnx onnxruntime bakeoff.backends.base bakeoff.backends.eager"),
        ("import bakeoff.api.pytest_plugin", "torch numpy pydantic bakeoff.api.compare"),
        (PLANS, "torch onnx onnxruntime openvino tensorrt triton"),
        ("from bakeoff import cli; cli.main(['list'])", "torch scipy onnx"),
        (f"from bakeoff import cli\nfor typed in {MEASURES_NOTHING}: cli.main(typed)", ONLY_FOR_A_RUN),
    ],
)
def test_what_has_to_be_quick_imports_nothing_heavy(code: str, heavy: str) -> None:
    """Which rooms import torch, numpy or matplotlib at all is checked by `lint-imports`."""
    assert python(f"{code}\nimport sys; print(*{set(heavy.split())} & sys.modules.keys())").splitlines()[-1] == ""
