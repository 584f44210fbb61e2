"""A run whose builds are exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from bakeoff.records import report_file
from tests.support.measuring import measure

SMALL = {"features": ("64",), "hidden": ("64",)}
BUILDING = ("onnx", "openvino", "torchscript")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one brief run, of the backends that build something on the CPU in a second."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    report = measure(folder, "eager", *BUILDING, set=SMALL)
    report_file.write_json(report, folder)
    return folder
