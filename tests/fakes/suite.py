"""Runs the conformance suite on backends with a fake library, in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bakeoff import backends

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests/fakes"


def environment(*folders: Path) -> dict[str, str]:
    """Return an environment in which the fakes and `folders` come before the real libraries.

    The inner pytest must not act as an xdist worker, because it would wait for the lock of its own test
    (`conftest.py`).
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return {**ours, "PYTHONPATH": os.pathsep.join(map(str, (FAKES, ROOT, *folders)))}


def distribute(name: str, entry_point: str, folder: Path, distribution: str = "bakeoff-fakes") -> None:
    """Put a distribution with a backend into `folder`, which is to be on Python's path."""
    information = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{backends.ENTRY_POINTS}]\n{name} = {entry_point}\n")


def conformance(entry_points: Mapping[str, str], folder: Path) -> dict[str, int]:
    """Return how many tests of the suite passed for each backend. Raise AssertionError if one failed.

    The backends are installed as distributions in `folder`, as a third party's would be, so the suite needs no edit.
    """
    for name, where in entry_points.items():
        distribute(name, where, folder, f"bakeoff-{name}")
    suite = [sys.executable, "-m", "pytest", "tests/backends/test_conformance.py", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*suite, "-k", " or ".join(entry_points)],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"\[([\w-]+).*\] PASSED", done.stdout)
    return {name: sum(case.startswith(name) for case in passed) for name in entry_points}
