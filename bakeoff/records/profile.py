"""What a profiled call of a cell consists of: kernels and operators, by the modules of the user's model."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from bakeoff.records.schema import Frozen, Milliseconds, MillisecondsOrZero


class Kind(StrEnum):
    """What a part of a call is spent on."""

    COMPUTE = "compute"
    COPY = "copies, casts and layout"
    FRAMEWORK = "framework"
    WAITING = "waiting for the host"


class Part(Frozen):
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
    facts: list[str] = Field(default_factory=list)  # in one sentence each: fallbacks, what was inserted, threads


class CellProfile(Frozen):
    """The profile of one cell."""

    label: str
    cell_id: str
    source: str  # the library's profiler that the times come from
    call_ms: Milliseconds  # of calls without the profiler, in the profile's own process; the fastest quarter's mean
    profiled_ms: Milliseconds  # mean of the profiled calls that the parts are of, their fastest quarter where it can be
    calls: int  # that the parts are of
    parts: list[Part]
    spans: list[TracedSpan]  # of one profiled call
    classes: dict[str, str]  # class of each module of the model, by its path and in the model's order
    work: CompilerWork = CompilerWork()
