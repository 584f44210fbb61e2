"""TensorRT's backends against the Python API of each version that they support, from PyPI and from sources.

What happens at run time is tested with an engine, in tests/gpu/test_tensorrt.py. So is all of version 8.6, whose
own API (backends/tensorrt_8.py) the later versions do not have.
"""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from bakeoff.backends import torch_tensorrt as ours
from bakeoff.backends.base import BuildContext
from bakeoff.records.schema import Cell
from bakeoff.why.failing_script import script_of_part
from tests.backends import real_api
from tests.backends.building import RecordingPhases
from tests.reports import samples
from tests.support.cells import cell_of

ROOT = Path(__file__).parents[2]
PINNED = "11.0.0.114"
VERSIONS = (PINNED, *(pytest.param(version, marks=pytest.mark.slow) for version in ("10.13.3.9", "11.4.0.106")))
"""The version that constraints.txt pins, the oldest one and the newest."""
BUILDING, RUNNING = "bakeoff/backends/tensorrt.py", "bakeoff/backends/runtime/tensorrt.py"
FILES = (BUILDING, RUNNING, "bakeoff/backends/tensorrt_profiling.py", "bakeoff/backends/torch_tensorrt.py")

NULLABLE = (
    "build_serialized_network", "create_timing_cache", "deserialize_cuda_engine", "create_execution_context",
)  # fmt: skip
"""Methods that can return None, which no signature says."""

MISTAKES = [
    (RUNNING, "execute_async_v3(", "execute_async_v2("),
    (RUNNING, "range(engine.num_io_tensors)", "range(engine.num_io_tensors())"),
    (RUNNING, "engine is None", "not ENGINE"),
    (RUNNING, "context is None", "not ENGINE"),
    (BUILDING, "ignore_mismatch=", "ignore_missmatch="),
    (BUILDING, "config.profiling_verbosity", "config.profiling_verbocity"),
    (BUILDING, "BuilderFlag.TF32", "BuilderFlag.TF23"),
    (BUILDING, "parse_from_file(str(exported.path))", "parse_from_file(exported.path)"),
    (BUILDING, "build_serialized_network(network, config)", "build_serialized_network(network)"),
    (BUILDING, ".write_bytes(plan)", ".write_text(plan)"),
    (BUILDING, "plan is None", "not ENGINE"),
    (BUILDING, "cache is None or", ""),
]
"""What is right in a file, and a mistake: a name, an argument or a type, or a None that is not checked."""

CONFIGURATION = """
[mypy]
strict = true
python_version = 3.11
follow_imports = skip
explicit_package_bases = true

[mypy-bakeoff.*,tensorrt.*]
follow_imports = silent

# here TensorRT may not be missing
[mypy-torch.*,torch_tensorrt.*,onnx.*,onnxscript.*,onnxruntime.*,numpy.*]
follow_imports = skip
follow_imports_for_stubs = true
ignore_missing_imports = true
"""


@functools.cache
def _api(version: str) -> Path | str:
    try:
        return real_api.tensorrt(version)
    except real_api.NotHere as error:
        return str(error)


@pytest.fixture(params=VERSIONS)
def api(request: pytest.FixtureRequest) -> Path:
    """The folder with one version's API."""
    found = _api(request.param)
    if isinstance(found, str):
        pytest.skip(f"the bindings of TensorRT {request.param} cannot be had: {found}")
    return found


def mypy(folder: Path, stubs: Path, *files: str) -> list[str]:
    """Run mypy --strict on `files` with the `tensorrt` in `stubs`, and return its lines without the summary."""
    (folder / "mypy.ini").write_text(CONFIGURATION)
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", os.devnull, "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{stubs}:{ROOT}:{folder}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_pinned_version_is_the_one_of_constraints_txt() -> None:
    (pinned,) = re.findall(r"^tensorrt==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned == PINNED


PART = "model, inputs = torch.nn.Linear(2, 2), (torch.ones(1, 2),)"


@pytest.mark.slow
def test_the_backend_and_a_script_that_builds_an_engine_are_clean_under_mypy(api: Path, tmp_path: Path) -> None:
    record = samples.ok(cell_of("mlp", "tensorrt", device="cuda"), samples.over_processes(1.0))
    lax = '# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"'
    (tmp_path / "script.py").write_text(f"{lax}\n{script_of_part(samples.report([record]), record, PART, 'it fails')}")
    assert mypy(tmp_path, api / "stubs", *FILES, str(tmp_path / "script.py")) == []


@pytest.mark.slow
@pytest.mark.parametrize("api", [PINNED], indirect=True)
def test_mypy_sees_each_mistake_and_each_result_that_can_be_none_is_checked(api: Path, tmp_path: Path) -> None:
    stubs = shutil.copytree(api / "stubs", tmp_path / "stubs")
    stub = stubs / "tensorrt/tensorrt.pyi"
    stub.write_text(re.sub(rf"(def ({'|'.join(NULLABLE)})\(.*\) -> \w+):", r"\1 | None:", stub.read_text()))
    copies = []
    for number, (file, right, wrong) in enumerate(MISTAKES):
        source = (ROOT / file).read_text()
        assert right in source
        text = source.replace(right, wrong).replace("from . ", "from bakeoff.backends.runtime ")
        copies.append(tmp_path / f"mistake_{number}.py")
        copies[-1].write_text(text.replace("from .", "from bakeoff.backends.runtime."))
    said = "\n".join(mypy(tmp_path, stubs, BUILDING, RUNNING, *map(str, copies)))
    assert not re.search(r"^bakeoff/", said, re.MULTILINE), said
    assert [copy.name for copy in copies if f"{copy.name}:" not in said] == []


OVER_NOTHING = """
import sys
import tensorrt
import bakeoff.backends.runtime.tensorrt as ours
from bakeoff.backends.tensorrt import TensorRT
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError

complaints = ours.Complaints()
logger = ours.logger_for(complaints)
logger.log(tensorrt.ILogger.INFO, "not kept")
logger.log(tensorrt.ILogger.ERROR, "kept")
assert list(complaints.errors) == ["kept"]
for make in (tensorrt.Builder, tensorrt.Runtime):
    try:
        with complaints.explain("nothing made"):
            make(logger)
    except BakeoffError as error:
        assert str(error).startswith("nothing made: kept; pybind11::init()"), error
    else:
        raise AssertionError(f"{make} out of nothing")
for name in ("FLOAT", "HALF", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"):
    ours.torch_type(getattr(tensorrt.DataType, name))
try:
    ours.torch_type(tensorrt.DataType.INT4)
except BakeoffError as error:
    assert "INT4" in str(error)
sys.stdout.write(TensorRT().available(Device("cuda:99")).reason)
"""


@pytest.mark.slow
def test_the_bindings_themselves_import_and_say_that_there_is_nothing_behind_them(api: Path) -> None:
    """Import the real module over empty libraries, which is possible without libnvinfer."""
    environment = {"LD_LIBRARY_PATH": str(api / "lib"), "PYTHONPATH": f"{api / 'package'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", OVER_NOTHING],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.match("torch|there is no cuda:99", done.stdout), done.stdout


TORCH_TENSORRT_VERSIONS = ("2.8.0", "2.13.0", "2.14.0")
"""The oldest and the newest version, and the one that constraints.txt pins."""
WITH_WEAK_TYPING = ("2.8.0",)


@functools.cache
def _sources(version: str) -> Path | str:
    try:
        return real_api.torch_tensorrt(version) / "torch_tensorrt"
    except real_api.NotHere as error:
        return str(error)


@pytest.fixture(params=TORCH_TENSORRT_VERSIONS)
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
    assert pinned in TORCH_TENSORRT_VERSIONS


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
