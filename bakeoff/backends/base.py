"""The contract between the harness and a backend. docs/how-to-add-a-backend.md walks through it.

A backend never times itself, never prints and never decides a precision. The cell names the precision, and the backend
obeys or says that it does not support the cell. A backend's library is imported when it is first used: naming a backend
costs nothing, and a missing library becomes an `Availability` with a reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.standalone import Runtime, ScriptPart
from bakeoff.backends.traps import Link, Trap
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unavailable, Unsupported, unknown
from bakeoff.records.load_samples import ServingSettings
from bakeoff.records.schema import GENERATION, INFERENCE, Cell, Placement

if TYPE_CHECKING:
    from bakeoff.backends.training import Training


@dataclass(frozen=True)
class Availability:
    """The answer to whether something can be done. It is false if it has a reason why not."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


AVAILABLE = Availability()


def installed(name: str, remedy: str, *modules: str, beside: str = "") -> Availability:
    """Import these modules, and look for `beside` without importing it. Return whether all are there."""
    try:
        for module in modules:
            importlib.import_module(module)
        if beside and importlib.util.find_spec(beside) is None:
            raise ImportError(f"No module named '{beside}'")
    except ImportError as error:
        return Availability(f"{name} is not installed ({error}): {remedy}")
    return AVAILABLE


def require(purpose: str, packages: str, *modules: str) -> None:
    """Import these modules. Raise Unavailable if one is missing, or does not fit those that are installed."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{purpose} ({error}): pip install {packages}") from error


DEFAULT = "default"
"""The name of every backend's first mode."""

SURGICAL = "surgical"
"""The mode that compiles only the targets of a model and leaves the rest eager."""

CUDA_GRAPH = "cuda-graph"
"""The mode that replays a captured call as one launch: `bakeoff.backends.cuda_graph`."""

NO_FAST_PATH = "no-fast-path"
"""The mode that runs transformer layers operator by operator: `bakeoff.backends.fast_path`."""

CHANNELS_LAST = "channels-last"
"""The mode with weights and images in channels_last memory: `bakeoff.backends.memory_format`."""

INT8_PRODUCTS = "int8-products"
"""The mode of precisions that round weights alone in which an engine rounds the inputs of products, too."""


@dataclass(frozen=True)
class Suits:
    """Where a mode is worth trying: on one kind of device, and for models that may have convolutions, if so said."""

    device: str = ""
    convolutions: bool = False


ANYWHERE = Suits()


@dataclass(frozen=True)
class Mode:
    """One way to use a backend, with everything that the harness must know about it."""

    name: str = DEFAULT
    options: Mapping[str, object] = field(default_factory=dict)
    """What the backend gives to its library."""
    worth_trying: Suits | None = None
    """Where the mode is among those that `NAME/best` stands for. It has won there. None: nowhere."""
    device: str = ""
    """The only kind of device that the mode makes sense on, or empty for every kind."""
    captures: bool = False
    """True if calls are captured in a CUDA graph of ours, which has one size."""
    built_as: str = ""
    """The mode whose artefact this one starts from, or whose compiled code it captures. Empty: it builds its own."""
    replays: str = ""
    """The mode whose compiled code the library replays in CUDA graphs of its own, or empty where it does not."""
    channels_last_of: str = ""
    """The mode that this one is with images and weights in channels_last memory, or empty for any other mode."""
    any_size: bool = False
    """True if nothing is built for a size, so that a build for a range of sizes would be the same again."""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """Switches of the cell's process, by their paths below `torch`: attributes, or functions that take the value."""
    one_size: str = ""
    """Why the mode serves one size only although its backend takes ranges, or empty."""
    fast_path: bool = False
    """True if transformer layers call PyTorch's fused kernels (`bakeoff.backends.fast_path`). Other modes compile what
    is inside of these layers."""
    rounded_weights: bool = False
    """True if the mode is for precisions that round weights alone."""
    redundant: bool = False
    """True if the mode does what `default` does on one kind of device or model. `NAME/all` leaves it out."""
    no_script: str = ""
    """Why this mode is not exported although its backend has a runtime, or empty."""
    caveat: str = ""
    """What a reader must know about every number of this mode. It takes the place of the backend's."""

    @property
    def plain_name(self) -> str:
        """The mode's name, or that of the mode which it would be without channels_last memory."""
        return self.channels_last_of or self.name

    @property
    def code_of(self) -> str:
        """The mode whose compiled code runs in a call. A graph of ours without options captures the plain mode's."""
        if self.captures and not self.options:
            return self.built_as or (CHANNELS_LAST if self.channels_last_of else DEFAULT)
        return self.replays or self.built_as or self.name

    def in_channels_last(self, worth_trying: Suits | None = None) -> Mode:
        """Return this mode with images and weights in channels_last memory. It is worth trying for convolutions, on the
        same device unless `device` says otherwise."""
        suits = self.worth_trying and replace(self.worth_trying, convolutions=True)
        name = CHANNELS_LAST if self.name == DEFAULT else f"{self.name}-{CHANNELS_LAST}"

        def in_it(other: str) -> str:
            return CHANNELS_LAST if other == DEFAULT else ""

        return replace(
            self,
            name=name,
            channels_last_of=self.name,
            built_as=in_it(self.built_as),
            replays=in_it(self.replays),
            worth_trying=worth_trying or suits,
        )


def int8_products(options: Mapping[str, object] | None = None) -> Mode:
    caveat = "inputs of products are rounded to 8 bits, too"
    return Mode(INT8_PRODUCTS, options or {}, rounded_weights=True, caveat=caveat)


Settings = dict[str, str | int | float | bool | None]
"""Named values that a record can hold."""


@dataclass(frozen=True)
class ServingKnobs:
    """What can be set when a backend serves requests. The harness tries the values and keeps the best ones."""

    instance: str = ""
    """What answers beside others of its kind, such as `session`. Empty: only one instance can be had."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of further settings, by name, the default first. `BuildContext.serving.options` holds the chosen ones."""


PhaseTimer = Callable[[str], AbstractContextManager[None]]
"""Announces and times a phase of the build: `with phase("compile"): ...`."""


@dataclass(frozen=True)
class BuildContext:
    """What a backend may know about the place it builds in."""

    cell: Cell
    phase: PhaseTimer
    workspace: Path
    """The cell's own folder. Files written here count as its artefact. The folder is empty in the cell's first process.
    Later processes find what the first one left, and a backend starts from that if it can."""
    threads: int  # intra-operator threads, the same for every backend of a contest
    calibration: tuple[Inputs, ...] = ()  # for precisions that need ranges: the user's, or all input sets but the last
    training: Training | None = None
    """None for inference. For a training task it holds the call, `step(*args, **kwargs)`, to run or compile as a whole
    or in parts (`backends.eager.Steps`). Its `module` is the one given to `build`; `restore` resets everything."""
    targets: tuple[str, ...] = ()
    """Patterns of module names, given by the model or the user. Surgical modes compile only these."""
    serving: ServingSettings | None = None
    """How the build will serve requests from several threads. None for single calls."""
    open_axes: tuple[OpenAxis, ...] = ()
    """The axes of the inputs that the build leaves open: it then serves every size in their ranges."""
    kept_in_float32: tuple[str, ...] = ()
    """Paths of modules that stay in float32, with all that is inside of them. In 16 bits the module given to `build`
    casts around them; what is quantised must leave them out."""
    for_profile: bool = False
    """True if the build will be profiled and is not measured: its kernels then keep the names of the user's modules."""
    await_quiet: Callable[[], None] = lambda: None
    """Returns when nothing else uses the device. A backend with `tunes_late` calls it before it tries out kernels."""


class Compiled(ABC):
    """A model ready to be called. It is a context manager: leaving it frees what the model holds.

    Of a call, only `run` is timed. The harness calls the methods in this order, and may go back to `bind` or `run`:

        build -> bind -> run, run, ..., run -> outputs -> close
                  ^       ^                       |
                  +-------+-----------------------+

    For example:

        with backend.build(module, inputs, context) as compiled:
            compiled.bind(inputs)
            compiled.run()
            (logits,) = compiled.outputs()
    """

    @abstractmethod
    def bind(self, inputs: Inputs) -> None:
        """Take `inputs`, which are on the cell's device, for the next call. This is not timed. It may copy, but must
        not compile."""

    def refresh(self) -> None:  # noqa: B027 - most builds read the bound tensors themselves
        """Read the bound tensors again, whose values have changed. Only a build whose `bind` copies has to do so."""

    @abstractmethod
    def run(self) -> None:
        """Enqueue one call on the current stream. Do not synchronise, and copy only what a deployment would copy."""

    @abstractmethod
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Return the last call's outputs as a flat tuple of tensors that no later call overwrites.

        A training task returns `Training.results`. Those of the first call after `restore` are checked.
        """

    def results(self) -> Sequence[torch.Tensor]:
        """Return the last call's output tensors at little cost. The next call may overwrite them, and numbers may be
        missing. The default is `outputs`."""
        return self.outputs()

    def own_inputs(self) -> Sequence[torch.Tensor]:
        """Return the tensors that calls read, if `bind` copies what it is given. By default calls read that itself."""
        return ()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """Return the parts of a call, by name and in order, if they can be run and timed apart. Together they do what
        `run` does. The default is no parts."""
        return ()

    def restore(self) -> None:  # noqa: B027 - inference changes nothing
        """Put back, in place, everything that calls change: parameters, optimiser state and buffers."""

    def seed(self, number: int) -> None:  # noqa: B027 - torch's generators are seeded by the harness
        """Seed the library's own random generator, if it has one. This is not timed. Calls with seeds that are
        independent draw independently, which a library does not promise of calls one after another."""

    def instance(self) -> Compiled:
        """Return a further instance of this build, for another thread that calls it at the same time.

        It is called in that thread, on its own CUDA stream. Raise Unsupported where there can be only one.
        """
        raise Unsupported("a build of this mode answers one call at a time")

    def placement(self) -> Placement | None:
        """Return where the work really ran, or None if the library does not say. The harness asks once, after the
        warm-up."""
        return None

    def compilations(self) -> int:
        """Return how often anything was compiled so far. The number must stop growing before measuring starts."""
        return 0

    def recompiled(self) -> tuple[str, ...]:
        """Return why anything was compiled again since it was built, with a reason for each time."""
        return ()

    def profiler(self, module: torch.nn.Module) -> Profiler | None:
        """Return the build under its library's profiler, or None where there is no such profiler.

        `module` is what the build was made from, with `BuildContext.for_profile`. Inputs are bound already.
        """
        return None

    def is_final(self) -> bool:
        """Return False while the build may still change how it runs. It is then called until it is final."""
        return True

    def finalise(self) -> None:  # noqa: B027 - most builds are final from the start
        """Stay with how the build runs now. `is_final` returns True from then on."""

    def precision(self) -> Settings:
        """Return the library's switches that affect precision, and what its layers compute in, as they are now."""
        return {}

    def settings(self) -> Settings:
        """Return what else was in force for the record: options, providers, threads."""
        return {}

    def close(self) -> None:  # noqa: B027 - freeing is for those that hold something
        """Free engines, sessions and buffers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FlatCalls(Compiled):
    """Calls a function of flat tensors that returns new tensors from each call."""

    def __init__(self, function: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> None:
        self._function = function
        self._tensors: Sequence[torch.Tensor] = ()
        self._outputs: Sequence[torch.Tensor] = ()

    def bind(self, inputs: Inputs) -> None:
        self._tensors = inputs.tensors()

    def run(self) -> None:
        self._outputs = self._function(self._tensors)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in self._outputs)

    def results(self) -> Sequence[torch.Tensor]:
        return self._outputs

    def close(self) -> None:
        self._tensors = self._outputs = ()
        vars(self).pop("_function", None)


class Wrapped(Compiled):
    """Stands in for another compiled model, and passes on every call that a subclass does not replace."""

    def __init__(self, inner: Compiled) -> None:
        self._inner = inner

    def bind(self, inputs: Inputs) -> None:
        self._inner.bind(inputs)

    def run(self) -> None:  # is timed, and so calls directly
        self._inner.run()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return self._inner.outputs()


def _passing_on(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self._inner, name)(*arguments)


for _name, _method in vars(Compiled).items():
    # another instance is another build's, which a wrapper has to make
    if not (_name.startswith("_") or _name == "instance" or _name in vars(Wrapped)) and callable(_method):
        setattr(Wrapped, _name, _passing_on(_name))


class Backend(ABC):
    """One way to compile a model. It is created without arguments, often, and holds no state."""

    # How it is named and shown

    name: ClassVar[str]
    description: ClassVar[str]
    colour: ClassVar[str] = ""
    """Its colour in charts, such as `#0072b2`. The record carries it. Without one, charts choose by its name."""
    caveat: ClassVar[str] = ""
    """What a reader must know about every number of this backend. `list` and each record show it."""

    # How it can be used, and where

    modes: ClassVar[tuple[Mode, ...]] = (Mode(worth_trying=ANYWHERE),)
    """The ways to use it. The first one is `default`."""
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """The kinds of device that it can run on at all. A run expects no time for it on another one."""
    tasks: ClassVar[tuple[str, ...]] = (INFERENCE,)
    """Tasks that `build` handles. A backend that trains runs or compiles `context.training`."""
    serving: ClassVar[ServingKnobs] = ServingKnobs()
    """What can be set when it serves requests."""

    # What it needs from the machine

    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    """Distributions to note the versions of in the record."""
    module: ClassVar[str] = "torch"
    """A top-level module that it cannot run without. A run that does not find it expects no time for the backend."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that `build` needs and that take seconds to import. No phase is timed with them. Those of torch are
    imported once for all cells, in processes that cells are forked from: they must not start threads."""
    writes_cxx: ClassVar[bool] = False
    """True if `build` compiles C++, for which the machine needs a compiler."""
    links: ClassVar[tuple[Link, ...]] = ()
    """What its libraries are linked against, for its traps to look at in `Facts.linked`."""
    traps: ClassVar[tuple[Trap, ...]] = ()
    """The known traps that concern this backend alone. `bakeoff doctor` looks for them."""
    trial: ClassVar[tuple[str, Mapping[str, str]]] = ("mlp", {"batch": "2", "features": "64", "hidden": "64"})
    """A small model, with its dimensions, that `bakeoff doctor` builds to try the backend."""

    # Which models, inputs and precisions its build takes

    takes_streams: ClassVar[bool] = False
    """True if one build serves inputs of several lengths. `context.calibration` then has all of them."""
    takes_sparse: ClassVar[bool] = False
    """True if `build` takes a model with sparse or nested tensors among its inputs, weights or buffers."""
    takes_complex: ClassVar[bool] = True
    """False if `build` takes no complex inputs."""
    takes_ranges: ClassVar[bool] = False
    """True if `build` leaves `context.open_axes` open, so that one build serves a range of sizes."""
    takes_onnx: ClassVar[bool] = False
    """True if `build` starts from an ONNX graph, and so takes a model that is an ONNX file."""
    quantises: ClassVar[bool] = False
    """True if `build` quantises or says that it cannot. Any other backend would measure floating point instead."""
    writes_caches: ClassVar[bool] = False
    """True if `build` takes a decode step that writes into the caches that it is given. Others get one that returns new
    caches, unless they bind those to the same memory themselves."""

    # How long a build takes, and what builds share

    usual_build_s: ClassVar[float] = 15.0
    """Usual seconds from the start of a cell's first process until it is warm. A run corrects them by what it sees."""
    shared_phases: ClassVar[tuple[str, ...]] = ()
    """Phases of building that one process does for all modes with the same `built_as`. The others do the rest."""
    precompiles: ClassVar[tuple[str, ...]] = ()
    """Kinds of device. Its builds for them include torch's C++ headers, which are precompiled once for a machine."""
    tunes_beside_builds: ClassVar[bool] = False
    """True if its builds, which try out kernels, take minutes, and other cells may build beside them that try out
    none."""
    tunes_late: ClassVar[bool] = False
    """True if its builds on a GPU call `context.await_quiet`, unless they try out no kernels. Others build beside what
    comes before it."""
    profiles_artefact: ClassVar[bool] = False
    """True if a profile can start from what a run has kept: it holds the names by which modules are found."""

    def __init_subclass__(cls, **arguments: object) -> None:
        """Raise TypeError if the class says something about itself that has another form."""
        super().__init_subclass__(**arguments)
        if not all(isinstance(mode, Mode) for mode in cls.modes):
            raise TypeError(f"{cls.__name__}.modes is no tuple of Mode")
        if (names := cls.mode_names())[:1] != [DEFAULT] or len(set(names)) < len(names):
            raise TypeError(f"{cls.__name__}.modes: the first one is '{DEFAULT}', and every name is there once")
        if not re.fullmatch("(#[0-9a-f]{6})?", cls.colour):
            raise TypeError(f"{cls.__name__}.colour is '{cls.colour}': write it as '#0072b2'")

    @classmethod
    def mode(cls, name: str) -> Mode:
        """Return the mode of this name. Raise UsageError if the backend has none."""
        for mode in cls.modes:
            if mode.name == name:
                return mode
        raise unknown(f"mode of {cls.name}", name, cls.mode_names(), "bakeoff list")

    @classmethod
    def mode_names(cls) -> list[str]:
        return [mode.name for mode in cls.modes]

    @abstractmethod
    def available(self, device: Device) -> Availability:
        """Can this machine run the backend on `device`? This may import the library and use the device."""

    def precompile(self, device: Device) -> None:  # noqa: B027 - only torch's compilers have such headers
        """Have torch precompile the C++ headers that builds for `device` include, by building something small."""

    def times_kernels(self, cell: Cell) -> bool:
        """Does building try out on the device which kernels are fastest? Then nothing else may use it meanwhile. The
        default is True, which is safe."""
        return True

    def keeps_choices(self, cell: Cell, workspace: Path) -> bool:
        """Return True if a process that starts from what another one has built there tries out no kernels again."""
        return False

    def supports(self, cell: Cell) -> Availability:
        """Do this precision, task and mode make sense? This is pure: it imports nothing and touches nothing."""
        return Availability(
            self._reason_against_task(cell)
            or self._reason_against_mode(cell)
            or self._reason_against_range(cell)
            or self.reason_against(cell)
        )

    def reason_against(self, cell: Cell) -> str:
        """Return what else speaks against the cell, by what this backend alone knows, or an empty string."""
        return ""

    def _reason_against_task(self, cell: Cell) -> str:
        if cell.is_onnx_file and not self.takes_onnx:
            return f"{self.name} takes torch modules, and {cell.model} is an ONNX file"
        if cell.task not in (*self.tasks, *GENERATION):
            return f"{self.name} does not do task '{cell.task}': its graph is inference's and has no backward"
        if cell.is_trained and cell.precision.is_quantised:
            return f"nothing is trained in {cell.precision}: what it rounds has no gradient"
        if cell.precision.is_quantised and not self.quantises:
            return f"{self.name} does not do precision {cell.precision}"
        return ""

    def _reason_against_mode(self, cell: Cell) -> str:
        mode = self.mode(cell.mode)
        if mode.rounded_weights and not cell.precision.is_weight_only:
            return f"mode {mode.name} is for precisions that round weights alone: use {self.name}"
        if mode.channels_last_of and (cell.task != INFERENCE or cell.precision.is_quantised):
            return f"{CHANNELS_LAST} is for inference in a precision that casting gives: use {self.name}"
        if mode.captures and not cell.device.is_cuda:
            return f"CUDA graphs need a CUDA device, not {cell.device}"
        if mode.device not in ("", cell.device.kind):
            wanted = {"cpu": "is for the CPU", "cuda": "needs a CUDA device"}[mode.device]
            return f"mode {mode.name} {wanted}, not {cell.device}"
        return ""

    def _reason_against_range(self, cell: Cell) -> str:
        if not cell.dynamic:
            return ""
        if not self.takes_ranges:
            return f"{self.name} builds for one size"
        mode = self.mode(cell.mode)
        if mode.one_size or mode.captures:
            return mode.one_size or "a CUDA graph replays calls of one size"
        if cell.task != INFERENCE or cell.precision.is_quantised:
            return "one build for a range of sizes is for inference, in a precision that casting gives"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart | None:
        """Return how a script builds a module as this backend does for `cell`, or None if no script does.

        `settings` is what the cell's record says was in force. Scripts are of inference.
        """
        return None

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> Mapping[str, object]:
        """Return what the loader of `runtime` reads for `cell` in `Artifact.settings`, besides what all loaders have.

        `variables` are set in the environment before anything is imported. `caches` are such variables for folders
        within the exported one, where none is set already.
        """
        return {}

    def runtime(self, device: Device) -> Runtime | None:
        """Return how the artefact is loaded elsewhere, or None if it cannot be."""
        return None

    def no_export(self, cell: Cell) -> str:
        """Return why nothing loads what this cell builds, or an empty text."""
        runtime = self.runtime(cell.device)
        if runtime is None:
            return f"nothing loads what {self.name} builds"
        if cell.precision.is_quantised and not (runtime.holds_quantised or runtime.pickles):
            return "only the ONNX of a quantised model is exported"
        reasons = (mode.no_script for mode in self.modes if mode.name == cell.mode and not runtime.pickles)
        return next(reasons, "")

    @abstractmethod
    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        """Compile `module`, which is on the cell's device and in its precision, for `inputs`.

        If there is `context.training`, compile a training step instead: `module` is in train mode and gradients are on.

        Nothing is left to compile when this returns. Each stage runs inside `with context.phase(NAME)`: `export` makes
        a graph, `compile` makes code from it and triggers lazy compilers, `load` reads an artefact back.
        """


class AheadOfTime(Backend):
    """A backend that makes an artefact in one process and loads it, without the model, in another.

    The harness calls `package` in a process that then ends. It calls `load` in a fresh process with the same
    `workspace`, which has imported torch and has never seen the module. So it measures what a deployment gets.
    """

    def keeps_choices(self, cell: Cell, workspace: Path) -> bool:
        return True

    def available_to_load(self, device: Device) -> Availability:
        """Can this machine load on `device` what another process has packaged?"""
        return self.available(device)

    @abstractmethod
    def package(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> None:
        """Write the artefact into `context.workspace`, in the phases `export` and `compile`."""

    @abstractmethod
    def load(self, inputs: Inputs, context: BuildContext) -> Compiled:
        """Read the artefact back, in the phase `load`. `inputs` show how the model is called."""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        self.package(module, inputs, context)
        return self.load(inputs, context)
