"""The records a run leaves behind: every requested cell ends as exactly one `Record`.

A record is immutable and keeps its raw samples; the summaries beside them (`Latency`, ...) are computed from those by
`judging.estimate` and stored so that a reader of the JSON needs none of our code. Nothing here imports torch.

Version of the format: `SCHEMA_VERSION`, semantic. A minor step adds fields, a major one changes the meaning of one.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from records.device import CPU, Device
from records.precision import Precision

SCHEMA_VERSION = "1.5.0"

Dimension = int | str
Seconds = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """Base of everything in a report: immutable, and a field nobody knows is an error, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


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

    @property
    def is_failure(self) -> bool:
        """Whether a cell that ended so counts as failed, whoever asked for it."""
        return self is not Status.OK and not self.is_absence

    @property
    def is_absence(self) -> bool:
        return self in (Status.UNAVAILABLE, Status.UNSUPPORTED)


INFERENCE, FORWARD_BACKWARD, TRAIN_STEP = TASKS = ("inference", "forward_backward", "train_step")
"""What one call does: it computes outputs; a loss and its gradients; or these and a step of AdamW."""


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

    @property
    def label(self) -> str:
        """The configuration's name within its contest: `inductor`, `inductor/max-autotune`."""
        return self.backend if self.mode == "default" else f"{self.backend}/{self.mode}"

    @property
    def contest_id(self) -> str:
        """Stable slug of everything but backend and mode: cells that share it are ranked against each other."""
        sizes = [f"{key}{_text_slug(str(value))}" for key, value in sorted(self.dimensions.items())]
        seed = [f"seed{self.seed}"] if self.seed else []
        return _slug("_".join([_model_slug(self.model), *sizes, self.task, self.device, self.precision, *seed]))

    @property
    def id(self) -> str:
        """Stable slug of the cell, usable as a file name."""
        return _slug(f"{self.contest_id}_{self.backend}.{self.mode}")


class Phase(Frozen):
    """A named, timed stage of building: `export`, `compile`, `load`, `first_call`."""

    name: str
    seconds: Seconds


class Interval(Frozen):
    low: float
    high: float


class Conditions(Frozen):
    """What the machine did while a burst was taken. What a platform does not tell is None."""

    calibration_ms: float | None = None  # a fixed piece of work on one core, timed at the start of the burst's round
    wait_share: float | None = None  # time its threads were ready and had no core / the burst's time; may exceed 1
    steal_share: float | None = None  # time that the hypervisor gave our cores to others / the cores' time
    involuntary_switches: int | None = None  # how often a thread of the process was taken off its core
    load: float | None = None  # of the machine, mean over the last minute
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: list[str] = Field(default_factory=list)  # why the GPU's clock was held down, in NVML's words
    core: int | None = None  # that the calling thread was put on before the burst, the same for all cells of a round
    foreign_gpu_processes: int | None = None  # that use the same GPU and are not of this run


class Burst(Frozen):
    """One turn of one cell. Cells whose bursts share `group` were alive together; those that share `round` too were
    measured within the same few seconds, so their ratio is free of drift."""

    group: int
    round: int
    started_s: float  # since the start of the run
    samples_ns: list[int]  # end-to-end latency of each call
    process: int = 0  # which of the cell's processes took it: `Process.index`
    conditions: Conditions | None = None


class Settling(Frozen):
    """The calls of a configuration that goes on choosing, until how it runs was final. They answered all the same."""

    calls: int  # after the first one
    seconds: Seconds  # in these calls


class Process(Frozen):
    """One of the processes that a cell was measured in. The first one builds cold; the others start warm, from its
    caches and its artefact."""

    index: int  # the epoch: cells' processes of one epoch were alive together
    warm: bool
    phases: list[Phase]
    calls: int = 0
    median_ms: float | None = None  # median over its bursts of the burst's median
    settling: Settling | None = None  # where it was not what it is now from its first call on

    @property
    def build_s(self) -> float:
        """Seconds from the model in memory, or from the artefact on disk, to a compiled one."""
        return sum(phase.seconds for phase in self.phases if phase.name != "first_call")

    @property
    def first_answer_s(self) -> float:
        """Seconds from the model in memory, or from the artefact on disk, to the first call's outputs."""
        return sum(phase.seconds for phase in self.phases)


class Latency(Frozen):
    """Summary of `Record.bursts`; see `judging.estimate.summarise`. Percentiles the sample cannot hold are None."""

    calls: int
    median_ms: float  # median over processes of the median over bursts of the burst's median
    median_ci95_ms: Interval | None  # over processes, or over the bursts of a single one; never over calls
    mean_ms: float
    std_ms: float
    min_ms: float
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    processes: int = 1
    process_spread: float | None = None  # slowest process / fastest process - 1; None for a single one


class WarmUp(Frozen):
    calls: int
    seconds: Seconds
    steady: bool  # three consecutive windows agreed within 2 %
    trendless: bool = False  # not steady: at its end latencies differed without getting faster or slower


class Throughput(Frozen):
    """Calls back to back with one synchronisation per block."""

    calls_per_s: float
    blocks: int
    block_s: Seconds


class DeviceTime(Frozen):
    """Time between two CUDA events around one call, on the cell's own stream."""

    median_ms: float
    calls: int


class Stage(Frozen):
    """One part of a call, timed apart: synchronise, read, run the part, synchronise, read. The parts of a call together
    take longer than the call, which synchronises once."""

    name: str  # "forward", "backward", "optimizer"
    calls: int
    median_ms: float
    mean_ms: float
    std_ms: float


class Energy(Frozen):
    """What a call takes beyond an idle machine, from a counter read before and after calls back to back."""

    joules_per_call: float
    idle_w: float  # power while nothing ran, already subtracted
    calls: int
    seconds: Seconds
    source: str  # "NVML, the whole GPU" or "RAPL, the CPU package"


class Accuracy(Frozen):
    """Error against the golden (the model's outputs in float64), over every input set and all outputs."""

    rmse: float
    relative_rmse: float  # rmse / root mean square of the golden; without the changes that are unheld
    max_abs_error: float
    eager_rmse: float | None  # eager's in the same precision on the same device
    allclose: bool
    rtol: float
    atol: float
    passed: bool
    rule: str  # what decided: "allclose", "rmse <= 2x eager", or what failed
    rmse_after: float | None = None  # checked once more after the last burst
    changes: int = 0  # parameters whose change by a training step was checked
    changes_unheld: int = 0  # of these: eager's is as far off as no change at all, so that nobody's can be judged


class Memory(Frozen):
    peak_resident_bytes: int | None = None
    peak_device_bytes: int | None = None
    device_bytes_source: str | None = None  # how peak_device_bytes was read
    artifact_bytes: int | None = None  # what the backend wrote to disk for this cell


class Extent(StrEnum):
    """How much of the work ran where it was asked to."""

    FULL = "full"
    PARTIAL = "partial"
    FALLBACK = "fallback"


class Placement(Frozen):
    """Where the work really ran."""

    extent: Extent
    engines: dict[str, int] = Field(default_factory=dict)  # engine or provider -> number of operators, or of graphs
    fallbacks: list[str] = Field(default_factory=list)  # operators that ran elsewhere, or what broke the graph
    time_share: dict[str, float] = Field(default_factory=dict)  # engine -> share of a profiled call's time, 0 to 1
    evidence: list[str] = Field(default_factory=list)  # what this was read from


class TensorCores(Frozen):
    """What a GPU's matrix units do at most in one precision, without sparsity, by their maker's figures."""

    flops_per_s: float  # operations per clock and multiprocessor x multiprocessors x sm_clock_mhz
    sm_clock_mhz: int  # the highest one that the GPU has, which it seldom holds at this work


class Work(Frozen):
    """What one call of a model takes, whoever computes it. Counted by `harness.worker.counting`."""

    flops: int
    bytes_moved: int


class Ceilings(Frozen):
    """What this machine can do at best, in one precision."""

    flops_per_s: float
    bytes_per_s: float
    tensor_cores: TensorCores | None = None


class Roofline(Frozen):
    """The least time that the machine's two ceilings leave for a call, and how near the cell came to it.

    Source of the model: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", CACM 52(4), 2009.
    """

    flops: int  # floating-point operations of one call, by torch.utils.flop_counter (matrix products, convolutions)
    bytes_moved: int  # the least a call must move: weights, inputs and outputs, once
    ceiling_flops_per_s: float  # of a large matrix product in this precision, measured on this machine
    ceiling_bytes_per_s: float  # of a large copy, measured on this machine
    floor_ms: float  # max(flops / ceiling, bytes / ceiling)
    bound: str  # "compute" or "memory": which of the two the floor comes from
    share: float | None  # floor_ms / median latency: 1 is the floor itself; None without a latency
    tensor_cores: TensorCores | None = None  # None: none do this precision, or it is not known what they do


class Record(Frozen):
    """What a cell ends as. A cell without numbers has a `reason`."""

    cell: Cell
    status: Status
    reason: str = ""
    asked_by_name: bool = False  # its backend was named on the command line, so its absence is a failure
    died_in: str | None = None  # the phase that was under way when it ended
    signal: int | None = None
    phases: list[Phase] = Field(default_factory=list)
    warm_up: WarmUp | None = None
    processes: list[Process] = Field(default_factory=list)  # the first one's phases are those above
    bursts: list[Burst] = Field(default_factory=list)
    latency: Latency | None = None
    throughput: Throughput | None = None
    device_time: DeviceTime | None = None
    stages: list[Stage] = Field(default_factory=list)  # a training task's, where a call is not one whole
    energy: Energy | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    placement: Placement | None = None
    roofline: Roofline | None = None
    precision_in_force: dict[str, JsonValue] = Field(default_factory=dict)  # every switch that bears on it, as it stood
    settings: dict[str, JsonValue] = Field(default_factory=dict)  # what else was in force: threads, options
    versions: dict[str, str] = Field(default_factory=dict)  # of the libraries this backend used
    doubts: list[str] = Field(default_factory=list)  # what makes this record's numbers less sure
    command: str = ""  # measures this cell again
    log_tail: str = ""  # last lines the child printed, kept when it failed
    started_at: str = ""  # ISO 8601, UTC
    elapsed_s: Seconds = 0.0

    @property
    def build_s(self) -> float:
        """Seconds from the model in memory to a compiled one: every phase but the first call."""
        return sum(phase.seconds for phase in self.phases if phase.name != "first_call")

    @property
    def first_call_s(self) -> float | None:
        return next((phase.seconds for phase in self.phases if phase.name == "first_call"), None)

    @property
    def settling(self) -> Settling | None:
        """Of the first process, which started cold."""
        return self.processes[0].settling if self.processes else None

    @property
    def warm_start(self) -> Process | None:
        """The first process that started from the caches and the artefact of another."""
        return next((process for process in self.processes if process.warm), None)


class Ratio(Frozen):
    """How many times faster one cell is than another: above 1, the first one wins."""

    value: float
    ci95: Interval | None
    paired: bool  # from bursts of the same rounds; otherwise drift between the two is not divided out
    processes: int = 1  # of each side that the interval is over; 1: it is over the rounds of one process


class Standing(Frozen):
    """One ranked cell of a contest."""

    cell_id: str
    label: str
    rank: int  # 1 is the best; cells tied with the best share rank 1
    median_ms: float
    speedup_over_baseline: Ratio | None
    break_even_calls: int | None  # the call from which building has paid against the baseline; 0: at once; None: never
    break_even_established: bool = True  # False: the latencies' difference is not, and break_even_calls is None


class Verdict(Frozen):
    """Who wins a contest, by how much, and why one might doubt it."""

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
    """The machine and the software a run was made on. Unreadable things are None, never guessed."""

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
    container: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)  # the allow-listed ones that bear on speed


class Report(Frozen):
    """A whole run."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    created_at: str
    complete: bool  # every planned cell has its record
    planned: int  # number of cells
    command: str
    request: dict[str, JsonValue]
    environment: Environment
    records: list[Record]
    verdicts: list[Verdict]
    notes: list[str] = Field(default_factory=list)  # what holds for the whole run: start method, splits, interruptions
    elapsed_s: Seconds = 0.0


def _slug(text: str) -> str:
    """`text` as a file name: the characters that are safe everywhere, at most 150, made unique by a hash when cut."""
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")
    if len(safe) <= 150:
        return safe
    return f"{safe[:139]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _text_slug(text: str) -> str:
    """`text` if it is safe in a file name as it is, else its safe part and a hash that keeps two apart."""
    return text if _slug(text) == text else f"{_slug(text)}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _model_slug(model: str) -> str:
    """A path in a model's name is shortened to its last part, and a hash of the whole keeps two apart."""
    if "/" not in model and ":" not in model:
        return model
    last = re.split(r"[/\\]", model)[-1]
    return f"{last}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"
