"""The step of the image's build that fails if a package of the base image was replaced."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT


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
