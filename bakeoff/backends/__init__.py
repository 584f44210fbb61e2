"""The backends that Bakeoff knows, by name. A backend's file is imported when its name is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bakeoff.records.errors import BakeoffError, UsageError, first_line, unknown
from bakeoff.records.package import checkout, requirements
from bakeoff.records.plug_ins import plug_ins

if TYPE_CHECKING:
    from bakeoff.backends.base import Backend

TABLE: dict[str, str] = {
    "eager": "bakeoff.backends.eager:Eager",
    "torchscript": "bakeoff.backends.torchscript:TorchScript",
    "inductor": "bakeoff.backends.inductor:Inductor",
    "onnx": "bakeoff.backends.onnx:Onnx",
    "aotinductor": "bakeoff.backends.aotinductor:AOTInductor",
    "openvino": "bakeoff.backends.openvino:OpenVINO",
    "iree": "bakeoff.backends.iree:IREE",
    "executorch": "bakeoff.backends.executorch:ExecuTorch",
    "litert": "bakeoff.backends.litert:LiteRT",
    "onnxruntime-genai": "bakeoff.backends.onnxruntime_genai:OnnxRuntimeGenAI",
    "tensorrt": "bakeoff.backends.tensorrt:TensorRT",
    "torch-tensorrt": "bakeoff.backends.torch_tensorrt:TorchTensorRT",
    "triton": "bakeoff.backends.triton:Triton",
}
SELFCHECK: dict[str, str] = {"eager-again": "bakeoff.backends.eager:EagerAgain"}
"""The copy with which `bakeoff selfcheck` compares eager. It is found by name, but is in no list."""

ALIASES: dict[str, str] = {"jit": "torchscript", "torch_compile": "inductor", "onnxruntime": "onnx"}
ONLY_BY_NAME = frozenset({"onnxruntime-genai"})
"""Backends in every list but `all`: this one does nothing but `--task generate`."""

ENTRY_POINTS = "bakeoff.backends"
"""Other distributions add a backend through this entry-point group, as NAME = "module:Class"."""

ENTRY_POINTS_ONLY_BY_NAME = "bakeoff.backends.only_by_name"
"""The same for backends that `all` leaves out, such as the scripted ones of the tests."""


def names() -> list[str]:
    """Return every backend: the table's, then those of other distributions in alphabetical order."""
    return [*TABLE, *sorted(_third_party().keys() - TABLE.keys())]


def in_all() -> list[str]:
    left_out = ONLY_BY_NAME | plug_ins(ENTRY_POINTS_ONLY_BY_NAME).keys() - TABLE.keys()
    return [name for name in names() if name not in left_out]


def canonical(name: str) -> str:
    """Return the backend's own name for `name`, which may be an alias. Raise UsageError if it is unknown, or if the
    distribution of ours that brings it is not installed."""
    name = ALIASES.get(name, name)
    if name in TABLE or name in SELFCHECK or name in _third_party():
        return name
    distribution = f"bakeoff-{name}"
    if distribution in [text.partition(";")[0].strip() for text in requirements()]:
        where = f"{root}/plugins/{name}" if (root := checkout()) else distribution
        raise UsageError(f"backend '{name}' is a distribution of its own, which is not installed: pip install {where}")
    raise unknown("backend", name, [*names(), *ALIASES], "bakeoff list")


def create(name: str) -> Backend:
    """Create the backend. Raise UsageError if the name is unknown, and BakeoffError if its module does not load."""
    name = canonical(name)
    target = TABLE.get(name) or SELFCHECK.get(name) or _third_party()[name]
    module, _, attribute = target.partition(":")
    try:
        backend: Backend = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise BakeoffError(
            f"backend '{name}' ({target}) does not load: {type(error).__name__}: {first_line(error)}"
        ) from error
    return backend


def if_it_loads(name: str) -> Backend | None:
    """Create the backend, or return None where its module does not load. Its own cell then says why."""
    try:
        return create(name)
    except BakeoffError:
        return None


def all_that_load() -> Iterator[Backend]:
    return filter(None, map(if_it_loads, names()))


def _third_party() -> dict[str, str]:
    return plug_ins(ENTRY_POINTS) | plug_ins(ENTRY_POINTS_ONLY_BY_NAME)
