"""A run whose builds are exported, and the records and reports that are made up for scripts."""

from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bakeoff import backends
from bakeoff.backends.standalone import Runtime
from bakeoff.records import report_file
from bakeoff.records.schema import Cell, Record, Report
from bakeoff.shipping.sample_facts import Sample, SampleOutput
from tests.conftest import folder_of_all
from tests.reports import samples
from tests.support.cells import labelled
from tests.support.measuring import measure

SMALL = {"features": ("64",), "hidden": ("64",)}
BUILDING = ("onnx", "openvino", "torchscript")
COMPILING = ("aotinductor", "inductor")
ON_CUDA = ("inductor", "inductor/reduce-overhead", "aotinductor", "aotinductor/cuda-graph", "onnx", "onnx/cuda-graph")
SAMPLE = Sample(
    inputs=("float32",), input_shapes=((4, 64),), outputs=(SampleOutput(shape=(4, 64), type="float32", allowed=1e-5),)
)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_of_all(tmp_path_factory) / "kept-run"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            report_file.write_json(measure(folder, "eager", *BUILDING, set=SMALL), folder)
    return folder


def cell_of(label: str, **fields: object) -> Cell:
    return labelled(label, **{"dimensions": {"batch": 4}, **fields})


def record_of(measured: str | Cell, median_ms: float = 0.1, **fields: Any) -> Record:
    """Return the record of a build that was kept. For a label, `cell` among the fields are fields of its cell."""
    cell = cell_of(measured, **fields.pop("cell", {})) if isinstance(measured, str) else measured
    made = {"settings": {"threads": 2}, "artifact": "artifacts/x", "versions": {"torch": "2.13.0+cpu"}}
    return samples.ok(cell, samples.over_processes(median_ms), **{**made, **fields})


def report_on(*records: Record, **environment: object) -> Report:
    """Return the report of a run on a machine with one thread for torch, and without variables of its own."""
    machine = samples.environment().but(**({"torch_threads": 1, "variables": {}} | environment))
    return samples.report(list(records), environment=machine)


def runtime_of(record: Record) -> Runtime:
    runtime = backends.create(record.cell.backend).runtime(record.cell.device)
    assert runtime is not None
    return runtime
