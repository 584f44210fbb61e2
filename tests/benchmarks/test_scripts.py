"""The scripts of benchmarks/ start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_a_script_starts_in_any_folder(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
