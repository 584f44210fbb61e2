"""The image's requirements and checks, and the scripts that start a cluster."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bakeoff.planning.config import OPTIONS, read_preset
from tests.support.checkout import ROOT

SLURM = ROOT / "docker" / "slurm.sh"
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")


def test_slurms_script_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_slurms_script_has_nothing_that_its_linter_finds() -> None:
    assert SHELLCHECK
    done = subprocess.run([SHELLCHECK, str(SLURM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_kuberay_job_measures_on_workers_with_whole_cores() -> None:
    yaml = pytest.importorskip("yaml")
    job: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "ray-cluster.yaml").read_text(encoding="utf-8"))
    spec = job["spec"]["rayClusterSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in spec["workerGroupSpecs"]:
        for container in group["template"]["spec"]["containers"]:
            # the kubelet gives whole cores only where requests and limits are equal
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    words = shlex.split(job["spec"]["entrypoint"])
    flags = {flag for option in OPTIONS.values() for flag in option.flags}
    assert {word for word in words if word.startswith("--")} <= flags | {"--preset", "--out"}
    assert read_preset(words[words.index("--preset") + 1]).request["runs"]


def listing(path: Path, **versions: str) -> Path:
    path.write_text(json.dumps([{"name": name, "version": version} for name, version in versions.items()]))
    return path


def check(before: Path, after: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docker/check_unchanged.py", before, after]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_additions_are_named_and_fine(tmp_path: Path) -> None:
    before = listing(tmp_path / "before", torch="2.8.0a0+nv25.8", PyYAML="6.0")
    done = check(before, listing(tmp_path / "after", torch="2.8.0a0+nv25.8", pyyaml="6.0", typer="0.29"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "added: typer 0.29\n", "")


@pytest.mark.parametrize(
    ("after", "said"), [({"torch": "2.13.0"}, "torch 2.8.0 became 2.13.0"), ({}, "torch 2.8.0 became nothing")]
)
def test_what_was_replaced_or_removed_fails_the_build(after: dict[str, str], said: str, tmp_path: Path) -> None:
    done = check(listing(tmp_path / "before", torch="2.8.0"), listing(tmp_path / "after", **after))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert said in line and "pyproject.toml" in line


def asked(extras: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docker/requirements.py", ROOT / "pyproject.toml", extras]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("extras", "there"), [("cuda", "onnxruntime-gpu>"), ("cpu,hf", "onnxruntime>"), ("hf", "trans")]
)
def test_the_projects_own_without_the_images_stack(extras: str, there: str) -> None:
    lines = asked(extras).stdout.splitlines()
    assert "pydantic>=2.11" in lines
    assert any(line.startswith(there) for line in lines)
    assert not [line for line in lines if line.startswith(("torch", "triton", "tensorrt"))]


def test_an_extra_that_does_not_exist_fails_the_build() -> None:
    assert asked("gpu").returncode != 0
