"""From a request to contests and their cells: pure functions that import no compiler and touch no device."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bakeoff import backends, models
from bakeoff.backends.base import CHANNELS_LAST, SURGICAL
from bakeoff.backends.ranges import OpenAxis
from bakeoff.judging.ranking import BASELINE, order_of_precisions
from bakeoff.models.inputs_file import CALL, MOST_SIZES, WithInputs
from bakeoff.planning import ranges
from bakeoff.planning.configurations import best_modes, expand_backends
from bakeoff.planning.request import Names, Request, options_of
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import DEVICE, INFERENCE, Cell, Status
from bakeoff.records.text import counted


@dataclass(frozen=True)
class PlannedCell:
    cell: Cell
    asked_by_name: bool  # not through `all`
    strict: bool = False  # it must run wholly where it was asked to
    surgical: Names = ()  # what a surgical mode compiles, if not what the model names
    options: Names = ()  # words of the command line for what is not measured as by default
    open_axes: tuple[OpenAxis, ...] = ()  # of a dynamic build; a worker finds them
    weights_at: dict[str, int] = field(default_factory=dict)  # all sizes have the weights of these, if they would vary
    of_best: bool = False  # only `best` stands for it, which leaves out what is surely dominated

    @functools.cached_property
    def refusal(self) -> tuple[Status, str]:
        """Return how a cell that makes no sense ends, and why, or an empty reason for any other cell. No process
        starts."""
        cell = self.cell
        try:
            backend = backends.create(cell.backend)
            reason = unsupported_precision(cell) or backend.supports(cell).reason
            if not reason and backend.mode(cell.mode).channels_last_of and not models.find(cell.model).may_convolve:
                reason = f"{cell.model} has no convolution, and {CHANNELS_LAST} is for those: use {cell.backend}"
        except BakeoffError as error:
            return Status.UNAVAILABLE, str(error)
        return Status.UNSUPPORTED if reason else Status.OK, reason


@dataclass(frozen=True)
class Contest:
    id: str
    cells: tuple[PlannedCell, ...]

    @property
    def by_reference(self) -> list[Contest]:
        """Return the cells of each precision, which share a reference, under the reference's id. Float32 comes first,
        because the others are compared with it."""
        cells = [planned.cell for planned in self.cells]
        own = {
            precision: [planned for planned in self.cells if planned.cell.precision is precision]
            for precision in order_of_precisions(cells)
        }
        return [Contest(planned[0].cell.reference_id, tuple(planned)) for planned in own.values() if planned]

    def evaluated_by(self, instead: str) -> str:
        """Return the user's function that says how good its builds are: `instead`, or that of the model's file. Return
        nothing where there is none, or where the task is not inference."""
        cell = self.cells[0].cell
        return (instead or models.find(cell.model).evaluated_by) if cell.task == INFERENCE else ""


def plan(request: Request) -> list[Contest]:
    """Return the contests of a request whose devices are known, in the order asked for. Raise UsageError, in one line,
    for a name, dimension or value that does not exist."""
    contests: dict[str, dict[str, PlannedCell]] = {}  # by id, so that `batch=1,01` is one cell
    for part in request.parts:
        for planned in _cells(part):
            contests.setdefault(planned.cell.contest_id, {})[planned.cell.id] = planned
    is_asked = bool(request.evaluate or request.require.metrics)
    if is_asked and all(part.task != INFERENCE for part in request.parts):
        raise UsageError(f"only inference is evaluated, and --task is {request.task}: require relative_rmse instead")
    if request.evaluate:
        models.resolve_evaluate(request.evaluate)
    elif not any(models.find(model).evaluated_by for part in request.parts for model in part.models):
        request.require.refuse_metrics()
    whole = [Contest(contest_id, tuple(cells.values())) for contest_id, cells in contests.items()]
    own = whole[request.shard.contests] if request.shard else whole
    if not own:
        raise UsageError(f"--shard {request.shard}: the run has {counted(len(whole), 'contest')}")
    return own


def _cells(request: Request) -> Iterator[PlannedCell]:
    devices = request.devices_of_cells
    if request.inputs_from != DEVICE and not any(device.is_cuda for device in devices):
        raise UsageError(
            f"--inputs-from {request.inputs_from}: a CPU reads its inputs in host memory, so there is nothing to copy"
        )
    precisions = tuple(dict.fromkeys(request.precision))
    compared = precisions if len(precisions) > 1 and not request.separate else ()  # in one contest
    entries_in = _by_environment(request)
    options, options_of_surgical = options_of(request.but(surgical=())), options_of(request)
    asked = ranges.with_ends(request.set, request.dynamic)
    dynamic = ranges.ranges_of(asked, request.dynamic)
    for model in request.models:
        family = models.find_for(model, request.task, request.inputs)
        recorded = family if isinstance(family, WithInputs) else None
        if recorded:
            asked = {CALL: tuple(size.label for size in recorded.with_values[:MOST_SIZES]), **request.set}
        ranges.require_served(family, asked, dynamic)
        for values in itertools.product(*asked.values()):
            dimensions = family.resolve(dict(zip(asked, values, strict=True)))
            for device, precision, task in itertools.product(devices, request.precision, request.tasks):
                example = Cell(
                    model=family.name,
                    dimensions=dimensions,
                    task=task,
                    device=device,
                    precision=precision,
                    seed=request.seed,
                    backend=BASELINE,
                    recorded=recorded.size_of(dimensions) if recorded else None,
                    compared=compared,
                    cold_cache=request.cold_cache,
                    inputs_from=request.inputs_from if device.is_cuda else DEVICE,
                )
                configurations = [
                    (environment, configuration)
                    for environment, entries in entries_in.items()
                    for configuration in expand_backends(entries, functools.partial(best_modes, example))
                ]
                for environment, (backend, mode, asked_by_name, of_best) in configurations:
                    cell = example.but(backend=backend, mode=mode, environment=environment)
                    surgical, words = (request.surgical, options_of_surgical) if mode == SURGICAL else ((), options)
                    if environment:
                        words = (f"--env {shlex.quote(f'{environment}={request.env[environment]}')}", *words)
                    is_free = of_best and not asked_by_name
                    yield PlannedCell(cell, asked_by_name, request.strict, surgical, words, of_best=is_free)
                    loaded = backends.if_it_loads(backend)
                    if dynamic and not (loaded and loaded.mode(mode).any_size):
                        one_build = cell.but(dynamic=dynamic)
                        yield PlannedCell(one_build, asked_by_name, request.strict, surgical, words)


def _by_environment(request: Request) -> dict[str, list[str]]:
    """Return the entries of --backends by the environment that they name after an @, and that of Bakeoff first."""
    names_in: dict[str, list[str]] = {}
    for entry in request.backends:
        name, _, environment = entry.partition("@")
        names_in.setdefault(environment, []).append(name)
    return dict(sorted(names_in.items(), key=lambda item: item[0] != ""))


def command_for(cell: Cell, options: Sequence[str] = ()) -> str:
    """Return the command that measures `cell` again as it was measured, beside its baseline."""
    label = cell.configuration
    both = label if label == BASELINE or cell.is_onnx_file else f"{BASELINE},{label}"
    parts = ["bakeoff run", f"--model {shlex.quote(cell.model)}"]
    parts += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in cell.dimensions.items()]
    precisions = ",".join(dict.fromkeys([*order_of_precisions([cell])[:1], cell.precision]))
    parts += [f"--backends {both}", f"--devices {cell.device}", f"--precision {precisions}", f"--seed {cell.seed}"]
    if cell.recorded:
        parts.append(f"--inputs {shlex.quote(cell.recorded.file)}")
    if cell.task != INFERENCE:
        parts.append(f"--task {cell.task}")
    if cell.dynamic:
        parts.append(f"--dynamic {shlex.quote(ranges.spell(cell.dynamic))}")
    return " ".join([*parts, *options])


def unsupported_precision(cell: Cell) -> str:
    if reason := models.find(cell.model).precision_reason(cell.precision):
        return reason
    return "" if cell.device.is_cuda else cell.precision.reason_against_cpu
