"""What was found in a cell: where the time of a call goes, and where it loses precision or fails."""

import math
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from bakeoff.backends.profiling import CompilerWork, ProfiledKernel, TracedSpan
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import Milliseconds, Work


class ThreadUse(Frozen):
    """How long the threads of a cell's process were on a core while it made calls without the profiler. A thread that
    waits in a loop for the others counts as busy."""

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
    calls: int  # that the parts are of: these, or all of them where the library reports their mean only
    parts: list[ProfiledKernel]
    spans: list[TracedSpan]  # of one profiled call
    classes: dict[str, str]  # class of each module of the model, by its path and in the model's order
    work: CompilerWork = CompilerWork()
    threads: ThreadUse | None = None
    needs: dict[str, Work] = Field(default_factory=dict)  # of each module in a call with all inside it, by its path
    unaligned: list[str] = Field(default_factory=list)  # linear layers whose number of outputs no library likes
    attention: str = ""  # implementation that the configuration of a model of transformers names
    versions: dict[str, str] = Field(default_factory=dict)  # of the libraries that bear on the call
    is_of_artefact: bool = False  # the build starts from what the run kept


class Found(StrEnum):
    """What looking for the smallest part came to."""

    NOTHING = "nothing"  # the whole model is as exact as its precision allows, or does not fail now
    PLACE = "place"  # one part
    SPREAD = "spread"  # the whole is beyond its limit, and no part is


class PartTrial(Frozen):
    """One part that was built apart from the rest, on inputs of the reference."""

    name: str  # path of a module, or with an operator: `layers.0: aten.addmm.default`; "" is the whole model
    kind: str  # class of the module, or "operator"
    error: float | None = None  # RMSE relative to the output; None: it failed, or returned nothing to compare
    eager_error: float | None = None
    limit: float | None = None  # that the error may have
    failure: str = ""  # why it did not build or run
    eager_fails: bool = False  # it is eager that fails on it alone, which blames nobody
    line: str = ""  # of the user's code that calls the operator: `mine.py, line 12, in forward`

    @property
    def excess(self) -> float:
        """Return how many times its limit the error is: above 1 it is more than it should be."""
        return excess(self.error, self.limit)

    @property
    def fails(self) -> bool:
        """Return True if the backend fails on it, and eager does not."""
        return bool(self.failure) and not self.eager_fails


def excess(error: float | None, limit: float | None) -> float:
    """Return how many times its limit an error is; infinity for one that is not finite, and 0 where none is known."""
    if error is None or not limit:
        return 0.0
    return error / limit if math.isfinite(error) else math.inf


class GrowthPoint(Frozen):
    """A module on the way through the model, with the errors of its output relative to the size of that."""

    name: str
    kind: str
    local: float | None = None  # of the module apart, on the reference's inputs; None: it was not measured
    accumulated: float | None = None  # of its output in a call of the whole model


class Script(Frozen):
    """A script of the part that fails alone, and how it ended in a process of its own without Bakeoff."""

    text: str
    fails_alike: bool = False
    ending: str  # the last line of what it printed


class Blame(Frozen):
    """What a cell's error or failure comes from."""

    label: str
    cell_id: str
    precision: str
    looks_for_failure: bool
    found: Found
    in_run: str = ""  # why the run calls the cell incorrect
    place: PartTrial | None = None
    line: str = ""  # that of the place
    others: list[PartTrial] = Field(
        default_factory=list
    )  # further smallest parts that are beyond their limits, or fail
    same_failures: int = 0  # parts that fail with the words of one that is named, and were not looked into
    is_complete: bool = True  # False: the search ended before all parts were tried
    trials: list[PartTrial] = Field(default_factory=list)  # in the order in which they were made
    growth: list[GrowthPoint] = Field(default_factory=list)  # in the order of the forward pass
    figure: str = ""  # file with the growth as a figure
    builds: int = 0  # that the backend made
    seconds: float = 0.0
    source: str = ""  # of the part that fails alone
    script: Script | None = None

    @property
    def model_fails(self) -> bool:
        """Return True if the whole model fails in eager, too, so that no part of it can be tried."""
        return self.found is Found.NOTHING and bool(self.trials) and bool(self.trials[0].failure)

    @property
    def repeated(self) -> list[str]:
        """Return the parts beyond their limits that neither hold a named place nor are inside of one. Of a part and
        what is inside of it, the part is returned."""
        named = [place.name for place in (self.place, *self.others) if place]
        apart = [
            trial.name
            for trial in self.trials
            if trial.excess > 1 and not any(trial.name == other or is_below(other, trial.name) for other in named)
        ]
        apart = [name for name in dict.fromkeys(apart) if not any(is_below(name, other) for other in named)]
        return [name for name in apart if not any(is_below(name, other) for other in apart)]


def is_below(name: str, above: str) -> bool:
    return bool(name) and name != above and (not above or name.startswith((f"{above}.", f"{above}:")))


EVEN_SHARE = 0.5
"""If one module has less than this share of the sum of all squared local errors, the error has no single place."""


def largest_local(growth: Sequence[GrowthPoint]) -> tuple[GrowthPoint, float] | None:
    """Return the module with the largest local error, and its share of the sum of their squares. If some are not
    finite, the first of these has all of it."""
    points = [(point, point.local) for point in growth if point.local]
    broken = [point for point, local in points if not math.isfinite(local)]
    if broken:
        return broken[0], 1.0
    if not points:
        return None
    # Independent errors add by their squares.
    point, largest = max(points, key=lambda pair: pair[1])
    return point, largest**2 / sum(local**2 for _, local in points)


class Kept(Frozen):
    """A module that was tried in float32."""

    name: str
    kind: str
    alone: float | None  # error of the model if this module alone is in the cell's precision; None: it failed
    left: float | None = None  # error with this one and those kept before it in float32; None: it was not tried
    is_kept: bool = False
    note: str = ""  # why it cannot be kept, or is left out again


class Variant(Frozen):
    """The model with some modules in float32, as the backend builds it."""

    name: str  # "as it is", "with the set in fp32" or "all in fp32"
    error: float | None = None
    holds: bool = False  # the tolerance
    latency_ms: float | None = None
    rounds: int = 0
    ratio: float | None = None  # of its latency to that of the model as it is, fitted to the rounds that they shared
    ratio_ci95: tuple[float, float] | None = None
    failure: str = ""


class KeptSet(Frozen):
    """Which modules must stay in float32, so that a cell holds a tolerance."""

    label: str
    cell_id: str
    precision: str
    requirement: str  # in words: "relative error <= 1e-03" or "top1>-1%"
    kept: list[str]  # paths of modules; empty: it holds without any, or no set holds
    share_of_weights: float  # of the model's, in the kept modules
    holds: bool  # what the backend built with the set
    tried: list[Kept]  # in the order in which they were tried
    variants: list[Variant]
    searched_in: str  # what the errors of `tried` are of: "eager" or "eager with rounded operands"
    builds: int = 0
    seconds: float = 0.0
