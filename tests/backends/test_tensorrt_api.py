"""Checks backends/tensorrt.py and its fake against the Python API of the TensorRT versions that it supports.

This cannot check what happens at run time.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import real_api, signatures

ROOT = Path(__file__).parents[2]
PINNED = "11.0.0.114"
VERSIONS = ("10.13.3.9", PINNED, "11.4.0.106")
"""The oldest and the newest version, and the one that constraints.txt pins."""
FILES = ("backends/tensorrt.py", "backends/tensorrt_profiling.py", "backends/torch_tensorrt.py")
FAKES = ROOT / "tests/fakes"

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

MISTAKES = {
    "a method of TensorRT 8": ("execute_async_v3(", "execute_async_v2("),
    "a keyword": ("ignore_mismatch=", "ignore_missmatch="),
    "an attribute": ("config.profiling_verbosity", "config.profiling_verbocity"),
    "a member of an enumeration": ("BuilderFlag.TF32", "BuilderFlag.TF23"),
    "an argument's type": ("parse_from_file(str(exported.path))", "parse_from_file(exported.path)"),
    "an argument too few": ("build_serialized_network(network, config)", "build_serialized_network(network)"),
    "a result's type": (".write_bytes(plan)", ".write_text(plan)"),
    "a property called": ("range(engine.num_io_tensors)", "range(engine.num_io_tensors())"),
}


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


Mypy = Callable[..., list[str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that all calls of mypy share. What imports another `tensorrt` than the call before is checked again."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def mypy(tmp_path: Path, cache: Path) -> Mypy:
    return functools.partial(checked_by_mypy, tmp_path, cache)


def checked_by_mypy(folder: Path, cache: Path, stubs: Path, *files: str) -> list[str]:
    """Run mypy --strict on `files` with the `tensorrt` in `stubs`, and return its lines without the summary."""
    (folder / "mypy.ini").write_text(CONFIGURATION)
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(cache), "--no-error-summary"]
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


def test_the_backend_is_clean_under_mypy(api: Path, mypy: Mypy) -> None:
    assert mypy(api / "stubs", *FILES) == []


def test_every_result_that_can_be_none_is_checked(mypy: Mypy, tmp_path: Path) -> None:
    """Only the fake's signatures say which results can be None."""
    assert mypy(FAKES, FILES[0]) == []
    source = (ROOT / FILES[0]).read_text()
    unchecked = tmp_path / "unchecked.py"
    unchecked.write_text(re.sub(r"if (plan|engine|execution) is None:", r"if bool(ENGINE):", source))
    said = mypy(FAKES, str(unchecked))
    for kind in ("IHostMemory", "ICudaEngine", "IExecutionContext"):
        assert any(re.search(rf"{kind} \| .*None", line) for line in said), said


@pytest.mark.parametrize("api", [PINNED], indirect=True)
def test_mypy_sees_each_mistake(api: Path, mypy: Mypy, tmp_path: Path) -> None:
    source = (ROOT / FILES[0]).read_text()
    files = {}
    for number, (mistake, (right, wrong)) in enumerate(MISTAKES.items()):
        assert right in source, mistake
        files[mistake] = tmp_path / f"mistake_{number}.py"
        files[mistake].write_text(source.replace(right, wrong))
    said = mypy(api / "stubs", *map(str, files.values()))
    caught = [mistake for mistake, file in files.items() if any(f"{file.name}:" in line for line in said)]
    assert caught == list(MISTAKES), said


def test_the_fake_takes_nothing_that_the_bindings_do_not(api: Path) -> None:
    assert list(signatures.excess(fakes(), bindings(api), types=True)) == []


TOO_MUCH = {
    "def init_plugins() -> None: ...": "init_plugins does not exist",
    "class Runtime:\n    def deserialize(self) -> None: ...": "Runtime.deserialize does not exist",
    "class Builder:\n    def create_network(self, flag: int = 0) -> INetworkDefinition: ...": "fits none of",
    "class Builder:\n    def create_network(self, flags: str) -> INetworkDefinition: ...": "fits none of",
    "class Builder:\n    def __init__(self, logger: ILogger = None) -> None: ...": "fits none of",
    "class Builder:\n    def build_serialized_network(self, network: INetworkDefinition): ...": "fits none of",
    "class ICudaEngine:\n    def num_io_tensors(self) -> int: ...": "fits none of",
    "class ICudaEngine:\n    num_io_tensors: int": "cannot be set",
    "class ICudaEngine:\n    @property\n    def get_tensor_name(self) -> str: ...": "is a method",
    "class BuilderFlag:\n    TF23: ClassVar[BuilderFlag]": "BuilderFlag.TF23 does not exist",
}
"""Definitions that a fake could have and the bindings do not, with what is said about them."""


def test_a_fake_that_takes_more_is_found_out(api: Path) -> None:
    real = bindings(api)
    for wrong, said in TOO_MUCH.items():
        (line,) = signatures.excess(signatures.public(ast.parse(wrong).body), real, types=True)
        assert said in line


OVER_NOTHING = """
import sys
import tensorrt
import bakeoff.backends.tensorrt as ours
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
sys.stdout.write(ours.TensorRT().available(Device("cuda:99")).reason)
"""


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


def fakes() -> signatures.Definitions:
    return signatures.public(ast.parse((ROOT / "tests/fakes/tensorrt/__init__.py").read_text()).body)


def bindings(api: Path) -> signatures.Definitions:
    files = [api / "stubs/tensorrt" / name for name in ("tensorrt.pyi", "__init__.pyi")]
    return {
        name: nodes for file in files for name, nodes in signatures.public(ast.parse(file.read_text()).body).items()
    }
