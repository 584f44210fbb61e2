"""Which modules of the user's model each node of OpenVINO computes for, and its times of calls.

OpenVINO names a node after the node of torch's graph that it was converted from, such as
`linear_1/aten.linear.default/Add`. The model that runs reports for each of its nodes which ones it was fused from.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bakeoff.backends import profiling
from bakeoff.backends.inductor_profiling import computes_nothing, module_of_node
from bakeoff.backends.onnx_profiling import graph_of, nodes_at
from bakeoff.models.lazily import openvino

EMPTY_CALLS = 200
"""Calls of an empty model, which show what a request takes beside its nodes."""

COMPUTES_NOTHING = ("Const", "Input", "Output")
"""Types of nodes that are no layers."""

MOVES = frozenset(("Reorder", "Convert", "MemoryInput", "MemoryOutput"))
"""Types of layers that cast, or change how values lie in memory."""


@dataclass
class Converted:
    """The nodes of torch's or ONNX's graph, by the names that OpenVINO builds its own names from."""

    graph: dict[str, profiling.GraphNode] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # further names of nodes


def converted_from_onnx(path: Path) -> Converted:
    """Return the nodes in an ONNX file. OpenVINO also calls a node by the name of what it makes."""
    nodes = nodes_at(path)
    return Converted(graph_of(nodes), {output: node.name for node in nodes for output in node.outputs})


@contextlib.contextmanager
def noting_modules() -> Iterator[Converted]:
    """Note the modules of the graph's nodes when OpenVINO converts an exported program in the block."""
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    converted = Converted()
    original = getattr(TorchFXPythonDecoder, "from_exported_program", None)
    if original is None:  # an older release, whose nodes then have no modules
        yield converted
        return

    def noting(*arguments: Any, **named: Any) -> Any:
        decoder = original(*arguments, **named)
        varying = set()
        for node in decoder.pt_module.graph.nodes:
            # no kernel has taken in what depends on no input: OpenVINO computes that once, or in a node of its own
            inputs = tuple(source.name for source in node.all_input_nodes if source.name in varying)
            if inputs or node.op == "placeholder":
                varying.add(node.name)
            modules = (profiling.within_flat(module_of_node(node)),) if node.meta.get("nn_module_stack") else ()
            converted.graph[node.name] = profiling.GraphNode(modules, inputs, computes_nothing(node))
        return decoder

    TorchFXPythonDecoder.from_exported_program = staticmethod(noting)
    try:
        yield converted
    finally:
        TorchFXPythonDecoder.from_exported_program = original


@dataclass(frozen=True)
class RuntimeNode:
    name: str
    kind: str
    fused_from: tuple[str, ...]
    inputs: tuple[str, ...]  # names of the nodes that it reads from


def runtime_nodes(compiled: Any) -> list[RuntimeNode]:
    nodes = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        names = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        inputs = tuple(port.get_node().get_friendly_name() for port in node.input_values())
        sources = tuple(filter(None, names.split(",")))
        nodes.append(RuntimeNode(node.get_friendly_name(), info["layerType"].astype(str), sources, inputs))
    return nodes


def owners_of(nodes: Sequence[RuntimeNode], converted: Converted) -> dict[RuntimeNode, profiling.Owner]:
    names, graph = {node.name for node in nodes}, converted.graph
    engine = {}
    for node in nodes:
        # a product with a scale fused in has the scale's name, and may name a node before it that runs apart
        sources = (node.name, *(name for name in node.fused_from if name not in names))
        keys = (name.partition("/")[0] for name in sources)
        steps = profiling.in_order(converted.names.get(key, key) for key in keys)
        sources_in_graph = tuple(step for step in steps if step in graph and (graph[step].modules or graph[step].moves))
        engine[node.name] = profiling.EngineNode(sources_in_graph, node.inputs, node.kind in MOVES)
    works_for = profiling.steps_of(engine, graph)
    return {
        node: profiling.MOVE if node.kind in MOVES else profiling.owner_of(works_for[node.name], graph)
        for node in nodes
    }


Means = Mapping[str, tuple[str, float]]
"""The type of each node and its mean time in microseconds, by its name."""


def means_of(infos: Sequence[Any]) -> Means:
    return {info.node_name: (info.node_type, info.real_time.total_seconds() * 1e6) for info in infos}


def spans_between(
    before: Means, calls_before: int, after: Means, calls: int, owners: Mapping[str, profiling.Owner]
) -> list[profiling.TracedSpan]:
    """Return the mean of the calls after the first `calls_before`, from means over all calls. The spans follow in
    order, since OpenVINO does not say when a node began."""

    def lasted_us(name: str, mean_us: float) -> float:
        return (mean_us * calls - before.get(name, ("", 0.0))[1] * calls_before) / (calls - calls_before)

    return profiling.in_sequence(
        (kind, owners.get(name, profiling.MOVE if kind in MOVES else profiling.NOBODY), lasted_us(name, mean_us))
        for name, (kind, mean_us) in after.items()
    )


def lost_in_rounding(
    missing_us: float, reached_us: float, owners: Collection[profiling.Owner]
) -> list[profiling.TracedSpan]:
    """Return what is missing of a call as spans of its nodes, the same for each: OpenVINO cuts each time and each mean
    to whole microseconds, so a node loses a microsecond on average."""
    lost_us = min(1.0, missing_us / len(owners)) if owners else 0.0
    return profiling.in_sequence(((profiling.ROUNDED_OFF, owner, lost_us) for owner in owners), begun_us=reached_us)


def time_of_empty_call_us() -> float:
    """Return what a call of a model without any work takes: the mean of the fastest quarter, in microseconds."""
    import numpy
    from openvino import opset13

    given = opset13.parameter([1], numpy.float32)
    core = openvino.Core()  # held, as is what it compiles: a request needs both
    compiled = core.compile_model(openvino.Model([opset13.result(given)], [given]), "CPU")
    request = compiled.create_infer_request()
    latencies_ns = []
    for _ in range(EMPTY_CALLS):
        begun_ns = time.perf_counter_ns()
        request.infer(share_outputs=True)
        latencies_ns.append(time.perf_counter_ns() - begun_ns)
    return statistics.fmean(sorted(latencies_ns)[: EMPTY_CALLS // 4]) / 1e3


class RequestProfiler(profiling.NodeProfiler):
    """The same model compiled once more, with OpenVINO's performance counters."""

    source = "OpenVINO's get_profiling_info, in whole microseconds for each node"
    tells_calls_apart = False
    engine = "OpenVINO"

    def __init__(self, compiled: Any, bind: Callable[[Any], None], converted: Converted) -> None:
        self._request = compiled.create_infer_request()
        bind(self._request)
        owners = owners_of(runtime_nodes(compiled), converted)
        self.owners = {node.name: owner for node, owner in owners.items() if node.kind not in COMPUTES_NOTHING}
        self.given_nodes = len(converted.graph)
        self._calls = 0
        self._warm: Means = {}
        self._walls_us: list[float] = []

    def run(self) -> None:
        if self._calls == profiling.WARMING_CALLS:
            self._warm = means_of(self._request.get_profiling_info())
        begun_ns = time.perf_counter_ns()
        self._request.infer(share_outputs=True)
        self._walls_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
        self._calls += 1

    def calls(self) -> list[list[profiling.TracedSpan]]:
        means = means_of(self._request.get_profiling_info())
        spans = spans_between(
            self._warm, min(profiling.WARMING_CALLS, self._calls - 1), means, self._calls, self.owners
        )
        ended_us = sum(span.lasted_us for span in spans)
        name = "OpenVINO's request, as of an empty model"
        request = profiling.Owner((), profiling.Kind.FRAMEWORK).span(name, ended_us, time_of_empty_call_us())
        spans.append(request)
        walls_us = sorted(self._walls_us[profiling.WARMING_CALLS :] or self._walls_us)
        wall_us = statistics.fmean(walls_us[: max(1, len(walls_us) // 4)])  # others may have held up the rest
        missing_us = wall_us - ended_us - request.lasted_us
        return [[*spans, *lost_in_rounding(missing_us, request.lasted_us + ended_us, self.owners.values())]]
