"""Bringing a contest to its records: what makes no sense ends at once, then comes the reference, then the cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bakeoff import backends, models
from bakeoff.backends.base import Mode
from bakeoff.judging import roofline
from bakeoff.judging.intervals import special_functions
from bakeoff.judging.ranking import baseline_of
from bakeoff.measuring.controller import groundwork
from bakeoff.measuring.controller.build_folder import folders_of
from bakeoff.measuring.controller.cell_record import (
    MetricsSetup,
    no_time_for,
    products_of,
    record_of,
    refused,
    with_roofline,
)
from bakeoff.measuring.controller.cell_run import CellRun
from bakeoff.measuring.controller.contest_run import ContestRun
from bakeoff.measuring.controller.rounds import most_further
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.cores import SPARE_CORES
from bakeoff.measuring.messages import EagerCall, Evaluation
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.time_plan import MAX_CEILINGS_S, USUAL_CEILINGS_S, PlanStep, likely_to_run
from bakeoff.records.schema import Cell, Memory, Status, Work
from bakeoff.records.store import Store, UnfinishedContest
from bakeoff.records.text import counted, listed

NO_TIME_FOR_CEILINGS = "--budget left no time to measure the machine's ceilings"


def measure_contest(run: RunContext, contest: Contest, pending: Sequence[PlannedCell]) -> None:
    sensible = []
    for planned in pending:
        if record := refused(planned):
            run.end(record)
        else:
            sensible.append(planned)
    likely = likely_to_run(planned.cell for planned in sensible)
    run.time_plan.expect(contest.id, likely, run.sampling.processes, bool(contest.evaluated_by(run.request.evaluate)))
    run.time_plan.begin(contest.id, run.machine.now_s())
    if sensible:
        _measure_sensible(run, contest, sensible)
    run.time_plan.ended(contest.id)
    if pending:
        run.progress.decided(run.store.records([planned.cell.id for planned in contest.cells]))


def _measure_sensible(run: RunContext, contest: Contest, sensible: Sequence[PlannedCell]) -> None:
    begun_s = run.machine.now_s()
    sizes: list[Memory] = []
    eager_calls: dict[str, EagerCall] = {}
    first_reference: Path | None = None
    for own in Contest(contest.id, tuple(sensible)).by_reference:
        limit_s = min(run.request.time_limit_s, run.time_plan.contest_ends_s - run.machine.now_s())
        try:
            path, size, eager_call = groundwork.reference(own, run, limit_s, first_reference)
        except groundwork.NoReference as error:
            _end_without_reference(run, own.cells, error)
            sensible = [planned for planned in sensible if planned not in own.cells]
            continue
        first_reference = first_reference or path
        sizes += [size] if size else []
        eager_calls |= {own.id: eager_call} if eager_call else {}
    if not sensible:
        return
    special_functions()  # imported now at the latest, and not between two rounds
    has_spare_cores = len(run.machine.usable_cores()) >= SPARE_CORES
    if not has_spare_cores or not all(planned.cell.device.is_cuda for planned in sensible):
        run.headers.await_all()  # they were made beside the reference, and builds are timed
    _take_ceilings(run, [planned.cell for planned in sensible])
    _warn_of_objective_below_floor(run, sensible[0].cell)
    groundwork_s = run.machine.now_s() - begun_s
    cells_by_id = {planned.cell.id: planned.cell for planned in sensible}
    folders = folders_of(cells_by_id, _folders_in_cache(run, sensible), run.store)
    metrics = _metrics(run, contest.id, sensible)
    kept = run.store.unfinished(contest.id)
    cells = {cell.record.cell.id: cell for cell in kept.cells} if kept else {}
    cell_runs = [
        CellRun(planned, run, folders[planned.cell.id], metrics, cells.get(planned.cell.id)) for planned in sensible
    ]
    _expect_what_is_left(run, cell_runs, kept)
    run.step_done(PlanStep.GROUNDWORK, "", groundwork_s)
    if kept:
        done = counted(kept.epochs, "process")
        run.store.note(f"interrupted and resumed: {kept.contest_id} went on after {done} of each cell")
        if gone := [cell_run.label for cell_run in cell_runs if cell_run.has_lost_builds]:
            run.store.note(
                f"what {', '.join(gone)} had built for {kept.contest_id} is gone: a further process builds anew"
            )
    stand_ins = _leave_out(run, sensible, cell_runs, eager_calls)
    cell_runs = [cell_run for cell_run in cell_runs if cell_run not in {stand_in for stand_in, _ in stand_ins}]
    if before := [cell_run.label for cell_run in cell_runs if cell_run.was_built_before and not cell_run.cached_at]:
        run.store.note(f"interrupted and resumed: {contest.id} began anew, but with {', '.join(before)} built before")
    known_size = max(sizes, key=lambda size: (size.peak_device_bytes or 0, size.peak_resident_bytes or 0), default=None)
    ContestRun(run, cell_runs, kept, known_size, stand_ins).run()
    if note := run.launchers.first.branch_note:
        run.store.note(note)
    run.store.forget(contest.id, [planned.cell.id for planned in contest.cells])


def _expect_what_is_left(run: RunContext, cell_runs: Sequence[CellRun], kept: UnfinishedContest | None) -> None:
    """Expect no more of a contest than earlier runs have left of it: builds, and this run's finished processes."""
    for cell_run in cell_runs:
        if cell_run.starts_warm:
            run.time_plan.expect_built(cell_run.label)
        if cell_run.bursts:
            run.time_plan.called(cell_run.label, cell_run.median_ms / 1e3)
    if kept:
        left = max(0, run.sampling.processes - kept.epochs)
        labels = [cell_run.label for cell_run in cell_runs if not cell_run.left]
        run.time_plan.expect_further(labels, left, most_further(run.sampling, kept.epochs))


def measure_ceilings(run: RunContext, contests: Sequence[Contest]) -> None:
    """Measure what the machine can do for the cells that have numbers, and give them their floors. Call this after all
    contests, because it is not the answer."""
    records = [
        record
        for record in run.store.records([planned.cell.id for contest in contests for planned in contest.cells])
        if record.latency and run.store.has(record.cell.id) and not record.roofline
    ]
    left_s = min(MAX_CEILINGS_S, run.time_plan.budget_ends_s - run.machine.now_s())
    has_time = left_s >= USUAL_CEILINGS_S
    were_known = {
        record.cell.contest_id for record in records if run.store.ceilings(record.cell.device, products_of(record.cell))
    }
    _take_ceilings(run, [record.cell for record in records], left_s, may_measure=has_time)
    for record in records:
        run.store.save(with_roofline(record, run.store, "" if has_time else NO_TIME_FOR_CEILINGS))
    for cell in {record.cell.contest_id: record.cell for record in records}.values():
        if cell.contest_id not in were_known:
            _warn_of_objective_below_floor(run, cell)


def _take_ceilings(run: RunContext, cells: Sequence[Cell], left_s: float = 0.0, may_measure: bool = False) -> None:
    """Take what an earlier run has kept of the machine's ceilings, or measure them for all of these cells."""
    ends_s = run.machine.now_s() + left_s
    for cell in {(cell.device, products_of(cell)): cell for cell in cells}.values():
        limit_s = ends_s - run.machine.now_s()
        groundwork.measure_ceilings(cell, run, limit_s, may_measure and limit_s > 0)


def _warn_of_objective_below_floor(run: RunContext, cell: Cell) -> None:
    """Say at once that no build can be expected to hold the objective under load, as a call alone takes longer."""
    work, ceilings = run.store.facts(cell.reference_id, Work), run.store.ceilings(cell.device, products_of(cell))
    objective = run.load.objective if run.load else None
    if not (work and ceilings and objective):
        return
    floor_ms = roofline.of(work, ceilings, None).floor_ms
    if objective.limit_ms < floor_ms:
        asked = f"{objective.percentile} < {objective.limit_ms:g} ms"
        warning = f"{asked} is below the floor of a call, {floor_ms:.3g} ms: hardly any build can hold it"
        run.progress.note(warning)
        run.store.note(f"{cell.contest_id}: {warning}")


def add_floors(store: Store) -> None:
    """Give a floor to each cell whose ceilings were measured after its contest, by another one or at another place."""
    for record in store.records():
        if record.no_floor:
            store.save(with_roofline(record, store, record.no_floor))


def _metrics(run: RunContext, contest_id: str, cells: Sequence[PlannedCell]) -> MetricsSetup | None:
    """Return the user's `evaluate` with what it says of the reference, or None without such a function."""
    contest = Contest(contest_id, tuple(cells))
    if not (function := contest.evaluated_by(run.request.evaluate)):
        return None
    sample = run.store.sample(cells[0].cell.reference_id).resolve()
    evaluation = Evaluation(function=models.resolve_evaluate(function), sample=sample)
    now_s = run.machine.now_s()
    left_s = run.time_plan.reference_evaluation_ends_s(now_s) - now_s
    reference = groundwork.reference_metrics(contest, run, evaluation, left_s)
    run.step_done(PlanStep.EVALUATE, "", reference.seconds)
    if reference.failure:
        run.time_plan.evaluates_nothing()
    elif missing := [name for name in run.requirements.metrics if name not in reference.values]:
        returned = ", ".join(reference.values)
        run.progress.note(f"evaluate returned {returned}, and --require names {', '.join(missing)}: nothing can win")
    return MetricsSetup(evaluation, reference)


def _leave_out(
    run: RunContext, cells: Sequence[PlannedCell], cell_runs: Sequence[CellRun], eager_calls: Mapping[str, EagerCall]
) -> list[tuple[CellRun, str]]:
    """End the cells of `best` that need not be built. Return each with the label of the one that must end well."""
    left_out: dict[str, tuple[str, str]] = {}
    for reference_id, call in eager_calls.items():
        alike = [planned for planned in cells if planned.cell.reference_id == reference_id]
        left_out |= dominated(alike, call.call_ms, call.host_ms)
    for planned in cells:
        if planned.cell.id in left_out:
            _, why = left_out[planned.cell.id]
            # They get their records now, so that a resumed run does not build them.
            run.end(record_of(planned, Status.LEFT_OUT, reason=why))
            run.time_plan.dropped(planned.cell.label)
    return [(cell_run, left_out[cell_run.cell.id][0]) for cell_run in cell_runs if cell_run.cell.id in left_out]


def _folders_in_cache(run: RunContext, cells: Sequence[PlannedCell]) -> dict[str, Path]:
    """Return where the builds of these cells lie or will lie in the cache, by the cell's id."""
    if run.build_cache is None:
        return {}
    threads = len(run.machine.usable_cores())
    claimed = {
        planned.cell.id: run.build_cache.claim(planned, fingerprint, threads)
        for planned in cells
        if (fingerprint := run.store.origin(planned.cell.reference_id).fingerprint)
    }
    if others := run.build_cache.used_by_others:
        run.store.note(f"another run uses the cache for {listed(others)}: built here, too, and not kept")
        others.clear()
    return {cell_id: folder for cell_id, folder in claimed.items() if folder is not None}


def _end_without_reference(run: RunContext, cells: Sequence[PlannedCell], error: groundwork.NoReference) -> None:
    """End all cells. The failure is the model's own, so that one cell reports it for all: eager, if it is there."""
    baseline = baseline_of([planned.cell for planned in cells])
    first, *others = sorted(cells, key=lambda planned: planned.cell.label != baseline)
    if run.machine.now_s() >= run.time_plan.contest_ends_s:
        lack = run.time_plan.lack([planned.cell.label for planned in cells], run.machine.now_s())
        if error.failure.place:  # a factory took the time
            lack = error.failure.but(text=error.what).sentence
        for planned in cells:
            run.end(no_time_for(planned, lack))
        return
    elsewhere = error.failure.but(text=f"{error.what}: see {first.cell.label}", place="", log="")
    for planned, failure in [(first, error.failure), *((planned, elsewhere) for planned in others)]:
        run.end(record_of(planned, error.status, failure))


SHORT_CALL_MS = 1.0
"""Where eager's call is shorter, launching kernels is a large part of it. A CUDA graph launches them at once."""

LONG_CALL_MS = 10.0
"""Where eager's call is longer and the GPU never waits for the host, a CUDA graph saves microseconds of it."""

HIDDEN_SHARE = 0.5
"""The GPU never waits for a host that takes at most this share of the call to hand its work over."""

HOST_BOUND_SHARE = 0.9
"""The GPU mostly waits for a host that takes at least this share of the call to hand its work over."""


def dominated(cells: Sequence[PlannedCell], call_ms: float, host_ms: float) -> dict[str, tuple[str, str]]:
    """Return by id the cells of `best` that need not be built on a GPU, each with the cell that is built instead and
    why. Eager's call takes `call_ms`, and the host hands its work over in `host_ms`."""
    found = {}
    baseline = baseline_of([planned.cell for planned in cells])
    a_graph_saves_nothing = call_ms >= LONG_CALL_MS and host_ms <= HIDDEN_SHARE * call_ms
    the_host_is_the_limit = host_ms >= HOST_BOUND_SHARE * call_ms
    for planned in cells:
        mode = _mode_of(planned)
        if mode is None or not planned.of_best or not planned.cell.device.is_cuda or planned.cell.label == baseline:
            continue
        for other in cells:
            its = _mode_of(other)
            if its is None or other.cell.backend != planned.cell.backend:
                continue
            keeps_memory_alike = bool(mode.channels_last_of) == bool(its.channels_last_of)
            if mode.switches and its.captures and the_host_is_the_limit and keeps_memory_alike:
                why = f"the host takes {host_ms:.3g} of the {call_ms:.3g} ms of eager's call: other kernels save little"
            elif its.code_of != mode.code_of:
                continue
            elif a_graph_saves_nothing and _replays(mode) and not _replays(its):
                why = f"a call of eager takes {call_ms:.3g} ms, of which a CUDA graph could save next to nothing"
            elif mode.replays and its.captures and not a_graph_saves_nothing:
                why = f"{other.cell.label} replays the same code, without what the library does before each replay"
            elif its.captures and not _replays(mode) and call_ms < SHORT_CALL_MS:
                why = f"{other.cell.label} replays the same code, and a call of eager takes {call_ms:.2g} ms"
            else:
                continue
            found[planned.cell.id] = (other.cell.label, why)
    return found


def _replays(mode: Mode) -> bool:
    return mode.captures or bool(mode.replays)


def _mode_of(planned: PlannedCell) -> Mode | None:
    """Return the mode of a cell that builds for one size in our own environment, or None."""
    cell = planned.cell
    backend = None if cell.dynamic or cell.environment else backends.if_it_loads(cell.backend)
    return backend.mode(cell.mode) if backend else None
