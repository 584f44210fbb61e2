"""From a request to contests and their cells: pure functions that import no compiler and touch no device."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bakeoff import backends, models
from bakeoff.backends.base import CHANNELS_LAST, SURGICAL
from bakeoff.backends.ranges import OpenAxis
from bakeoff.judging.constraints import Requirements, parse_bytes
from bakeoff.judging.load import parse_price
from bakeoff.judging.ranking import BASELINE
from bakeoff.models.base import ends_of_stream
from bakeoff.planning import ranges
from bakeoff.planning.configurations import ALL, best_modes, expand_backends
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.places import devices_of_cells
from bakeoff.records.errors import BakeoffError, UsageError, unknown
from bakeoff.records.precision import Precision
from bakeoff.records.schema import GENERATE, GENERATION, INFERENCE, TASKS, Cell, Frozen, Status

ASKED_TASKS = (*TASKS, GENERATE, *GENERATION)
"""Tasks that a user may name. `generate` stands for its two parts."""

Schedule = Literal["interleaved", "sequential"]
StartMethod = Literal["auto", "forkserver", "spawn"]


@dataclass(frozen=True)
class Option:
    """How a field of a request is written: as an option of the command line, and without dashes as a key in TOML."""

    flags: tuple[str, ...]
    help: str
    default: str = ""  # the default in words, where it is not a value
    says_how: bool = False  # it says how a cell is measured or judged, and belongs to the command in its record


Names = tuple[str, ...]


class Request(Frozen):
    """What was asked for. Every default is filled in, except the devices, which only the machine knows.

    Each field carries its option. Command line, keys of TOML files and commands in records are derived from these.
    """

    models: Annotated[
        Names, Option(("--model", "--models"), "NAME[,NAME...], FILE.py:FACTORY, MODULE:FACTORY or SOURCE:NAME")
    ] = models.DEFAULT
    backends: Annotated[
        Names, Option(("--backends",), "NAME[/MODE][,...], best, NAME/best, all, NAME/all, all/all")
    ] = (ALL,)
    devices: Annotated[
        Names,
        Option(
            ("--devices",),
            "cpu,cuda[:N]; contests side by side: cuda:all, cuda:0,cuda:1 or cpu:0-3,cpu:4-7",
            default="cuda if there is one, else cpu",
        ),
    ] = ()
    precision: Annotated[Names, Option(("--precision",), ",".join(Precision))] = ("fp32",)
    task: Annotated[str, Option(("--task",), f"What is measured: {', '.join(ASKED_TASKS)}")] = INFERENCE
    set: Annotated[dict[str, Names], Option(("--set",), "KEY=VALUE[,VALUE...] of the model; several values sweep")] = (
        Field(default_factory=dict)
    )
    dynamic: Annotated[
        Names, Option(("--dynamic",), "KEY=LOW:HIGH[,...] of the model: also one build for a range of sizes")
    ] = ()
    seed: Annotated[int, Option(("--seed",), "Seed of weights and inputs")] = Field(default=0, ge=0, lt=2**32)
    time_limit_s: Annotated[float, Option(("--time-limit",), "Seconds that each cell may take", says_how=True)] = Field(
        default=600.0, gt=0, allow_inf_nan=False
    )
    min_time_s: Annotated[
        float, Option(("--min-time",), "Seconds that each cell is sampled at least", says_how=True)
    ] = Field(default=1.5, gt=0, allow_inf_nan=False)
    processes: Annotated[
        int | None,
        Option(
            ("--processes",),
            "Fresh processes of each cell, at least; more where they disagree",
            default="3, and fewer of what is surely beaten",
            says_how=True,
        ),
    ] = Field(default=None, ge=1, le=100)
    builds: Annotated[
        int,
        Option(("--builds",), "Build each cell anew so often, in processes of its own", says_how=True),
    ] = Field(default=1, ge=1, le=20)
    schedule: Annotated[
        Schedule,
        Option(
            ("--schedule",),
            "interleaved: rounds over all cells; sequential: one cell after another",
            says_how=True,
        ),
    ] = "interleaved"
    start_method: Annotated[StartMethod, Option(("--start-method",), "auto, forkserver or spawn", says_how=True)] = (
        "auto"
    )
    strict: Annotated[
        bool,
        Option(
            ("--strict",),
            "A cell that ran only in part where it was asked to has failed; a slow place of a pool is refused",
            says_how=True,
        ),
    ] = False
    calls: Annotated[
        int | None,
        Option(("--calls",), "Compare what so many calls cost, building and first call included", says_how=True),
    ] = Field(default=None, ge=1)
    require: Annotated[
        str,
        Option(("--require",), "What may win: 'p99_ms<5, peak_device_bytes<4GB, build_s<60, rmse<1e-3'", says_how=True),
    ] = ""
    budget: Annotated[
        str,
        BeforeValidator(str),
        Option(("--budget",), "Time for the whole run, such as 90s or 5m: the best verdict that it allows"),
    ] = ""
    load: Annotated[
        str,
        Option(("--load",), "Serve requests: server, offline, single-stream or multi-stream:8", says_how=True),
    ] = ""
    slo: Annotated[str, Option(("--slo",), "With --load server, what must hold: 'p99_ms<20'", says_how=True)] = ""
    soak_s: Annotated[float, Option(("--soak",), "Seconds that each cell serves at the rate found", says_how=True)] = (
        Field(default=60.0, ge=0, allow_inf_nan=False)
    )
    price: Annotated[str, Option(("--price",), "What an hour of this machine costs, such as 2.5/h", says_how=True)] = ""
    env: Annotated[
        Names,
        Option(("--env",), "NAME=PYTHON: an interpreter for backends such as onnx@NAME; it needs torch and pydantic"),
    ] = ()
    surgical: Annotated[
        Names,
        Option(
            ("--surgical",),
            "What inductor/surgical compiles: 'layers.*.rope,norm'",
            default="what the model names",
            says_how=True,
        ),
    ] = ()
    cluster: Annotated[
        str, Option(("--cluster",), "auto, or the address of a Ray cluster: contests run on its nodes")
    ] = ""
    shard: Annotated[
        str, Option(("--shard",), "I/N, such as 2/8: only every N-th contest, from the I-th on, for one of N machines")
    ] = ""
    no_artifacts: Annotated[bool, Option(("--no-artifacts",), "Do not keep what backends have built")] = False
    artifact_limit: Annotated[
        str, Option(("--artifact-limit",), "Size of what is kept, of all cells together; faster cells come first")
    ] = "2GB"
    runs: tuple[Part, ...] = ()
    """Several runs, each with its own product of models, backends and sizes. They are measured one after the other."""

    @property
    def budget_s(self) -> float | None:
        """Return the seconds of `budget`, or None without one. Raises UsageError for another form."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", self.budget, re.ASCII)
        seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
        if self.budget and not seconds:
            raise UsageError(f"--budget {self.budget}: write seconds, minutes or hours: 90, 90s, 5m or 1h")
        return seconds or None

    @property
    def pythons(self) -> dict[str, str]:
        """Return the interpreter of each named environment. Raises UsageError for another form of `env`."""
        found = {}
        for entry in self.env:
            name, equals, python = entry.partition("=")
            if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not equals or not python:
                raise UsageError(f"--env {entry}: write NAME=PYTHON, such as old=/venvs/old/bin/python")
            found[name] = python
        return found

    @property
    def own_contests(self) -> slice:
        """Return which contests of the plan `shard` leaves. Raises UsageError for another form."""
        if not self.shard:
            return slice(None)
        found = re.fullmatch(r"(\d+)/(\d+)", self.shard, re.ASCII)
        number, shards = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= shards:
            raise UsageError(f"--shard {self.shard}: write I/N with I from 1 to N, such as 2/8")
        return slice(number - 1, None, shards)

    @property
    def load_plan(self) -> LoadPlan | None:
        """Return what is measured under load, or None. Raises UsageError for another form, or for training."""
        plan = LoadPlan.parse(self.load, self.slo, self.soak_s, self.min_time_s)
        if plan and self.task != INFERENCE:
            raise UsageError(f"--load {self.load}: only inference is served, and --task is {self.task}")
        if self.price and not plan:
            raise UsageError("--price is that of requests under load: add --load server")
        parse_price(self.price)
        return plan

    def parts(self) -> list[Request]:
        """Return the requests that this one is made of, each with one product."""
        return [self.model_copy(update={"runs": (), **part.given(self)}) for part in self.runs] or [self]


class Part(Frozen):
    """What one run of several sets itself. The rest comes from the request."""

    models: Names | None = None
    backends: Names | None = None
    precision: Names | None = None
    task: str | None = None
    dynamic: Names | None = None
    set: dict[str, Names] = Field(default_factory=dict)

    def given(self, request: Request) -> dict[str, object]:
        """Return the fields that it changes. Its dimensions join those of the request, and win over them."""
        own = {name: value for name, value in self if value is not None}
        return own | {"set": request.set | self.set}


OPTIONS = {
    name: next(one for one in field.metadata if isinstance(one, Option))
    for name, field in Request.model_fields.items()
    if name != "runs"
}
"""The option of each field of a request."""


@dataclass(frozen=True)
class PlannedCell:
    cell: Cell
    asked_by_name: bool  # not through `all`
    strict: bool = False  # it must run wholly where it was asked to
    surgical: Names = ()  # what a surgical mode compiles, if not what the model names
    options: Names = ()  # words of the command line for what is not measured as by default
    open_axes: tuple[OpenAxis, ...] = ()  # of a dynamic build; a worker finds them
    weights_at: dict[str, int] = field(default_factory=dict)  # all sizes have the weights of these, if they would vary


@dataclass(frozen=True)
class Contest:
    """Cells that differ only in backend and mode."""

    id: str
    cells: tuple[PlannedCell, ...]


def plan(request: Request) -> list[Contest]:
    """Return the contests of a request whose devices are known, in the order asked for.

    Raises UsageError, in one line, for a name, dimension or value that does not exist.
    """
    contests: dict[str, dict[str, PlannedCell]] = {}  # by id, so that `batch=1,01` is one cell
    for part in request.parts():
        for planned in _cells(part):
            contests.setdefault(planned.cell.contest_id, {})[planned.cell.id] = planned
    whole = [Contest(contest_id, tuple(cells.values())) for contest_id, cells in contests.items()]
    own = whole[request.own_contests]
    if not own:
        raise UsageError(f"--shard {request.shard}: there are only {len(whole)} contest(s)")
    return own


def _cells(request: Request) -> Iterator[PlannedCell]:
    """Yield the cells of one product of models, sizes, devices, precisions and configurations."""
    _check_names(request)
    devices = devices_of_cells(request.devices)
    precisions = [Precision(name) for name in request.precision]
    spans = ranges.parse(request.dynamic)
    asked = ranges.with_ends(request.set, spans)
    for model in request.models:
        family = models.find_for(model, request.task)
        dynamic = ranges.ranges_of(family, asked, spans)
        for values in itertools.product(*asked.values()):
            dimensions = family.resolve(dict(zip(asked, values, strict=True)))
            for device, precision, task in itertools.product(devices, precisions, tasks_of(request)):
                example = Cell(
                    model=family.name,
                    dimensions=dimensions,
                    task=task,
                    device=device,
                    precision=precision,
                    seed=request.seed,
                    backend=BASELINE,
                )
                configurations = [
                    (*configuration, environment)
                    for environment, entries in _by_environment(request).items()
                    for configuration in expand_backends(entries, functools.partial(best_modes, example))
                ]
                for backend, mode, asked_by_name, environment in configurations:
                    cell = example.model_copy(update={"backend": backend, "mode": mode, "environment": environment})
                    surgical = request.surgical if mode == SURGICAL else ()
                    words = options_of(request.model_copy(update={"surgical": surgical}))
                    if environment:
                        words = (f"--env {shlex.quote(f'{environment}={request.pythons[environment]}')}", *words)
                    yield PlannedCell(cell, asked_by_name, request.strict, surgical, words)
                    if dynamic and not _is_any_size(backend, mode):
                        one_build = cell.model_copy(update={"dynamic": dynamic})
                        yield PlannedCell(one_build, asked_by_name, request.strict, surgical, words)


def tasks_of(request: Request) -> tuple[str, ...]:
    """Return the tasks of a request's cells."""
    return GENERATION if request.task == GENERATE else (request.task,)


def _by_environment(request: Request) -> dict[str, list[str]]:
    """Return the entries of --backends by the environment that they name after an @, and that of Bakeoff first.

    Raises UsageError for an environment that --env does not name.
    """
    found: dict[str, list[str]] = {}
    for entry in request.backends:
        name, at, environment = entry.partition("@")
        if at and environment not in request.pythons:
            raise unknown("environment", environment, request.pythons, "--env NAME=PYTHON")
        found.setdefault(environment, []).append(name)
    return dict(sorted(found.items(), key=lambda each: each[0] != ""))


def _is_any_size(backend: str, mode: str) -> bool:
    """Return True if a build for a range of sizes would be the same as one for a single size."""
    try:
        return backends.create(backend).mode(mode).any_size
    except BakeoffError:
        return False


def options_of(request: Request) -> Names:
    """Return, as words of the command line, how cells are measured and judged where that is not by default."""
    words = []
    for name, option in OPTIONS.items():
        value = getattr(request, name)
        if option.says_how and value != Request.model_fields[name].default:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words.append(option.flags[0] if value is True else f"{option.flags[0]} {shlex.quote(text)}")
    return tuple(words)


def command_for(cell: Cell, options: Sequence[str] = ()) -> str:
    """Return the command that measures `cell` again as it was measured, beside its baseline."""
    label = cell.configuration
    both = label if label == BASELINE or cell.is_onnx_file else f"{BASELINE},{label}"
    parts = ["bakeoff run", f"--model {shlex.quote(cell.model)}"]
    parts += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in cell.dimensions.items()]
    parts += [f"--backends {both}", f"--devices {cell.device}", f"--precision {cell.precision}", f"--seed {cell.seed}"]
    if cell.task != INFERENCE:
        parts.append(f"--task {cell.task}")
    if cell.dynamic:
        parts.append(f"--dynamic {shlex.quote(ranges.spell(cell.dynamic))}")
    return " ".join([*parts, *options])


def refusal(cell: Cell) -> tuple[Status, str]:
    """Return how a cell that makes no sense ends, and why, or an empty reason for any other cell. No process starts."""
    try:
        backend = backends.create(cell.backend)
        reason = unsupported_precision(cell) or backend.supports(cell).reason
        if not reason and backend.mode(cell.mode).channels_last_of and not models.find(cell.model).may_convolve:
            reason = f"{cell.model} has no convolution, and {CHANNELS_LAST} is for those: use {cell.backend}"
    except BakeoffError as error:
        return Status.UNAVAILABLE, str(error)
    return Status.UNSUPPORTED if reason else Status.OK, reason


def unsupported_precision(cell: Cell) -> str:
    """Return why no backend can compute in this cell's precision, or an empty string."""
    if reason := models.find(cell.model).precision_reason(cell.precision):
        return reason
    return "" if cell.device.is_cuda else cell.precision.reason_against_cpu


def _check_names(request: Request) -> None:
    devices_of_cells(request.devices)
    Requirements.parse(request.require)
    if request.processes and request.processes < request.builds:
        raise UsageError(
            f"--builds {request.builds}: each build needs a process, so raise --processes, or leave it out"
        )
    _ = request.budget_s, request.load_plan
    parse_bytes(request.artifact_limit, "--artifact-limit")
    for precision in request.precision:
        if precision not in set(Precision):
            raise unknown("precision", precision, Precision)
    if request.task not in ASKED_TASKS:
        raise unknown("task", request.task, ASKED_TASKS, f"--task takes {', '.join(ASKED_TASKS)}")
    named: tuple[tuple[str, Sequence[str]], ...] = (
        ("model", request.models),
        ("backend", request.backends),
        ("precision", request.precision),
    )
    for kind, names in named:
        if not names or not all(names):
            raise UsageError(f"no {kind} named: write --{kind} NAME[,NAME...]")
    streams = [value for values in request.set.values() for value in values if ends_of_stream(value)]
    if request.load and streams:
        raise UsageError(f"--load sends requests of one size, and {streams[0]} is several")
    for key, values in request.set.items():
        if not values or not all(values):
            raise UsageError(f"--set {key}= has no value: write --set {key}=VALUE[,VALUE...]")
