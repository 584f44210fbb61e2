"""The Dockerfile, built on a base that stands in for NVIDIA's, and what the image does. Takes minutes.

    python -m pytest -m container -s

As root, with debootstrap, buildah, podman and runc, and Debian's and Python's registries in reach.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bakeoff.records import report_file
from bakeoff.records.schema import Status
from tests.support.checkout import ROOT

BASE, IMAGE = "localhost/bakeoff-base:test", "localhost/bakeoff:test"
CALLER = "12345:23456"
"""Of whom nobody in the image has heard, as of most who call it."""

CONSTRAINED = "python3 -m pip install --no-cache-dir --constraint /etc/pip/constraint.txt"
UNCONSTRAINED = "env --unset=PIP_CONSTRAINT python3 -m pip install --no-cache-dir"

MISSING = [tool for tool in ("debootstrap", "buildah", "podman", "runc") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.container,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="debootstrap needs root"),
]

ENGINE = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
"""
"""What a container may ask for inside of another one."""


def call(*command: object, **environment: str) -> str:
    """Standard output of a command that must succeed; all it says is shown with `pytest -s`."""
    words = [str(word) for word in command]
    print("$", " ".join(words))  # noqa: T201 - shown with `pytest -s`
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT)
    print(done.stdout + done.stderr)  # noqa: T201
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "containers.conf"
    path.write_text(ENGINE)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The stand-in; one that is there from a run before is taken as it is."""
    if subprocess.run(["buildah", "inspect", "--type", "image", BASE], capture_output=True).returncode != 0:
        call(ROOT / "tests/container/stand_in_base.sh", tmp_path_factory.mktemp("base"), BASE)


@pytest.fixture(scope="module")
def build_log(base: None) -> str:
    """What building the image said."""
    arguments = ["--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", "EXTRAS=cpu", "--build-arg", "REVISION=test"]
    return call("buildah", "bud", "--isolation", "chroot", *arguments, "-f", "docker/Dockerfile", "-t", IMAGE, ".")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of the caller's, as ./results is."""
    folder = tmp_path / "results"
    folder.mkdir()
    uid, gid = map(int, CALLER.split(":"))
    os.chown(folder, uid, gid)
    return folder


def run(engine: Path, results: Path, *arguments: str, entrypoint: str | None = None) -> str:
    """The image's answer to `arguments`, called by CALLER, without a network."""
    named = ["--entrypoint", entrypoint] if entrypoint else []
    mounted = ["--volume", f"{results}:/bench/results"]
    isolated = ["--rm", "--network", "none", "--user", CALLER]
    return call("podman", "run", *isolated, *mounted, *named, IMAGE, *arguments, CONTAINERS_CONF=str(engine))


def test_what_the_base_brought_is_as_it_was(build_log: str, engine: Path, results: Path) -> None:
    assert "added: typer" in build_log
    freeze = run(engine, results, "-c", "python3 -m pip freeze; cat /etc/pip/constraint.txt", entrypoint="/bin/bash")
    lines = freeze.splitlines()
    for held in ("numpy==2.2.6", "packaging==25.0", "pydantic==2.11.10"):
        assert lines.count(held) == 2  # in the constraints, and installed


def test_a_dependency_that_would_replace_something_fails_the_build(base: None, tmp_path: Path) -> None:
    """A requirement that the base does not meet, and nothing that holds pip to the constraints."""
    context = tmp_path / "context"
    context.mkdir()
    for name in ("bakeoff", "docker", "examples"):
        shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("runner.py", "LICENSE"):
        shutil.copy(ROOT / name, context / name)
    project = (ROOT / "pyproject.toml").read_text()
    (context / "pyproject.toml").write_text(project.replace('"pydantic>=2.11"', '"pydantic>=2.12"'))
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    assert "pydantic>=2.12" not in project and dockerfile.count(CONSTRAINED) == 1
    (context / "Dockerfile").write_text(dockerfile.replace(CONSTRAINED, UNCONSTRAINED))
    command = ["buildah", "bud", "--isolation", "chroot", "--build-arg", f"BASE_IMAGE={BASE}"]
    command += ["--build-arg", "EXTRAS=cpu", "-f", str(context / "Dockerfile"), str(context)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "the base image's pydantic 2.11.10 became 2." in done.stdout + done.stderr


def test_nobody_is_root_in_it_and_it_says_what_it_is(build_log: str) -> None:
    inspected = json.loads(call("buildah", "inspect", "--type", "image", IMAGE))
    image = inspected["OCIv1"]["config"]
    assert image["User"] == "1000:1000"
    assert image["Labels"]["org.opencontainers.image.base.name"] == BASE
    assert image["Labels"]["org.opencontainers.image.revision"] == "test"
    assert "Healthcheck" not in inspected["Docker"]["config"]


BACKENDS = "eager,torchscript,inductor,aotinductor,onnx,openvino"


def test_the_doctor_finds_it_sound(build_log: str, engine: Path, results: Path) -> None:
    assert "6 passed, 0 failed" in run(engine, results, "doctor", "--backends", BACKENDS, "--devices", "cpu")


def test_the_doctor_speaks_json_alone(build_log: str, engine: Path, results: Path) -> None:
    found = json.loads(run(engine, results, "doctor", "--backends", "eager", "--devices", "cpu", "--json"))
    assert [trial["outcome"] for trial in found["trials"]] == ["pass"] and found["broken"] == []
    assert found["facts"]["container"] == "podman"
    assert "little-shared-memory" in {finding["trap"] for finding in found["findings"]}  # podman's own 64 MB


def test_a_comparison_leaves_a_report_that_is_the_callers(build_log: str, engine: Path, results: Path) -> None:
    measured = ["--model", "mlp", "--backends", BACKENDS, "--devices", "cpu", "--processes", "1"]
    run(engine, results, *measured, "--out", "results/mlp")
    report = report_file.read(results / "mlp")
    assert {record.cell.backend: record.status for record in report.records} == dict.fromkeys(
        BACKENDS.split(","), Status.OK
    )
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (results / "mlp").rglob("*")}
    assert owners == {tuple(map(int, CALLER.split(":")))}
