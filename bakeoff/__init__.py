"""Which inference compiler should I ship this PyTorch model with, on this machine, and can I trust the answer?

What a backend or a family of models of another distribution needs is imported from here:

    from bakeoff import Backend, BuildContext, Compiled, Mode

Nothing is imported before its name is used, so `import bakeoff` takes no time and imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bakeoff.api.compare import compare as compare
    from bakeoff.api.pipelines import open_run as open_run
    from bakeoff.api.result import Figure as Figure
    from bakeoff.api.result import Ratio as Ratio
    from bakeoff.api.result import Result as Result
    from bakeoff.backends.base import ANYWHERE as ANYWHERE
    from bakeoff.backends.base import AVAILABLE as AVAILABLE
    from bakeoff.backends.base import AheadOfTime as AheadOfTime
    from bakeoff.backends.base import Availability as Availability
    from bakeoff.backends.base import Backend as Backend
    from bakeoff.backends.base import BuildContext as BuildContext
    from bakeoff.backends.base import Compiled as Compiled
    from bakeoff.backends.base import Mode as Mode
    from bakeoff.backends.base import ServingKnobs as ServingKnobs
    from bakeoff.backends.base import Settings as Settings
    from bakeoff.backends.base import Suits as Suits
    from bakeoff.backends.base import Wrapped as Wrapped
    from bakeoff.backends.calling import FlatModule as FlatModule
    from bakeoff.backends.eager import Callables as Callables
    from bakeoff.backends.eager import Steps as Steps
    from bakeoff.backends.eager import torch_available as torch_available
    from bakeoff.backends.exporting import export_onnx as export_onnx
    from bakeoff.backends.ranges import OpenAxis as OpenAxis
    from bakeoff.backends.standalone import Runtime as Runtime
    from bakeoff.backends.standalone import ScriptPart as ScriptPart
    from bakeoff.backends.traps import Facts as Facts
    from bakeoff.backends.traps import Finding as Finding
    from bakeoff.backends.traps import Trap as Trap
    from bakeoff.backends.traps import Weight as Weight
    from bakeoff.models.base import INPUT_SETS as INPUT_SETS
    from bakeoff.models.base import Call as Call
    from bakeoff.models.base import Dimension as Dimension
    from bakeoff.models.base import Family as Family
    from bakeoff.models.base import Inputs as Inputs
    from bakeoff.models.base import LoadedModel as LoadedModel
    from bakeoff.models.base import Pipeline as Pipeline
    from bakeoff.models.calls_file import Calls as Calls
    from bakeoff.models.calls_file import load_calls as load_calls
    from bakeoff.models.pipeline_parts import Parts as Parts
    from bakeoff.models.pipeline_parts import inspect_parts as inspect_parts
    from bakeoff.models.recording import record as record
    from bakeoff.models.seeding import normal_inputs as normal_inputs
    from bakeoff.models.seeding import seeded as seeded
    from bakeoff.records.device import Device as Device
    from bakeoff.records.errors import BakeoffError as BakeoffError
    from bakeoff.records.errors import NotServed as NotServed
    from bakeoff.records.errors import Unavailable as Unavailable
    from bakeoff.records.errors import Unsupported as Unsupported
    from bakeoff.records.errors import UsageError as UsageError
    from bakeoff.records.precision import Precision as Precision
    from bakeoff.records.schema import TASKS as TASKS
    from bakeoff.records.schema import Cell as Cell
    from bakeoff.records.schema import Extent as Extent
    from bakeoff.records.schema import Placement as Placement
    from bakeoff.shipping.loading import ShippedModel as ShippedModel
    from bakeoff.shipping.loading import load as load
    from bakeoff.shipping.pipelines import load_parts as load_parts

__version__ = "0.5.0"

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

__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            value: object = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'bakeoff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
