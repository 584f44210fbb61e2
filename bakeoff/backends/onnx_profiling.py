"""Which modules of the user's model each node of ONNX Runtime computes for, and its profile of calls.

PyTorch's exporter writes into each node the scopes that it was traced in. ONNX Runtime drops them when it optimises,
but keeps the names of the values that nodes hand on. So a node of the optimised graph stands for all nodes of the
exported one that lie between its inputs and its outputs.
"""

from __future__ import annotations

import ast
import bisect
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.backends import profiling
from bakeoff.backends.profiling import NOBODY, Kernel, Modules, Owner, TracedSpan
from bakeoff.backends.torch_profiling import CALL, TorchProfiler, Trace, traced, walk
from bakeoff.models.lazily import onnx, torch

SCOPES = "pkg.torch.onnx.name_scopes"
RULES = "pkg.onnxscript.rewriter.rule_name"
"""Keys of what the exporter writes into a node: the modules around it, and the rules that have rewritten it."""

MODULES = "bakeoff.modules"
"""Key of what we write into a node of a quantised model: the paths of its modules, as JSON."""

INSERTED = frozenset(("ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost"))
"""Operators of ONNX Runtime's own that only move values."""

QUANTISING = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""Operators that a quantiser puts around layers. They cast, and have no scopes."""

LAYOUT = INSERTED | QUANTISING | {"Cast", "Reshape", "Transpose", "Expand", "Squeeze", "Unsqueeze"}
"""Operators that only move or cast values. Those that the exported graph does not have were inserted."""

BLOCKED = "_nchwc"
"""Ending of the names of convolutions over blocks of channels. Before it stands the value that they make."""

OPTIMISED = "optimised.onnx"
EXECUTOR = "ONNX Runtime's executor"


@dataclass(frozen=True)
class Node:
    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    modules: Modules = ()  # that it was exported from, with those that the exporter has merged into it; none: not known


def nodes_at(path: Path) -> list[Node]:
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    nodes = [
        Node(
            node.name,
            node.op_type,
            tuple(filter(None, node.input)),
            tuple(filter(None, node.output)),
            _modules_of(node, weights),
        )
        for node in graph.node
    ]
    return without_constants(nodes, [value.name for value in graph.input if value.name not in weights])


def keep_modules(path: Path, exported: Sequence[Node]) -> None:
    """Write the modules of each node into an ONNX file that a quantiser has made of the exported nodes, because
    quantisers drop the scopes of what they rewrite."""
    owners = owners_of(exported, nodes_at(path))
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        if node.name in owners:
            node.metadata_props.add(key=MODULES, value=json.dumps(owners[node.name].modules))
    onnx.save(model, path)


def without_constants(nodes: Sequence[Node], inputs: Iterable[str]) -> list[Node]:
    """Return the nodes, in topological order, that depend on these inputs. An engine computes the others once."""
    computed = set(inputs)
    depending = []
    for node in nodes:
        if computed & set(node.inputs):
            computed.update(node.outputs)
            depending.append(node)
    return depending


def _modules_of(node: Any, weights: Set[str]) -> Modules:
    """Return the modules of an exported node. A fused node has one module's scope, and weights named after others."""
    said = {prop.key: prop.value for prop in node.metadata_props}
    if MODULES in said:
        return tuple(json.loads(said[MODULES]))
    scopes = ast.literal_eval(said.get(SCOPES) or "[]")
    merged = [name for name in node.input if name in weights and "." in name] if "Fuse" in said.get(RULES, "") else []
    paths = [*(name.rpartition(".")[0] for name in merged), *scopes[-2:-1]]  # the last name is the node's own
    return profiling.in_order(map(profiling.within_flat, paths)) if len(scopes) > 1 else ()


def modules_by_node(exported: Sequence[Node]) -> dict[str, Modules]:
    """Return the modules of each exported node by its name. Where no node has any, all are the model's own."""
    nobody: Modules = () if any(node.modules for node in exported) else ("",)
    return {node.name: node.modules or nobody for node in exported}


def graph_of(exported: Sequence[Node]) -> dict[str, profiling.GraphNode]:
    modules = modules_by_node(exported)
    made_by = {output: node.name for node in exported for output in node.outputs}
    return {
        node.name: profiling.GraphNode(
            modules[node.name],
            tuple(made_by[value] for value in node.inputs if value in made_by),
            moves=node.operator in LAYOUT,
        )
        for node in exported
    }


def owners_of(exported: Sequence[Node], optimised: Sequence[Node]) -> dict[str, Owner]:
    """Return the modules of each node of the optimised graph, by its name. A node names the steps that make its
    outputs. A convolution over blocks names the one before the end of its name."""
    graph = graph_of(exported)
    made_by = {output: node.name for node in exported for output in node.outputs}
    makers = {output: node.name for node in optimised for output in node.outputs}
    convolutions = frozenset(node.name for node in exported if node.operator == "Conv")
    nodes, inserted = dict[str, profiling.EngineNode](), set[str]()
    for node in optimised:
        steps = profiling.in_order(
            made_by[value] for value in (*node.outputs, node.name.removesuffix(BLOCKED)) if value in made_by
        )
        inputs = tuple(makers[value] for value in node.inputs if value in makers)
        begins = convolutions if node.name.endswith(BLOCKED) else frozenset()
        nodes[node.name] = profiling.EngineNode(steps, inputs, node.operator in LAYOUT, begins)
        if node.operator in INSERTED or (node.operator in LAYOUT and not steps):
            inserted.add(node.name)
    works_for = {name: steps for name, steps in profiling.steps_of(nodes, graph).items() if name not in inserted}
    taken_by = {step: name for name, steps in works_for.items() for step in steps}
    for name, step in graph.items():  # additions and activations that a blocked convolution has taken in
        before = [taken_by[source] for source in step.inputs if source in taken_by]
        taker = next((node for node in reversed(before) if node.endswith(BLOCKED)), "")
        if name not in taken_by and taker:
            taken_by[name] = taker
            works_for[taker].append(name)
    return dict.fromkeys(inserted, profiling.MOVE) | {
        name: profiling.owner_of(steps, graph) for name, steps in works_for.items()
    }


def calls_in(events: Sequence[Mapping[str, Any]], owners: Mapping[str, Owner]) -> list[list[TracedSpan]]:
    """Return the spans of each call in a profile of ONNX Runtime. The executor's own time before a node counts for the
    node's modules."""
    runs = sorted((event for event in events if event.get("name") == "model_run"), key=lambda event: event["ts"])
    nodes = [event for event in events if is_node(event)]
    calls = []
    for run in runs:
        begun, ended = run["ts"], run["ts"] + run["dur"]
        spans = [span_of(node, begun, owners) for node in nodes if begun <= node["ts"] < ended]
        calls.append(profiling.with_gaps(spans, run["dur"], EXECUTOR, owners=lambda _, after: after.modules))
    return calls


def is_node(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time")


def name_of(event: Mapping[str, Any]) -> str:
    return str(event["name"]).removesuffix("_kernel_time")


def span_of(event: Mapping[str, Any], begun: float, owners: Mapping[str, Owner]) -> TracedSpan:
    operator = str(event["args"]["op_name"])
    owner = owners.get(name_of(event), profiling.MOVE if operator in LAYOUT else NOBODY)
    return owner.span(operator, event["ts"] - begun, event["dur"])


class SessionProfiler(profiling.NodeProfiler):
    """A second session of the same model with ONNX Runtime's own profiler."""

    engine = "ONNX Runtime"
    source = "ONNX Runtime's profile, and the scopes that the exporter writes into nodes"

    def __init__(self, open_session: Callable[[str, str], Any], bind: Callable[[Any], Any], exported: Path) -> None:
        """`open_session` takes the prefix of the profile and the path of the optimised graph."""
        self._folder = tempfile.TemporaryDirectory()
        optimised = Path(self._folder.name, OPTIMISED)
        self._session = open_session(f"{self._folder.name}/profile", str(optimised))
        self._binding = bind(self._session)
        nodes = nodes_at(exported)
        self.given_nodes = len(nodes)
        self.owners = owners_of(nodes, nodes_at(optimised)) if optimised.exists() else {}

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def calls(self) -> list[list[TracedSpan]]:
        return calls_in(self._events(), self.owners)

    def kernels(self) -> list[Kernel]:
        """Make the session's first calls on a GPU, and return the kernels of the second run in the order of their
        launches: the first one tries algorithms."""
        with traced(on_cuda=True) as traces:
            for _ in range(2):
                with torch.autograd.profiler.record_function(CALL):
                    self.run()
                    torch.cuda.synchronize()
        return kernels_in(traces[0], self._events(), self.owners)

    def close(self) -> None:
        self._folder.cleanup()

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads(Path(self._session.end_profiling()).read_text())
        return events


def on_device(nodes: SessionProfiler, run: Callable[[], None]) -> profiling.Profiler:
    """Return a profiler by kernels of `run`, which calls a session on a GPU. `nodes` profiles a second session, whose
    kernels run in the same order: a replayed graph names no nodes."""
    with nodes:
        profiler = TorchProfiler(run, True, [nodes.kernels()], work=nodes.work())
    profiler.source = f"torch.profiler, with the nodes of {nodes.source}"
    return profiler


def kernels_in(trace: Trace, events: Sequence[Mapping[str, Any]], owners: Mapping[str, Owner]) -> list[Kernel]:
    """Return the kernels of the second run of a session that both profiles show, with the modules of their nodes."""
    in_order_of_time = sorted(events, key=lambda event: event.get("ts", 0))
    nodes = [event for event in in_order_of_time if is_node(event)]
    runs = [event for event in in_order_of_time if event.get("name") == "model_run"]
    begun = [node["ts"] for node in nodes]
    of_nodes = [
        run for run in runs if bisect.bisect(begun, run["ts"] + run["dur"]) > bisect.bisect_left(begun, run["ts"])
    ]
    calls = trace.named(CALL)
    if len(of_nodes) < 2 or not calls:
        return []
    # the clocks, in nanoseconds and microseconds, are set so that most launches happen within nodes
    zero_ns, zero_us = calls[0].begun_ns, runs[0]["ts"]
    ran = {event.correlation: event for event, _ in trace.on_device}
    launches = [
        ((event.begun_ns - zero_ns) / 1e3 + zero_us, ran[event.correlation].name)
        for event in walk(calls)
        if event.name.startswith("cu") and event.correlation in ran  # of CUDA's runtime or driver
    ]

    def node_at(us: float) -> Mapping[str, Any] | None:  # a microsecond more, because times are cut to whole ones
        place = bisect.bisect(begun, us) - 1
        return nodes[place] if place >= 0 and us <= begun[place] + nodes[place]["dur"] + 1 else None

    # a call begins before its first run, and ends after its last one
    most_us = (calls[-1].ended_ns - zero_ns) / 1e3 - (runs[-1]["ts"] + runs[-1]["dur"] - zero_us)
    shifts_us = range(max(1, int(most_us)))
    shift_us = middle_of_best([sum(node_at(us - shift) is not None for us, _ in launches) for shift in shifts_us])
    second = of_nodes[1]
    kernels = []
    for us, name in launches:
        if second["ts"] <= us - shift_us <= second["ts"] + second["dur"]:
            node = node_at(us - shift_us)
            owner = NOBODY if node is None else owners.get(name_of(node), NOBODY)
            kernels.append(Kernel(name, owner.modules))
    return kernels


def middle_of_best(counts: Sequence[int]) -> float:
    """Return the place of the largest count. Where equal ones follow it, it is the middle of them."""
    first = counts.index(max(counts))
    last = next((place - 1 for place in range(first, len(counts)) if counts[place] < counts[first]), len(counts) - 1)
    return (first + last) / 2
