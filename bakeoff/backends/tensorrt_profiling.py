"""Which modules of the user's model each layer of a TensorRT engine computes for, and the times of its layers.

The engine's inspector says which nodes of the ONNX graph a layer was made from, and the exporter's metadata names the
modules of these nodes. The times are those that TensorRT gives to an `IProfiler` in each call.
"""
# If TensorRT is not installed, mypy takes its IProfiler for Any.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bakeoff.backends.onnx_profiling import modules_by_node, nodes_at
from bakeoff.backends.profiling import NOBODY, Kind, Modules, NodeProfiler, Owner, TracedSpan, in_order, in_sequence
from bakeoff.models.lazily import trt

MOVES = frozenset(("Reformat", "NoOp", "Cast", "Shuffle", "Transpose"))
"""Types of layers that cast, or change how values lie in memory."""


def owners_of(information: str, modules: Mapping[str, Modules]) -> dict[str, Owner]:
    """Return the modules of each layer in the inspector's JSON by its name. `modules` has those of each ONNX node."""
    return {str(layer.get("Name", "")): _owner(layer, modules) for layer in layers_in(information)}


def layers_in(information: str) -> list[dict[str, Any]]:
    """Return the layers in the inspector's JSON. Of an engine that was built without details, it has their names."""
    try:
        layers = json.loads(information, strict=False).get("Layers", [])
    except ValueError:
        # TensorRT does not escape what it quotes from the model
        return []
    return [layer if isinstance(layer, dict) else {"Name": layer} for layer in layers]


def _owner(layer: Mapping[str, Any], modules: Mapping[str, Modules]) -> Owner:
    name = str(layer.get("Name", ""))
    nodes = re.findall(r"\[ONNX Layer: ([^\]]+)\]", str(layer.get("Metadata", ""))) or name.split(" + ")
    owned = in_order(path for node in nodes for path in modules.get(node, ()))
    is_move = layer.get("LayerType") in MOVES
    return Owner(() if is_move and not owned else owned, Kind.COPY if is_move else Kind.COMPUTE)


Times = list[tuple[str, float]]
"""The name of each layer of one call and its time in milliseconds, in order."""


def collector_of(calls: list[Times]) -> trt.IProfiler:
    class Collector(trt.IProfiler):
        def report_layer_time(self, layer_name: str, ms: float) -> None:
            calls[-1].append((layer_name, ms))

    return Collector()


class LayerProfiler(NodeProfiler):
    """An engine's execution context with TensorRT's profiler in it. TensorRT does not report when a layer began."""

    engine = "TensorRT"
    source = "TensorRT's IProfiler, and the nodes that its inspector names for each layer"

    def __init__(self, context: trt.IExecutionContext, run: Callable[[], None], information: str, graph: Path) -> None:
        self._context, self._run = context, run
        self._calls: list[Times] = []
        nodes = nodes_at(graph)
        self.given_nodes = len(nodes)
        self.owners = owners_of(information, modules_by_node(nodes))
        self._collector = collector_of(self._calls)  # TensorRT does not keep it alive
        context.enqueue_emits_profile = True  # each call then ends with the times of its layers
        context.profiler = self._collector

    def run(self) -> None:
        self._calls.append([])
        self._run()

    def calls(self) -> list[list[TracedSpan]]:
        return [
            in_sequence((name, self.owners.get(name, NOBODY), ms * 1e3) for name, ms in times) for times in self._calls
        ]
