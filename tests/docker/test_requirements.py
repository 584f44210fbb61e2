"""The requirements that are installed into the image in addition to its base."""

import subprocess
import sys

import pytest

from tests.support.checkout import ROOT


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
