"""With --inputs-from host or pinned, a run on a GPU measures the copies, and says so."""

from pathlib import Path

import pytest

from bakeoff.records.schema import Status
from tests.support.measuring import by_label, measure

pytestmark = pytest.mark.gpu

SIZES = {"batch": ("8192",), "features": ("1024",), "hidden": ("256",)}
BYTES = 8192 * 1024 * 4
"""Of the inputs, and as many of the outputs."""

FASTEST_LINK = 1e12
"""Bytes a second, more than any link between a host and a GPU copies."""


@pytest.mark.parametrize("memory", ["host", "pinned"])
def test_a_call_takes_as_long_as_its_copies_at_least(tmp_path: Path, memory: str) -> None:
    backends = ("eager", "eager/cuda-graph", "torchscript")
    records = by_label(measure(tmp_path / "run", *backends, devices=["cuda"], set=SIZES, inputs_from=memory))
    assert set(records) == set(backends)
    for label, record in records.items():
        assert record.status is Status.OK and record.latency, f"{label}: {record.reason}"
        assert record.cell.inputs_from == memory and f"--inputs-from {memory}" in record.command
        copied = [record.settings[f"bytes copied {way} the device"] for way in ("to", "from")]
        assert copied == [BYTES, BYTES]
        assert record.latency.min_ms / 1e3 > 2 * BYTES / FASTEST_LINK
