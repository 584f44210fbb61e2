"""From a request to cells and contests. Pure: imports no compiler, touches no device."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

import backends
import models
from backends.base import SURGICAL
from judging.constraints import Requirements
from records.device import Device
from records.errors import BakeoffError, UsageError, unknown
from records.precision import Precision
from records.schema import INFERENCE, TASKS, Cell, Frozen

ALL = "all"

Schedule = Literal["interleaved", "sequential"]
StartMethod = Literal["auto", "forkserver", "spawn"]


class Request(Frozen):
    """What was asked for, every default filled in but the devices, which only the machine knows."""

    models: tuple[str, ...] = models.DEFAULT
    backends: tuple[str, ...] = (ALL,)
    devices: tuple[str, ...] = ()  # empty: cuda if there is one, else cpu
    precision: tuple[str, ...] = ("fp32",)
    task: str = INFERENCE
    set: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=2**32)
    time_limit_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    min_time_s: float = Field(default=1.5, gt=0, allow_inf_nan=False)
    processes: int = Field(default=3, ge=1, le=100)
    schedule: Schedule = "interleaved"
    start_method: StartMethod = "auto"
    strict: bool = False
    """A cell that did not run wholly where it was asked to has failed."""
    calls: int | None = Field(default=None, ge=1)
    """Over so many calls the report compares each configuration's whole cost with eager's."""
    require: str = ""
    """What a configuration must keep to in order to win: `judging.constraints`."""
    surgical: tuple[str, ...] = ()
    """What surgical modes compile, as patterns of module names, instead of what the model itself names."""
    runs: tuple[Part, ...] = ()
    """What is measured, one after the other, where that is more than one product of models, backends and sizes."""

    def parts(self) -> list[Request]:
        """The requests that this one is made of, each with one product."""
        return [self.model_copy(update={"runs": (), **part.given(self)}) for part in self.runs] or [self]


class Part(Frozen):
    """What one run of several has of its own; the rest is the request's."""

    models: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    precision: tuple[str, ...] | None = None
    task: str | None = None
    set: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    def given(self, request: Request) -> dict[str, object]:
        """The fields that it changes. Its dimensions stand beside the request's, and win over them."""
        own = {name: value for name, value in self if value is not None}
        return own | {"set": request.set | self.set}


@dataclass(frozen=True)
class PlannedCell:
    cell: Cell
    asked_by_name: bool  # not through `all`
    strict: bool = False  # it must run wholly where it was asked to
    surgical: tuple[str, ...] = ()  # what a surgical mode compiles, if not what the model names
    options: tuple[str, ...] = ()  # of the command line: how it is measured, where that is not by default


@dataclass(frozen=True)
class Contest:
    """Cells that differ only in backend and mode."""

    id: str
    cells: tuple[PlannedCell, ...]


def plan(request: Request) -> list[Contest]:
    """The contests of a request whose devices are known, in the order asked for.

    Raises UsageError, in one line, for every name, dimension or value that does not exist.
    """
    contests: dict[str, dict[str, PlannedCell]] = {}  # by id, so that `batch=1,01` is one cell
    for part in request.parts():
        for planned in _cells(part):
            contests.setdefault(planned.cell.contest_id, {})[planned.cell.id] = planned
    return [Contest(contest_id, tuple(cells.values())) for contest_id, cells in contests.items()]


def _cells(request: Request) -> Iterator[PlannedCell]:
    """Those of one product of models, sizes, devices, precisions and configurations."""
    _check_names(request)
    devices = [Device(name) for name in request.devices]
    precisions = [Precision(name) for name in request.precision]
    configurations = expand_backends(request.backends)
    options = _options_of(request)
    for model in request.models:
        family = models.find(model)
        for values in itertools.product(*request.set.values()):
            dimensions = family.resolve(dict(zip(request.set, values, strict=True)))
            for device, precision in itertools.product(devices, precisions):
                for backend, mode, asked_by_name in configurations:
                    cell = Cell(
                        model=model,
                        dimensions=dimensions,
                        task=request.task,
                        device=device,
                        precision=precision,
                        seed=request.seed,
                        backend=backend,
                        mode=mode,
                    )
                    surgical = request.surgical if mode == SURGICAL else ()
                    yield PlannedCell(cell, asked_by_name, request.strict, surgical, options)


def expand_backends(asked: Sequence[str]) -> list[tuple[str, str, bool]]:
    """(backend, mode, asked by name) for each entry: `NAME` (its default mode), `NAME/MODE`, `NAME/all`, `all`.

    A configuration named twice is there once. Raises UsageError for unknown names and modes.
    """
    found: dict[tuple[str, str], bool] = {}
    for entry in asked:
        name, _, mode = entry.partition("/")
        by_name: bool = name != ALL
        for backend in [backends.canonical(name)] if by_name else backends.in_all():
            known = _modes_of(backend, by_name)
            if mode and mode != ALL and mode not in known:
                if not by_name:
                    raise UsageError(f"backend '{entry}': write 'all/all' for every mode of every backend")
                raise unknown(f"mode of {backend}", mode, known, "runner.py list")
            for one in _all_of(backend, known) if mode == ALL else [mode or known[0]]:
                # `NAME/all` asks for the backend, not for those of its modes that make no sense here
                named = by_name and (mode != ALL or one == known[0])
                found[backend, one] = found.get((backend, one), False) or named
    return [(backend, mode, by_name) for (backend, mode), by_name in found.items()]


def _all_of(backend: str, modes: Sequence[str]) -> list[str]:
    """The modes that `NAME/all` stands for: one that only spells out the default would be measured twice."""
    if modes == ["default"]:
        return ["default"]
    return [mode for mode in modes if mode not in backends.create(backend).spelled_out]


def _modes_of(backend: str, by_name: bool) -> list[str]:
    """The backend's modes. A third party's that does not load costs one row of an `all`, not the run."""
    try:
        return list(backends.create(backend).modes)
    except BakeoffError:
        if by_name:
            raise
        return ["default"]


MEASURED_BY = {
    "processes": "--processes",
    "min_time_s": "--min-time",
    "time_limit_s": "--time-limit",
    "schedule": "--schedule",
    "start_method": "--start-method",
    "require": "--require",
    "calls": "--calls",
}
"""Options that say how a cell is measured and judged, by their field of the request."""


def _options_of(request: Request) -> tuple[str, ...]:
    """Those that are not at their defaults, as words of the command line."""
    given = {name: getattr(request, name) for name in MEASURED_BY}
    changed = {name: value for name, value in given.items() if value != Request.model_fields[name].default}
    return tuple(f"{MEASURED_BY[name]} {shlex.quote(str(value))}" for name, value in changed.items())


def command_for(cell: Cell, strict: bool = False, surgical: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """The command that measures `cell` again as it was measured, beside its baseline."""
    label = f"{cell.backend}/{cell.mode}" if cell.mode != "default" else cell.backend
    both = label if label == "eager" else f"eager,{label}"
    parts = ["python runner.py run", f"--model {shlex.quote(cell.model)}"]
    parts += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in cell.dimensions.items()]
    parts += [f"--backends {both}", f"--devices {cell.device}", f"--precision {cell.precision}", f"--seed {cell.seed}"]
    if cell.task != INFERENCE:
        parts.append(f"--task {cell.task}")
    if strict:
        parts.append("--strict")
    if surgical:
        parts.append(f"--surgical {shlex.quote(','.join(surgical))}")
    return " ".join([*parts, *options])


def unsupported_precision(cell: Cell) -> str:
    """Return why no backend can compute in this cell's precision, or an empty string."""
    if reason := models.find(cell.model).precision_reason(cell.precision):
        return reason
    return "" if cell.device.is_cuda else cell.precision.reason_against_cpu


def _check_names(request: Request) -> None:
    for device in request.devices:
        Device(device)
    Requirements.parse(request.require)
    for precision in request.precision:
        if precision not in set(Precision):
            raise unknown("precision", precision, Precision)
    if request.task not in TASKS:
        raise unknown("task", request.task, TASKS)
    named: tuple[tuple[str, Sequence[str]], ...] = (
        ("model", request.models),
        ("backend", request.backends),
        ("precision", request.precision),
    )
    for kind, names in named:
        if not names or not all(names):
            raise UsageError(f"no {kind} named: write --{kind} NAME[,NAME...]")
    for key, values in request.set.items():
        if not values or not all(values):
            raise UsageError(f"--set {key}= has no value: write --set {key}=VALUE[,VALUE...]")
