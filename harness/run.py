"""A whole run: plan, references, contests, records on disk, report. Everything else hangs on this straight line."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

import backends
import models
from harness.controller import environment, groundwork
from harness.controller.contests import measure_contest
from harness.controller.launcher import CAN_FORK, Launcher, Launchers
from harness.controller.measurement import Measurement
from harness.controller.open_axes import with_open_axes
from harness.controller.progress import Progress
from harness.controller.worker_process import CAN_PAUSE, DeadlinePassed, WorkerEnded
from harness.environments import with_interpreters
from harness.messages import Failed, Job, Packaged, ProbeTorch, TorchFacts, Tried, TryBackend
from harness.plan import Contest, Request, plan, refusal
from harness.sampling_plan import SamplingPlan
from harness.time_plan import TimePlan, end_of_budget, likely_to_run
from judging.constraints import Requirements, parse_bytes
from judging.fit import fitted_report
from judging.ranking import beaten, undecided
from models.base import Family
from records import report_file
from records.artifacts import Artifacts
from records.device import Device
from records.errors import BakeoffError, UsageError
from records.schema import Cell, Report, Status
from records.store import Store

PROBE_LIMIT_S = 300.0
Answer = TypeVar("Answer", TorchFacts, Tried, Packaged)


def run(request: Request, folder: Path | None, command: str, progress: Progress) -> tuple[Report, Store]:
    """Carry out `request` in `folder` (default: results/<time>-<models>-<devices>).

    Raises UsageError before anything is measured where the request or the folder is wrong. A KeyboardInterrupt ends the
    measuring: the report then holds the cells that have finished, and is not `complete`.
    """
    require_load_generator(request)
    request = with_interpreters(request)
    budget_ends_s = end_of_budget(time.monotonic(), request.budget_s)
    plan(
        request.model_copy(update={"devices": request.devices or ("cpu",)})
    )  # a wrong name is found before any process starts
    if folder is not None:
        Store.check(folder)
    request = with_models_ready(request)
    with launchers_for(request) as launchers:
        launchers.prepare(sampling_of(request).processes)
        facts = ask(launchers.first, ProbeTorch(), TorchFacts)
        request = on_this_machine(request, facts)
        contests = with_open_axes(plan(request), launchers.first)
        planned = [planned.cell.id for contest in contests for planned in contest.cells]
        captured = environment.capture(facts, facts_of_environments(launchers, request))
        store = Store.create(folder or _default_folder(request), request, planned, command)
        store.save_environment(captured)
        _measure(launchers, contests, request, store, progress, budget_ends_s)
    return report_of(store), store


def resume(folder: Path, progress: Progress) -> tuple[Report, Store]:
    """Measure the cells of an earlier run that have no record yet, from the last epoch of their contest on.

    In another environment a contest that has not ended begins anew: its processes would not be comparable. There is no
    time budget. Raises UsageError where `folder` holds no run.
    """
    store = Store.open(folder)
    request = request_of(store)
    contests = plan(request)
    store.forget_not_reached()
    with launchers_for(request) as launchers:
        launchers.prepare(sampling_of(request).processes)
        facts = ask(launchers.first, ProbeTorch(), TorchFacts)
        require_devices(request.devices, facts)
        contests = with_open_axes(contests, launchers.first)
        captured = environment.capture(facts, facts_of_environments(launchers, request))
        before = store.environment()
        if before is None:
            store.save_environment(captured)
        elif changed := environment.differences(before, captured):
            store.note(f"resumed in another environment ({'; '.join(changed)}): do not compare across it")
            for contest in contests:
                if store.unfinished(contest.id):
                    store.note(f"{contest.id} began anew in this environment, and was built anew")
                store.forget(contest.id, [planned.cell.build_id for planned in contest.cells])
        for contest in contests:
            have_ended = {store.has(planned.cell.id) for planned in contest.cells}
            if have_ended == {True, False} and not store.unfinished(contest.id):
                store.note(f"interrupted and resumed: cells of {contest.id} measured before and after share no rounds")
        _measure(launchers, contests, request, store, progress)
    return report_of(store), store


def with_models_ready(request: Request) -> Request:
    """Return the request with the full name of each model, and have each model fetch what workers will load.

    The full name of a model from a hub has the commit. So all cells, and a resumed run, measure the same weights.
    """

    def full_name(model: str) -> str:
        family = models.find(model)
        family.prepare()
        return family.name

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(full_name(name) for name in names)

    parts = tuple(
        part.model_copy(update={"models": named(part.models)}) if part.models else part for part in request.runs
    )
    return request.model_copy(update={"models": named(request.models), "runs": parts})


def launchers_for(request: Request) -> Launchers:
    """Return the launchers of a run. Raises UsageError for an environment without an interpreter."""
    for name, python in request.pythons.items():
        if shutil.which(python) is None:
            raise UsageError(f"--env {name}={python}: there is no such interpreter")
    return Launchers(request.start_method, pythons=request.pythons)


def facts_of_environments(launchers: Launchers, request: Request) -> dict[str, TorchFacts]:
    """Return what each named environment has. Raises UsageError for one that cannot run a worker."""
    found = {}
    for name, python in request.pythons.items():
        try:
            found[name] = ask(launchers.of_environment(name).first, ProbeTorch(), TorchFacts)
        except BakeoffError as error:
            raise UsageError(f"--env {name}={python} runs no worker; it needs torch and pydantic: {error}") from None
    return found


def require_load_generator(request: Request) -> None:
    """Raise UsageError where load is asked for and MLPerf's generator is not installed."""
    if request.load and importlib.util.find_spec("mlperf_loadgen") is None:
        raise UsageError("--load needs MLPerf's load generator: pip install mlcommons-loadgen")


def require_devices(devices: Iterable[str], facts: TorchFacts) -> None:
    """Raise UsageError, with what was found and what to do, if torch does not see one of `devices`."""
    for device in map(Device, devices):
        if device.cuda_index is None or device.cuda_index < facts.cuda_devices:
            continue
        if facts.cuda_devices:
            seen = ", ".join(f"cuda:{index}" for index in range(facts.cuda_devices))
            raise UsageError(f"--devices {device}: torch {facts.torch} sees {seen} only")
        if facts.cuda is None:
            raise UsageError(
                f"--devices {device}: torch {facts.torch} is a build without CUDA: install one with it "
                "(https://pytorch.org/get-started/locally), or write --devices cpu"
            )
        raise UsageError(
            f"--devices {device}: torch {facts.torch}, built for CUDA {facts.cuda}, sees no GPU ({facts.cuda_error}): "
            "let nvidia-smi find one, or write --devices cpu; runner.py doctor looks for the cause"
        )


def on_this_machine(request: Request, facts: TorchFacts) -> Request:
    """Return the request with its devices: the GPU if there is one, unless they are named.

    Raises UsageError if torch does not see one that is named.
    """
    require_devices(request.devices, facts)
    if request.devices:
        return request
    return request.model_copy(update={"devices": ("cuda" if facts.cuda_devices else "cpu",)})


def sampling_of(request: Request) -> SamplingPlan:
    wanted_calls = Requirements.parse(request.require).calls
    plan = SamplingPlan.lasting(request.min_time_s, request.processes, wanted_calls, builds=request.builds)
    # what loses at single calls may win under load, so that no cell sits out
    return replace(plan, races=False, most_processes=plan.processes) if request.load_plan else plan


def request_of(store: Store) -> Request:
    """Return the request of the run in `store`. Raises UsageError if this version cannot read it."""
    try:
        return Request.model_validate(store.request())
    except ValidationError:
        raise UsageError(f"{store.root / 'plan.json'} is not a plan of this version of Bakeoff") from None


def report_of(store: Store) -> Report:
    """Return the report on the records that a run's folder holds so far, with fitted latencies. Nothing is measured."""
    records = store.records()
    captured = store.environment()
    if captured is None:
        raise BakeoffError(f"{store.root} holds no environment.json: the run ended before it began; start it again")
    planned = store.planned
    report = Report(
        run_id=store.root.resolve().name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=all(store.has(cell_id) for cell_id in planned),
        planned=len(planned),
        command=store.command,
        request=store.request(),
        environment=captured,
        records=records,
        notes=store.notes(),
        elapsed_s=store.elapsed_s,
    )
    return fitted_report(report)


def report_at(path: Path) -> Report:
    """Return the report in a file or a folder. For a run that was killed, it holds the cells that have finished."""
    if path.is_dir() and Store.is_run(path) and not (report_file.has_report(path) and report_file.read(path).complete):
        return report_of(Store.open(path))
    return report_file.read(path)


def exit_status(report: Report) -> int:
    """Return 0, or 1 if a cell failed or a backend that was named is missing, or 3 if nothing was measured."""
    if not any(record.latency for record in report.records):
        return 3
    failed = any(
        record.status.is_failure or (record.asked_by_name and record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED))
        for record in report.records
    )
    return 1 if failed else 0


def availability(devices: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return, for each backend and device, why this machine lacks it, or an empty string.

    Each backend is tried in a worker of its own. Raises UsageError for an unknown device.
    """
    asked = [Device(name) for name in devices]
    found: dict[tuple[str, str], str] = {}
    with Launchers("auto") as launchers:
        for device in asked:
            for name in backends.names():
                try:
                    found[name, device] = ask(launchers.first, TryBackend(backend=name, device=device), Tried).reason
                except BakeoffError as error:
                    found[name, device] = str(error)
    return found


def ask(launcher: Launcher, job: Job, answer: type[Answer]) -> Answer:
    """Start a worker for a short job, and return its answer. Raises BakeoffError, with the reason, without one."""
    log = launcher.temporary / f"{job.kind}.log"
    try:
        event = launcher.ask(job, log, PROBE_LIMIT_S)
    except (WorkerEnded, DeadlinePassed) as error:
        said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        raise BakeoffError(f"asking this machine ({job.kind}) failed: {error} {' '.join(said)}".strip()) from None
    if isinstance(event, Failed):
        raise BakeoffError(f"asking this machine ({job.kind}) failed: {event.reason}")
    assert isinstance(event, answer)
    return event


def _measure(
    launchers: Launchers,
    contests: Sequence[Contest],
    request: Request,
    store: Store,
    progress: Progress,
    budget_ends_s: float = math.inf,
) -> None:
    sampling = sampling_of(request)
    time_plan = TimePlan(sampling, budget_ends_s, request.load_plan)
    for contest in contests:
        left = [planned.cell for planned in contest.cells if not store.has(planned.cell.id)]
        sensible = [cell for cell in left if not refusal(cell)[1]]
        time_plan.expect(contest.id, likely_to_run(sensible), sampling.processes)
    cells = [planned.cell for contest in contests for planned in contest.cells]
    missing = [cell for cell in cells if not store.has(cell.id)]
    families = [models.find(name) for name in dict.fromkeys(cell.model for cell in missing)]
    imports = shared_imports(families, [cell.device for cell in missing])
    if imports and launchers.first.start_method == "forkserver":
        progress.note(
            f"importing {', '.join(dict.fromkeys(name.partition('.')[0] for name in imports))} for all processes"
        )
        launchers.preload(imports)
    launchers.prepare(sampling.processes)
    launchers.await_serving(1)
    store.note(launchers.first.note)
    if not CAN_FORK or not CAN_PAUSE:
        store.note(
            "this platform cannot fork or stop processes: cells were spawned and measured one after the other, so that "
            "the machine's drift is in every ratio"
        )
    progress.planned(cells)
    if math.isinf(budget_ends_s):  # it would take the time of a short run
        prepare_machine(launchers, missing, store, progress)
    requirements = Requirements.parse(request.require)
    measurement = Measurement(
        launchers,
        store,
        progress,
        sampling,
        request.time_limit_s,
        interleaved=request.schedule == "interleaved",
        undecided=functools.partial(undecided, requirements=requirements),
        time_plan=time_plan,
        beaten=functools.partial(beaten, requirements=requirements),
        artifacts=None
        if request.no_artifacts
        else Artifacts(store.root, parse_bytes(request.artifact_limit, "--artifact-limit")),
        load=request.load_plan,
    )
    # an interruption ends the measuring and not the run: what has finished is reported
    with store.timed(), contextlib.suppress(KeyboardInterrupt):
        for contest in contests:
            pending = [planned for planned in contest.cells if not store.has(planned.cell.id)]
            measure_contest(measurement, contest, pending)
        store.forget_builds({cell.build_id for cell in cells})


def prepare_machine(launchers: Launchers, cells: Sequence[Cell], store: Store, progress: Progress) -> None:
    """Have the libraries of the backends compile what they keep for all programs of this machine."""
    asked = [cell for cell in cells if backends.create(cell.backend).precompiles and not refusal(cell)[1]]
    for cell in {(cell.environment, cell.backend, cell.device): cell for cell in asked}.values():
        launcher = launchers.of_environment(cell.environment).first
        groundwork.prepare_machine(cell, launcher, store, progress, PROBE_LIMIT_S)


def shared_imports(families: Sequence[Family], devices: Iterable[Device]) -> list[str]:
    """Return the modules that fork servers may import for models of these families.

    There are none where CUDA is used, or where some family imports nothing: no cell may begin with what belongs to
    another.
    """
    if any(device.is_cuda for device in devices) or not all(family.imports for family in families):
        return []
    return list(dict.fromkeys(module for family in families for module in family.imports))


def _default_folder(request: Request) -> Path:
    models = [model for part in request.parts() for model in part.models]
    names = "-".join([*dict.fromkeys(models), *request.devices])
    slug = re.sub(r"[^A-Za-z0-9]+", "-", names).strip("-")[:60]
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{slug}"
    folder = Path("results") / stem
    number = 1
    while folder.exists():  # two runs began within a second
        number += 1
        folder = Path("results") / f"{stem}-{number}"
    return folder
