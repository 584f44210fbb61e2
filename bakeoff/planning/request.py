"""What a user asks for: each field is read once, and carries the option that writes it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError, core_schema

from bakeoff import models
from bakeoff.judging.constraints import QUANTITIES, Requirements, parse_limits_on_errors
from bakeoff.judging.price import Price
from bakeoff.models.base import ends_of_stream
from bakeoff.planning import ranges
from bakeoff.planning.configurations import ALL
from bakeoff.planning.load_plan import USUAL_SOAK_S, LoadPlan, Traffic, parse_objective, spell_objective
from bakeoff.planning.places import devices_of_cells, is_pool
from bakeoff.planning.ranges import Span
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.values import Duration, Shard, Size, parse_interpreters, spell_named
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError, in_plain_words, unknown
from bakeoff.records.load_samples import Objective
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DEVICE, GENERATE, GENERATION, INFERENCE, TASKS, Frozen, InputsFrom

ASKED_TASKS = (*TASKS, GENERATE, *GENERATION)
"""Tasks that a user may name. `generate` stands for its two parts."""

Schedule = Literal["interleaved", "sequential"]
StartMethod = Literal["auto", "forkserver", "spawn"]
Baseline = Literal["eager", "eager/best"]
Malloc = Literal["", "glibc", "glibc-tuned", "jemalloc", "tcmalloc"]
Names = tuple[str, ...]

OF_WORKERS = "torch, numpy, pydantic, psutil and safetensors"
"""What an interpreter must have to measure a cell, besides the cell's own compiler."""


@dataclass(frozen=True)
class Option:
    """How a field of a request is written: as an option of the command line, and without dashes as a key in TOML. With
    `parse`, it is stored as it is written, and parsed when the request is made."""

    help: str
    flags: tuple[str, ...] = ()  # without any, that of the field's name
    default: str = ""  # the default in words, where it is not a value
    parse: Callable[[Any], Any] | None = None
    spell: Callable[[Any], Any] = str
    written_as: type = str  # with `parse`: a text, or a tuple of texts

    def read(self, value: Any) -> Any:
        """Return what a written value means. A value that has been read comes back as it is."""
        assert self.parse is not None
        if self.written_as is str and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str if self.written_as is str else list | tuple):
            return self.parse(value)
        if isinstance(value, str | list | tuple | bool) or (isinstance(value, dict) and self.written_as is str):
            raise PydanticCustomError("written", "write a text" if self.written_as is str else "write a list of texts")
        return value

    def written(self, value: Any) -> Any:
        if self.parse is None:
            return value
        return self.written_as() if value is None else self.spell(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        if self.parse is None:
            return handler(source)
        as_written = core_schema.plain_serializer_function_ser_schema(self.written, when_used="json")
        return core_schema.no_info_before_validator_function(self.read, handler(source), serialization=as_written)


class OfRecord(Option):
    """An option that says how a cell is measured or judged, so that its record's command has it."""


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that reads an empty text as None, and any other one as `parse` does."""
    return lambda text: parse(text) if text else None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--soak {text}: write a number of seconds") from None


def _known_precisions(names: Any) -> Any:
    for name in names if isinstance(names, list | tuple) else ():
        if name not in set(Precision):
            raise unknown("precision", str(name), Precision)
    return names


def _known_task(task: str) -> str:
    if task not in ASKED_TASKS:
        raise unknown("task", task, ASKED_TASKS, f"--task takes {', '.join(ASKED_TASKS)}")
    return task


def _known_devices(names: Names) -> Names:
    devices_of_cells(names)
    return names


DYNAMIC = Option(
    "KEY=LOW:HIGH[,...] of the model: also one build for a range of sizes",
    parse=ranges.parse,
    spell=spell_named,
    written_as=tuple,
)


class Request(Frozen):
    """What was asked for. Every default is filled in, except the devices, which only the machine knows. Command line,
    keys of TOML files and commands in records are derived from the fields' options."""

    models: Annotated[
        Names, Option("NAME[,NAME...], FILE.py:FACTORY, MODULE:FACTORY or SOURCE:NAME", flags=("--model", "--models"))
    ] = models.DEFAULT
    backends: Annotated[Names, Option("NAME[/MODE][,...], best, NAME/best, all, NAME/all, all/all")] = (ALL,)
    devices: Annotated[
        Names,
        Option(
            "cpu,cuda[:N]; contests side by side: cuda:all, cuda:0,cuda:1 or cpu:0-3,cpu:4-7",
            default="cuda if there is one, else cpu",
        ),
        AfterValidator(_known_devices),
    ] = ()
    precision: Annotated[tuple[Precision, ...], Option(",".join(Precision)), BeforeValidator(_known_precisions)] = (
        Precision.FP32,
    )
    separate: Annotated[bool, Option("A contest and a table for each precision, and not one for all")] = False
    task: Annotated[str, Option(f"What is measured: {', '.join(ASKED_TASKS)}"), AfterValidator(_known_task)] = INFERENCE
    set: Annotated[dict[str, Names], Option("KEY=VALUE[,VALUE...] of the model; several values sweep")] = Field(
        default_factory=dict
    )
    inputs: Annotated[str, Option("FILE.pt with calls that bakeoff.record kept, or FILE.npz: arrays by parameter")] = ""
    dynamic: Annotated[dict[str, Span], DYNAMIC] = Field(default_factory=dict)
    seed: Annotated[int, Option("Seed of weights and inputs")] = Field(default=0, ge=0, lt=2**32)
    time_limit_s: Annotated[float, OfRecord("Seconds that each cell may take")] = Field(
        default=600.0, gt=0, allow_inf_nan=False
    )
    min_time_s: Annotated[
        float, OfRecord("Seconds of sampling of each cell, over three processes; half if calls are short")
    ] = Field(default=1.5, gt=0, allow_inf_nan=False)
    processes: Annotated[
        int | None,
        OfRecord(
            "Fresh processes of each cell: 1 or 2 exactly, 3 or more at least, and more while they disagree",
            default="3, and fewer of cells that are clearly slower",
        ),
    ] = Field(default=None, ge=1, le=100)
    builds: Annotated[int, OfRecord("How often each cell is built, in processes of its own")] = Field(
        default=1, ge=1, le=20
    )
    schedule: Annotated[
        Schedule, OfRecord("interleaved: rounds over all cells; sequential: one cell after another")
    ] = "interleaved"
    start_method: Annotated[StartMethod, OfRecord("auto, forkserver or spawn")] = "auto"
    malloc: Annotated[
        Malloc,
        OfRecord(
            "The allocator of cells: glibc, glibc-tuned (keeps memory that is freed), jemalloc or tcmalloc",
            default="as the environment says",
        ),
    ] = ""
    cold_cache: Annotated[
        bool, OfRecord("Evict the last-level cache (L2 of a GPU) before each call; by default caches are warm")
    ] = False
    inputs_from: Annotated[
        InputsFrom,
        OfRecord(
            "Where calls find their inputs: device, or host or pinned (page-locked) memory, with copies in each call"
        ),
    ] = DEVICE
    strict: Annotated[
        bool, OfRecord("A cell fails if part of its work ran elsewhere than asked; a slow device of a pool is refused")
    ] = False
    calls: Annotated[int | None, OfRecord("Compare the cost of N calls, with building and the first call")] = Field(
        default=None, ge=1
    )
    baseline: Annotated[
        Baseline,
        OfRecord(
            "What speed-ups are relative to: eager, or eager/best, the fastest of eager's modes that were measured"
        ),
    ] = "eager"
    require: Annotated[
        Requirements,
        OfRecord(
            "What may win: 'p99_ms<5, peak_device_bytes<4GB, build_s<60, rmse<1e-3', a metric of evaluate, or one of "
            f"{', '.join(QUANTITIES)}",
            parse=Requirements.parse,
        ),
    ] = Requirements()
    accept: Annotated[
        Requirements,
        OfRecord(
            "Errors to accept beyond what the check allows, in fp32 too: 'rmse<1e-3' or 'relative_rmse<1e-2'",
            parse=parse_limits_on_errors,
        ),
    ] = Requirements()
    starts: Annotated[
        bool, OfRecord("Also start the best builds in fresh processes, as bakeoff start does: --require 'start_s<1'")
    ] = False
    evaluate: Annotated[
        str,
        OfRecord(
            "FILE.py:FUNCTION that says how good a build is: evaluate(predict) returns metrics by name",
            default="evaluate(predict) in the model's file, if it has one",
        ),
    ] = ""
    evaluate_timeout_s: Annotated[float, OfRecord("Seconds that evaluate may take for each build")] = Field(
        default=600.0, gt=0, allow_inf_nan=False
    )
    budget: Annotated[
        Duration | None,
        Option(
            "Time for the whole run, such as 90s or 5m; the answer is the best one that fits into it",
            parse=optional(partial(Duration.parse, flag="--budget")),
        ),
    ] = None
    wait_for_quiet: Annotated[
        Duration | None,
        OfRecord(
            "Most time to wait in total, such as 5m, until other programs leave the cores idle",
            parse=optional(partial(Duration.parse, flag="--wait-for-quiet")),
        ),
    ] = None
    load: Annotated[
        Traffic | None,
        OfRecord("Serve requests: server, offline, single-stream or multi-stream:8", parse=optional(Traffic.parse)),
    ] = None
    slo: Annotated[
        Objective | None,
        OfRecord(
            "With --load server, the limit to keep: 'p99_ms<20'", parse=optional(parse_objective), spell=spell_objective
        ),
    ] = None
    soak_s: Annotated[
        float | None,
        OfRecord(
            "Seconds that each cell serves at the rate found, beyond --time-limit",
            default=f"{USUAL_SOAK_S:g}, of the two best cells",
            parse=optional(_seconds),
        ),
    ] = Field(default=None, ge=0, allow_inf_nan=False)
    price: Annotated[
        Price | None, OfRecord("Price of an hour of this machine, such as 2.5/h", parse=optional(Price.parse))
    ] = None
    env: Annotated[
        dict[str, str],
        Option(
            f"NAME=PYTHON: an interpreter for backends such as onnx@NAME; it needs {OF_WORKERS}",
            parse=parse_interpreters,
            spell=spell_named,
            written_as=tuple,
        ),
    ] = Field(default_factory=dict)
    surgical: Annotated[
        Names, OfRecord("What inductor/surgical compiles: 'layers.*.rope,norm'", default="what the model names")
    ] = ()
    cluster: Annotated[str, Option("auto, or the address of a Ray cluster: contests run on its nodes")] = ""
    shard: Annotated[
        Shard | None,
        Option(
            "I/N, such as 2/8: only every N-th contest, from the I-th on, for one of N machines",
            parse=optional(Shard.parse),
        ),
    ] = None
    fresh: Annotated[
        bool, Option("Build everything again, also what an earlier run has built (bakeoff cache list)")
    ] = False
    no_artifacts: Annotated[bool, Option("Do not keep what backends have built")] = False
    artifact_limit: Annotated[
        Size, Option("Most bytes to keep, of all cells together; faster cells come first", parse=Size.parse_limit)
    ] = Size(2e9)
    runs: tuple[RunOverrides, ...] = ()
    """Several runs, each with its own product of models, backends and sizes. They are measured one after the other."""

    def __init__(self, /, **fields: Any) -> None:
        """Raises UsageError, in one line, for a value that cannot be read, is out of range, or does not fit another."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if isinstance(cause := first.get("ctx", {}).get("error"), UsageError):
                raise cause from None
            flag = next((OPTIONS[name].flags[0] for name in first["loc"] if name in OPTIONS), first["loc"])
            raise UsageError(f"{flag} {first['input']}: {in_plain_words(first['msg'])}") from None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for part in self.parts:
            part._check()
        return self

    def _check(self) -> None:
        """Raise UsageError where two values do not fit together, or a list names nothing."""
        plan, is_inference, task = self.load_plan, self.task == INFERENCE, f"--task is {self.task}"
        parts_of_backends = [part for entry in self.backends for part in entry.split("@")]
        lists = {"--model": self.models, "--backends": parts_of_backends, "--precision": self.precision}
        unnamed = next((option for option, names in lists.items() if not names or not all(names)), "")
        stream = next((one for values in self.set.values() for one in values if ends_of_stream(one)), "")
        without_value = [key for key, values in self.set.items() if not values or not all(values)]
        key = next(iter(without_value), "")
        is_from_host, inputs_from = self.inputs_from != DEVICE, f"--inputs-from {self.inputs_from}"
        has_too_few = self.processes and self.processes < self.builds
        lacks_starts = self.require.judge_starts and not self.starts
        refusals: dict[str, object] = {
            f"--builds {self.builds}: each build needs a process, so raise --processes, or leave it out": has_too_few,
            f"--load {self.load}: only inference is served, and {task}": plan and not is_inference,
            "--cold-cache evicts before each call, which --load's requests leave no time for": plan and self.cold_cache,
            f"{inputs_from} is of single calls, and --load serves from the device": plan and is_from_host,
            f"{inputs_from} is for inference, and {task}": is_from_host and not is_inference,
            "--price is that of requests under load: add --load server": self.price and not plan,
            f"--require '{self.require}' is about starts, which are not measured: add --starts": lacks_starts,
            f"--starts: only inference is exported, and {task}": self.starts and not is_inference,
            "--starts loads what backends have built: leave out --no-artifacts": self.starts and self.no_artifacts,
            "--starts is of one machine, and --cluster of many: bakeoff start measures a run on yours": self.starts
            and self.cluster,
            f"{unnamed}: a name is missing: write {unnamed} NAME[,NAME...]": unnamed,
            "--dynamic builds for sizes of a model's own inputs: with --inputs, each size is built": self.inputs
            and self.dynamic,
            f"--load sends requests of one size, and {stream} is several": plan and stream,
            f"--set {key}= has no value: write --set {key}=VALUE[,VALUE...]": without_value,
        }
        for why, is_so in refusals.items():
            if is_so:
                raise UsageError(why)

    @property
    def load_plan(self) -> LoadPlan | None:
        return LoadPlan.of(self.load, self.slo, self.soak_s, self.min_time_s)

    @property
    def parts(self) -> list[Request]:
        return [self.but(runs=(), **part.given(self)) for part in self.runs] or [self]

    @property
    def environments(self) -> list[str]:
        """Return the names that entries of --backends have after an @."""
        return sorted({entry.partition("@")[2] for part in self.parts for entry in part.backends} - {""})

    @property
    def is_pool(self) -> bool:
        return is_pool(self.devices)

    @property
    def devices_of_cells(self) -> list[Device]:
        return devices_of_cells(self.devices)

    @property
    def tasks(self) -> tuple[str, ...]:
        return GENERATION if self.task == GENERATE else (self.task,)

    @property
    def sampling(self) -> SamplingPlan:
        budget_s = self.budget.seconds if self.budget else math.inf
        plan = SamplingPlan.lasting(
            self.min_time_s, self.processes, self.require.calls, builds=self.builds, budget_s=budget_s
        )
        required = {requirement.name for requirement in self.require.items}
        plan = replace(plan, energy_of_all="joules_per_call" in required, throughput_of_all="calls_per_s" in required)
        if any(part.inputs for part in self.parts):
            plan = replace(plan, races=False)  # what loses at one size may win over the mix of sizes
        # what loses at single calls may win under load, so that no cell sits out
        unraced = replace(plan, races=False, most_processes=plan.processes, energy_of_all=True)
        return unraced if self.load_plan else plan


class RunOverrides(Frozen):
    """What one run of several sets itself. The rest comes from the request."""

    models: Names | None = None
    backends: Names | None = None
    precision: Annotated[tuple[Precision, ...], BeforeValidator(_known_precisions)] | None = None
    task: Annotated[str, AfterValidator(_known_task)] | None = None
    inputs: str | None = None
    dynamic: Annotated[dict[str, Span], DYNAMIC] | None = None
    set: dict[str, Names] = Field(default_factory=dict)

    def given(self, request: Request) -> dict[str, object]:
        own = {name: value for name, value in self if value is not None}
        return own | {"set": request.set | self.set}


def _option_of(name: str) -> Option:
    option = next(one for one in Request.model_fields[name].metadata if isinstance(one, Option))
    return replace(option, flags=option.flags or (f"--{name.removesuffix('_s').replace('_', '-')}",))


OPTIONS = {name: _option_of(name) for name in Request.model_fields if name != "runs"}
"""The option of each field of a request."""


def options_of(request: Request) -> Names:
    """Return, as words of the command line, how cells are measured and judged where that is not by default."""
    words, written = [], request.model_dump(mode="json")
    for name, option in OPTIONS.items():
        value = written[name]
        if isinstance(option, OfRecord) and getattr(request, name) != Request.model_fields[name].default:
            value = f"{value:.12g}" if isinstance(value, float) else value
            text = ",".join(value) if isinstance(value, list) else str(value)
            words.append(option.flags[0] if value is True else f"{option.flags[0]} {shlex.quote(text)}")
    return tuple(words)
