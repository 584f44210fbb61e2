"""The versions of libraries that are installed beside this interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from importlib import metadata

# fmt: off
LIBRARIES = (
    "torch", "triton", "numpy", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf",
    "tensorrt", "torch-tensorrt", "transformers", "safetensors", "pydantic", "scipy", "matplotlib", "nvidia-ml-py",
)
# fmt: on


def versions_of(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the version of each library that is installed."""
    found = {}
    for library in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found
