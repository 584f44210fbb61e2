"""Checks backends/torch_tensorrt.py against the sources of the Torch-TensorRT versions that it supports.

Types are of no use here: `torch_tensorrt` imports TensorRT's libraries, and its `**kwargs` silently take every keyword.
So names are looked up where they are defined.
"""

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from bakeoff.backends import torch_tensorrt as ours
from bakeoff.backends.base import BuildContext
from bakeoff.records.schema import Cell
from tests.backends import real_api
from tests.backends.building import RecordingPhases

ROOT = Path(__file__).parents[2]
VERSIONS = ("2.8.0", "2.13.0", "2.14.0")
"""The oldest and the newest version, and the one that constraints.txt pins."""
WITH_WEAK_TYPING = ("2.8.0",)


@functools.cache
def _sources(version: str) -> Path | str:
    try:
        return real_api.torch_tensorrt(version) / "torch_tensorrt"
    except real_api.NotHere as error:
        return str(error)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    if isinstance(found := _sources(request.param), str):
        pytest.skip(f"the sources of Torch-TensorRT {request.param} cannot be had: {found}")
    return str(request.param)


@pytest.fixture
def package(version: str) -> Path:
    """The folder of one version's sources."""
    found = _sources(version)
    assert isinstance(found, Path)
    return found


def definition(package: Path, dotted: str) -> ast.stmt | Path:
    """Return the definition of `torch_tensorrt.DOTTED`, found through imports, or the file of a submodule.

    Raise LookupError if there is no such name.
    """
    file = package / "__init__.py"
    found: ast.stmt | Path = file
    for name in dotted.split("."):
        assert isinstance(found, Path), f"{dotted}: {name} is looked up in what is no module"
        found = _member(package, found, name)
    return found


def _member(package: Path, file: Path, name: str) -> ast.stmt | Path:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            source = _module(package, file, node.module or "", node.level)
            if source is None or source == file:  # a package that imports its own submodule
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _member(package, source, alias.name)
    if file.name == "__init__.py" and (submodule := _file(file.parent / name)):
        return submodule
    raise LookupError(f"{file.relative_to(package.parent)} has no {name}")


def _module(package: Path, file: Path, module: str, level: int) -> Path | None:
    """Return the file that `from MODULE import` reads, if it belongs to the package."""
    if level:
        return _file(file.parents[level - 1].joinpath(*module.split(".")) if module else file.parents[level - 1])
    first, *rest = module.split(".")
    return _file(package.joinpath(*rest)) if first == "torch_tensorrt" else None


def _file(path: Path) -> Path | None:
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def names_used() -> set[str]:
    """Return every `torch_tensorrt.X.Y` in the backend's source, without the first word."""
    chains = set()
    for node in ast.walk(ast.parse((ROOT / "backends/torch_tensorrt.py").read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch_tensorrt."):
            chains.add(ast.unparse(node).removeprefix("torch_tensorrt."))
    return {name for name in chains if not any(other.startswith(f"{name}.") for other in chains)}


def fields_of(package: Path) -> list[str]:
    settings = definition(package, "dynamo.CompilationSettings")
    assert isinstance(settings, ast.ClassDef)
    return [ast.unparse(node.target) for node in settings.body if isinstance(node, ast.AnnAssign)]


@pytest.fixture
def passed(package: Path, install: Callable[[str, object], None], tmp_path: Path) -> dict[str, object]:
    """Return what the backend passes to this version."""
    settings = make_dataclass("CompilationSettings", [(name, object, None) for name in fields_of(package)])
    library = SimpleNamespace(dynamo=SimpleNamespace(CompilationSettings=settings))
    install("torch_tensorrt", library)
    cell = Cell(model="mlp", backend="torch-tensorrt", device="cuda", precision="tf32")
    return ours.compilation_settings(BuildContext(cell, RecordingPhases(), tmp_path, 1))


def test_the_pinned_version_is_among_them() -> None:
    (pinned,) = re.findall(r"^torch-tensorrt==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned in VERSIONS


@pytest.mark.slow
def test_every_name_used_is_there(package: Path) -> None:
    used = names_used()
    assert {"dynamo.compile", "dynamo.backend.torch_tensorrt_backend", "runtime.enable_cudagraphs"} < used
    for name in used - {"__version__"}:
        definition(package, name)
    with pytest.raises(LookupError, match=r"dynamo/__init__.py has no compile_it"):
        definition(package, "dynamo.compile_it")


@pytest.mark.slow
def test_every_setting_passed_is_a_named_parameter_and_a_field(package: Path, passed: dict[str, object]) -> None:
    compile = definition(package, "dynamo.compile")
    assert isinstance(compile, ast.FunctionDef)
    positional, by_keyword = compile.args.args, compile.args.kwonlyargs
    # a name that only **kwargs takes is dropped in silence
    assert {*passed, "arg_inputs"} <= {parameter.arg for parameter in (*positional, *by_keyword)}
    assert positional[0].arg == "exported_program"
    assert passed.keys() <= set(fields_of(package))  # torch.compile's options are these


@pytest.mark.slow
def test_typing_is_explicit_in_every_version(version: str, passed: dict[str, object]) -> None:
    assert "enabled_precisions" not in passed
    assert (passed.get("use_explicit_typing") is True) == (version in WITH_WEAK_TYPING)
    assert passed["disable_tf32"] is False
    assert str(passed["device"]) == "cuda:0"


@pytest.mark.slow
def test_what_is_read_of_an_engine_and_of_the_settings_is_there(package: Path) -> None:
    engine = _member(package, package / "dynamo/runtime/_TorchTensorRTModule.py", "TorchTensorRTModule")
    assert isinstance(engine, ast.ClassDef)
    assert "get_layer_info" in [node.name for node in engine.body if isinstance(node, ast.FunctionDef)]
    assert "self.settings = " in ast.unparse(engine)
    assert {"disable_tf32", "min_block_size", "use_fp32_acc"} <= set(fields_of(package))


@pytest.mark.slow
def test_partitions_are_named_as_they_are_looked_for(package: Path) -> None:
    partitioning = "".join(file.read_text() for file in (package / "dynamo/partitioning").glob("*.py"))
    assert f'prefix="{ours.ENGINE}_"' in partitioning
    assert f'non_acc_submodule_name = "{ours.TORCH}_"' in partitioning
    # how the library itself tells them apart, to put a CUDA graph around the whole
    graphs = (package / "runtime/_cudagraphs.py").read_text()
    assert f'"{ours.ENGINE}" in name' in graphs and f'"{ours.TORCH}" in name' in graphs
