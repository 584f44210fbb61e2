"""What the harness asks of a backend. docs/how-to-add-a-backend.md walks through it.

A backend never times itself, never prints and never decides a precision: the cell says it, and the backend obeys or
declares the cell unsupported. Backends import their libraries inside methods, so that naming one costs nothing and a
missing library is an `Availability` with a reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from records.device import Device
from records.schema import Cell, Placement

if TYPE_CHECKING:
    import torch

    from backends.training import Training
    from models.base import Inputs


@dataclass(frozen=True)
class Availability:
    """Falsy with a reason."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


YES = Availability()

INFERENCE, FORWARD_BACKWARD, TRAIN_STEP = TASKS = ("inference", "forward_backward", "train_step")
"""What a call is: the module's outputs; a loss and its gradients; these and a step of AdamW."""

SURGICAL = "surgical"
"""The mode that compiles the targets of a model and leaves the rest of it eager."""

Settings = dict[str, str | int | float | bool | None]
"""Fits into a record as it is."""


class PhaseTimer(Protocol):
    """`with phase("compile"): ...` announces the phase, then times it."""

    def __call__(self, name: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class BuildContext:
    """What a backend may know of the place it builds in."""

    cell: Cell
    phase: PhaseTimer
    workspace: Path
    """The cell's own folder; what is written here counts as its artefact. Empty in the cell's first process; in later
    ones it holds what the first one left, and a backend that can start from that does."""
    threads: int  # intra-operator threads, the same for every backend of a contest
    calibration: tuple[Inputs, ...] = ()  # the model's own input sets, for precisions that need their ranges
    padded_axis: int | None = None  # along which inputs may be padded: `models.base.LoadedModel`
    training: Training | None = None
    """None for inference. Else what a call is: `step(*args, **kwargs)`, to run or to compile, whole or in its parts
    (`backends.training.Steps`). Its `module` is the one given to `build`, and `restore` puts all of it back."""
    targets: tuple[str, ...] = ()
    """Patterns of module names: what to compile where a mode compiles parts of a model. The model's, or the user's."""


class Compiled(ABC):
    """A model ready to be called. A context manager: leaving it frees what it holds."""

    @abstractmethod
    def bind(self, inputs: Inputs) -> None:
        """Make `inputs` (on the cell's device) the next call's. Untimed; may copy, must not compile."""

    @abstractmethod
    def run(self) -> None:
        """Enqueue one call on the current stream: no synchronisation, no copy that a deployment would not make."""

    @abstractmethod
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """The last call's outputs, flat, as tensors of their own that no later call overwrites.

        Of a training task they are `Training.results`, and those of the first call after `restore` are checked.
        """

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """The parts of a call by name, in order, where they can be run and timed apart: together they do what `run`
        does. Nothing where a call is one whole."""
        return ()

    def restore(self) -> None:  # noqa: B027 - inference changes nothing
        """Put back, in place, whatever calls change: a training task's parameters, optimiser state and buffers."""

    def placement(self) -> Placement | None:
        """Where the work really ran, or None where the library does not tell. Asked once, after the warm-up."""
        return None

    def compilations(self) -> int:
        """How often anything was compiled so far. It must have stopped growing before measuring starts."""
        return 0

    def is_final(self) -> bool:
        """Return False while the build may still change how it runs. It is then called until it is final."""
        return True

    def finalise(self) -> None:  # noqa: B027 - most builds are final from the start
        """Stay with how the build runs now. `is_final` returns True from then on."""

    def precision(self) -> Settings:
        """The library's own switches that bear on precision, and what its layers compute in, as they stand."""
        return {}

    def settings(self) -> Settings:
        """What else was in force beyond the cell: options, providers, threads. Goes into the record."""
        return {}

    def close(self) -> None:  # noqa: B027 - freeing is for those that hold something
        """Free engines, sessions and buffers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Wrapped(Compiled):
    """A compiled model in whose place this one stands; what a subclass does not replace is the inner one's."""

    def __init__(self, inner: Compiled) -> None:
        self._inner = inner

    def bind(self, inputs: Inputs) -> None:
        self._inner.bind(inputs)

    def run(self) -> None:
        self._inner.run()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return self._inner.outputs()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return self._inner.stages()

    def restore(self) -> None:
        self._inner.restore()

    def placement(self) -> Placement | None:
        return self._inner.placement()

    def compilations(self) -> int:
        return self._inner.compilations()

    def is_final(self) -> bool:
        return self._inner.is_final()

    def finalise(self) -> None:
        self._inner.finalise()

    def precision(self) -> Settings:
        return self._inner.precision()

    def settings(self) -> Settings:
        return self._inner.settings()

    def close(self) -> None:
        self._inner.close()


class Backend(ABC):
    """One way to compile a model."""

    name: ClassVar[str]
    description: ClassVar[str]
    modes: ClassVar[Mapping[str, Mapping[str, object]]]
    """Label -> options of the library. The first one is `default`."""
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    """Distributions whose versions belong into the record."""
    spelled_out: ClassVar[frozenset[str]] = frozenset()
    """Modes that only name what `default` does on one kind of device, or of model: `NAME/all` leaves them out."""
    tasks: ClassVar[tuple[str, ...]] = (INFERENCE,)
    """Those that `build` does. One that does training takes `context.training` for what a call is."""
    takes_streams: ClassVar[bool] = False
    """Whether one build serves inputs of several lengths: `context.calibration` then has all of them."""
    quantises: ClassVar[bool] = False
    """Whether `build` reads `cell.precision` for int8 and fp8: one that does not would measure floating point."""
    trial: ClassVar[tuple[str, Mapping[str, str]]] = ("mlp", {"batch": "2", "features": "64", "hidden": "64"})
    """The model, with its dimensions, that `runner.py doctor` tries it with: a small one that it can build."""
    caveat: ClassVar[str] = ""
    """What a reader must know of every number of this backend. Stands in `list`, and as a doubt in each record."""

    @abstractmethod
    def available(self, device: Device) -> Availability:
        """Can this machine run us on `device` (`cpu`, `cuda`, `cuda:1`)? Imports the library, may touch the device."""

    def supports(self, cell: Cell) -> Availability:
        """Does this precision, task and mode make sense? Pure: imports nothing, touches nothing."""
        if cell.task not in self.tasks:
            return Availability(
                f"{self.name} does not do task '{cell.task}': its graph is inference's and has no backward"
            )
        if cell.task != INFERENCE and cell.precision.is_quantised:
            return Availability(f"nothing is trained in {cell.precision}: what it rounds has no gradient")
        if cell.precision.is_quantised and not self.quantises:
            return Availability(f"{self.name} does not do precision {cell.precision}")
        return YES

    def caveat_of(self, mode: str) -> str:
        """What a reader must know of every number of this mode: the backend's caveat, unless a mode has its own."""
        return self.caveat

    @abstractmethod
    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        """Compile `module` (on the cell's device, in its precision) for `inputs`, or a step of its training where
        `context.training` is there: `module` is then in train mode, and gradients are on.

        Nothing is left to compile when it returns. Each stage runs inside `with context.phase(NAME)`: `export` makes
        a graph, `compile` makes code of it (lazy compilers are triggered here), `load` reads an artefact back.
        """


class AheadOfTime(Backend):
    """A backend whose artefact is deployed without the model: it is made in one process and loaded in another.

    The harness calls `package` in a process that then ends, and `load` in a fresh one with the same `workspace`, which
    has torch imported and has never seen the module: what it measures is what a deployment gets.
    """

    @abstractmethod
    def package(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> None:
        """Write the artefact into `context.workspace`. Phases: `export`, `compile`."""

    @abstractmethod
    def load(self, inputs: Inputs, context: BuildContext) -> Compiled:
        """Read it back. Phase: `load`. `inputs` tell the calling convention."""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        self.package(module, inputs, context)
        return self.load(inputs, context)
