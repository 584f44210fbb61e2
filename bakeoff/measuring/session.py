"""What comes between a plan and its records: the common part of every way to run contests."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Sequence

from bakeoff import backends, models
from bakeoff.judging.intervals import special_functions
from bakeoff.measuring.controller import environment
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.contests import measure_ceilings, measure_contest
from bakeoff.measuring.controller.environment import Machine
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import FURTHER_SERVERS_AT_ONCE, Launchers
from bakeoff.measuring.controller.others import OtherPrograms
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.server_start import CAN_FORK, torch_answers
from bakeoff.measuring.controller.worker_process import CAN_PAUSE
from bakeoff.measuring.cores import SPARE_CORES, usable_cores
from bakeoff.measuring.messages import AxesFound, FindOpenAxes, ProbeTorch, TorchFacts
from bakeoff.measuring.nvml import compute_capability
from bakeoff.measuring.probes import ask, facts_of_environments
from bakeoff.models.base import Family
from bakeoff.planning.places import ALL_GPUS
from bakeoff.planning.plan import Contest, PlannedCell, plan
from bakeoff.planning.ranges import spell
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import TimePlan, likely_to_run
from bakeoff.records.artifacts import Artifacts
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Environment
from bakeoff.records.store import Store


def describe_machine(launchers: Launchers, request: Request) -> tuple[TorchFacts, Environment]:
    """Return what torch sees of this machine, and the description of the machine. Raises UsageError for a named
    environment that cannot run a worker."""
    captured = environment.capture()
    imports = shared_imports(list(map(models.find, request.models)))
    # With cores to spare, one server answers for torch, while the others import what the models need.
    asks_last = has_spare_cores() and launchers.last is not launchers.first
    if imports and asks_last:
        launchers.preload(imports, may_use_cuda(request), except_last=True)
    if not launchers.first.is_serving:
        special_functions()  # imported while servers import torch
    facts = ask(launchers.last if asks_last else launchers.first, ProbeTorch(), TorchFacts)
    torch_answers()
    return facts, environment.with_torch(captured, facts, facts_of_environments(launchers, request))


def may_use_cuda(request: Request) -> bool:
    if request.devices:
        return any(device.is_cuda for device in request.devices_of_cells)
    return compute_capability(0) is not None


def require_devices(devices: Iterable[str], facts: TorchFacts) -> None:
    """Raise UsageError, with what was found and what to do, if torch does not see one of `devices`."""
    named = ["cuda" if name == ALL_GPUS else name for name in devices if not name.startswith("cpu")]
    for device in map(Device, named):
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
            "let nvidia-smi find one, or write --devices cpu; bakeoff doctor looks for the cause"
        )


def on_this_machine(request: Request, facts: TorchFacts) -> Request:
    """Return the request with its devices: without a name the GPU if there is one, and each GPU in place of `cuda:all`.
    A single one is no pool, and is `cuda`. Raise UsageError for what torch does not see."""
    require_devices(request.devices, facts)
    devices = request.devices or ("cuda" if facts.cuda_devices else "cpu",)
    if ALL_GPUS in devices:
        several = tuple(f"cuda:{index}" for index in range(facts.cuda_devices))
        devices = several if len(several) > 1 else ("cuda",)
    return request.but(devices=devices)


def measure(
    launchers: Launchers,
    contests: Sequence[Contest],
    request: Request,
    store: Store,
    progress: Progress,
    budget_ends_s: float = math.inf,
) -> None:
    """Bring every cell of the contests to its record in the store, one contest after the other."""
    time_plan = time_plan_of(contests, request, store, budget_ends_s)
    cells, others = cells_of(contests), OtherPrograms()
    headers = prepare(launchers, cells_to_build(contests, store), request, store, progress)
    warning = ""
    if not any(pending(contest, store) for contest in contests):
        progress.note("nothing is left to measure")
    elif warning := others.warning(len(usable_cores()) or 1, bool(request.wait_for_quiet)):
        store.note(warning)
        progress.note(warning)
    progress.planned(cells)
    # an interruption ends the measuring and not the run: what has finished is reported
    with BuildCache(is_fresh=request.fresh) as cache, store.timed(), contextlib.suppress(KeyboardInterrupt):
        measurement = measurement_of(launchers, request, store, progress, time_plan, headers, cache)
        measurement.is_machine_busy = bool(warning)
        for contest in contests:
            measure_contest(measurement, contest, pending(contest, store))
        measure_ceilings(measurement, contests)
        store.forget_builds({cell.build_id for cell in cells})


def pending(contest: Contest, store: Store) -> list[PlannedCell]:
    return [planned for planned in contest.cells if not store.has(planned.cell.id)]


def cells_of(contests: Sequence[Contest]) -> list[Cell]:
    return [planned.cell for contest in contests for planned in contest.cells]


def cells_to_build(contests: Sequence[Contest], store: Store) -> list[Cell]:
    """Return the cells that have no record yet and make sense."""
    return [planned.cell for contest in contests for planned in pending(contest, store) if not planned.refusal[1]]


def time_plan_of(contests: Sequence[Contest], request: Request, store: Store, budget_ends_s: float) -> TimePlan:
    sampling = request.sampling
    time_plan = TimePlan(sampling, budget_ends_s, request.load_plan)
    for contest in contests:
        likely = likely_to_run(cells_to_build([contest], store))
        evaluates = bool(contest.evaluated_by(request.evaluate))
        time_plan.expect(contest.id, likely, sampling.processes, evaluates)
    return time_plan


def has_spare_cores() -> bool:
    return len(usable_cores()) >= SPARE_CORES


def servers_of(request: Request) -> int:
    plan = request.sampling
    if request.budget and not has_spare_cores():
        return 1  # others would import torch beside the reference, and a short budget may not need them
    # Servers that start later keep the contest waiting.
    further = FURTHER_SERVERS_AT_ONCE if has_spare_cores() else 0
    return min(plan.most_processes, plan.processes + further)


def prepare(launchers: Launchers, cells: Sequence[Cell], request: Request, store: Store, progress: Progress) -> Headers:
    """Have the fork servers import what these cells need, and wait for the first one. Return torch's C++ headers,
    which are made beside what is not timed."""
    families = [models.find(name) for name in dict.fromkeys(cell.model for cell in cells)]
    imports = shared_imports(families) if launchers.first.start_method == "forkserver" else []
    for_cuda = any(cell.device.is_cuda for cell in cells)
    if imports:
        progress.note(
            f"importing {', '.join(dict.fromkeys(name.partition('.')[0] for name in imports))} for all processes"
        )
        launchers.preload(imports, for_cuda)
    launchers.prepare(servers_of(request))
    launchers.await_serving(1)
    if has_spare_cores() and not imports:  # a contest that needs a sixth process does not wait for its server
        launchers.prepare(min(request.sampling.most_processes, servers_of(request) + FURTHER_SERVERS_AT_ONCE))
    store.note(launchers.first.note)
    if not CAN_FORK or not CAN_PAUSE:
        store.note(
            "this platform cannot fork or stop processes: cells were spawned and measured one after the other, so that "
            "the machine's drift is in every ratio"
        )
    headers = Headers(store, progress)
    asked = [cell for cell in cells if cell.device.kind in backends.create(cell.backend).precompiles]
    may_make = not request.budget  # it would take the time of a short run
    if asked:
        headers.begin([(cell, launchers.of_environment(cell.environment).first) for cell in asked], may_make)
    here = [cell for cell in cells if not cell.environment]
    imported = dict.fromkeys(name for cell in here for name in backends.create(cell.backend).imports)
    parts = [name for name in imported if name.startswith("torch.")]  # other libraries may start threads
    if parts:  # after the headers: Inductor looks for their folder when it is imported
        launchers.branch(parts, for_cuda=any(cell.device.is_cuda for cell in here))
    return headers


def measurement_of(
    launchers: Launchers,
    request: Request,
    store: Store,
    progress: Progress,
    time_plan: TimePlan,
    headers: Headers,
    build_cache: BuildCache | None = None,
    machine: Machine | None = None,
    place: str = "",
) -> RunContext:
    if build_cache and (why := build_cache.why_unusable()):
        note = f"builds are not kept: {why}; the next run builds anew"
        store.note(note)
        progress.note(note)
    return RunContext(
        launchers=launchers,
        store=store,
        progress=progress,
        request=request,
        sampling=request.sampling,
        time_plan=time_plan,
        headers=headers,
        machine=machine or Machine(),
        artifacts=None if request.no_artifacts else Artifacts(store.root, request.artifact_limit.size_bytes),
        load=request.load_plan,
        place=place,
        build_cache=build_cache,
    )


def shared_imports(families: Sequence[Family]) -> list[str]:
    # Where a family imports nothing, no cell may begin with the imports of another.
    if not all(family.imports for family in families):
        return []
    return list(dict.fromkeys(module for family in families for module in family.imports))


def completed_contests(request: Request, launchers: Launchers) -> list[Contest]:
    """Return the contests of the request with the axes to leave open, and with the sizes that all cells have their
    weights at, if weights vary with sizes. Raises UsageError, in one line, if a model refuses its range."""
    found: dict[str, AxesFound] = {}  # by range
    return [_completed(contest, launchers, found) for contest in plan(request)]


def _completed(contest: Contest, launchers: Launchers, found: dict[str, AxesFound]) -> Contest:
    dynamic = [planned for planned in contest.cells if planned.cell.dynamic]
    cell = next((planned.cell for planned in dynamic if not planned.refusal[1]), None)
    if cell is None:
        return contest
    key = cell.range_id
    if key not in found:
        found[key] = _asked(cell, launchers)
    axes_found = found[key]
    sizes = {name: span.built_at for name, span in cell.dynamic.items()} if axes_found.weights_vary else {}
    cells = [
        dataclasses.replace(planned, open_axes=axes_found.axes if planned.cell.dynamic else (), weights_at=sizes)
        for planned in contest.cells
    ]
    return dataclasses.replace(contest, cells=tuple(cells))


def _asked(cell: Cell, launchers: Launchers) -> AxesFound:
    loading = f"--dynamic {spell(cell.dynamic)}: loading {cell.model} at these sizes"
    try:
        return ask(launchers.of_epoch(0), FindOpenAxes(cell=cell), AxesFound, loading)
    except BakeoffError as error:
        raise UsageError(str(error)) from None
