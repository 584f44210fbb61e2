"""With --inputs-from host or pinned, a run on a GPU measures the copies, and says so."""

from pathlib import Path

import pytest

from bakeoff.records.schema import Status
from tests.support.measuring import measure

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("memory", ["host", "pinned"])
def test_a_call_takes_as_long_as_its_copies_at_least(tmp_path: Path, memory: str) -> None:
    sizes, size_bytes = {"batch": ("8192",), "features": ("1024",), "hidden": ("256",)}, 8192 * 1024 * 4
    backends = ("eager", "eager/cuda-graph", "torchscript")
    for record in measure(tmp_path / "run", *backends, devices=["cuda"], set=sizes, inputs_from=memory).records:
        assert record.status is Status.OK and record.latency, f"{record.cell.label}: {record.reason}"
        assert record.cell.inputs_from == memory and f"--inputs-from {memory}" in record.command
        assert {record.settings[f"bytes copied {way} the device"] for way in ("to", "from")} == {size_bytes}
        assert record.latency.min_ms / 1e3 > 2 * size_bytes / 1e12  # bytes a second, which no link to a GPU copies
