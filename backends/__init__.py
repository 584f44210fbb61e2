"""The backends Bakeoff knows, by name. Imports nothing: a backend's library is imported when it is used."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from records.errors import BakeoffError, unknown

if TYPE_CHECKING:
    from backends.base import Backend

TABLE: dict[str, str] = {
    "eager": "backends.eager:Eager",
    "torchscript": "backends.torchscript:TorchScript",
    "inductor": "backends.inductor:Inductor",
    "onnx": "backends.onnx:Onnx",
    "aotinductor": "backends.aotinductor:AOTInductor",
    "hotpath": "backends.hotpath:HotPath",
    "openvino": "backends.openvino:OpenVINO",
    "tensorrt": "backends.tensorrt:TensorRT",
    "torch-tensorrt": "backends.torch_tensorrt:TorchTensorRT",
    "triton": "backends.triton:Triton",
}
FOR_TESTS: dict[str, str] = {
    "null": "backends.null:Null",
    "null-packaged": "backends.null:NullPackaged",
    "eager-again": "backends.eager_again:EagerAgain",
}
"""Found by name, but in no list: they exist to test the harness."""

ALIASES: dict[str, str] = {
    "jit": "torchscript",
    "torch_compile": "inductor",
    "onnxruntime": "onnx",
}
ONLY_BY_NAME = frozenset({"hotpath"})
"""In every list but `all`: it answers calls for a minute before it has chosen what to run."""

ENTRY_POINTS = "bakeoff.backends"
"""Third parties' distributions add a backend through this entry-point group: NAME = "module:Class"."""


def names() -> list[str]:
    """Every backend there is: the table's, then third parties' in alphabetical order."""
    return [*TABLE, *sorted(_third_party().keys() - TABLE.keys())]


def in_all() -> list[str]:
    """Those that `all` stands for."""
    return [name for name in names() if name not in ONLY_BY_NAME]


def canonical(name: str) -> str:
    """The backend's own name for `name`, which may be an alias. Raises UsageError for one nobody knows."""
    name = ALIASES.get(name, name)
    if name in TABLE or name in FOR_TESTS or name in _third_party():
        return name
    raise unknown("backend", name, [*names(), *ALIASES], "runner.py list")


def create(name: str) -> Backend:
    """The backend called `name`. Raises UsageError for an unknown one, BakeoffError where its module does not load."""
    name = canonical(name)
    target = TABLE.get(name) or FOR_TESTS.get(name) or _third_party()[name]
    module, _, attribute = target.partition(":")
    try:
        backend: Backend = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BakeoffError(
            f"backend '{name}' ({target}) does not load: {type(error).__name__}: {first_line}"
        ) from error
    return backend


def _third_party() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
