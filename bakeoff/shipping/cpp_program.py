"""`bakeoff export --format cpp`: a program in C++ that loads what a backend has built, with what CMake needs."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy

from bakeoff import backends
from bakeoff.backends.standalone import COMPILED_HERE, CppRuntime, Runtime
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import one_line
from bakeoff.shipping import script_parts
from bakeoff.shipping.sample_facts import TYPES, Sample

PROGRAM = "main.cpp"

LONGEST_BUILD_S = 600.0


CPP20_SINCE = (2, 10)
"""The headers of torch from this version on are compiled as C++20, and those of earlier ones as C++17."""


class BuildFailed(BakeoffError):
    """A program could not be built."""


def require(record: Record, runtime: Runtime) -> None:
    """Raise UsageError, with the reason, if no program in C++ is written for the record's build."""
    if runtime.cpp is None:
        having = script_parts.backends_that(lambda backend: (run := backend.runtime(record.cell.device)) and run.cpp)
        raise UsageError(f"{record.cell.id} cannot be exported: of what is built, only that of {having} has a program")
    if _loading(record).get("strides"):
        raise UsageError(f"{record.cell.id} cannot be exported: it takes inputs that are not contiguous in memory")


def write(report: Report, record: Record, runtime: Runtime, sample: Sample, folder: Path, artifact: str) -> str:
    """Write the program, and the sample as files of raw numbers. Return the program's name."""
    assert runtime.cpp is not None
    types = {*sample.inputs, *(output.type for output in sample.outputs)}
    # without a name in C++, only torch's own library has a type
    if unknown := {kind for kind in types if kind not in TYPES or not (TYPES[kind].cpp or runtime.cpp.needs_torch)}:
        raise UsageError(f"{record.cell.id} cannot be exported: no type {', '.join(sorted(unknown))} in the program")
    loading = _loading(record)
    versions = {**report.environment.versions, **record.versions}
    common = script_parts.common_settings(report, record)
    server = runtime.triton
    names = server.names(folder / artifact) if server and server.names else None
    inputs, outputs = _write_sample(folder, sample, names)
    facts = {
        **common,
        **loading,
        "artifact": artifact,
        "label": record.cell.label,
        "title": record.cell.title,
        "cpp": runtime.cpp,
        "runtime": runtime.cpp.template,
        "torch": versions.get("torch", ""),
        "versions": ", ".join(
            f"{name} {versions.get(name, '')}".strip() for name in runtime.libraries if name != "numpy"
        ),
        "is_compiled_here": runtime.note == COMPILED_HERE,
        "standard": 20 if runtime.cpp.needs_torch and _numbers(versions.get("torch", "")) >= CPP20_SINCE else 17,
        "properties": {
            "INFERENCE_PRECISION_HINT": loading.get("hint", ""),
            "INFERENCE_NUM_THREADS": common["threads"],
            **loading.get("options", {}),
        },
        "inputs": inputs,
        "outputs": outputs,
    }
    for name, template in {PROGRAM: "main.cpp", "CMakeLists.txt": "CMakeLists.txt", "README.md": "CPP.md"}.items():
        write_atomically(folder / name, script_parts.render(f"{template}.jinja", facts))
    return PROGRAM


def _loading(record: Record) -> dict[str, Any]:
    return dict(backends.create(record.cell.backend).loading(record.cell, record.settings))


def build(folder: Path, cpp: CppRuntime) -> Path:
    """Build the program in `folder` with CMake and the library that is installed. Raises BuildFailed with a reason."""
    if shutil.which("cmake") is None:
        raise BuildFailed("CMake is not installed")
    place = _output([sys.executable, "-c", cpp.find]).strip()
    _output(["cmake", "-S", str(folder), "-B", str(folder / "build"), f"-D{cpp.variable}={place}"])
    _output(["cmake", "--build", str(folder / "build")])
    return folder / "build" / "shipped"


def _output(command: list[str]) -> str:
    """Return what a command prints. Raises BuildFailed with the first line that reports an error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_BUILD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        text = next((line for line in lines if "error" in line.lower()), "".join(lines[-1:]))
        raise BuildFailed(f"it could not be built: {one_line(text, 300)}")
    return done.stdout


def _write_sample(
    folder: Path, sample: Sample, names: tuple[Any, Any] | None
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Turn `sample.npz` into files of raw numbers, and return what the program must know of them."""
    (folder / "sample").mkdir()
    with numpy.load(folder / "sample.npz") as arrays:
        for name in arrays.files:
            if name != "facts":
                numpy.ascontiguousarray(arrays[name]).tofile(folder / "sample" / f"{name}.bin")
        inputs: list[dict[str, object]] = [
            {"file": f"sample/input_{number}.bin", "shape": shape, **_type(kind)}
            for number, (kind, shape) in enumerate(zip(sample.inputs, sample.input_shapes, strict=True))
        ]
        outputs: list[dict[str, object]] = [
            {
                "file": f"sample/output_{number}.bin",
                "shape": output.shape,
                "total": math.prod(output.shape),
                "places": f"sample/places_{number}.bin" if f"places_{number}" in arrays else "",
                "allowed": output.allowed,
                "size_bytes": math.prod(output.shape) * TYPES[output.type].size_bytes,
                **_type(output.type),
            }
            for number, output in enumerate(sample.outputs)
        ]
    for tensors, own in zip((inputs, outputs), names or ((), ()), strict=True):
        for tensor, name in zip(tensors, own, strict=bool(names)):
            tensor["name"] = name
    (folder / "sample.npz").unlink()
    return inputs, outputs


def _type(name: str) -> dict[str, object]:
    kind = TYPES[name]
    return {"torch_type": kind.torch, "c_type": kind.cpp, "onnx_type": kind.onnx, "openvino_type": kind.openvino}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
