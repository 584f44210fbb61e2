"""A run whose builds are exported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from bakeoff.records import report_file
from tests.support.measuring import measure

SMALL = {"features": ("64",), "hidden": ("64",)}
BUILDING = ("onnx", "openvino", "torchscript")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one brief run, of the backends that build something on the CPU in a second. No test changes it.

    The workers of pytest-xdist share it: the first one that needs it measures.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept-run"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            report_file.write_json(measure(folder, "eager", *BUILDING, set=SMALL), folder)
    return folder
