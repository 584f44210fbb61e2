"""Finds in an artefact the operators that torch itself does not have. They are read from its text, without torch."""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

TORCHS_OWN = frozenset((
    "_c10d_functional", "_dtensor", "_native", "_quantized", "aten", "c10d", "export", "flex_lib", "higher_order",
    "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prim", "prims", "profiler",
    "quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams", "symm_mem",
))  # fmt: skip
"""The namespaces of operators that are there as soon as torch is imported."""

_CALLS = {
    ".py": re.compile(r"\bops\.(\w+)\.(\w+)\("),  # the code of TorchScript
    ".json": re.compile(r'"target": ?"(?:torch\.ops\.)?(\w+)(?:::|\.)(\w+)'),  # a program, or what a package calls
}
_NO_OPERATORS = ("torch", "_operator", "math", "builtins")
"""Modules whose functions a program also calls."""


def foreign_operators(artifact: Path) -> list[str]:
    """Return such as `torchvision::nms` that the artefact calls: a module must register them before it is loaded."""
    if not zipfile.is_zipfile(artifact):  # an ONNX graph and OpenVINO's IR
        return []
    with zipfile.ZipFile(artifact) as package:
        return sorted({f"{space}::{name}" for space, name in _called(package)})


def _called(package: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    for member in package.namelist():
        if pattern := _CALLS.get(Path(member).suffix):
            for space, name in pattern.findall(package.read(member).decode(errors="replace")):
                if space not in TORCHS_OWN and space not in _NO_OPERATORS:
                    yield space, name
