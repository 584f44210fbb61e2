"""What must be known before cells are measured: the reference they are checked against, and the machine's ceilings."""

import math
import os
import time
from pathlib import Path

from bakeoff import models
from bakeoff.measuring import messages
from bakeoff.measuring.controller.cell_record import cause_of_death, products_of, tail_of
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.variables import own_digests
from bakeoff.models.user import UserCode
from bakeoff.planning.plan import Contest
from bakeoff.planning.time_plan import USUAL_CEILINGS_S
from bakeoff.records.failure import DISK_FULL, NO_BUDGET_LEFT, Failure
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Memory, Status
from bakeoff.records.store import Origin, Store, file_digest
from bakeoff.records.text import spell_minutes

NOT_COMPUTED = "the reference could not be computed"
NOT_IN_TIME = "the reference was not computed"
NO_ROOM = "no disk space was left for the reference"
CHANGED = "the model computes something else than before this run was interrupted"


def what_failed(phase: str, cell: Cell) -> str:
    if phase == "model":
        return "your model failed to load"
    return f"your model failed when it was called in {cell.precision}" if phase == "call" else NOT_COMPUTED


def place_of_factory(cell: Cell) -> str:
    """Return the place of the user's code that loads the model, or nothing where it is of a library or of a program."""
    family = None if cell.is_live else models.find(cell.model)
    return f"{family.path}, in {family.function}() or an import before it" if isinstance(family, UserCode) else ""


class NoReference(Exception):
    """There is nothing to check a contest's cells against. They end as its computation did: `what` failed."""

    def __init__(self, status: Status, what: str, failure: Failure) -> None:
        self.failure = failure.within(what)
        super().__init__(self.failure.sentence)
        self.status = status
        self.what = what

    @property
    def log_tail(self) -> str:
        return tail_of(Path(self.failure.log)) if self.failure.log else ""


def reference(
    contest: Contest, run: RunContext, limit_s: float, first_reference: Path | None = None
) -> tuple[Path, Memory | None, messages.EagerCall | None]:
    """Return the file with the contest's reference, and if it is computed now, its memory and how long eager's call
    takes. `first_reference` is another precision's reference, with the same outputs in float64. Raises NoReference."""
    store, cache = run.store, run.build_cache
    path = store.reference(contest.id)
    log = store.log(f"reference-{contest.id}")
    cell = contest.cells[0].cell
    of_it = f"eager's error in {cell.precision} for" if first_reference else "the float64 reference of"
    job = messages.ComputeReference(
        cell=cell,
        reference=path.resolve(),
        sample=store.sample(contest.id).resolve(),
        inputs=store.inputs(contest.id).resolve() if any(cell.cell.dynamic for cell in contest.cells) else None,
        weights_at=contest.cells[0].weights_at,
        kept_in=cache.folder if cache else None,
        is_fresh=cache is not None and cache.is_fresh,
        first_reference=first_reference.resolve() if first_reference else None,
        # It is then compared with the model as it is now.
        is_resumed=path.exists(),
        # One thread then computes it, since several would mostly wait for one another.
        is_machine_busy=run.is_machine_busy,
    )
    run.progress.note(f"{'comparing eager with' if job.is_resumed else 'preparing'} {of_it} {contest.id}")
    event, phase = _answer(run, job, log, limit_s)
    if event is None:
        is_loading = phase == "model"
        what = f"{'your model did not load' if is_loading else NOT_IN_TIME} within {round(limit_s, 1):g} s"
        place = place_of_factory(cell) if is_loading else ""
        raise NoReference(Status.TIMEOUT, what, Failure(kind="time limit", text="raise --time-limit", place=place))
    if isinstance(event, messages.Failed):
        is_full = event.failure.kind == DISK_FULL  # which is not the model's failure
        raise NoReference(event.status, NO_ROOM if is_full else what_failed(phase, cell), event.failure)
    assert isinstance(event, messages.ReferenceComputed)
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
    contest: Contest, run: RunContext, evaluation: messages.Evaluation, left_s: float = math.inf
) -> Metrics:
    """Return what the user's `evaluate` says of eager in float32, or why it has failed. It may take no longer than
    `--evaluate-timeout` and `left_s`."""
    store, limit_s = run.store, run.request.evaluate_timeout_s
    if (stored := store.facts(contest.id, Metrics)) is not None:
        return stored
    run.progress.note(f"evaluating the float32 reference of {contest.id}")
    # a cell of int8, if there is one, loads the data that it is calibrated with
    int8 = (planned for planned in contest.cells if planned.cell.precision is Precision.INT8)
    chosen = next(int8, contest.cells[0])
    job = messages.EvaluateReference(cell=chosen.cell, evaluation=evaluation, weights_at=chosen.weights_at)
    log = store.log(f"evaluate-{contest.id}")
    begun_s = time.monotonic()
    event, _ = _answer(run, job, log, min(limit_s, left_s), "evaluate")
    if isinstance(event, messages.Evaluated):
        metrics = event.metrics
    else:
        failure = event.failure if isinstance(event, messages.Failed) else evaluates_too_long(limit_s, left_s)
        metrics = Metrics(failure=failure, seconds=time.monotonic() - begun_s)
    if metrics.failure:
        run.progress.note(f"evaluate failed, so that no build is evaluated: {metrics.failure.sentence}")
    store.keep_facts(contest.id, metrics)
    return metrics


def _answer(
    run: RunContext, job: messages.Job, log: Path, limit_s: float, phase: str = "start"
) -> tuple[messages.Event | None, str]:
    """Return what a worker answers, and its last phase. It is `Failed` where it died, and None after `limit_s`."""
    phases = [phase]
    try:
        event = run.launchers.first.ask(job, log, limit_s, phases.append)
    except WorkerEnded as ended:
        status, failure = cause_of_death(ended.status, phases[-1], run.store.kernel_killed())
        failure = failure.but(text=f"its process {failure.text}")
        event = messages.Failed(status=status, failure=failure)
    except DeadlinePassed:
        return None, phases[-1]
    if isinstance(event, messages.Failed):
        event = event.but(failure=event.failure.but(log=str(log)))
    return event, phases[-1]


def evaluates_too_long(limit_s: float, left_s: float) -> Failure:
    """Return why an evaluation was ended: by its own limit, or where a budget left it less."""
    if left_s < limit_s:
        text = f"--budget left {max(0.0, left_s):.0f} s for evaluate: raise it, or evaluate fewer samples"
        return Failure(kind=NO_BUDGET_LEFT, text=text)
    text = f"evaluate took longer than {limit_s:g} s: raise --evaluate-timeout, or evaluate fewer samples"
    return Failure(kind="time limit", text=text)


def measure_ceilings(cell: Cell, run: RunContext, limit_s: float, may_measure: bool = True) -> None:
    """Measure what the machine can do on the cell's device in its products' precision, unless this run has done so.
    With may_measure=False, only what an earlier run has kept in the cache is taken."""
    store, cache, precision = run.store, run.build_cache, products_of(cell)
    if store.ceilings(cell.device, precision):
        return
    where = f"on {cell.device} in {precision}"
    machine = store.environment()
    if cache and (kept := cache.ceilings(machine, cell.device, precision)):
        _save_ceilings(store, cell, where, kept)
        return
    if not may_measure:
        return
    run.await_serving()
    run.progress.note(f"measuring the machine's ceilings {where}")
    run.progress.time_left(min(USUAL_CEILINGS_S, limit_s), limit_s)
    log = store.log(f"ceilings-{cell.device.slug}-{precision}")
    event, _ = _answer(run, messages.MeasureCeilings(device=cell.device, precision=precision), log, limit_s)
    if not isinstance(event, messages.CeilingsMeasured):
        why = event.failure.sentence if isinstance(event, messages.Failed) else f"it took over {limit_s:g} s"
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
