"""`bakeoff export --format cpp`: a program in C++ that loads a package of AOTInductor, with what CMake needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bakeoff.backends.standalone import Runtime
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.shipping import script_parts
from bakeoff.shipping.sample_facts import Sample

TYPES = {
    "float32": "kFloat",
    "float64": "kDouble",
    "float16": "kHalf",
    "bfloat16": "kBFloat16",
    "int8": "kChar",
    "int16": "kShort",
    "int32": "kInt",
    "int64": "kLong",
    "uint8": "kByte",
    "bool": "kBool",
    "complex64": "kComplexFloat",
}
"""The names of types in C++, by torch's in Python."""

CPP20_SINCE = (2, 10)
"""The headers of torch from this version on are compiled as C++20, and those of earlier ones as C++17."""


def require(record: Record, runtime: Runtime, captures: bool) -> None:
    """Raise UsageError, with the reason, if no program in C++ is written for the record's build."""
    if not runtime.has_cpp:
        raise UsageError(f"{record.cell.id} cannot be exported: only AOTInductor's package has a program in C++")
    if captures:
        raise UsageError(f"{record.cell.id} cannot be exported: its CUDA graph is made in the process that serves it")


def write(report: Report, record: Record, runtime: Runtime, sample: Sample, folder: Path, artifact: str) -> str:
    """Write the program, and the sample as files of raw numbers. Return the program's name."""
    if unknown := set(sample.inputs) - TYPES.keys():
        raise UsageError(f"{record.cell.id} cannot be exported: no type {', '.join(sorted(unknown))} in the program")
    part = script_parts.part_of(record)
    version = {**report.environment.versions, **record.versions}.get("torch", "")
    options: Any = part.facts["options"]
    inputs, outputs = _write_sample(folder, sample)
    facts = {
        **script_parts.common_settings(report, record, part),
        "artifact": artifact,
        "label": record.cell.label,
        "title": record.cell.title,
        "torch": version,
        "standard": 20 if _numbers(version) >= CPP20_SINCE else 17,
        "single_threaded": bool(options.get("run_single_threaded")),
        "inputs": inputs,
        "outputs": outputs,
    }
    for name, template in {"main.cpp": "main.cpp", "CMakeLists.txt": "CMakeLists.txt", "README.md": "CPP.md"}.items():
        write_atomically(folder / name, script_parts.render(f"{template}.jinja", facts))
    return "main.cpp"


def _write_sample(folder: Path, sample: Sample) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Turn `sample.npz` into files of raw numbers, and return what the program must know of them."""
    import numpy

    (folder / "sample").mkdir()
    with numpy.load(folder / "sample.npz") as arrays:
        for name in arrays.files:
            if name != "facts":
                numpy.ascontiguousarray(arrays[name]).tofile(folder / "sample" / f"{name}.bin")
        inputs: list[dict[str, object]] = [
            {"file": f"sample/input_{number}.bin", "shape": shape, "type": TYPES[kind]}
            for number, (kind, shape) in enumerate(zip(sample.inputs, sample.input_shapes, strict=True))
        ]
        outputs: list[dict[str, object]] = [
            {
                "file": f"sample/output_{number}.bin",
                "elements": arrays[f"output_{number}"].size,
                "places": f"sample/places_{number}.bin" if f"places_{number}" in arrays else "",
                "allowed": output.allowed,
                "is_complex": output.type.startswith("complex"),
            }
            for number, output in enumerate(sample.outputs)
        ]
    (folder / "sample.npz").unlink()
    return inputs, outputs


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
