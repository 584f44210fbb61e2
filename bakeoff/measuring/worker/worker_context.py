"""What the worker of a cell works with, and how it reports its phases and its failure."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from bakeoff import backends
from bakeoff.backends import fast_path
from bakeoff.backends.base import AheadOfTime, Backend, BuildContext, Settings
from bakeoff.backends.calling import is_sparse
from bakeoff.backends.reasons import failure_of, is_out_of_memory, says_nothing, without_full_stop
from bakeoff.backends.training import Training
from bakeoff.backends.vector_instructions import trust_vector_instructions
from bakeoff.measuring import isolation, messages
from bakeoff.measuring.variables import is_withheld
from bakeoff.measuring.worker import cell_model, memory, precision
from bakeoff.measuring.worker.around import AroundModel
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.compiler_checks import CompilerChecks
from bakeoff.measuring.worker.fingerprint import require_weights
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.generation import writes_in_place
from bakeoff.records.artifacts import folder_bytes
from bakeoff.records.errors import FILES_LACK, BakeoffError, Unavailable, Unsupported, chain_of, first_line, os_reason
from bakeoff.records.failure import Failure
from bakeoff.records.package import PACKAGE
from bakeoff.records.schema import DECODE, Cell, Memory, Status
from bakeoff.records.traits import Decision, ModelTraits
from bakeoff.truth.calls import AlikeCalls, copied
from bakeoff.truth.global_settings import few_threads, put_in_force
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.reference import traits_in


@dataclass
class WorkerContext:
    connection: Connection
    job: messages.CellJob
    workspace: Path  # this worker's own folder
    cell: Cell
    backend: Backend
    phases: Phases
    clock: Clock
    device_memory: memory.DeviceMemory
    threads: int
    traits: ModelTraits
    calls: AlikeCalls
    training: Training | None = None
    around: AroundModel | None = None  # None in a process that never sees the module, and where there are no stages
    calibration: tuple[Inputs, ...] = ()  # data of the user's own, which are not judged
    frozen_choices: tuple[Decision, ...] = ()  # that a trace made while the cell was built
    targets: tuple[str, ...] = ()
    parameters: int | None = None  # None in a process that never sees the module
    layers_fast_path: Settings = field(default_factory=dict)  # whether it is on, if the module can take it
    started_in: Path = field(default_factory=Path.cwd)  # the folder that the user stood in
    build_begun_s: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, connection: Connection, job: messages.CellJob, workspace: Path) -> Self:
        """Get everything that a cell needs but its model. Raises Unavailable where this machine lacks the backend, and
        Unsupported where the precision is overruled."""
        cell = job.cell
        (job.shared_folder / "artifact").mkdir(parents=True, exist_ok=True)
        phases = Phases(connection)
        backend = backends.create(cell.backend)
        phases.announce("probe")
        if isinstance(job, messages.MeasurePackagedCell):
            assert isinstance(backend, AheadOfTime)
            available = backend.available_to_load(cell.device)
        else:
            available = backend.available(cell.device)
        if not available:
            raise Unavailable(available.reason)
        if not isinstance(job, messages.MeasurePackagedCell):  # which builds nothing
            phases.announce("import")
            for name in backend.imports:
                importlib.import_module(name)
        precision.apply(cell.precision)
        fast_path.apply(backend, cell)
        device_memory = memory.DeviceMemory(cell.device.cuda_index)
        phases.clock = Clock(cell.device)
        traits = traits_in(job.reference)
        threads = put_in_force(traits)
        calls = AlikeCalls(None, traits)
        return cls(
            connection, job, workspace, cell, backend, phases, phases.clock, device_memory, threads, traits, calls
        )

    def model(self) -> tuple[Any, tuple[Inputs, ...]]:
        self.phases.announce("model")
        with few_threads(), clock_at(self.traits.clock_s):
            model = cell_model.load(self.cell.as_built, weights_at=self.job.weights_at).understood(self.traits)
            if len(of_each_shape(model.inputs)) > 1 and not self.backend.takes_streams:
                raise Unsupported(f"{self.backend.name} builds for one shape, and these inputs have several")
            if reason := tensors_not_taken(self.backend, model):
                raise Unsupported(reason)
            self.targets = self.job.surgical or tuple(model.surgical_targets)
            os.chdir(self.workspace)
            # the model's file may have changed both, and what counts is the cell's precision and the contest's threads
            precision.apply(self.cell.precision)
            self.threads = put_in_force(self.traits)
            module, sets = cell_model.move_to_device(model, self.cell)
            require_weights(module, self.job.weights)
            self.calibration = cell_model.calibration_of(model, self.cell)
            # where activations are rounded too, a library may overwrite inputs, so they are copies (`Prepared.sparing`)
            rounds = self.cell.precision
            can_write = rounds.is_weight_only or not rounds.is_quantised
            if self.cell.task == DECODE and self.backend.writes_caches and can_write:
                module = writes_in_place(module) or module
            self.layers_fast_path = fast_path.in_force(module, self.backend.mode(self.cell.mode).switches)
            self.parameters = sum(weight.numel() for weight in model.module.parameters()) or None
            with self.clock.on_stream():
                self.training = cell_model.training_of(model, self.cell)
            memory.return_unused(self.cell.device)
            if model.around and not self.training:
                self.around = AroundModel(model.around, module, sets[0], self.started_in)
            self.calls = AlikeCalls(module, self.traits)
            return module, sets

    def to_build_with(self, sets: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
        return tuple(copied(each) if self.traits.written_inputs else each.in_own_containers() for each in sets)

    def await_turn(self) -> None:
        """Wait for this worker's turn to build. Others may have loaded meanwhile: their memory is not this worker's."""
        messages.send(self.connection, messages.ReadyToBuild())
        messages.receive_command(self.connection)
        self.build_begun_s = time.monotonic()
        self.device_memory.leave_out_others(memory.held_by_torch(self.cell.device))
        builds = not isinstance(self.job, messages.MeasurePackagedCell)
        if builds and (checks := CompilerChecks.known(self.cell.backend, self.cell.device)):
            trust_vector_instructions(checks.answers)

    def await_quiet(self) -> None:
        """Wait within a build until no other worker builds or warms up."""
        begun_s = time.monotonic()
        messages.send(self.connection, messages.ReadyToTune())
        messages.receive_command(self.connection)
        self.build_begun_s += time.monotonic() - begun_s

    def await_warm_up(self) -> messages.BeginWarmUp:
        """Wait for this worker's turn to warm up, in which no other worker builds anew."""
        messages.send(self.connection, messages.Built(seconds=self.building_s))
        command = messages.receive_command(self.connection)
        assert isinstance(command, messages.BeginWarmUp)
        return command

    @property
    def building_s(self) -> float:
        return time.monotonic() - self.build_begun_s

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.clock.on_stream(), self.gradients():
            yield

    def gradients(self) -> contextlib.AbstractContextManager[object]:
        """Return what calls are made in: inference mode, unless the model or its task needs something else."""
        return cell_model.gradients(self.cell.task, self.traits.needs_autograd)

    def context(self, sets: tuple[Inputs, ...], await_quiet: Callable[[], None] = lambda: None) -> BuildContext:
        return BuildContext(
            self.cell,
            self.phases,
            self.artifact,
            self.threads,
            self.calibration or cell_model.shown_to_builds(sets, self.cell),
            training=self.training,
            targets=self.targets,
            open_axes=self.job.open_axes,
            await_quiet=await_quiet,
        )

    @property
    def artifact(self) -> Path:
        return self.job.shared_folder / "artifact"

    @property
    def handover(self) -> Path:
        return self.job.shared_folder / "inputs.pt"

    def counted(self) -> Settings:
        return {} if self.parameters is None else {"parameters": self.parameters, **self.layers_fast_path}

    def memory(self) -> Memory:
        # the caches of a worker that built ahead of time are gone with it
        return self.device_memory.peaks(folder_bytes(self.artifact) + folder_bytes(self.workspace / "cache"))


def tensors_not_taken(backend: Backend, model: LoadedModel) -> str:
    """Return why the backend does not take the kinds of tensors that the model has, or an empty string."""
    given = {f"input {place}": tensor for place, tensor in enumerate(model.inputs[0].tensors())}
    own = [*model.module.named_parameters(), *model.module.named_buffers()]
    for name, tensor in (*given.items(), *own):
        kind = "nested" if tensor.is_nested else "sparse" if is_sparse(tensor) else ""
        if kind and not backend.takes_sparse:
            return f"{backend.name} takes dense tensors, and '{name}' is {kind}"
    if not backend.takes_complex:
        for name, tensor in given.items():
            if tensor.is_complex():
                return f"{backend.name} takes real inputs, and '{name}' is complex"
    return ""


class Phases:
    """Announces each phase before it begins, so that a crash is known by its phase, and times the phases that count."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.clock: Clock | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Announce and time a phase, with its work on the device."""
        assert self.clock is not None
        self.announce(name)
        with self.clock.timed() as seconds:
            yield
        messages.send(self._connection, messages.PhaseEnded(name=name, seconds=seconds[0]))

    def announce(self, name: str) -> None:
        messages.send(self._connection, messages.PhaseBegun(name=name))


FULL_DISK_WORDS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
MAX_REASON_CHARACTERS = 400


def explain(error: BaseException) -> tuple[Status, Failure]:
    if isinstance(error, BakeoffError):
        failure = Failure(
            kind=type(error).__name__, raised_by=raised_by(error), text=without_full_stop(first_line(error))
        )
        failed = Status.UNAVAILABLE if isinstance(error, Unavailable) else Status.ERROR
        status = Status.UNSUPPORTED if isinstance(error, Unsupported) else failed
    else:
        failure = failure_of(type(error).__name__, str(error))
        if says_nothing(failure) and (where := raised_at(error)):
            failure = failure.but(text=f"{failure.text}, raised {where}")
        notes = "".join(f": {first_line(note)}" for note in getattr(error, "__notes__", ()))
        text = f"{failure.text}{_cause_of(error, failure)}{notes}"[:MAX_REASON_CHARACTERS]
        failure = failure.but(text=text, raised_by=failure.raised_by or raised_by(error))
        status = Status.OOM if is_out_of_memory(error) else Status.ERROR
    says_full = any(words in str(cause) for cause in chain_of(error) for words in FULL_DISK_WORDS)
    if says_full or isolation.has_full_disk(Path(tempfile.gettempdir())):
        failure = failure.on_full_disk
    elif status is Status.OOM:
        failure = failure.of_memory
    elif name := unset_variable(error):
        failure = failure.but(text=f"{failure.text}: {_about_variable(name)}")
    elif any("nference tensor" in str(cause) for cause in chain_of(error)):
        failure = failure.but(text=f"{failure.text}: {IN_INFERENCE_MODE}")
    elif isinstance(cause := first_cause(error), OSError) and cause.errno in FILES_LACK:
        failure = failure.but(text=f"{failure.text}: {os_reason(cause)}")
    return status, failure


def _cause_of(error: BaseException, failure: Failure) -> str:
    """Return the first cause of an error that was raised `from` another one, unless the text names it, or nothing."""
    if error.__cause__ is None:
        return ""
    cause = first_cause(error)
    kind, said = type(cause).__name__, without_full_stop(first_line(cause))
    is_explained = kind != failure.kind == failure_of(kind, str(cause)).kind
    return "" if is_explained or said in failure.text else f", because of {kind}: {said}"


def first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def unset_variable(error: BaseException) -> str:
    """Return the environment variable that the error, or one that it came from, missed in `os.environ`, or nothing."""
    for cause in chain_of(error):
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        if isinstance(cause, KeyError) and frames and frames[-1].f_code is _READS_ENVIRON:
            return str(cause.args[0])
    return ""


IN_INFERENCE_MODE = (
    "models are called in torch.inference_mode, where this does not work. Compute it from a clone of the tensor within "
    "torch.inference_mode(False)"
)

_READS_ENVIRON = type(os.environ).__getitem__.__code__


def _about_variable(name: str) -> str:
    if is_withheld(name):
        return f"Bakeoff passes {name} on to no process, because it may change what is measured: use another name"
    return f"the environment variable {name} is not set: set it before you start bakeoff"


def raised_by(error: BaseException) -> str:
    """Return the function that raised the first cause of an error, such as `torch.export.export`, or nothing."""
    frames = [frame for frame, _ in traceback.walk_tb(first_cause(error).__traceback__)]
    return f"{frames[-1].f_globals.get('__name__', '')}.{frames[-1].f_code.co_qualname}" if frames else ""


def raised_at(error: BaseException) -> str:
    """Return where the first cause of an error was raised, with the line of code, for an error without a message."""
    frames = traceback.extract_tb(first_cause(error).__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f"in {last.name} ({Path(last.filename).name}, line {last.lineno}{f': {last.line}' if last.line else ''})"


def last_frame_below(folder: Path, error: BaseException, file: Path) -> str:
    """Return the last frame of the traceback in `file` or in other files below `folder`, or nothing. What is installed
    there, belongs to Bakeoff or lies in no file does not count."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = Path(frame.f_code.co_filename).resolve()
        is_other = "site-packages" in code.parts or code.is_relative_to(PACKAGE) or code.name.startswith("<")
        if code == file or (code.is_relative_to(folder) and not is_other):
            return f"{code.relative_to(folder)}, line {line}, in {frame.f_code.co_name}"
    return ""


def last_frame_of_program(error: BaseException) -> str:
    """Return the last frame of the traceback that belongs to no library: in a script, a module or a notebook's cell."""
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        is_cell = file.parent.name.startswith("ipykernel_") or file.name.startswith("<ipython-input")
        code = file.resolve()
        is_installed = bool({"site-packages", "dist-packages"} & set(code.parts))
        is_library = is_installed or any(code.is_relative_to(folder) for folder in (PACKAGE, *libraries))
        if is_cell or (not is_library and not file.name.startswith("<")):
            return f"{'a cell of the notebook' if is_cell else file.name}, line {line}, in {frame.f_code.co_name}"
    return ""
