"""The child process: one cell from its model to its last burst, or one of the smaller jobs beside it.

Messages to the parent: `phase` (one begins), `phase_ended`, `packaged` (built ahead of time; this process is done),
`ready` (built, checked, warm), `burst`, `finished`, and `ended` (it will not go on, and why). The parent sends `burst`
and `finish`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import backends
import models
from backends.base import INFERENCE, TRAIN_STEP, AheadOfTime, Backend, BuildContext, Compiled, Settings, Wrapped
from harness import (
    accuracy,
    conditions,
    energy,
    isolation,
    link,
    memory,
    precision,
    reference,
    roofline,
    sampling,
    simulation,
)
from harness.clock import Clock
from harness.reference import run_eager, thinned
from models.base import Inputs, LoadedModel, of_each_shape
from reports.errors import BakeoffError, Unavailable, Unsupported
from reports.schema import Cell, Status

if TYPE_CHECKING:
    from backends.training import Training


def main(connection: Connection, job: dict[str, Any]) -> None:
    """Carry out `job` in this process, which is its own from here on; never returns."""
    status = 1
    try:
        _settle(job)
        ROLES[job["role"]](connection, job)
        status = 0
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone, and there is nobody left to tell
    except BaseException as error:
        traceback.print_exc()
        status_name, reason = explain(error)
        with contextlib.suppress(OSError):
            link.send(connection, "ended", status=status_name, reason=reason)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # no exit handlers: a library that crashes while it is torn down must not spoil a finished cell
        os._exit(status)


def spawned() -> None:
    """Entry point of a fresh interpreter. argv: number of the pipe's descriptor; the job is the first message."""
    descriptor = int(sys.argv[1])
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        connection: Connection = PipeConnection(descriptor)
    else:
        connection = Connection(descriptor)
    main(connection, link.receive(connection))


def measure(connection: Connection, job: dict[str, Any]) -> None:
    """Build one cell, check it, warm it up, and take bursts on command."""
    bench = Bench.begin(connection, job)
    module, sets = bench.model()
    with bench.running(), bench.backend.build(module, sets[0], bench.context(sets)) as compiled:
        _serve(bench, compiled, sets)


def package(connection: Connection, job: dict[str, Any]) -> None:
    """Build one cell ahead of time into the cell's folder, from which other processes load it."""
    import torch

    bench = Bench.begin(connection, job)
    assert isinstance(bench.backend, AheadOfTime)
    module, sets = bench.model()
    with bench.running():
        bench.backend.package(module, sets[0], bench.context(sets))
        bench.clock.synchronise()
    torch.save([(one.args, dict(one.kwargs)) for one in sets], bench.handover)
    link.send(connection, "packaged")


def measure_packaged(connection: Connection, job: dict[str, Any]) -> None:
    """Load what `package` left, and go on as `measure`. This process never sees the model."""
    import torch

    bench = Bench.begin(connection, job)
    assert isinstance(bench.backend, AheadOfTime)
    with bench.phases.announced("inputs"):
        os.chdir(bench.workspace)
        # a pickle, because arguments may be anything; it was written by this run
        handed_over = torch.load(bench.handover, map_location=bench.clock.device, weights_only=False)
        sets = tuple(Inputs(args, kwargs) for args, kwargs in handed_over)
    with bench.running(), bench.backend.load(sets[0], bench.context(sets)) as compiled:
        _serve(bench, compiled, sets)


def golden(connection: Connection, job: dict[str, Any]) -> None:
    """Compute a contest's outputs in float64, and eager's error to them in the contest's precision, into a file."""
    cell = Cell.model_validate(job["cell"])
    precision.apply(cell.precision)
    clock = Clock(cell.device)
    with clock.on_stream(), gradients(cell.task):
        exact, computed_in = _exact(cell, job)
        # that module was cast in place: a fresh one has the weights that every cell starts from
        model = _load_in(cell, job)
        module, sets = place(model, cell)
        training = training_of(model, cell)
        with simulation.rounded(cell.precision, module, sets):
            eager = run_eager(module, sets, training)
        work, uncounted = _count(model, module, sets[0], cell.precision, training)
        if exact is None:
            exact = eager
            sets = reference.jolt(module, sets)
            eager = run_eager(module, sets, training_of(model, cell))
        clock.synchronise()
    known = accuracy.Golden(exact, accuracy.rmse_per_output(eager, exact), computed_in)
    known.save(Path(job["golden"]))
    link.send(connection, "finished", work=work.model_dump() if work else None, uncounted=uncounted)


def _exact(cell: Cell, job: dict[str, Any]) -> tuple[tuple[accuracy.Outputs, ...] | None, str]:
    """The outputs in the widest type that there is memory for, and that type's name. Without any that is wider than the
    cell's own: None, and the name of its precision.

    Not for `train_step`: how a weight's type rounds a step is in both of two runs, and their difference does not tell.
    """
    import torch

    names = reference.widths(cell.precision)
    for name in names:
        try:
            return reference.compute(_load_in(cell, job), cell, getattr(torch, name)), name
        except Exception as error:
            if explain(error)[0] is not Status.OOM or (cell.task == TRAIN_STEP and name == names[-1]):
                raise
            traceback.print_exc()
    return None, cell.precision


def _load_in(cell: Cell, job: dict[str, Any]) -> LoadedModel:
    """The model, in the memory that the one before it has left: a large one does not fit beside another."""
    import torch

    gc.collect()
    if cell.device != "cpu":
        torch.cuda.empty_cache()
    model = load(cell, Path(job["cwd"]))
    os.chdir(job["workspace"])
    return model


def ceilings(connection: Connection, job: dict[str, Any]) -> None:
    """What this machine can do at best, on one device in one precision."""
    precision.apply(job["precision"])
    found = roofline.measure(job["device"], job["precision"])
    link.send(connection, "finished", ceilings=found.model_dump())


def probe(connection: Connection, job: dict[str, Any]) -> None:
    """What torch says of this machine."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    link.send(
        connection,
        "finished",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cuda_devices=count,
        threads=torch.get_num_threads(),
    )


def availability(connection: Connection, job: dict[str, Any]) -> None:
    """Whether this machine has a backend, for one device."""
    available = backends.create(job["backend"]).available(job["device"])
    link.send(connection, "finished", reason=available.reason)


def importing(connection: Connection, job: dict[str, Any]) -> None:
    """Whether a module imports here. Built against another version of its neighbours, it may take its process along."""
    try:
        importlib.import_module(job["module"])
    except Exception as error:  # a library's own way to say that its libraries are missing may be of any type
        traceback.print_exc()
        link.send(connection, "finished", reason=explain(error)[1])
    else:
        link.send(connection, "finished", reason="")


ROLES: dict[str, Callable[[Connection, dict[str, Any]], None]] = {
    "measure": measure,
    "package": package,
    "measure_packaged": measure_packaged,
    "golden": golden,
    "ceilings": ceilings,
    "probe": probe,
    "availability": availability,
    "importing": importing,
}


@dataclass
class Bench:
    """What a cell's process works with."""

    connection: Connection
    job: dict[str, Any]
    cell: Cell
    backend: Backend
    phases: Phases
    clock: Clock
    device_memory: memory.DeviceMemory
    threads: int
    training: Training | None = None
    targets: tuple[str, ...] = ()
    padded_axis: int | None = None
    parameters: int | None = None  # None in a process that never sees the module

    @classmethod
    def begin(cls, connection: Connection, job: dict[str, Any]) -> Self:
        """Raises Unavailable where this machine lacks the backend, Unsupported where the precision is overruled."""
        import torch

        cell = Cell.model_validate(job["cell"])
        phases = Phases(connection)
        backend = backends.create(cell.backend)
        with phases.announced("probe"):
            available = backend.available(cell.device)
        if not available:
            raise Unavailable(available.reason)
        precision.apply(cell.precision)
        device_memory = memory.DeviceMemory(memory.cuda_index(cell.device))
        phases.clock = Clock(cell.device)
        return cls(connection, job, cell, backend, phases, phases.clock, device_memory, torch.get_num_threads())

    def model(self) -> tuple[Any, tuple[Inputs, ...]]:
        """Module and input sets on the cell's device, in its precision. From here on the workspace is where we are."""
        with self.phases.announced("model"):
            model = load(self.cell)
            if len(of_each_shape(model.inputs)) > 1 and not self.backend.takes_streams:
                raise Unsupported(f"{self.backend.name} builds for one shape, and these inputs have several")
            self.padded_axis = model.padded_axis
            self.targets = tuple(self.job.get("surgical") or model.surgical_targets)
            os.chdir(self.workspace)
            placed = place(model, self.cell)
            self.parameters = sum(weight.numel() for weight in model.module.parameters())
            with self.clock.on_stream():
                self.training = training_of(model, self.cell)
            memory.return_unused(self.cell.device)
            return placed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.clock.on_stream(), gradients(self.cell.task):
            yield

    def context(self, sets: tuple[Inputs, ...]) -> BuildContext:
        return BuildContext(
            self.cell,
            self.phases,
            self.artifact,
            self.threads,
            sets,
            padded_axis=self.padded_axis,
            training=self.training,
            targets=self.targets,
        )

    @property
    def workspace(self) -> Path:
        return Path(self.job["workspace"])

    @property
    def artifact(self) -> Path:
        """The folder a backend builds into, which all processes of the cell share."""
        return self._shared / "artifact"

    @property
    def handover(self) -> Path:
        return self._shared / "inputs.pt"

    @property
    def _shared(self) -> Path:
        """Folder of what the cell's processes share; a process that was started for itself has it in its workspace."""
        return Path(self.job.get("cell_folder") or self.workspace)

    def counted(self) -> Settings:
        return {} if self.parameters is None else {"parameters": self.parameters}

    def memory(self) -> dict[str, Any]:
        # the caches of a process that built ahead of time went with it, and are not counted
        return {
            "peak_resident_bytes": memory.peak_resident_bytes(),
            "peak_device_bytes": self.device_memory.peak_bytes,
            "device_bytes_source": self.device_memory.source or None,
            "artifact_bytes": memory.folder_bytes(self.artifact) + memory.folder_bytes(self.workspace / "cache"),
        }


class Phases:
    """Announces what is under way before it starts, so that a crash is known by its phase, and times what is timed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.clock: Clock | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A timed stage of building. The device's work is in it."""
        assert self.clock is not None
        link.send(self._connection, "phase", name=name)
        with self.clock.timed() as seconds:
            yield
        link.send(self._connection, "phase_ended", name=name, seconds=seconds[0])

    @contextlib.contextmanager
    def announced(self, name: str) -> Iterator[None]:
        """A stage that is not a user's cost."""
        link.send(self._connection, "phase", name=name)
        yield


def load(cell: Cell, cwd: Path | None = None) -> LoadedModel:
    """The cell's model, found from the folder that the user stood in."""
    if cwd is not None:
        os.chdir(cwd)
    family = models.find(cell.model)
    drawn = family.load_on(cell.dimensions, cell.seed, cell.device, precision.dtype_of(cell.precision))
    if drawn is not None and cell.device != "cpu":
        import torch

        torch.cuda.synchronize(cell.device)  # what is read on the cell's own stream was drawn on another
    return drawn or family.load(cell.dimensions, cell.seed)


def place(model: LoadedModel, cell: Cell, dtype: Any = None) -> tuple[Any, tuple[Inputs, ...]]:
    """Module and inputs on the cell's device, floating-point tensors in `dtype` (default: the cell's precision).

    The module is in eval mode for inference, else in train mode.
    """
    wanted = dtype or precision.dtype_of(cell.precision)
    trained = cell.task != INFERENCE

    def moved(tensor: Any) -> Any:
        is_cast = tensor.is_floating_point() and tensor.element_size() > 1  # float8 is a model's own choice
        tensor = tensor.detach().to(cell.device, wanted if is_cast else tensor.dtype)
        return tensor.requires_grad_(trained and model.input_gradients and tensor.is_floating_point())

    return model.module.to(cell.device, wanted).train(trained), tuple(one.map(moved) for one in model.inputs)


def training_of(model: LoadedModel, cell: Cell) -> Training | None:
    """A training task's step of a model that was placed; None for inference. Called where gradients are on."""
    if cell.task == INFERENCE:
        return None
    from backends.training import Training, without_dropout

    without_dropout(model.module)
    return Training(model.module, model.loss, cell.task)


def gradients(task: str) -> AbstractContextManager[object]:
    """What `task` runs under: inference mode, or with gradients."""
    import torch

    return torch.inference_mode(task == INFERENCE)


def _count(
    model: LoadedModel, module: Any, inputs: Inputs, cell_precision: str, training: Training | None
) -> tuple[roofline.Work | None, str]:
    """What one call takes, or why that cannot be counted: a model whose golden there is can be compared without."""
    from harness import counting

    if model.work is not None:
        flops, bytes_moved = model.work
        return roofline.Work(flops=flops, bytes_moved=bytes_moved), ""
    try:
        return counting.count(module, inputs, cell_precision, training), ""
    except Exception as error:
        traceback.print_exc()
        return None, explain(error)[1]


def explain(error: BaseException) -> tuple[Status, str]:
    """How a cell that raised `error` ends, and the reason in one line."""
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, first_line
    if isinstance(error, Unavailable):
        return Status.UNAVAILABLE, first_line
    if isinstance(error, BakeoffError):
        return Status.ERROR, first_line
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    # every library words it its own way, and not all have a type for it
    out_of_memory = isinstance(error, MemoryError) or any(
        words in str(error).lower()
        for words in ("out of memory", "failed to allocate memory", "bad_alloc", "can't allocate memory")
    )
    return (Status.OOM if out_of_memory else Status.ERROR), reason[:400]


def versions_of(backend: Backend) -> dict[str, str]:
    found = {}
    for library in backend.libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found


def _settle(job: dict[str, Any]) -> None:
    """Make this process the cell's own: session, output, environment, random state."""
    if hasattr(os, "setsid") and os.getpid() != os.getsid(0):
        os.setsid()
    isolation.die_with_parent()
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    faulthandler.enable()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    tempfile.tempdir = None  # it may have been looked up under the old environment
    random.seed()


def _serve(bench: Bench, compiled: Compiled, sets: tuple[Inputs, ...]) -> None:
    """The first call, the check, the warm-up; then bursts as the parent asks for them."""
    connection, phases, clock, device_memory = bench.connection, bench.phases, bench.clock, bench.device_memory
    precision_asked = bench.cell.precision
    names = bench.training.names(sets[0]) if bench.training else ()
    golden = accuracy.Golden.load(Path(bench.job["golden"]))
    device_memory.sample()
    single, every = compiled, sets
    if len(of_each_shape(sets)) > 1:
        compiled, sets = Stream(compiled, sets), sets[:1]
    compiled.bind(sets[0])
    with phases("first_call"):
        compiled.run()
    device_memory.sample()
    with phases.announced("check"):
        right = accuracy.check(_outputs(single, every, clock), golden, precision_asked, names)
        memory.return_unused(bench.cell.device)  # what checking took is not the cell's
    plan = sampling.SamplingPlan(**bench.job["sampling"])
    with phases.announced("settle"):
        settling = sampling.settle(compiled, sets, clock)
    with phases.announced("warm-up"):
        sampling.freeze_garbage()
        is_first = not bench.job.get("further", False)
        warm_up = sampling.warm_up(compiled, sets, clock, plan.warm_up_s, is_first)
    device_memory.sample()
    link.send(
        connection,
        "ready",
        accuracy=right.model_dump(mode="json"),
        settling=settling.model_dump(mode="json") if settling else None,
        warm_up=warm_up.model_dump(mode="json"),
        placement=_placement(compiled),
        memory=bench.memory(),
        precision_in_force={**precision.in_force(), **compiled.precision()},
        settings={"threads": bench.threads, **bench.counted(), **compiled.settings()},
        versions=versions_of(bench.backend),
        caveat=bench.backend.caveat_of(bench.cell.mode),
        reference=golden.computed_in,
    )
    compilations = compiled.compilations()
    watch = conditions.Watch(bench.cell.device)
    while (command := link.receive(connection))["kind"] == "burst":
        compiled.restore()
        with conditions.beginning_on(command.get("core")):
            sampling.rewarm(compiled, sets, clock)
        watch.begin()
        samples_ns = sampling.burst(compiled, sets, clock, plan.burst_s, plan.burst_calls)
        link.send(connection, "burst", samples_ns=samples_ns, conditions=watch.end().model_dump(mode="json"))
    assert command["kind"] == "finish"
    found: dict[str, Any] = {}
    with phases.announced("finish"):
        recompiled = compiled.compilations() - compilations
        if command["in_full"]:
            device_time = sampling.device_time(compiled, sets, clock)
            used = energy.measure(compiled, sets, clock, energy.counter_for(bench.cell.device))
            found = {
                "throughput": sampling.throughput(compiled, sets, clock).model_dump(mode="json"),
                "device_time": device_time.model_dump(mode="json") if device_time else None,
                "energy": used.model_dump(mode="json") if used else None,
                "stages": [one.model_dump(mode="json") for one in sampling.stages(compiled, sets, clock)],
            }
        device_memory.sample()
        # once more, with everything warm: a graph that replays over freed memory shows up here
        after = accuracy.check(_outputs(single, every, clock), golden, precision_asked, names)
    link.send(
        connection,
        "finished",
        **found,
        accuracy_after=after.model_dump(mode="json"),
        placement=_placement(compiled),
        memory=bench.memory(),
        recompiled=recompiled,
    )


class Stream(Wrapped):
    """Calls with each of several inputs in turn, as one call: what is timed where lengths differ from call to call."""

    def __init__(self, compiled: Compiled, sets: tuple[Inputs, ...]) -> None:
        super().__init__(compiled)
        self._sets = sets

    def bind(self, inputs: Inputs) -> None:
        """Nothing: `run` binds one after the other."""

    def run(self) -> None:
        for one in self._sets:
            self._inner.bind(one)
            self._inner.run()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ()

    def settings(self) -> Settings:
        return {**super().settings(), "inputs of one call": len(self._sets)}


def _placement(compiled: Compiled) -> dict[str, Any] | None:
    placement = compiled.placement()
    return placement.model_dump(mode="json") if placement else None


def _outputs(compiled: Compiled, sets: tuple[Inputs, ...], clock: Clock) -> list[accuracy.Outputs]:
    """The outputs for every input set, each taken before the next call, and from where training began."""
    found = []
    for one in sets:
        compiled.restore()
        compiled.bind(one)
        clock.synchronise()
        compiled.run()
        clock.synchronise()
        found.append(thinned(compiled.outputs()))
    return found
