"""What a profiled call of a cell consists of: kernels and operators, by the modules of the user's model."""

from enum import StrEnum

from pydantic import Field

from bakeoff.records.schema import Frozen, Milliseconds, MillisecondsOrZero, Work

ROUNDED_OFF = "lost in rounding (estimated)"
"""The name of the parts that hold what a profiler has cut off the times of others."""


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
    recompilations: list[str] = Field(default_factory=list)  # each guard that failed, once
    fallbacks: list[str] = Field(default_factory=list)  # operators that were left to another engine, or why
    facts: list[str] = Field(default_factory=list)  # in one sentence each


class ThreadUse(Frozen):
    """How long the threads of a cell's process were on a core while it made calls without the profiler.

    A thread that waits in a loop for the others counts as busy.
    """

    allowed: int  # that the cell may use
    busy: list[float]  # share of the time of each thread that ran at all, the busiest first

    @property
    def balance(self) -> float:
        """Return the mean of the allowed threads over the busiest one: 1 if all are busy for equally long."""
        working = self.busy[: self.allowed]
        return sum(working) / self.allowed / working[0] if working else 0.0


class CellProfile(Frozen):
    """The profile of one cell."""

    label: str
    cell_id: str
    source: str  # the library's profiler that the times come from
    call_ms: Milliseconds  # of calls without the profiler, in the profile's own process; the fastest quarter's mean
    median_ms: Milliseconds  # of all calls without the profiler
    profiled_ms: Milliseconds  # mean of the fastest quarter of the profiled calls
    calls: int  # that the parts are of: these, or all of them where the library tells their mean only
    parts: list[Part]
    spans: list[TracedSpan]  # of one profiled call
    classes: dict[str, str]  # class of each module of the model, by its path and in the model's order
    work: CompilerWork = CompilerWork()
    threads: ThreadUse | None = None
    needs: dict[str, Work] = Field(default_factory=dict)  # of each module in a call with all inside it, by its path
    unaligned: list[str] = Field(default_factory=list)  # linear layers whose number of outputs no library likes
    attention: str = ""  # implementation that the configuration of a model of transformers names
    versions: dict[str, str] = Field(default_factory=dict)  # of the libraries that bear on the call
    is_of_artefact: bool = False  # the build starts from what the run kept
