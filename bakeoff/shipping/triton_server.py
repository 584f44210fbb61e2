"""`bakeoff export --format triton`: a model repository of Triton Inference Server with what a cell has built."""

import re
import shutil
from pathlib import Path

from bakeoff.backends.standalone import Runtime, TritonBackend
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import counted
from bakeoff.shipping import script_parts
from bakeoff.shipping.sample_facts import TYPES, Sample

SCRIPT = "model.py"


def require(record: Record, runtime: Runtime) -> TritonBackend:
    """Return what serves the record's build. Raise UsageError, with the reason, if no server does."""
    if runtime.triton is None:
        raise UsageError(
            f"{record.cell.id} cannot be exported: Triton has no backend for what {record.cell.backend} builds"
        )
    return runtime.triton


def write(report: Report, record: Record, runtime: Runtime, sample: Sample, folder: Path, artifact: str) -> str:
    """Turn `folder`, which holds the artefact, into a model repository. Return the configuration's place in it."""
    server = runtime.triton
    assert server is not None
    kept = [path for path in folder.iterdir() if path.name != "sample.npz"]
    name = re.sub(r"[^\w.-]+", "_", record.cell.model).strip("_.") or "model"
    version = folder / name / "1"
    version.mkdir(parents=True)
    for path in kept:
        shutil.move(path, version / path.name)
    facts = {**_facts(report, record, runtime, server, sample, version / artifact), "name": name}
    write_atomically(folder / name / "config.pbtxt", script_parts.render("config.pbtxt.jinja", facts))
    if server.is_script:
        write_atomically(version / SCRIPT, script_parts.render("triton_model.py.jinja", facts))
    write_atomically(folder / "README.md", script_parts.render("TRITON.md.jinja", facts))
    return f"{name}/config.pbtxt"


def _facts(
    report: Report, record: Record, runtime: Runtime, server: TritonBackend, sample: Sample, artifact: Path
) -> dict[str, object]:
    cell, settings = record.cell, record.load.settings if record.load else None
    names = server.names(artifact) if server.names else None
    inputs, outputs = names or (
        [f"INPUT__{number}" for number in range(len(sample.inputs))],
        [f"OUTPUT__{number}" for number in range(len(sample.outputs))],
    )
    types = [*sample.inputs, *(output.type for output in sample.outputs)]
    if unknown := {kind for kind in types if kind not in TYPES or not TYPES[kind].triton}:
        raise UsageError(f"{cell.id} cannot be exported: Triton has no type {', '.join(sorted(unknown))}")
    common = script_parts.common_settings(report, record)
    threads = settings.threads if settings else common["threads"]
    versions = {**report.environment.versions, **record.versions}
    return {
        "label": cell.label,
        "title": cell.title,
        "server": server,
        "file": SCRIPT if server.is_script else artifact.name,
        "artifact": artifact.name,
        "script": server.is_script,
        "torch": versions.get("torch", ""),
        "versions": ", ".join(f"{library} {versions[library]}" for library in runtime.libraries if library in versions),
        "inputs": [
            {"name": name, "type": TYPES[kind].triton, "shape": shape}
            for name, kind, shape in zip(inputs, sample.inputs, sample.input_shapes, strict=True)
        ],
        "outputs": [
            {"name": name, "type": TYPES[output.type].triton, "shape": output.shape}
            for name, output in zip(outputs, sample.outputs, strict=True)
        ],
        "instances": settings.instances if settings else 1,
        "gpu": cell.device.cuda_index or 0 if cell.device.is_cuda else None,
        "threads": threads,
        "tf32": common["tf32"],
        "parameters": {server.threads: str(threads)} if server.threads else {},
        "load": _load(record),
    }


def _load(record: Record) -> str:
    settings = record.load.settings if record.load else None
    if settings is None:
        return "One instance serves. `bakeoff run --load server` finds how many serve best."
    best = (
        f"Under load, {counted(settings.instances, 'instance')} with {counted(settings.threads, 'thread')}"
        f"{' each' if settings.instances > 1 else ''} served best."
    )
    if settings.batch > 1:
        best += (
            f" They put {settings.batch} requests into a call, which this repository does not: the build has one size. "
            f"Measure the model with a batch of {settings.batch} and export that."
        )
    return best
