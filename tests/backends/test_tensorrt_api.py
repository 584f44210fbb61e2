"""Checks the backend against the Python API of the versions of TensorRT from 10 on.

What happens at run time is tested with an engine, in tests/gpu/test_tensorrt.py. So is all of version 8.6, whose
own API (backends/tensorrt_8.py) the later versions do not have.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bakeoff import models
from bakeoff.records.device import Device
from bakeoff.records.schema import Cell
from bakeoff.shipping.failing_part import script_of_part
from tests.fakes import real_api
from tests.reports import samples

ROOT = Path(__file__).parents[2]
PINNED = "11.0.0.114"
VERSIONS = ("10.13.3.9", PINNED, "11.4.0.106")
"""The oldest and the newest version, and the one that constraints.txt pins."""
BUILDING, RUNNING = "bakeoff/backends/tensorrt.py", "bakeoff/backends/runtime/tensorrt.py"
FILES = (BUILDING, RUNNING, "bakeoff/backends/tensorrt_profiling.py", "bakeoff/backends/torch_tensorrt.py")

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
    "a method of TensorRT 8": (RUNNING, "execute_async_v3(", "execute_async_v2("),
    "a keyword": (BUILDING, "ignore_mismatch=", "ignore_missmatch="),
    "an attribute": (BUILDING, "config.profiling_verbosity", "config.profiling_verbocity"),
    "a member of an enumeration": (BUILDING, "BuilderFlag.TF32", "BuilderFlag.TF23"),
    "an argument's type": (BUILDING, "parse_from_file(str(exported.path))", "parse_from_file(exported.path)"),
    "an argument too few": (BUILDING, "build_serialized_network(network, config)", "build_serialized_network(network)"),
    "a result's type": (BUILDING, ".write_bytes(plan)", ".write_text(plan)"),
    "a property called": (RUNNING, "range(engine.num_io_tensors)", "range(engine.num_io_tensors())"),
}

UNCHECKED = {
    "build_serialized_network": (BUILDING, "plan is None", "not ENGINE"),
    "create_timing_cache": (BUILDING, "cache is None or", ""),
    "deserialize_cuda_engine": (RUNNING, "engine is None", "not ENGINE"),
    "create_execution_context": (RUNNING, "context is None", "not ENGINE"),
}
"""Methods that can return None, which no signature says, and the mistake of not checking what they return."""


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


PART = "model, inputs = torch.nn.Linear(2, 2), (torch.ones(1, 2),)"


def test_a_script_that_builds_an_engine_is_clean_under_mypy(api: Path, mypy: Mypy, tmp_path: Path) -> None:
    cell = Cell(model="mlp", dimensions=models.find("mlp").resolve({}), backend="tensorrt", device=Device("cuda"))
    record = samples.ok(cell, samples.over_processes(1.0))
    lax = '# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"'
    (tmp_path / "script.py").write_text(f"{lax}\n{script_of_part(samples.report([record]), record, PART, 'it fails')}")
    assert mypy(api / "stubs", str(tmp_path / "script.py")) == []


@pytest.mark.parametrize("api", [PINNED], indirect=True)
def test_every_result_that_can_be_none_is_checked(api: Path, mypy: Mypy, tmp_path: Path) -> None:
    stubs = shutil.copytree(api / "stubs", tmp_path / "stubs")
    text = (stubs / "tensorrt/tensorrt.pyi").read_text()
    signature = rf"(def ({'|'.join(UNCHECKED)})\(.*\) -> \w+):"
    (stubs / "tensorrt/tensorrt.pyi").write_text(re.sub(signature, r"\1 | None:", text))
    assert mypy(stubs, BUILDING, RUNNING) == []
    assert caught(mypy, stubs, UNCHECKED, tmp_path) == list(UNCHECKED)


@pytest.mark.parametrize("api", [PINNED], indirect=True)
def test_mypy_sees_each_mistake(api: Path, mypy: Mypy, tmp_path: Path) -> None:
    assert caught(mypy, api / "stubs", MISTAKES, tmp_path) == list(MISTAKES)


def caught(mypy: Mypy, stubs: Path, mistakes: Mapping[str, tuple[str, str, str]], folder: Path) -> list[str]:
    """Return which of the mistakes mypy sees, each in a copy of its file."""
    files = {}
    for number, (mistake, (file, right, wrong)) in enumerate(mistakes.items()):
        source = (ROOT / file).read_text()
        assert right in source, mistake
        files[mistake] = folder / f"mistake_{number}.py"
        text = source.replace(right, wrong).replace("from . ", "from bakeoff.backends.runtime ")
        files[mistake].write_text(text.replace("from .", "from bakeoff.backends.runtime."))
    said = mypy(stubs, *map(str, files.values()))
    return [mistake for mistake, file in files.items() if any(f"{file.name}:" in line for line in said)]


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
