"""Profilers of what runs through torch: eager by hooks around its modules, and compiled code by torch's profiler."""

from __future__ import annotations

import contextlib
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bakeoff.backends import profiling
from bakeoff.backends.inductor_profiling import module_of_node
from bakeoff.backends.profiling import CompilerWork, Kernel, Kind, Modules, ProfiledKernel, TracedSpan
from bakeoff.models.lazily import torch

CALL = "bakeoff::call"
SCOPE = "bakeoff::module::"

SPLIT_CALLS = 3
"""Calls under torch's profiler that show which operators a module's own time consists of."""

REGION = "Torch-Compiled Region: "
"""Beginning of the name of an event that is one call of code that Dynamo compiled. Its id follows, such as `0/1`."""

CONTAINERS = (
    CALL,
    "## Call CompiledFxGraph",
    REGION,
    "TorchDynamo Cache Lookup",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper",
    "CompiledFunction",
    "forward",
    "ProfilerStep",
    "inductor_wrapper_call",
    "aoti_runtime",
    "AOTInductorModelRunImpl",
)
"""Beginnings of the names of events that only hold others: their own time is the framework's."""

GRAPHS = ("## Call CompiledFxGraph",)
"""Beginnings of the names of events that are one call of one compiled graph."""

QUANTISING = frozenset(
    f"{way}_per_{what}" for way in ("quantize", "dequantize") for what in ("tensor", "channel", "token")
)
"""Operators that a quantiser puts around layers. They bear no name of a module."""

COPIES = QUANTISING | {"copy_", "clone", "contiguous", "to", "_to_copy", "_reshape_copy", "pin_memory", "detach_copy"}

NOT_SEEN = "Python and dispatch"
WAITS = "GPU idle"


@dataclass
class Event:
    """One event of torch's profiler, with those that happened inside of it."""

    name: str
    begun_ns: int
    ended_ns: int
    correlation: int
    inside: list[Event]

    @property
    def lasted_us(self) -> float:
        return (self.ended_ns - self.begun_ns) / 1e3


@dataclass
class Trace:
    """What torch's profiler saw: the host's events as a tree, and what ran on a GPU with the event that launched it."""

    roots: list[Event]
    on_device: list[tuple[Event, int]]  # and the correlation of its launching operator

    def named(self, prefix: str) -> list[Event]:
        return [event for event in walk(self.roots) if event.name.startswith(prefix)]


def walk(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        yield event
        yield from walk(event.inside)


@contextlib.contextmanager
def traced(on_cuda: bool) -> Iterator[list[Trace]]:
    """Trace the block with torch's profiler. The yielded list holds the trace when the block has ended."""
    traces: list[Trace] = []
    with torch.autograd.profiler.profile(use_kineto=True, use_device="cuda" if on_cuda else None) as profiler:
        yield traces
    assert profiler.kineto_results is not None
    host: defaultdict[int, list[Event]] = defaultdict(list)
    on_device = []
    for each in profiler.kineto_results.events():
        begun_ns = each.start_ns()
        event = Event(each.name(), begun_ns, begun_ns + each.duration_ns(), each.correlation_id(), [])
        if each.device_type().name == "CPU":
            host[each.start_thread_id()].append(event)
        elif each.duration_ns() and not each.name().startswith((SCOPE, CALL)):  # Kineto repeats scopes on the GPU
            on_device.append((event, each.linked_correlation_id()))
    mine = next((thread for thread in host.values() if any(event.name == CALL for event in thread)), [])
    on_device.sort(key=lambda pair: pair[0].begun_ns)
    traces.append(Trace(nested(mine), on_device))


def nested(events: Sequence[Event]) -> list[Event]:
    roots: list[Event] = []
    stack: list[Event] = []
    for event in sorted(events, key=lambda event: (event.begun_ns, -event.ended_ns)):
        while stack and event.begun_ns >= stack[-1].ended_ns:
            stack.pop()
        (stack[-1].inside if stack else roots).append(event)
        stack.append(event)
    return roots


def kind_of(name: str) -> Kind:
    return Kind.COPY if name.rpartition("::")[2] in COPIES or name.startswith("Memcpy") else Kind.COMPUTE


def module_paths(module: torch.nn.Module) -> dict[int, str]:
    return {id(child): path for path, child in module.named_modules()}


def is_on_cuda(module: torch.nn.Module) -> bool:
    return any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers()))


@contextlib.contextmanager
def around_modules(
    module: torch.nn.Module, enter: Callable[[str], None], leave: Callable[[str, object], None]
) -> Iterator[None]:
    """Call `enter` and `leave` around the forward pass of each module with its path, and `leave` with all that it was
    given and returned. Modules inside of a compiled graph call no hooks."""
    registry, paths = torch.nn.modules.module, module_paths(module)

    def before(child: torch.nn.Module, *_: object) -> None:
        if (path := paths.get(id(child))) is not None:
            enter(path)

    def after(child: torch.nn.Module, *given_and_returned: object) -> None:
        if (path := paths.get(id(child))) is not None:
            leave(path, given_and_returned)

    hidden: Callable[[Any], Any] = torch.compiler.disable if "torch._dynamo" in sys.modules else lambda hook: hook
    always = {"always_call": True, "with_kwargs": True}
    # these are global, because hooks of a module's own turn the fast path of transformer layers off
    hooks = [
        registry.register_module_forward_pre_hook(hidden(before)),
        registry.register_module_forward_hook(hidden(after), **always),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
            # torch keeps this mark of a hook that is removed
            registry._global_forward_hooks_with_kwargs.pop(hook.id, None)


class ModuleProfiler(profiling.Profiler):
    """Times the modules of an eager model on the CPU by hooks, and splits their own times as torch's profiler sees it:
    a hook costs a microsecond, and the profiler several for each operator."""

    source = "hooks around the modules; the operators in them by torch.profiler"

    def __init__(self, run: Callable[[], None], module: torch.nn.Module) -> None:
        self._run, self._module = run, module
        self._calls: list[list[tuple[str, bool, int]]] = []
        self._events: list[tuple[str, bool, int]] = []
        self._hooks = contextlib.ExitStack()
        now_ns = time.perf_counter_ns
        self._hooks.enter_context(
            around_modules(
                module,
                lambda path: self._events.append((path, True, now_ns())),
                lambda path, _: self._events.append((path, False, now_ns())),
            )
        )

    def run(self) -> None:
        self._events = events = [("", True, time.perf_counter_ns())]
        self._run()
        events.append(("", False, time.perf_counter_ns()))
        self._calls.append(events)

    def close(self) -> None:
        self._hooks.close()

    def calls(self) -> list[list[TracedSpan]]:
        self._hooks.close()
        return [own_times(events) for events in self._calls]

    def parts(self, calls: Sequence[Sequence[TracedSpan]]) -> list[ProfiledKernel]:
        with traced(on_cuda=False) as traces, scopes_around(self._module):
            for _ in range(SPLIT_CALLS):
                with torch.autograd.profiler.record_function(CALL):
                    self._run()
        shares = shares_in(traces[0])
        parts: list[ProfiledKernel] = []
        for whole in super().parts(calls):
            for (name, kind), (share, runs) in shares.get(
                whole.modules[0], {(NOT_SEEN, Kind.FRAMEWORK): (1.0, 1.0)}
            ).items():
                parts.append(
                    ProfiledKernel(name=name, modules=whole.modules, kind=kind, ms=whole.ms * share, runs=runs)
                )
        return parts


def own_times(events: Sequence[tuple[str, bool, int]]) -> list[TracedSpan]:
    """Return when each module ran itself, and not one of its children, from what entered and left in order."""
    spans: list[TracedSpan] = []
    stack: list[str] = []
    first_ns = last_ns = events[0][2]
    for path, enters, now_ns in events:
        if stack and now_ns > last_ns:
            spans.append(
                profiling.Owner((stack[-1],)).span(stack[-1], (last_ns - first_ns) / 1e3, (now_ns - last_ns) / 1e3)
            )
        if enters:
            stack.append(path)
        else:
            stack.pop()
        last_ns = now_ns
    return spans


def shares_in(trace: Trace) -> dict[str, dict[tuple[str, Kind], tuple[float, float]]]:
    """Return of each module the share of its own time that each of its operators takes, with the operator's runs. The
    rest is Python, and torch's dispatch."""
    own_us: defaultdict[str, float] = defaultdict(float)
    taken_us: defaultdict[str, defaultdict[tuple[str, Kind], list[float]]] = defaultdict(lambda: defaultdict(list))
    calls = trace.named(CALL)
    for event in walk(calls):
        if not event.name.startswith((SCOPE, CALL)):
            continue
        path = event.name.removeprefix(SCOPE) if event.name.startswith(SCOPE) else ""
        own_us[path] += event.lasted_us
        for child in outermost_in(event):
            if child.name.startswith(SCOPE):
                own_us[path] -= child.lasted_us
            else:
                taken_us[path][child.name, kind_of(child.name)].append(child.lasted_us)
    shares: dict[str, dict[tuple[str, Kind], tuple[float, float]]] = {}
    for path, whole_us in own_us.items():
        of_path = {
            key: (min(1.0, sum(times) / max(whole_us, 1e-9)), len(times) / len(calls))
            for key, times in taken_us[path].items()
        }
        rest = max(0.0, 1.0 - sum(share for share, _ in of_path.values()))
        shares[path] = {**of_path, (NOT_SEEN, Kind.FRAMEWORK): (rest, 1.0)}
    return shares


class TorchProfiler(profiling.Profiler):
    """Traces calls with torch's profiler, and finds the modules of each operator or GPU kernel. `kernels` has those of
    each compiled graph in the order of its code, and `compile_ids` are Dynamo's names of the graphs."""

    source = "torch.profiler"

    def __init__(
        self,
        run: Callable[[], None],
        on_cuda: bool,
        kernels: Sequence[Sequence[Kernel]] = (),
        module: torch.nn.Module | None = None,
        work: CompilerWork | None = None,
        compile_ids: Sequence[str] = (),
    ) -> None:
        self._run, self._on_cuda, self._kernels, self._module = run, on_cuda, kernels, module
        # hooks around these modules name the owners in eager, and the module that calls a graph
        self._paths = set(module_paths(module).values()) if module is not None else set()
        self._work, self._compile_ids = work or CompilerWork(), compile_ids
        self._stack = contextlib.ExitStack()
        self._traces: list[Trace] | None = None
        self._ran_graph = False

    def run(self) -> None:
        if self._traces is None:
            self._traces = self._stack.enter_context(traced(self._on_cuda))
            if self._module is not None:
                self._stack.enter_context(scopes_around(self._module))
        with torch.autograd.profiler.record_function(CALL):
            self._run()
            if self._on_cuda:
                torch.cuda.synchronize()

    def calls(self) -> list[list[TracedSpan]]:
        assert self._traces is not None
        self._stack.close()
        trace = self._traces[0]
        calls = trace.named(CALL)
        if self._on_cuda:
            return [self._on_device(trace, call) for call in calls]
        return [self._on_host(call) for call in calls]

    def work(self) -> CompilerWork:
        if self._ran_graph or self._module is None or not self._kernels:
            return self._work
        eager = "No compiled graph ran in the profiled calls: torch.compile leaves them to eager."
        return self._work.but(facts=[*self._work.facts, eager])

    def close(self) -> None:
        self._stack.close()

    def _on_host(self, call: Event) -> list[TracedSpan]:
        operators = [pair for run in self._runs_of(call) for pair in run.operators]
        spans = [span_of(event, call, modules) for event, modules in operators if event.lasted_us > 0 or modules]
        return profiling.with_gaps(spans, call.lasted_us, NOT_SEEN, owners=owner_between)

    def _on_device(self, trace: Trace, call: Event) -> list[TracedSpan]:
        owners: dict[int, tuple[str, Modules]] = {}
        runs = self._runs_of(call)
        for event, modules in (pair for run in runs for pair in run.operators):
            for below in walk([event]):
                owners[below.correlation] = (event.name, modules)
        ran = [pair for pair in trace.on_device if call.begun_ns <= pair[0].begun_ns < call.ended_ns]
        in_graphs = [run for run in runs if run.kernels is not None]
        kernels = [kernel for run in in_graphs for kernel in run.kernels or ()]
        if any(run.kernels is None and run.is_graph for run in runs) or not in_graphs:
            kernels = [kernel for graph in self._kernels for kernel in graph]
        by_name = modules_by_name(kernels, [event.name for event, _ in ran])
        spans, reached_ns = [], call.begun_ns
        for (event, linked), named in zip(ran, by_name, strict=True):
            _, modules = owners.get(linked, ("", ()))
            begun_ns = max(event.begun_ns, reached_ns)  # kernels of several streams may overlap
            if event.ended_ns <= begun_ns:
                continue
            shown = Event(event.name, begun_ns, event.ended_ns, 0, [])
            spans.append(span_of(shown, call, named or modules))
            reached_ns = event.ended_ns
        return profiling.with_gaps(spans, call.lasted_us, WAITS, Kind.WAITING)

    def _runs_of(self, call: Event) -> list[GraphRun]:
        """Return the outermost operators of a call with the modules that they compute for, graph by graph."""
        runs = runs_in(call)
        self._ran_graph |= any(run.is_graph for run in runs)
        if not self._kernels:
            return runs
        # the hooks know better than names of operators who calls what runs in eager
        matches_loose = self._module is None and not any(run.is_graph for run in runs)
        counts: Counter[int] = Counter()
        for run in runs:
            if not run.is_graph and not matches_loose:
                continue
            graph, owners = self._best_owners(run, counts)
            counts[graph] += 1
            run.operators = [
                (event, self._within(run.scope, modules))
                for (event, _), modules in zip(run.operators, owners, strict=True)
            ]
            if graph >= 0:
                run.kernels = [
                    Kernel(kernel.name, self._within(run.scope, kernel.modules)) for kernel in self._kernels[graph]
                ]
        return runs

    def _within(self, scope: Modules, modules: Modules) -> Modules:
        """Return the paths in the model of modules whose paths begin at the module that calls their graph, or that
        module where there is none."""
        if not scope:
            return modules
        joined = (f"{scope[0]}.{path}".strip(".") for path in modules)
        return profiling.in_order(path if path in self._paths else scope[0] for path in joined)

    def _best_owners(self, run: GraphRun, counts: Counter[int]) -> tuple[int, list[Modules]]:
        """Return the graph that a run is of, and its modules of the run's operators."""
        ran = [profiling.operator_name(event.name) for event, _ in run.operators]
        named = [number for number, compile_id in enumerate(self._compile_ids) if compile_id == run.compile_id]
        best: tuple[int, list[Modules]] = -1, [()] * len(ran)
        most = (0, 0)
        # without Dynamo's name it is the graph that fits best, and of equal ones that with the fewest runs in this call
        for number in named or range(len(self._kernels)):
            owners = profiling.owners_in_order(self._kernels[number], ran)
            fitting = sum(map(bool, owners))
            if fitting and (fitting, -counts[number]) > most:
                most = fitting, -counts[number]
                best = number, owners
        return best


def graph_kernels(graph: torch.fx.Graph) -> list[Kernel]:
    """Return the operators that an exported graph calls in order, with the module that each was traced in."""
    kernels = []
    for node in graph.nodes:
        if node.op == "call_function":
            name = getattr(getattr(node.target, "_schema", None), "name", str(node.target))
            modules = (
                () if profiling.operator_name(name) in QUANTISING else (profiling.within_flat(module_of_node(node)),)
            )
            kernels.append(Kernel(name, modules))
    return kernels


def modules_by_name(kernels: Sequence[Kernel], ran: Sequence[str]) -> list[Modules]:
    """Return the modules of GPU kernels that have the names which the compiler gave them, as in a CUDA graph."""
    places = profiling.aligned([kernel.name for kernel in kernels], ran)
    of_kernels = {kernel.name: kernel.modules for kernel in kernels}
    return [
        of_kernels.get(name, ()) if place is None else kernels[place].modules
        for name, place in zip(ran, places, strict=True)
    ]


@contextlib.contextmanager
def scopes_around(module: torch.nn.Module) -> Iterator[None]:
    scopes: list[Any] = []

    def enter(path: str) -> None:
        scopes.append(torch.autograd.profiler.record_function(SCOPE + path))
        scopes[-1].__enter__()

    with warnings.catch_warnings(), around_modules(module, enter, lambda *_: scopes.pop().__exit__(None, None, None)):
        # torch.compile's own module calls the hooks, too, which do not know it
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks")
        yield


def is_container(event: Event) -> bool:
    return event.name.startswith(CONTAINERS)


def outermost_in(event: Event) -> Iterator[Event]:
    for child in event.inside:
        if is_container(child):
            yield from outermost_in(child)
        else:
            yield child


@dataclass
class GraphRun:
    """The outermost operators of one run of a compiled graph, or of what runs between such runs, with their modules."""

    scope: Modules  # the module that calls it, if that is known
    is_graph: bool
    compile_id: str = ""
    operators: list[tuple[Event, Modules]] = field(default_factory=list)
    kernels: list[Kernel] | None = None  # of the graph, where it is known


def runs_in(call: Event) -> list[GraphRun]:
    """Return the runs of compiled graphs in a call in order, and last what runs outside of them, which belongs to the
    modules in whose scope it runs."""
    runs: list[GraphRun] = []
    loose = GraphRun((), is_graph=False)

    def descend(event: Event, scope: Modules, compile_id: str, into: GraphRun) -> None:
        for child in event.inside:
            if child.name.startswith(GRAPHS):
                runs.append(GraphRun(scope, True, compile_id))
                descend(child, scope, compile_id, runs[-1])
            elif child.name.startswith(SCOPE):
                descend(child, (child.name.removeprefix(SCOPE),), compile_id, into)
            elif child.name.startswith(REGION):
                descend(child, scope, child.name.removeprefix(REGION), into)
            elif is_container(child):
                descend(child, scope, compile_id, into)
            else:
                into.operators.append((child, scope))

    descend(call, (), "", loose)
    return [run for run in (*runs, loose) if run.operators or run.is_graph]


def span_of(event: Event, call: Event, modules: Modules) -> TracedSpan:
    name = re.sub(r"^(aten::|graph_\d+_(?=cpp_))", "", event.name)
    return profiling.Owner(modules, kind_of(event.name)).span(
        name, (event.begun_ns - call.begun_ns) / 1e3, event.lasted_us
    )


def owner_between(before: TracedSpan, after: TracedSpan) -> Modules:
    """Return whose time the host takes between two operators of one module: it is what starting so many costs."""
    return after.modules if len(after.modules) == 1 and after.modules == before.modules else ()
