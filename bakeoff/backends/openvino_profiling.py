"""Which modules of the user's model each node of OpenVINO computes for, and its times of calls.

OpenVINO names a node after the node of torch's graph that it was converted from, such as
`linear_1/aten.linear.default/Add`. The model that runs tells of each of its nodes which ones it was fused from.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bakeoff.backends.inductor_profiling import computes_nothing, module_of_node
from bakeoff.backends.onnx_profiling import LAYOUT, modules_by_node, nodes_at
from bakeoff.backends.profiling import (
    NOBODY,
    ROUNDED_OFF,
    WARMING_CALLS,
    CompilerWork,
    Kind,
    Modules,
    Owner,
    Profiler,
    TracedSpan,
    in_order,
    in_sequence,
    within_flat,
)
from bakeoff.records.text import counted

EMPTY_CALLS = 200
"""Calls of an empty model, which tell what a request takes beside its nodes."""

MOVES = frozenset(("Reorder", "Convert", "MemoryInput", "MemoryOutput"))
"""Types of layers that cast, or change how values lie in memory."""

MOVE = Owner((), Kind.COPY)


@dataclass
class Converted:
    """The modules of the nodes of torch's or ONNX's graph, by the names that OpenVINO builds its own names from."""

    modules: dict[str, Modules] = field(default_factory=dict)  # none: the node casts for a quantiser
    views: set[str] = field(default_factory=set)  # nodes that compute nothing
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of the nodes that each one reads from


def converted_from_onnx(path: Path) -> Converted:
    """Return the modules of the nodes in an ONNX file. OpenVINO also calls a node by the name of what it makes."""
    nodes = nodes_at(path)
    modules = modules_by_node(nodes)
    made_by = {name: node.name for node in nodes for name in node.outputs}
    converted = Converted()
    for node in nodes:
        inputs = tuple(made_by[name] for name in node.inputs if name in made_by)
        for name in (node.name, *node.outputs):
            converted.inputs[name] = inputs
            if modules[node.name] or node.operator in LAYOUT:
                converted.modules[name] = modules[node.name]
    return converted


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
        for node in decoder.pt_module.graph.nodes:
            # no kernel has taken in what depends on no input: OpenVINO computes that once, or in a node of its own
            inputs = tuple(each.name for each in node.all_input_nodes if each.name in converted.inputs)
            if inputs or node.op == "placeholder":
                converted.inputs[node.name] = inputs
            if node.meta.get("nn_module_stack"):
                converted.modules[node.name] = (within_flat(module_of_node(node)),)
            if computes_nothing(node):
                converted.views.add(node.name)
        return decoder

    TorchFXPythonDecoder.from_exported_program = staticmethod(noting)
    try:
        yield converted
    finally:
        TorchFXPythonDecoder.from_exported_program = original


@dataclass(frozen=True)
class RuntimeNode:
    """A node of the model that runs."""

    name: str
    kind: str
    fused_from: tuple[str, ...]
    inputs: tuple[str, ...]  # names of the nodes that it reads from


def runtime_nodes(compiled: Any) -> list[RuntimeNode]:
    """Return the nodes of the model that runs, in the order in which they are executed."""
    nodes = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        names = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        inputs = tuple(port.get_node().get_friendly_name() for port in node.input_values())
        sources = tuple(filter(None, names.split(",")))
        nodes.append(RuntimeNode(node.get_friendly_name(), info["layerType"].astype(str), sources, inputs))
    return nodes


def owners_of(nodes: Sequence[RuntimeNode], converted: Converted) -> dict[str, Owner]:
    """Return the modules of each node by its name.

    OpenVINO does not tell all that a node was fused from: a product that has taken in a scale bears the scale's name
    alone. So a node also works for what is before it in torch's graph and has no node of its own. A node that OpenVINO
    has renamed works for what is so before those that read from it. If there is nothing, its modules are not known.
    """
    names = {node.name for node in nodes}
    keys = {node.name: keys_of(node, names, converted) for node in nodes}
    has_node = {key for each in keys.values() for key in each}
    owners: dict[str, Owner] = {}
    for node in nodes:
        readers = [] if keys[node.name] else [each.name for each in nodes if node.name in each.inputs]
        origins = keys[node.name] or [key for name in readers for key in keys[name]]
        swallowed = [each for key in origins for each in swallowed_before(key, has_node, converted.inputs)]
        known = [*swallowed, *keys[node.name]]
        computing = [key for key in known if key not in converted.views] or known
        paths = in_order(path for key in computing for path in converted.modules.get(key, ()))
        is_move = node.kind in MOVES or (not paths and any(key in converted.modules for key in known))
        owners[node.name] = MOVE if is_move else Owner(paths)
    return owners


def keys_of(node: RuntimeNode, names: Set[str], converted: Converted) -> list[str]:
    """Return the nodes of torch's or ONNX's graph that a node stands for: it bears the name of one, or was fused from
    them. OpenVINO also says that a product with rounded weights was fused from a node before it that runs apart."""
    sources = (node.name, *(name for name in node.fused_from if name not in names))
    keys = dict.fromkeys(name.partition("/")[0] for name in sources)
    return [key for key in keys if key in converted.modules]


def swallowed_before(key: str, has_node: Set[str], inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes of the graph on the way to `key` that no node stands for, back to those that have one."""
    swallowed: dict[str, None] = {}
    waiting = list(inputs.get(key, ()))
    while waiting:
        name = waiting.pop()
        if name not in has_node and name not in swallowed:
            swallowed[name] = None
            waiting += inputs.get(name, ())
    return list(reversed(swallowed))


Means = Mapping[str, tuple[str, float]]
"""The type of each node and its mean time in microseconds, by its name."""


def means_of(infos: Sequence[Any]) -> Means:
    """Return the mean times of all calls so far, in the order in which nodes run."""
    return {info.node_name: (info.node_type, info.real_time.total_seconds() * 1e6) for info in infos}


def spans_between(
    before: Means, calls_before: int, after: Means, calls: int, owners: Mapping[str, Owner]
) -> list[TracedSpan]:
    """Return the mean of the calls that came after the first `calls_before`, from means over all calls.

    OpenVINO tells how long each node took and not when it began: the spans follow in order.
    """

    def lasted_us(name: str, mean_us: float) -> float:
        return (mean_us * calls - before.get(name, ("", 0.0))[1] * calls_before) / (calls - calls_before)

    return in_sequence(
        (kind, owners.get(name, MOVE if kind in MOVES else NOBODY), lasted_us(name, mean_us))
        for name, (kind, mean_us) in after.items()
    )


def lost_in_rounding(
    missing_us: float, reached_us: float, nodes: Sequence[RuntimeNode], owners: Mapping[str, Owner]
) -> list[TracedSpan]:
    """Return what is missing of a call as spans of its nodes, the same for each and up to a microsecond.

    OpenVINO cuts each time to whole microseconds, and their mean again: a node loses a microsecond on average.
    """
    each_us = min(1.0, missing_us / len(nodes)) if nodes else 0.0
    return in_sequence(((ROUNDED_OFF, owners[node.name], each_us) for node in nodes), begun_us=reached_us)


def time_of_empty_call_us() -> float:
    """Return what a call of a model without any work takes: the mean of the fastest quarter, in microseconds."""
    import numpy
    import openvino
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


class RequestProfiler(Profiler):
    """The same model compiled once more, with OpenVINO's performance counters."""

    source = "OpenVINO's get_profiling_info, in whole microseconds for each node"
    tells_calls_apart = False

    def __init__(self, compiled: Any, bind: Callable[[Any], None], converted: Converted) -> None:
        self._request = compiled.create_infer_request()
        bind(self._request)
        nodes = runtime_nodes(compiled)
        self._nodes = [node for node in nodes if node.kind not in ("Const", "Input", "Output")]
        self._owners = owners_of(nodes, converted)
        self._calls = 0
        self._warm: Means = {}
        self._walls_us: list[float] = []

    def run(self) -> None:
        if self._calls == WARMING_CALLS:
            self._warm = means_of(self._request.get_profiling_info())
        begun_ns = time.perf_counter_ns()
        self._request.infer(share_outputs=True)
        self._walls_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
        self._calls += 1

    def calls(self) -> list[list[TracedSpan]]:
        means = means_of(self._request.get_profiling_info())
        spans = spans_between(self._warm, min(WARMING_CALLS, self._calls - 1), means, self._calls, self._owners)
        ended_us = sum(span.lasted_us for span in spans)
        request = TracedSpan(
            name="OpenVINO's request, as of an empty model",
            kind=Kind.FRAMEWORK,
            begun_us=ended_us,
            lasted_us=time_of_empty_call_us(),
        )
        spans.append(request)
        walls_us = sorted(self._walls_us[WARMING_CALLS:] or self._walls_us)
        wall_us = statistics.fmean(walls_us[: max(1, len(walls_us) // 4)])  # others may have held up the rest
        missing_us = wall_us - ended_us - request.lasted_us
        return [[*spans, *lost_in_rounding(missing_us, request.lasted_us + ended_us, self._nodes, self._owners)]]

    def work(self) -> CompilerWork:
        joined = sum(len(node.fused_from) > 1 for node in self._nodes)
        moves = sum(node.kind in MOVES for node in self._nodes)
        fact = (
            f"OpenVINO runs {counted(len(self._nodes), 'node')}. Fused from several operators: {joined}. To cast or "
            f"change a layout: {moves}."
        )
        return CompilerWork(facts=[fact])
