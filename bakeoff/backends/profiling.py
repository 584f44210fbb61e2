"""What a backend reports of a profiled call: which kernel or operator ran when, and for which modules of the user.

A profiled call is never a timed one. The harness times the profiled calls from outside, as it times any call, and says
what profiling costs.
"""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Self

from pydantic import Field

from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import MillisecondsOrZero
from bakeoff.records.text import counted

ROUNDED_OFF = "lost in rounding (estimated)"
"""The name of the parts that hold what a profiler has cut off the times of others."""


class Kind(StrEnum):
    COMPUTE = "compute"
    COPY = "copies, casts and layout"
    FRAMEWORK = "framework"
    WAITING = "waiting for the host"


class ProfiledKernel(Frozen):
    """A kernel or an operator in one call: all of its runs for the same modules together."""

    name: str  # in the library's words
    modules: tuple[str, ...] = ()  # paths of the modules that own it; "" is the model itself; empty: no module does
    kind: Kind = Kind.COMPUTE
    ms: MillisecondsOrZero  # in one profiled call
    runs: float  # in one call


class TracedSpan(Frozen):
    """One run of a kernel or an operator, in one call."""

    name: str
    modules: tuple[str, ...] = ()
    kind: Kind = Kind.COMPUTE
    begun_us: float  # since the call began
    lasted_us: float


class GraphBreak(Frozen):
    """A place at which a compiler left the user's code to Python."""

    reason: str
    place: str = ""  # `mine.py, line 12, in forward`


class CompilerWork(Frozen):
    """What a compiler did with a model, beyond the times of its parts."""

    breaks: list[GraphBreak] = Field(default_factory=list)
    recompilations: list[str] = Field(default_factory=list)  # each guard that failed, once
    fallbacks: list[str] = Field(default_factory=list)  # operators that were left to another engine, or why
    facts: list[str] = Field(default_factory=list)  # in one sentence each


Modules = tuple[str, ...]

WARMING_CALLS = 3
"""The first profiled calls, which are left out."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that a compiler has made, or an operator that it calls, with the modules that it computes for."""

    name: str
    modules: Modules


@dataclass(frozen=True)
class Owner:
    """The modules that a node of an engine's graph computes for, and what it is spent on."""

    modules: Modules
    kind: Kind = Kind.COMPUTE

    def span(self, name: str, begun_us: float, lasted_us: float) -> TracedSpan:
        return TracedSpan(name=name, modules=self.modules, kind=self.kind, begun_us=begun_us, lasted_us=lasted_us)


NOBODY = Owner(())
MOVE = Owner((), Kind.COPY)


@dataclass(frozen=True)
class GraphNode:
    modules: Modules = ()  # whose forward pass it was traced in; empty: not known
    inputs: tuple[str, ...] = ()  # names of the steps that it reads from
    moves: bool = False  # it only views, casts or copies values


@dataclass(frozen=True)
class EngineNode:
    """A node of the graph that an engine made of these steps."""

    steps: tuple[str, ...] = ()  # that it names
    inputs: tuple[str, ...] = ()  # names of the engine's nodes that it reads from
    moves: bool = False  # it only casts, or changes how values lie in memory
    begins: Set[str] = frozenset()  # it works for nothing before these steps


def steps_of(nodes: Mapping[str, EngineNode], graph: Mapping[str, GraphNode]) -> dict[str, list[str]]:
    """Return the steps that each node of an engine works for, by its name.

    A node works for the steps that it names, and for those before them that no node names. One that names none works
    for what is so before the first named steps behind it. If there is nothing, or if these are named by nodes that
    only move values, it works for these, too.
    """
    named = {step for node in nodes.values() for step in node.steps}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        for source in node.inputs:
            readers[source].append(name)

    def unnamed_readers(name: str) -> list[str]:
        return [] if nodes[name].steps else readers[name]

    works_for = {}
    for name, node in nodes.items():

        def before(step: str, node: EngineNode = node) -> list[str]:
            return [] if step in node.begins else [source for source in graph[step].inputs if source not in named]

        behind = [nodes[reader] for reader in reached(unnamed_readers(name), unnamed_readers)]
        nearest = [node] if node.steps else [reader for reader in behind if reader.steps]
        ends = [step for reader in nearest for step in reader.steps]
        unnamed = reached([earlier for step in ends for earlier in before(step)], before)
        own = [step for reader in nearest if reader is node or reader.moves or not unnamed for step in reader.steps]
        works_for[name] = list(dict.fromkeys([*reversed(unnamed), *own]))
    return works_for


def reached(starts: Iterable[str], beyond: Callable[[str], Iterable[str]]) -> list[str]:
    waiting, seen = list(starts), dict[str, None]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen[name] = None
            waiting += beyond(name)
    return list(seen)


def owner_of(steps: Sequence[str], graph: Mapping[str, GraphNode]) -> Owner:
    """Return the modules of these steps. Those that only move values count where there is nothing else."""
    working = [step for step in steps if not graph[step].moves]
    modules = in_order(path for step in working or steps for path in graph[step].modules)
    return MOVE if steps and not working and not modules else Owner(modules)


class Profiler(ABC):
    """A build under its library's profiler. It is a context manager: leaving it ends the profiler."""

    source: str
    """The library's profiler, in words."""
    tells_calls_apart: bool = True
    """False if the library only reports the mean of all calls so far."""

    @abstractmethod
    def run(self) -> None:
        """Make one profiled call with the inputs that were bound last. It has ended when this returns."""

    @abstractmethod
    def calls(self) -> list[list[TracedSpan]]:
        """Return what ran in each call of `run`, or in the mean of those after the first `WARMING_CALLS`, as spans that
        do not overlap. This is called once."""

    def parts(self, calls: Sequence[Sequence[TracedSpan]]) -> list[ProfiledKernel]:
        return parts_of(calls)

    def work(self) -> CompilerWork:
        return CompilerWork()

    def close(self) -> None:  # noqa: B027 - most profilers hold nothing
        """End the profiler."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NodeProfiler(Profiler):
    """A profiler by the nodes that an engine has made of the graph that it was given."""

    engine: str
    owners: Mapping[str, Owner]
    """What each of its nodes computes for, by the node's name."""
    given_nodes: int

    def work(self) -> CompilerWork:
        across = sum(len(owner.modules) > 1 for owner in self.owners.values())
        moves = sum(owner.kind is Kind.COPY for owner in self.owners.values())
        fact = (
            f"{self.engine} made {counted(len(self.owners), 'node')} of the graph's {self.given_nodes}. For the work "
            f"of several modules: {across}. To quantise, cast or change a layout: {moves}."
        )
        return CompilerWork(facts=[fact] if self.owners else [])


def parts_of(calls: Sequence[Sequence[TracedSpan]]) -> list[ProfiledKernel]:
    """Return the mean of calls: a part for each name, kind and set of modules, in the order in which they ran."""
    times_us: defaultdict[tuple[str, Modules, Kind], float] = defaultdict(float)
    runs: defaultdict[tuple[str, Modules, Kind], int] = defaultdict(int)
    for spans in calls:
        for span in spans:
            key = (span.name, span.modules, span.kind)
            times_us[key] += span.lasted_us
            runs[key] += 1
    return [
        ProfiledKernel(
            name=name,
            modules=modules,
            kind=kind,
            ms=time_us / len(calls) / 1e3,
            runs=runs[name, modules, kind] / len(calls),
        )
        for (name, modules, kind), time_us in times_us.items()
    ]


def in_sequence(times: Iterable[tuple[str, Owner, float]], begun_us: float = 0.0) -> list[TracedSpan]:
    """Return nodes with their times in microseconds as spans one behind the other, of engines that report no more."""
    spans = []
    for name, owner, lasted_us in times:
        if lasted_us > 0:
            spans.append(owner.span(name, begun_us, lasted_us))
            begun_us += lasted_us
    return spans


def with_gaps(
    spans: Iterable[TracedSpan],
    call_us: float,
    name: str,
    kind: Kind = Kind.FRAMEWORK,
    owners: Callable[[TracedSpan, TracedSpan], Modules] = lambda before, after: (),
) -> list[TracedSpan]:
    """Return the spans of a call in order, with spans of this name for the time that none of them has. `owners` returns
    the modules of what lies between two spans."""
    whole: list[TracedSpan] = []
    reached_us = 0.0
    for span in [*sorted(spans, key=lambda span: span.begun_us), None]:
        ends_us = call_us if span is None else span.begun_us
        if ends_us > reached_us:
            modules = owners(whole[-1], span) if whole and span else ()
            whole.append(Owner(modules, kind).span(name, reached_us, ends_us - reached_us))
        if span is not None:
            whole.append(span)
            reached_us = max(reached_us, span.begun_us + span.lasted_us)
    return whole


def aligned(kernels: Sequence[str], ran: Sequence[str]) -> list[int | None]:
    """Return the place of the kernel of each name that ran, where both run in the same order, or None for a name
    without one."""
    places: list[int | None] = [None] * len(ran)
    for block in SequenceMatcher(None, kernels, ran, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            places[block.b + offset] = block.a + offset
    return places


def owners_in_order(kernels: Sequence[Kernel], ran: Sequence[str]) -> list[Modules]:
    """Return the modules of each name that ran, where kernels and names are in the same order. A kernel that
    TorchScript fused works for all operators between its neighbours."""
    places = aligned([operator_name(kernel.name) for kernel in kernels], ran)
    owners: list[Modules] = []
    for number, place in enumerate(places):
        if place is not None:
            owners.append(kernels[place].modules)
        elif ran[number].startswith("fused_"):
            first = next((before + 1 for before in reversed(places[:number]) if before is not None), 0)
            last = next((after for after in places[number:] if after is not None), len(kernels))
            owners.append(in_order(path for kernel in kernels[first:last] for path in kernel.modules))
        else:
            owners.append(())
    return owners


def operator_name(name: str) -> str:
    """Return the plain name of an operator, such as `addmm` for `aten::addmm`, `extern_kernels.addmm` or
    `aoti_torch_cpu_addmm_out`, so that those of a compiler and of a profiler can be compared."""
    if "fused" in name:
        return re.sub(r"^graph_\d+_", "", name)
    if "::" in name:
        plain = name.rpartition("::")[2]
    elif name.startswith(("torch.ops.", "extern_kernels.")):
        plain = name.removeprefix("torch.ops.").split(".")[1]
    else:
        plain = re.sub(r"^aoti_torch_(cpu|cuda)_", "", name)
    return plain.lstrip("_").removesuffix("_out")


def module_path(text: str) -> str:
    """Return the path of a module in the user's model for one of a tracer, such as `L['self'].layers.0`."""
    path = re.sub(r"\._(modules|parameters|buffers)(?=\[)", "", text.strip())
    path = re.sub(r"\[\s*['\"]?([^'\"\]]+)['\"]?\s*\]", r".\1", path)
    path = re.sub(r"^[LG]\.\w+\.?|^L__self__+|^self\b\.?", "", path.lstrip("."))
    return path.strip(".")


def within_flat(path: str) -> str:
    """Return the path in the user's model of a module of `FlatModule`, which wraps it as its only child."""
    return path.removeprefix("module").removeprefix(".") if path == "module" or path.startswith("module.") else path


def in_order(paths: Iterable[str]) -> Modules:
    return tuple(dict.fromkeys(paths))
