"""Which inference compiler should I ship this PyTorch model with, on this machine, and can I trust the answer?

What a backend or a family of models of another distribution needs is imported from here:

    from bakeoff import Backend, BuildContext, Compiled, Mode

Nothing is imported before its name is used, so `import bakeoff` takes no time and imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bakeoff.api.compare import compare
    from bakeoff.api.pipelines import open_run
    from bakeoff.api.result import Figure, Ratio, Result
    from bakeoff.backends.base import (
        ANYWHERE,
        AVAILABLE,
        AheadOfTime,
        Availability,
        Backend,
        BuildContext,
        Compiled,
        Mode,
        ServingKnobs,
        Settings,
        Suits,
        Wrapped,
    )
    from bakeoff.backends.calling import FlatModule
    from bakeoff.backends.eager import Callables, Steps, torch_available
    from bakeoff.backends.exporting import export_onnx
    from bakeoff.backends.ranges import OpenAxis
    from bakeoff.backends.standalone import Runtime, ScriptPart
    from bakeoff.backends.traps import Facts, Finding, Trap, Weight
    from bakeoff.models.base import INPUT_SETS, Call, Dimension, Family, Inputs, LoadedModel, Pipeline
    from bakeoff.models.calls_file import Calls, load_calls
    from bakeoff.models.pipeline_parts import Parts, inspect_parts
    from bakeoff.models.recording import record
    from bakeoff.models.seeding import normal_inputs, seeded
    from bakeoff.records.device import Device
    from bakeoff.records.errors import BakeoffError, NotServed, Unavailable, Unsupported, UsageError
    from bakeoff.records.precision import Precision
    from bakeoff.records.schema import TASKS, Cell, Extent, Placement
    from bakeoff.shipping.loading import ShippedModel, load
    from bakeoff.shipping.pipelines import load_parts

__version__ = "0.4.0"

__all__ = [
    "ANYWHERE",
    "AVAILABLE",
    "INPUT_SETS",
    "TASKS",
    "AheadOfTime",
    "Availability",
    "Backend",
    "BakeoffError",
    "BuildContext",
    "Call",
    "Callables",
    "Calls",
    "Cell",
    "Compiled",
    "Device",
    "Dimension",
    "Extent",
    "Facts",
    "Family",
    "Figure",
    "Finding",
    "FlatModule",
    "Inputs",
    "LoadedModel",
    "Mode",
    "NotServed",
    "OpenAxis",
    "Parts",
    "Pipeline",
    "Placement",
    "Precision",
    "Ratio",
    "Result",
    "Runtime",
    "ScriptPart",
    "ServingKnobs",
    "Settings",
    "ShippedModel",
    "Steps",
    "Suits",
    "Trap",
    "Unavailable",
    "Unsupported",
    "UsageError",
    "Weight",
    "Wrapped",
    "compare",
    "export_onnx",
    "inspect_parts",
    "load",
    "load_calls",
    "load_parts",
    "normal_inputs",
    "open_run",
    "record",
    "seeded",
    "torch_available",
]

_MODULES = {
    "bakeoff.api.compare": ("compare",),
    "bakeoff.api.pipelines": ("open_run",),
    "bakeoff.api.result": ("Figure", "Ratio", "Result"),
    "bakeoff.backends.base": (
        "ANYWHERE",
        "AVAILABLE",
        "AheadOfTime",
        "Availability",
        "Backend",
        "BuildContext",
        "Compiled",
        "Mode",
        "ServingKnobs",
        "Settings",
        "Suits",
        "Wrapped",
    ),
    "bakeoff.backends.calling": ("FlatModule",),
    "bakeoff.backends.eager": ("Callables", "Steps", "torch_available"),
    "bakeoff.backends.exporting": ("export_onnx",),
    "bakeoff.backends.ranges": ("OpenAxis",),
    "bakeoff.backends.standalone": ("Runtime", "ScriptPart"),
    "bakeoff.backends.traps": ("Facts", "Finding", "Trap", "Weight"),
    "bakeoff.models.base": ("INPUT_SETS", "Call", "Dimension", "Family", "Inputs", "LoadedModel", "Pipeline"),
    "bakeoff.models.calls_file": ("Calls", "load_calls"),
    "bakeoff.models.pipeline_parts": ("Parts", "inspect_parts"),
    "bakeoff.models.recording": ("record",),
    "bakeoff.models.seeding": ("normal_inputs", "seeded"),
    "bakeoff.records.device": ("Device",),
    "bakeoff.records.errors": ("BakeoffError", "NotServed", "Unavailable", "Unsupported", "UsageError"),
    "bakeoff.records.precision": ("Precision",),
    "bakeoff.records.schema": ("TASKS", "Cell", "Extent", "Placement"),
    "bakeoff.shipping.loading": ("ShippedModel", "load"),
    "bakeoff.shipping.pipelines": ("load_parts",),
}
"""Where each name is defined."""


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            value: object = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'bakeoff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
