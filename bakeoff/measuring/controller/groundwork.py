"""What must be known before cells are measured: the reference they are checked against, and the machine's ceilings."""

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bakeoff.measuring import isolation
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.cell_record import cause_of_death, products_of
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Worker, WorkerEnded
from bakeoff.measuring.messages import (
    CeilingsMeasured,
    ComputeReference,
    EagerCall,
    Evaluated,
    EvaluateReference,
    Evaluation,
    Event,
    Failed,
    HeadersMade,
    Job,
    MeasureCeilings,
    PhaseBegun,
    PrecompileHeaders,
    ReferenceComputed,
)
from bakeoff.measuring.variables import own_digests
from bakeoff.planning.plan import Contest
from bakeoff.planning.time_plan import USUAL_CEILINGS_S
from bakeoff.records.errors import os_reason
from bakeoff.records.failure import DISK_FULL, NO_BUDGET_LEFT, Failure
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Memory, Status
from bakeoff.records.store import Origin, Store, file_digest
from bakeoff.records.text import spell_minutes

NOTEWORTHY_S = 5.0
NOTEWORTHY_CHECKS_S = 2.0
HEADERS_LIMIT_S = 300.0
NOT_COMPUTED = "the reference could not be computed"
NO_ROOM = "no disk space was left for the reference"
CHANGED = "the model computes something else than before this run was interrupted"


def what_failed(phase: str, cell: Cell) -> str:
    """Say what failed, by the phase that was under way."""
    if phase == "model":
        return "your model failed to load"
    return f"your model failed when it was called in {cell.precision}" if phase == "call" else NOT_COMPUTED


class NoReference(Exception):
    """There is nothing to check a contest's cells against. They end as its computation did.

    `what` says in short what failed, and the failure also how.
    """

    def __init__(self, status: Status, what: str, failure: Failure) -> None:
        self.failure = failure.within(what)
        super().__init__(self.failure.sentence)
        self.status = status
        self.what = what


def reference(
    contest: Contest,
    launcher: Launcher,
    store: Store,
    progress: Progress,
    limit_s: float,
    cache: BuildCache | None = None,
    known: Path | None = None,
    is_machine_busy: bool = False,
) -> tuple[Path, Memory | None, EagerCall | None]:
    """Return the file with the contest's reference, and compute it if it is not there yet. Raises NoReference.

    One that an interrupted run has computed is compared with the model as it is now. If it is computed now, the memory
    that this has taken comes with it, and how long a call of eager takes. `known` is the reference of another
    precision, which has the same outputs in float64. Those of an earlier run may serve again, from the `cache`.
    On a busy machine one thread computes it, since several would mostly wait for one another.
    """
    path = store.reference(contest.id)
    log = store.log(f"reference-{contest.id}")
    cell = contest.cells[0].cell
    of_it = f"eager's error in {cell.precision} for" if known else "the float64 reference of"
    job = ComputeReference(
        cell=cell,
        reference=path.resolve(),
        sample=store.sample(contest.id).resolve(),
        inputs=store.inputs(contest.id).resolve() if any(cell.cell.dynamic for cell in contest.cells) else None,
        weights_at=contest.cells[0].weights_at,
        kept_in=cache.folder if cache else None,
        is_fresh=cache is not None and cache.is_fresh,
        known=known.resolve() if known else None,
        is_resumed=path.exists(),
        is_machine_busy=is_machine_busy,
    )
    progress.note(f"{'comparing eager with' if job.is_resumed else 'preparing'} {of_it} {contest.id}")
    event, phase = _answer(launcher, store, job, log, limit_s)
    if event is None:
        what = f"the reference was not computed within {limit_s:g} s"
        raise NoReference(Status.TIMEOUT, what, Failure(kind="time limit", text="raise --time-limit"))
    if isinstance(event, Failed):
        is_full = event.failure.kind == DISK_FULL  # which is not the model's failure
        raise NoReference(event.status, NO_ROOM if is_full else what_failed(phase, cell), event.failure)
    assert isinstance(event, ReferenceComputed)
    if job.is_resumed:
        if event.is_changed:
            raise NoReference(Status.ERROR, CHANGED, Failure(kind="model changed", text="start a new run"))
        return path, None, None
    store.keep_facts(contest.id, event.traits)
    origin = Origin(
        fingerprint=event.fingerprint,
        weights=event.weights,
        variables=own_digests(event.named_variables, os.environ),
        files={str(file): file_digest(file) for file in event.own_files},
    )
    store.keep_facts(contest.id, origin)
    if cache and event.is_changed:
        cache.distrust(cell.contest_id)
        store.note(f"eager's error in {contest.id} is not what it was in an earlier run: all was built anew")
    if event.work is None:
        store.note(f"no roofline for {contest.id}: counting its work failed: {event.uncounted}")
    else:
        store.keep_facts(contest.id, event.work)
    return path, event.memory, event.eager_call


def reference_metrics(
    contest: Contest,
    launcher: Launcher,
    store: Store,
    progress: Progress,
    evaluation: Evaluation,
    limit_s: float,
    left_s: float = math.inf,
) -> Metrics:
    """Return what the user's `evaluate` says of eager in float32, or why it has failed.

    It may take `limit_s`, and no longer than `left_s`, which a budget leaves.
    """
    if (known := store.facts(contest.id, Metrics)) is not None:
        return known
    progress.note(f"evaluating the float32 reference of {contest.id}")
    # a cell of int8, if there is one, loads the data that it is calibrated with
    int8 = (planned for planned in contest.cells if planned.cell.precision is Precision.INT8)
    chosen = next(int8, contest.cells[0])
    job = EvaluateReference(cell=chosen.cell, evaluation=evaluation, weights_at=chosen.weights_at)
    log = store.log(f"evaluate-{contest.id}")
    begun_s = time.monotonic()
    event, _ = _answer(launcher, store, job, log, min(limit_s, left_s), "evaluate")
    if isinstance(event, Evaluated):
        metrics = event.metrics
    else:
        failure = event.failure if isinstance(event, Failed) else evaluates_too_long(limit_s, left_s)
        metrics = Metrics(failure=failure, seconds=time.monotonic() - begun_s)
    if metrics.failure:
        progress.note(f"evaluate failed, so that no build is evaluated: {metrics.failure.sentence}")
    store.keep_facts(contest.id, metrics)
    return metrics


def _answer(
    launcher: Launcher, store: Store, job: Job, log: Path, limit_s: float, phase: str = "start"
) -> tuple[Event | None, str]:
    """Return what a worker answers, and its last phase. It is `Failed` where it died, and None after `limit_s`."""
    phases = [phase]
    try:
        event = launcher.ask(job, log, limit_s, phases.append)
    except WorkerEnded as ended:
        status, failure = cause_of_death(ended.status, phases[-1], store.kernel_killed())
        failure = failure.model_copy(update={"text": f"its process {failure.text}"})
        event = Failed(status=status, failure=failure)
    except DeadlinePassed:
        return None, phases[-1]
    if isinstance(event, Failed):
        event = event.model_copy(update={"failure": event.failure.model_copy(update={"log": str(log)})})
    return event, phases[-1]


def evaluates_too_long(limit_s: float, left_s: float) -> Failure:
    """Return why an evaluation was ended: by its own limit, or where a budget left it less."""
    if left_s < limit_s:
        text = f"--budget left {max(0.0, left_s):.0f} s for evaluate: raise it, or evaluate fewer samples"
        return Failure(kind=NO_BUDGET_LEFT, text=text)
    text = f"evaluate took longer than {limit_s:g} s: raise --evaluate-timeout, or evaluate fewer samples"
    return Failure(kind="time limit", text=text)


class Headers:
    """Torch's C++ headers and its checks of the C++ compiler, which workers make once for a machine.

    No build is timed with them. Each backend has a worker of its own, and all of them work at the same time.
    """

    def __init__(self, store: Store, progress: Progress, limit_s: float = HEADERS_LIMIT_S) -> None:
        self._store, self._progress, self._limit_s = store, progress, limit_s
        self._workers: dict[str, Worker] = {}
        self._answers: dict[str, Event] = {}

    def begin(self, cells: Sequence[tuple[Cell, Launcher]], may_make: bool = True) -> None:
        """Have the headers precompiled that the builds of `cells` include, and do not wait.

        With may_make=False, existing headers are used. Workers get the answers about the compiler either way.
        """
        try:
            if may_make:
                isolation.headers_of_torch().mkdir(parents=True, exist_ok=True)  # workspaces are linked to it
        except OSError as error:
            self._store.note(
                f"torch's precompiled C++ headers cannot be kept, so that each build makes them: {os_reason(error)}"
            )
            return
        for cell, launcher in cells:
            if (name := _builds_of(cell)) not in self._workers:
                log = self._store.log(f"headers-{cell.backend}-{cell.device.kind}")
                job = PrecompileHeaders(backend=cell.backend, device=cell.device, may_make=may_make)
                self._workers[name] = launcher.start(job, log)

    def await_all(self) -> None:
        """Wait for everything that was begun."""
        self._await(list(self._workers))

    def await_for(self, cell: Cell) -> None:
        """Wait for what the builds of this cell include."""
        self._await([name for name in self._workers if name == _builds_of(cell)])

    def are_made_for(self, cell: Cell) -> bool:
        """Return True when what the builds of this cell include is there, or has failed. This does not wait."""
        worker = self._workers.get(name := _builds_of(cell))
        while worker is not None and name not in self._answers:
            try:
                event = worker.receive(time.monotonic())
            except DeadlinePassed:
                return False
            except WorkerEnded as error:
                event = Failed(status=Status.ERROR, failure=Failure(kind=type(error).__name__, text=str(error)))
            if not isinstance(event, PhaseBegun):
                self._answers[name] = event
        return True

    def _await(self, names: Sequence[str]) -> None:
        begun_s, phases = time.monotonic(), list[str]()

        def on_phase(name: str) -> None:
            if not phases:
                self._progress.note(f"precompiling torch's C++ headers for {', '.join(names)}, once for this machine")
            phases.append(name)

        for name in names:
            worker, known = self._workers.pop(name), self._answers.get(name)
            try:
                event = known or worker.answer(self._limit_s, on_phase)
            except (WorkerEnded, DeadlinePassed) as error:
                event = Failed(status=Status.ERROR, failure=Failure(kind=type(error).__name__, text=str(error)))
            if known:
                worker.end()
            if isinstance(event, Failed) and not event.status.is_absence:
                note = f"torch's C++ headers for {name} were not precompiled, so its first build does it"
                self._store.note(f"{note}: {event.failure.sentence}")
            elif isinstance(event, HeadersMade) and event.checks_s > NOTEWORTHY_CHECKS_S:
                self._store.note(
                    f"torch checks the C++ compiler in every process that builds, which once took {event.checks_s:.0f} "
                    f"s on this machine: builds for {name} were given the answers, and no build time contains that"
                )
        if (seconds := time.monotonic() - begun_s) > NOTEWORTHY_S:
            self._store.note(f"{seconds:.0f} s went into precompiling torch's C++ headers: no build time contains that")


def _builds_of(cell: Cell) -> str:
    environment = f"@{cell.environment}" if cell.environment else ""
    return f"{cell.backend}{environment} on {cell.device.kind}"


def measure_ceilings(
    cell: Cell,
    launcher: Launcher,
    store: Store,
    progress: Progress,
    limit_s: float,
    cache: BuildCache | None,
    await_quiet: Callable[[], None],
    may_measure: bool = True,
) -> None:
    """Measure what the machine can do on the cell's device in its products' precision, unless this run has done so.

    What an earlier run has kept in the cache is taken instead, and the report says so. `await_quiet` is called before
    something is measured, and with may_measure=False nothing is.
    """
    precision = products_of(cell)
    if store.ceilings(cell.device, precision):
        return
    where = f"on {cell.device} in {precision}"
    machine = store.environment()
    if cache and (kept := cache.ceilings(machine, cell.device, precision)):
        _save_ceilings(store, cell, where, kept)
        return
    if not may_measure:
        return
    await_quiet()
    progress.note(f"measuring the machine's ceilings {where}")
    progress.time_left(min(USUAL_CEILINGS_S, limit_s), limit_s)
    log = store.log(f"ceilings-{cell.device.slug}-{precision}")
    event, _ = _answer(launcher, store, MeasureCeilings(device=cell.device, precision=precision), log, limit_s)
    if not isinstance(event, CeilingsMeasured):
        why = event.failure.sentence if isinstance(event, Failed) else f"it took over {limit_s:g} s"
        store.note(f"no roofline {where}: measuring the machine's ceilings failed: {why}")
        return
    _save_ceilings(store, cell, where, event.ceilings)
    if cache:
        cache.keep_ceilings(machine, cell.device, precision, event.ceilings)


def _save_ceilings(store: Store, cell: Cell, where: str, ceilings: Ceilings) -> None:
    if ceilings.are_of_busy_machine:
        when = f" by a run on {spell_minutes(ceilings.kept_at)}" if ceilings.kept_at else ""
        store.note(
            f"the machine was busy while its ceilings {where} were measured{when}, even when repeated: floors are "
            "rough, and on a CPU rather too short"
        )
    store.save_ceilings(cell.device, products_of(cell), ceilings)
