"""Checks the backend against the Python API of the versions of TensorRT from 10 on, whose wheels come from PyPI.

What happens at run time is tested with an engine, in tests/gpu/test_tensorrt.py. So is all of version 8.6, whose
own API (backends/tensorrt_8.py) the later versions do not have.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.why.failing_script import script_of_part
from tests.backends import real_api
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
