"""The format of a report: every requested cell ends as exactly one `Record`.

A record is immutable and keeps its raw samples. Summaries such as `Latency` are stored, too, for readers of the JSON.

`SCHEMA_VERSION` is semantic: a minor step adds fields, a major step changes the meaning of a field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue

from bakeoff.records.conditions import Conditions as Conditions
from bakeoff.records.device import CPU, Device
from bakeoff.records.doubts import RecordDoubt
from bakeoff.records.failure import DISK_FULL, NO_BUDGET_LEFT, Failure
from bakeoff.records.frozen import Frozen as Frozen
from bakeoff.records.load_samples import Load
from bakeoff.records.metrics import Metrics
from bakeoff.records.package import PACKAGE
from bakeoff.records.precision import Precision
from bakeoff.records.start_samples import StartedCell
from bakeoff.records.traits import Access
from bakeoff.records.traits import ModelTraits as ModelTraits

SCHEMA_VERSION = "3.12.0"

Dimension = int | str
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Nanoseconds = Annotated[int, Field(gt=0)]
Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MillisecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Status(StrEnum):
    """How a cell can end. Only `OK` is ranked."""

    OK = "ok"
    INCORRECT = "incorrect"  # keeps its numbers, never ranked
    FALLBACK = "fallback"  # under --strict: not all of it ran where it was asked to; keeps its numbers, never ranked
    UNAVAILABLE = "unavailable"  # this machine lacks it
    UNSUPPORTED = "unsupported"  # makes no sense for this backend
    ERROR = "error"
    OOM = "oom"
    CRASH = "crash"
    TIMEOUT = "timeout"
    NOT_REACHED = "not reached"  # the run's time budget was over, or it was interrupted, before there were numbers
    LEFT_OUT = "left out"  # of `best`, because another cell was known to be as fast or faster

    @property
    def is_failure(self) -> bool:
        return self is not Status.OK and not self.is_absence

    @property
    def is_absence(self) -> bool:
        """True if the cell was never tried: it cannot be done here, there was no time, or no use."""
        return self in (Status.UNAVAILABLE, Status.UNSUPPORTED, Status.NOT_REACHED, Status.LEFT_OUT)


INFERENCE, FORWARD_BACKWARD, TRAIN_STEP = TASKS = ("inference", "forward_backward", "train_step")
"""What one call does: it computes outputs; a loss and its gradients; or these and a step of AdamW."""
TRAINED = (FORWARD_BACKWARD, TRAIN_STEP)

InputsFrom = Literal["device", "host", "pinned"]
DEVICE, HOST, PINNED = get_args(InputsFrom)
"""Where the inputs of a call lie: on its device, or in host memory that the system may page out, or that it may not."""

GENERATE = "generate"
PREFILL, DECODE = GENERATION = ("prefill", "decode")
"""The task `generate` is measured as two: a prompt with its first new token, and one further token."""

LIVE = "live:"
"""Names of models begin so that lived in a program, and are not kept after its run."""

ORIGINAL, WITH_WINNERS = "original", "with the winners"
"""The two sides of a contest of whole pipelines, in place of backends. The first one is its baseline."""


class Range(Frozen):
    """The sizes of one dimension that a single build serves."""

    low: int
    built_at: int  # the size that the build is made and tuned with
    high: int


class RecordedSize(Frozen):
    """Where the inputs of a cell come from, and how often its size came among the calls that were recorded."""

    file: str  # as it was given: recorded calls, or arrays of NumPy
    calls: int
    of_calls: int  # of all sizes in the file


class Cell(Frozen):
    """One thing measured: a model with its dimensions, for a task, on a device, in a precision, by a backend's mode."""

    model: str
    dimensions: dict[str, Dimension] = Field(default_factory=dict)
    task: str = INFERENCE
    device: Device = CPU
    precision: Precision = Precision.FP32
    seed: int = 0
    backend: str
    mode: str = "default"
    environment: str = ""  # the name of the interpreter that it runs in; empty: the one that runs Bakeoff
    dynamic: dict[str, Range] = Field(default_factory=dict)  # of one build for many sizes; empty: built for its own
    recorded: RecordedSize | None = None  # None: the model brings its inputs
    compared: tuple[Precision, ...] = ()  # the precisions of its contest, if there are several
    cold_cache: bool = False  # the last-level cache is evicted before each call
    inputs_from: InputsFrom = DEVICE  # else each call copies inputs to the device, and outputs back

    @property
    def label(self) -> str:
        """The name of the cell within its contest, such as `inductor/max-autotune` or `onnx[dynamic]`. Where a contest
        is across precisions, the cell's own is part of it: `onnx int8`."""
        name = f"{self.configuration}[dynamic]" if self.dynamic else self.configuration
        return f"{name} {self.precision}" if self.compared else name

    @property
    def is_live(self) -> bool:
        """True if its model lived in a program, which took it along when its run had ended."""
        return self.model.startswith(LIVE)

    @property
    def precisions(self) -> str:
        """The precision of its contest, or all of them, such as `fp32/bf16/int8`."""
        return "/".join(self.compared or (self.precision,))

    @property
    def configuration(self) -> str:
        """The backend, its mode and its environment, which a dynamic build and those for single sizes share."""
        configuration = self.backend if self.mode == "default" else f"{self.backend}/{self.mode}"
        return f"{configuration}@{self.environment}" if self.environment else configuration

    @property
    def own_build_label(self) -> str:
        """The label of the same configuration built for one size, which a dynamic build is compared with."""
        return self.but(dynamic={}).label

    @property
    def as_built(self) -> Cell:
        """The cell with the dimensions that its build is made with. A dynamic build has one size for all."""
        sizes = {name: sizes.built_at for name, sizes in self.dynamic.items()}
        return self.but(dimensions=self.dimensions | sizes) if sizes else self

    @property
    def build_id(self) -> str:
        """A stable slug of what is built for the cell. Cells that share a dynamic build have the same one."""
        spans = {name: f"{sizes.low}-{sizes.high}" for name, sizes in self.dynamic.items()}
        return self.but(dimensions=self.dimensions | spans).id

    @property
    def range_id(self) -> str:
        """A stable slug of what is measured over a range of sizes, by whichever backend in any environment."""
        return self.but(backend="", mode="default", environment="").build_id

    @property
    def is_onnx_file(self) -> bool:
        """True if its model is an ONNX file, which torch cannot call: there is no eager to compare with."""
        return self.model.startswith("onnx:")

    @property
    def why_no_modules(self) -> str:
        """Why modules of its model cannot be built apart from the rest, or nothing."""
        if self.task != INFERENCE:
            return f"only {INFERENCE} is looked into, and this is {self.task}"
        if self.is_onnx_file:
            return "torch has no modules of an ONNX file"
        return "a build for a range of sizes is not looked into: name one for a single size" if self.dynamic else ""

    @property
    def is_trained(self) -> bool:
        return self.task in TRAINED

    @property
    def title(self) -> str:
        """The name of its contest in words, such as `conv (batch 4, size 128) on cpu, fp32`."""
        sizes = ", ".join(f"{name} {value}" for name, value in self.dimensions.items())
        task = "" if self.task == "inference" else f", {self.task}"
        called = "".join(f", {words}" for words in self.unusual_calls)
        return f"{self.model_name}{f' ({sizes})' if sizes else ''} on {self.device}, {self.precisions}{task}{called}"

    @property
    def unusual_calls(self) -> list[str]:
        """How its calls are made, in words, where that is not by default."""
        cold = ["cold cache"] if self.cold_cache else []
        memory = "page-locked host memory" if self.inputs_from == PINNED else "host memory"
        return cold if self.inputs_from == DEVICE else [*cold, f"inputs from {memory}"]

    @property
    def model_name(self) -> str:
        """The model as it is shown: a preset's file without the folder that Bakeoff is installed in."""
        return self.model.removeprefix(f"{PACKAGE}/")

    @property
    def model_slug(self) -> str:
        """A stable slug of the model, with which the ids of all its cells begin."""
        if "/" not in self.model and ":" not in self.model:
            return self.model
        last = re.split(r"[/\\]", self.model)[-1]
        return f"{last}-{hashlib.sha256(self.model.encode()).hexdigest()[:6]}"

    @property
    def contest_id(self) -> str:
        """A stable slug of all but backend and mode. Cells with the same one are ranked against each other."""
        return self._id_in(self.precisions)

    @property
    def reference_id(self) -> str:
        """A stable slug of what the cell is checked against: the contest's, but of its precision alone."""
        return self._id_in(self.precision)

    def _id_in(self, precision: str) -> str:
        sizes = [f"{key}{_text_slug(str(value))}" for key, value in sorted(self.dimensions.items())]
        others = [f"seed{self.seed}"] if self.seed else []
        others += ["cold"] if self.cold_cache else []
        others += [] if self.inputs_from == DEVICE else [self.inputs_from]
        return _slug("_".join([self.model_slug, *sizes, self.task, self.device, precision, *others]))

    @property
    def id(self) -> str:
        """A stable slug of the cell, which is also a file name. It does not say what else its contest has."""
        where = f".{self.environment}" if self.environment else ""
        spans = [f"{name}{sizes.low}-{sizes.built_at}-{sizes.high}" for name, sizes in sorted(self.dynamic.items())]
        return _slug("_".join([self.reference_id, f"{self.backend}.{self.mode}{where}", *spans]))


class Phase(Frozen):
    """A named and timed stage of starting: `export`, `compile`, `load`, `capture`, `first_call`, `settle`.

    Some builds need more calls than the first one until they are final. These calls are the phase `settle`.
    """

    name: str
    seconds: Seconds
    calls: int = 0  # that were answered during this phase, apart from the first call
    shared_with: str = ""  # the cell whose process did this once for both; empty: the cell's own did it
    built_at: str = ""  # when an earlier run did this, in ISO 8601; empty: this run did it


CAPTURE = "capture"
FIRST_CALL = "first_call"
SETTLE = "settle"


class Interval(Frozen):
    low: float
    high: float


class Burst(Frozen):
    """One turn of one cell.

    Cells with the same `group` were alive together. Those with the same `round` as well were measured within the same
    few seconds, so that a drift of the machine does not change their ratio.
    """

    group: int
    round: int
    started_s: float  # since the start of the run
    samples_ns: list[Nanoseconds]  # end-to-end latency of each call
    process: int = 0  # which of the cell's processes took it: `Process.index`
    conditions: Conditions | None = None


MAX_PROCESSES = 20
"""At most so many processes are started while the spread between them leaves the verdict undecided."""


class Process(Frozen):
    """One of the processes that a cell was measured in.

    The first process of each build builds cold. The others start warm, from its caches and its artefact.
    """

    index: int  # the epoch: cells' processes of one epoch were alive together
    warm: bool
    build: int = 0  # number of the build that it ran
    phases: list[Phase]
    calls: int = 0
    median_ms: Milliseconds | None = None  # median over its bursts of the burst's median

    @property
    def build_s(self) -> float:
        """The seconds from the model in memory, or the artefact on disk, to a compiled model."""
        return build_seconds(self.phases)

    @property
    def first_answer_s(self) -> float:
        """The seconds from the model in memory, or the artefact on disk, to the first call's outputs."""
        return sum(phase.seconds for phase in self.phases if phase.name != SETTLE)


class Latency(Frozen):
    """Summary of `Record.bursts`. A percentile is None if the sample is too small for it."""

    calls: int
    median_ms: Milliseconds  # fitted to the whole contest (docs/method.md), with four significant digits
    median_ci95_ms: Interval | None  # over processes, or over the bursts of a single one; never over calls
    mean_ms: Milliseconds
    std_ms: MillisecondsOrZero
    min_ms: Milliseconds
    p90_ms: Milliseconds | None
    p95_ms: Milliseconds | None
    p99_ms: Milliseconds | None
    p999_ms: Milliseconds | None
    processes: int = 1
    process_spread: float | None = None  # slowest process / fastest process - 1; None for a single one


class WarmUp(Frozen):
    """The untimed calls before the first burst."""

    calls: int
    seconds: Seconds
    steady: bool  # three consecutive windows agreed within 2 %
    trendless: bool = False  # it was not steady, but calls became neither faster nor slower at its end


LEAST_OF_LATENCY_RATE = 0.5
"""Calls back to back reach at least the rate of single calls, 1 / latency. Below this share of it, none is believed."""


MOST_OF_LATENCY_RATE = 1.5
"""On a CPU, calls back to back are hardly faster than single ones. Beyond this share, the process has two speeds."""


class Throughput(Frozen):
    """The rate of calls back to back, with one synchronisation per block, in one process."""

    calls_per_s: float  # of the median block
    blocks: int
    block_s: Seconds
    range_per_s: Interval | None = None  # the slowest and the fastest of several blocks

    def is_far_below(self, latency_ms: float) -> bool:
        """Return True if calls back to back took over twice as long as single ones, which other load explains."""
        return self.calls_per_s * latency_ms / 1e3 < LEAST_OF_LATENCY_RATE


class DeviceTime(Frozen):
    """The time between two CUDA events around one call, on the cell's own stream."""

    median_ms: MillisecondsOrZero
    calls: int


class Kernel(Frozen):
    """A kernel or copy on a GPU, with its share of the time of all of them, 0 to 1."""

    name: str
    share: float


class KernelTimes(Frozen):
    """What a GPU does in one call, from a trace of a few calls."""

    busy_ms: MillisecondsOrZero  # a kernel or a copy runs; the rest of the call, the GPU waits
    kernels: float  # and copies, in one call
    longest: list[Kernel]  # those that take most time, all runs of one kernel together
    calls: int


class CallStage(Frozen):
    """One part of a call, timed apart, with a synchronisation before and after it.

    The parts together take longer than the call, which synchronises once.
    """

    name: str  # "forward", "backward", "optimizer"
    calls: int
    median_ms: MillisecondsOrZero
    mean_ms: MillisecondsOrZero
    std_ms: MillisecondsOrZero


class AroundCall(Frozen):
    """What a request does before or after the model, timed on its own in one process of a cell."""

    name: Literal["before", "after"]
    process: int = 0  # `Process.index`
    calls: int = 0
    median_ms: MillisecondsOrZero = 0.0
    block_medians_ms: list[MillisecondsOrZero] = Field(
        default_factory=list
    )  # of equal parts of the calls, in their order
    failure: str = ""  # why it could not be timed


class Energy(Frozen):
    """The energy of a call beyond that of an idle machine, from a counter read before and after many calls."""

    joules_per_call: float
    idle_w: float  # power while nothing ran, already subtracted
    calls: int
    seconds: Seconds
    source: str  # "NVML, the whole GPU" or "RAPL, the CPU package"
    ci95: Interval | None = None  # over turns of calls and idling; None in old reports
    turns: int = 1

    @property
    def resolved_j(self) -> float | None:
        """The joules per call, or None if they are too few for the counter to tell from an idle machine."""
        return None if self.ci95 is not None and self.ci95.low <= 0 else self.joules_per_call


class Accuracy(Frozen):
    """The error against the reference, which is the model's outputs in float64, over all inputs and outputs."""

    rmse: float
    relative_rmse: float  # the largest RMSE / root mean square of the reference: over an output, or in its worst part
    max_abs_error: float
    eager_rmse: float | None  # eager's in the same precision on the same device
    eager_relative_rmse: float | None = None  # eager's largest RMSE / root mean square of the reference, over all
    allclose: bool  # as exact as the type can be expected to be, whatever eager's error is
    rtol: float  # the RMSE relative to the output that is rounding; of quantised precisions and training, of each value
    atol: float
    passed: bool
    rule: str  # what decided: "no more than rounding", "at most 4x eager's error", "allclose", or what failed
    not_finite: int = 0  # values that are infinite or NaN in the reference: of these only that was compared
    times_limit: float | None = None  # the largest error, as a multiple of its limit; None: it is within all limits
    is_only_inexact: bool = False  # it failed by the size of errors alone: forms, types and finite values are right
    unchecked: str = ""  # why outputs could not be compared; unless others were compared, there are no errors
    others_compared: bool = False  # some outputs could not be compared, and the errors are those of the others
    other_widths: list[str] = Field(default_factory=list)  # such as "output[1] as int32 in place of int64"
    unwritten_inputs: list[str] = Field(default_factory=list)  # a call does not leave in them what eager's leaves
    dropped: list[Access] = Field(default_factory=list)  # what the model's calls read or do outside, and these do not
    rmse_after: float | None = None  # checked once more after the last burst
    changes: int = 0  # parameters whose change by a training step was checked
    changes_unheld: int = 0  # of these: the precision is too coarse to hold the change, even eager's
    reference_kept_at: str = ""  # ISO 8601, UTC: when an earlier run kept the reference, if this run took that one
    overall_relative_rmse: float | None = None  # the largest one over a whole output; None in old reports

    @property
    def has_errors(self) -> bool:
        """True if outputs were compared, all or some of them."""
        return self.others_compared or not self.unchecked


class Generated(Frozen):
    """A whole generation: the likeliest token at each step, compared with eager's in the same precision."""

    tokens: int  # of each sequence
    sequences: int
    agreed: int  # tokens before the first one that differs from eager's, in the sequence where that comes first
    margin: float | None = None  # eager's two best logits were so far apart at that token; None: all agree
    usual_margin: float  # median of that distance over all tokens
    first: Precision | None = None  # the first precision of a contest across several, if this is another one
    agreed_with_first: int | None = None  # tokens before the first one that differs from eager's in that precision


DRIVERS_ACCOUNT = "driver, this process"
"""How a process's device memory was read where the driver keeps an account of it."""


class Memory(Frozen):
    peak_resident_bytes: int | None = None  # of the process that also built the cell, with torch in it
    engine_resident_bytes: int | None = None  # peak of a fresh process without torch that loads the build and calls it
    peak_device_bytes: int | None = None
    device_bytes_source: str | None = None  # how peak_device_bytes was read
    artifact_bytes: int | None = None  # what the backend wrote to disk for this cell

    @property
    def is_own_account(self) -> bool:
        """True when the driver reports what the process itself uses, so that others beside it do not matter."""
        return self.device_bytes_source == DRIVERS_ACCOUNT


class Extent(StrEnum):
    """How much of the work ran where the cell asked for it."""

    FULL = "full"
    PARTIAL = "partial"
    FALLBACK = "fallback"


class Placement(Frozen):
    """Where the work of a cell really ran."""

    extent: Extent
    engines: dict[str, int] = Field(default_factory=dict)  # engine or provider -> number of operators, or of graphs
    fallbacks: list[str] = Field(default_factory=list)  # operators that ran elsewhere, or what broke the graph
    time_share: dict[str, float] = Field(default_factory=dict)  # engine -> share of a profiled call's time, 0 to 1
    evidence: list[str] = Field(default_factory=list)  # what this was read from
    frozen_choices: list[str] = Field(default_factory=list)  # lines where a trace made a constant of what was decided

    @classmethod
    def delegated(cls, delegate: str, number: int, own: str, others: Mapping[str, int], evidence: str) -> Self:
        """Return the placement of a graph: a delegate took a `number` of operators, and the engine's `own` kernels the
        `others`, counted by operator."""
        engines = {delegate: number, own: sum(others.values())}
        return cls(
            extent=Extent.FULL if not others else Extent.PARTIAL if number else Extent.FALLBACK,
            engines={name: count for name, count in engines.items() if count},
            fallbacks=[f"{name} in {own} ({count})" for name, count in others.items()],
            evidence=[evidence],
        )


class TensorCores(Frozen):
    """The highest rate of a GPU's matrix units in one precision, without sparsity, from the maker's figures."""

    flops_per_s: float  # operations per clock and multiprocessor x multiprocessors x sm_clock_mhz
    sm_clock_mhz: int  # the highest one that the GPU has, which it seldom holds at this work


class Work(Frozen):
    """The work of one call of a model, independent of the backend."""

    flops: int
    bytes_moved: int
    least_flops: int | None = None  # with the algorithm for convolutions that needs the fewest; None: as many


class MemoryLevel(Frozen):
    """The highest rate at which this many bytes can be read and written again and again."""

    working_set_bytes: int
    bytes_per_s: float


CALM_WAIT_SHARE = 0.05


class Ceilings(Frozen):
    """The highest rates that this machine reaches in one precision."""

    flops_per_s: float
    bytes_per_s: float  # of the largest working set, which no cache holds
    levels: list[MemoryLevel] = Field(default_factory=list)  # the smallest working set first; empty in old runs
    cache_bytes: int = 0  # of the last-level cache, or a GPU's L2
    wait_share: float = 0.0  # of the time that threads waited for a core meanwhile
    kept_at: str = ""  # ISO 8601, UTC: when an earlier run kept them, if this run took these

    @property
    def are_of_busy_machine(self) -> bool:
        """True if other load may have taken from the rates."""
        return self.wait_share > CALM_WAIT_SHARE

    tensor_cores: TensorCores | None = None


class Roofline(Frozen):
    """The shortest time that the machine's two ceilings allow for a call, and how near the cell came to it.

    The source of this model is Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", CACM 52(4), 2009.
    """

    flops: int  # floating-point operations of one call, by torch.utils.flop_counter (matrix products, convolutions)
    bytes_moved: int  # the least a call must move: weights, inputs and outputs, once
    ceiling_flops_per_s: float  # of a large matrix product in this precision, measured on this machine
    ceiling_bytes_per_s: float  # of the level of memory that holds the call's bytes, measured on this machine
    floor_ms: float  # max(least operations / ceiling, bytes / ceiling)
    least_flops: int | None = None  # with the algorithm for convolutions that needs the fewest; None: as many
    is_beaten: bool = False  # a cell of the contest was faster, so that this is no floor, and no cell has a share of it
    in_cache: bool = False  # the last-level cache, or a GPU's L2, can hold the call's bytes between calls
    bound: str  # "compute" or "memory": which of the two the floor comes from
    share: float | None  # floor_ms / median latency: 1 is the floor itself; None without a latency
    tensor_cores: TensorCores | None = None  # None: none do this precision, or it is not known what they do
    ceilings_kept_at: str = ""  # as in `Ceilings`

    @property
    def needed_flops(self) -> int:
        """The operations that no algorithm in use can do without."""
        return self.flops if self.least_flops is None else self.least_flops


MOST_WAITING = 2.0
"""A ratio that waiting for cores may have changed by more than this factor is not reported."""


class Ratio(Frozen):
    """How many times faster one cell is than another: above 1, the first one is faster."""

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ci95: Interval | None
    paired: bool  # from bursts of the same rounds; otherwise drift between the two is not divided out
    processes: int = 1  # of each side that the interval is over; 1: it is over the rounds of one process
    waiting: float = 1.0  # waiting for cores may have changed it by up to this factor; `ci95` contains this, or is None
    by_pages: float = 1.0  # getting memory from the kernel, which equal processes differ in, may be such a factor of it
    is_rough: bool = (
        False  # it has no interval because of waiting, and `value` is that of a few calls that did not wait
    )

    @property
    def is_of_busy_machine(self) -> bool:
        """True if threads waited for cores so long that most calls say nothing."""
        return self.waiting > MOST_WAITING or self.is_rough

    @property
    def is_told(self) -> bool:
        """True unless the value would measure the waiting."""
        return self.is_rough or not self.is_of_busy_machine


class LeftEarly(Frozen):
    """Why a cell was measured in fewer processes than others: it was surely beaten."""

    after_process: int  # so many processes it had
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]  # so many times slower it was at least
    than: str  # label of the cell that was faster
    seen_in: Literal["rounds", "interval"] = "rounds"  # the least ratio is that of every round, or the interval's end


class Record(Frozen):
    """The end of one cell. A cell without numbers has a `reason`."""

    cell: Cell
    status: Status
    reason: str = ""  # in one sentence
    failure: Failure | None = None  # the same in parts; None for an absence
    asked_by_name: bool = False  # its backend was named on the command line, so its absence is a failure
    died_in: str | None = None  # the phase that was under way when it ended
    signal: int | None = None
    phases: list[Phase] = Field(default_factory=list)
    warm_up: WarmUp | None = None
    processes: list[Process] = Field(default_factory=list)  # the first one's phases are those above
    left: LeftEarly | None = None  # before the last epoch
    bursts: list[Burst] = Field(default_factory=list)
    latency: Latency | None = None
    throughput: Throughput | None = None
    device_time: DeviceTime | None = None
    kernel_times: KernelTimes | None = None
    stages: list[CallStage] = Field(default_factory=list)  # a training task's, where a call is not one whole
    around: list[AroundCall] = Field(default_factory=list)  # in each process that holds the model itself
    energy: Energy | None = None
    load: Load | None = None  # what it carried under load, where that was asked for
    accuracy: Accuracy | None = None
    metrics: Metrics | None = None  # of the user's own `evaluate`; None: it was not called
    reference_metrics: Metrics | None = None  # of eager in float32, the same in all records of a contest
    generated: Generated | None = None  # of the tasks prefill and decode
    memory: Memory | None = None
    placement: Placement | None = None
    roofline: Roofline | None = None
    no_floor: str = ""  # why there is no roofline, where the ceilings that it needs were not measured
    precision_in_force: dict[str, JsonValue] = Field(default_factory=dict)  # every switch that bears on it, as it stood
    settings: dict[str, JsonValue] = Field(default_factory=dict)  # what else was in force: threads, options
    versions: dict[str, str] = Field(default_factory=dict)  # of the libraries this backend used
    doubts: list[RecordDoubt] = Field(default_factory=list)  # about this record's numbers
    command: str = ""  # measures this cell again
    starts: list[StartedCell] = Field(default_factory=list)  # of its exported folder, where that was asked for
    traits: ModelTraits | None = None  # of its model, the same in all records of a contest
    recompiled: list[str] = Field(default_factory=list)  # why a dynamic build was compiled again, once for each time
    open_axes: dict[int, dict[int, tuple[int, int]]] = Field(default_factory=dict)
    """Of a dynamic build, by input and axis: the lowest and the highest size that it serves."""
    artifact: str = ""  # the folder that keeps what the backend built, within the run's; empty if none is kept
    no_export: str = ""  # why nothing loads what its backend builds in this mode; empty: `bakeoff export` may
    colour: str = Field(default="", pattern=r"^(#[0-9a-f]{6})?$")  # of its backend in charts; empty: they choose one
    place: str = ""  # where in a pool it was measured, such as cuda:1; empty: nothing ran beside its contest
    is_in_part: bool = False  # its run was interrupted before the cell ended
    log_tail: str = ""  # last lines the child printed, kept when it failed
    started_at: str = ""  # ISO 8601, UTC
    elapsed_s: Seconds = 0.0

    @property
    def is_left_to_resume(self) -> bool:
        """True where `resume` measures the cell or its starts: the run did not reach it, or ended it too early for
        numbers, or it failed on a full disk."""
        is_cut_off = any(cell.is_cut_off for cell in self.starts)
        return is_cut_off or self.status is Status.NOT_REACHED or self.failed_on_full_disk

    @property
    def had_no_budget(self) -> bool:
        """True where --budget was over before the cell began, or before it had numbers."""
        return self.failure is not None and self.failure.kind == NO_BUDGET_LEFT

    @property
    def failed_on_full_disk(self) -> bool:
        return self.failure is not None and self.failure.kind == DISK_FULL

    @property
    def build_s(self) -> float:
        """The seconds from the model in memory to a compiled model."""
        return build_seconds(self.phases)

    @property
    def is_throughput_doubtful(self) -> bool:
        throughput, latency = self.throughput, self.latency
        return throughput is not None and latency is not None and throughput.is_far_below(latency.median_ms)

    @property
    def peak_bytes(self) -> int | None:
        """The peak memory of its device, with the share of CUDA itself. On a CPU it is resident memory."""
        if self.memory is None:
            return None
        return self.memory.peak_device_bytes if self.cell.device.is_cuda else self.memory.peak_resident_bytes

    @property
    def phases_until_first_answer(self) -> list[Phase]:
        """All phases except the calls that a build needed after its first answer."""
        return [phase for phase in self.phases if phase.name != SETTLE]

    @property
    def first_call_s(self) -> float | None:
        return next((phase.seconds for phase in self.phases if phase.name == FIRST_CALL), None)

    @property
    def built_at(self) -> str:
        """When an earlier run built it, whose build times these are then, or nothing."""
        return max((phase.built_at for phase in self.phases), default="")

    @property
    def warm_start(self) -> Process | None:
        """The process whose start was the median of those from the caches and the artefact of another one."""
        warm = sorted(
            (process for process in self.processes if process.warm), key=lambda process: process.first_answer_s
        )
        return warm[(len(warm) - 1) // 2] if warm else None


class Standing(Frozen):
    """One ranked cell of a contest."""

    cell_id: str
    label: str
    rank: int  # 1 is the best; the first cells share it, up to one that is slower than another of them
    median_ms: Milliseconds
    speedup_over_baseline: Ratio | None
    break_even_calls: int | None  # the call from which building has paid against the baseline; 0: at once; None: never
    break_even_established: bool = True  # False: the latencies' difference is not, and break_even_calls is None


class Verdict(Frozen):
    """Who wins a contest at what was asked, by how much, and the doubts in words. Standings are of single calls.

    It is for readers of the JSON: we judge the records.
    """

    contest_id: str
    title: str  # "conv on cpu, fp32"
    baseline: str | None  # label of the cell that ratios are taken to
    winner: str | None  # None where nobody can be ranked, or the best ones tie
    tied: list[str] = Field(default_factory=list)  # labels that share the first place
    runner_up: str | None = None
    lead: Ratio | None = None  # winner over runner-up
    standings: list[Standing] = Field(default_factory=list)
    sentence: str
    unstable: bool = False  # measuring ended before every interval that could change this was decided
    run_id: str = ""  # of another run that it is of
    doubts: list[str] = Field(default_factory=list)


class Gpu(Frozen):
    index: int
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    persistence_mode: bool | None = None
    other_processes: int | None = None


class Environment(Frozen):
    """The machine and the software of a run. A value that could not be read is None."""

    hostname: str
    os: str
    cpu: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None  # after affinity
    governor: str | None
    memory_bytes: int | None
    torch_threads: int | None
    gpus: list[Gpu] = Field(default_factory=list)
    python: str
    versions: dict[str, str] = Field(default_factory=dict)
    cuda: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    source_digest: str | None = None  # of Bakeoff's own files, where their commit is not known
    container: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)  # the allow-listed ones that bear on speed
    own_variables: dict[str, str] = Field(default_factory=dict)
    """A digest of each variable that the user's files read, by its name, or "" for one that was not set."""

    @property
    def own_variables_set(self) -> list[str]:
        return [name for name, digest in self.own_variables.items() if digest]


class Report(Frozen):
    """A whole run."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    created_at: str  # when the run began, in ISO 8601, UTC
    resumed_at: str = ""  # when it was resumed last, alike; empty if it never was
    complete: bool  # the run came to its end: every planned cell has its record, also those that a budget left out
    planned: int  # number of cells
    command: str
    request: dict[str, JsonValue]
    environment: Environment
    own_files: dict[str, str] = Field(default_factory=dict)
    """Checksums of the user's files that the models come from, by their paths below the folder that holds them all."""
    weights: dict[str, str] = Field(default_factory=dict)
    """Digests of the models' weights, by the beginning of the ids of the cells that have these weights."""
    records: list[Record]
    verdicts: list[Verdict] = Field(default_factory=list)  # filled when a report is written
    last_verdicts: list[Verdict] = Field(
        default_factory=list
    )  # of the last runs of these contests, kept beside this one
    notes: list[str] = Field(default_factory=list)  # what holds for the whole run: start method, splits, interruptions
    elapsed_s: Seconds = 0.0

    @property
    def reached(self) -> int:
        return sum(record.status is not Status.NOT_REACHED for record in self.records)

    @property
    def lacks_only_starts(self) -> bool:
        """True if the run was interrupted when all its cells had ended, before all starts were measured."""
        is_ended = not any(record.is_in_part for record in self.records)
        return not self.complete and is_ended and bool(self.request.get("starts"))


def build_seconds(phases: Iterable[Phase]) -> float:
    return sum(phase.seconds for phase in phases if phase.name not in (FIRST_CALL, SETTLE))


def _slug(text: str) -> str:
    """Turn `text` into a file name of at most 150 characters. A hash keeps it unique if it had to be cut."""
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")
    if len(safe) <= 150:
        return safe
    return f"{safe[:139]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _text_slug(text: str) -> str:
    """Return `text` if it is a safe file name, else its safe part and a hash."""
    return text if _slug(text) == text else f"{_slug(text)}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
