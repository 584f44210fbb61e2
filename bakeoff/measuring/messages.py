"""Every message between the controller and its workers, as JSON. Those of fork servers are in `server_messages`.

The controller starts a worker with an `Assignment`, and a worker that measures a cell then takes a `Command` at a time.
A worker reports by `Event`s.
"""

import functools
import operator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, TypeAdapter

from bakeoff.backends.ranges import OpenAxis
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records import schema
from bakeoff.records.device import Device
from bakeoff.records.failure import Failure
from bakeoff.records.load_samples import LoadWindow, ServingSettings
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.scenarios import Scenario
from bakeoff.records.traits import NO_TRAITS, ModelTraits


class Message(schema.Frozen):
    """Base of what travels. Each class below it has a field `kind` with the name of the class."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__annotations__["kind"] = Annotated[Literal[cls.__name__], Field(default=cls.__name__)]


# --- jobs: what a worker is started for


class Evaluation(schema.Frozen):
    """The user's own function that says how good a model is, and the form of a call of it."""

    function: str  # such as `/path/net.py:evaluate`
    sample: Path  # the contest's, which has the form


class CellJob(Message):
    """What the three jobs on one cell have in common. Each reports that it is `ReadyToBuild`, and waits for `Build`."""

    cell: schema.Cell
    reference: Path  # file with the outputs that the cell is checked against
    sampling: SamplingPlan
    shared_folder: Path  # holds the artefact, and is shared by all workers of the cell
    is_first: bool = True  # no other worker has measured the cell before
    surgical: tuple[str, ...] = ()  # what a surgical mode compiles, if not what the model names
    open_axes: tuple[OpenAxis, ...] = ()  # of a dynamic build
    inputs: Path | None = None  # the input sets to measure, if the build is made with others
    weights_at: dict[str, int] = Field(default_factory=dict)  # the model has its weights at these sizes, if any
    evaluation: Evaluation | None = None
    weights: str = ""  # digest of those that the model must have, if it is known
    is_machine_busy: bool = False  # so that several threads would mostly wait for one another


class MeasureCell(CellJob):
    """Build one cell, check it, warm it up, and take bursts on command. It is answered by `Ready`."""


class PackageCell(CellJob):
    """Build one cell ahead of time into the shared folder. It is answered by `Packaged`."""


class MeasurePackagedCell(CellJob):
    """Load what `PackageCell` has left, and go on as with `MeasureCell`."""


class LookInto(CellJob):
    """Load one cell's model, and have a function of another room look into it. It is answered by `Found`."""

    function: str  # such as `bakeoff.why.worker_blame:find_blame`; it gets the worker and the question
    question: dict[str, JsonValue] = Field(default_factory=dict)  # arguments by name


class ComputeReference(Message):
    """Compute the outputs that a contest's cells are checked against. It is answered by `ReferenceComputed`."""

    cell: schema.Cell
    reference: Path  # the file to write
    sample: Path | None = None  # where one input set with its outputs is kept, for what is exported
    inputs: Path | None = None  # where the input sets are kept, for dynamic builds
    weights_at: dict[str, int] = Field(default_factory=dict)  # as in `CellJob`
    kept_in: Path | None = None  # where earlier runs have kept theirs, by a fingerprint of the model
    is_fresh: bool = False  # computed anew, and kept instead of an earlier run's
    is_resumed: bool = False  # the file is there: the model is compared with it, and nothing else is computed
    first_reference: Path | None = None  # of another precision, whose exact outputs may serve this one, too
    is_machine_busy: bool = False  # as in `CellJob`


class EvaluateReference(Message):
    """Call the user's `evaluate` for eager in float32. It is answered by `Evaluated`."""

    cell: schema.Cell
    evaluation: Evaluation
    weights_at: dict[str, int] = Field(default_factory=dict)  # as in `CellJob`


class FindOpenAxes(Message):
    """Find the axes of inputs that vary with a cell's dynamic dimensions. It is answered by `AxesFound`."""

    cell: schema.Cell


class ExportProgram(Message):
    """Write a cell's model as a program that torch loads without its source. It is answered by `Packaged`."""

    cell: schema.Cell
    program: Path  # the file to write
    pickles: bool = False  # the model itself, which needs the libraries of its code
    weights: str = ""  # as in `CellJob`
    sample: Path | None = None  # the contest's, whose outputs the program must give


class MeasureCeilings(Message):
    """Measure what this machine can do at best. It is answered by `CeilingsMeasured`."""

    device: Device
    precision: Precision


class ProbeTorch(Message):
    """Look up what torch says of this machine. It is answered by `TorchFacts`."""

    lists_versions: bool = False  # of all libraries: the controller knows those of its own environment


class TryBackend(Message):
    """Find out whether this machine has a backend for a device. It is answered by `Tried`."""

    backend: str
    device: Device


class PrecompileHeaders(Message):
    """Have torch precompile the C++ headers that a backend's builds include. It is answered by `HeadersMade`."""

    backend: str
    device: Device
    may_make: bool = True  # or only name those that the machine has


class TryImport(Message):
    """Find out whether a module imports here. It is answered by `Tried`."""

    module: str


Job = Annotated[
    MeasureCell
    | PackageCell
    | MeasurePackagedCell
    | LookInto
    | ComputeReference
    | EvaluateReference
    | FindOpenAxes
    | ExportProgram
    | MeasureCeilings
    | ProbeTorch
    | TryBackend
    | PrecompileHeaders
    | TryImport,
    Field(discriminator="kind"),
]


class Assignment(Message):
    """A job, and the surroundings that the worker must give itself before it begins."""

    job: Job
    mark: str  # everything that the worker starts is found by it
    workspace: Path
    log: Path
    cwd: Path
    environment: dict[str, str]


# --- commands: what a worker of a cell is to do next


class Build(Message):
    """Go on with building. It is answered by `Packaged` or `Built`."""


class BeginWarmUp(Message):
    """Warm up, now that no other worker builds or warms up. It is answered by `Ready`."""

    is_repeated: bool = False  # an earlier process has shown how long it takes until latencies are steady


class TakeBurst(Message):
    """Take one burst. It is answered by `BurstMeasured`."""

    core: int | None = None  # the calling thread begins on this one


class TakeLoad(Message):
    """Serve one window of load. It is answered by `TrafficWindow`."""

    scenario: Scenario
    settings: ServingSettings
    rate: float  # requests per second to send, or in other scenarios than `server` the rate expected
    seconds: float
    min_requests: int = 1
    streams: int = 1  # requests that come together, in the scenario `multi-stream`
    seed: int = 1  # of the times and the inputs of the requests
    quantile: float = 0.99  # of the latencies, that the objective limits
    shed_after_ms: float | None = None  # a request that has waited longer is not called any more
    keeps_latencies: bool = False
    keeps_other: bool = False  # the build for the settings of the window before stays beside this one
    is_soak: bool = False  # it lasts as long as was asked for, and does not count towards --time-limit
    answers_nothing: bool = False  # answering takes no time, which shows what the generator can do


THROUGHPUT_BLOCKS = 3
"""The throughput of a cell that somebody may choose is the median of so many blocks. Others have a single one."""


class MeasureFurther(Message):
    """Measure what bursts do not show, after all of them. It is answered by `FurtherMeasured`."""

    with_device_time: bool = False  # and the time of stages
    throughput_blocks: int = 0
    with_energy: bool = False
    with_around: bool = False  # the stages around the model

    @property
    def is_empty(self) -> bool:
        return not (self.with_device_time or self.throughput_blocks or self.with_energy or self.with_around)


ENGINE_MEMORY_LIMIT_S = 60.0
"""The process that loads a build without torch, and calls it, is given up after so long."""


class Finish(Message):
    """Check once more, and end. It is answered by `Finished`, then by `Evaluated` if `with_metrics`, and by
    `KernelsTraced` if `with_trace`."""

    with_trace: bool = False  # of the kernels on a GPU
    with_metrics: bool = False  # of the user's own
    with_engine_memory: bool = False  # what the engine needs without torch

    @property
    def only_checks(self) -> bool:
        return not (self.with_trace or self.with_metrics)


Command = Annotated[Build | BeginWarmUp | TakeBurst | TakeLoad | MeasureFurther | Finish, Field(discriminator="kind")]


# --- events: what a worker reports


class Event(Message):
    """Base of what a worker reports. A new event is a class below it, known by its `kind`."""


class PhaseBegun(Event):
    name: str


class PhaseEnded(Event):
    name: str
    seconds: float


class Packaged(Event):
    """The cell lies in its folder, and this worker is done."""

    seconds: float = 0.0  # since `Build` came


class ReadyToBuild(Event):
    """Libraries and the model are in memory, and this worker waits for its turn to build."""


class ReadyToTune(Event):
    """This worker waits until nothing else uses the device, and then goes on with its build."""


class Built(Event):
    """The cell is built and checked, and this worker waits for its turn to warm up."""

    seconds: float  # since `Build` came


class Ready(Event):
    """The cell is built, checked and warm."""

    accuracy: schema.Accuracy
    generated: schema.Generated | None = None
    settle: schema.Phase | None
    warm_up: schema.WarmUp
    placement: schema.Placement | None
    memory: schema.Memory
    precision_in_force: dict[str, JsonValue]
    settings: dict[str, JsonValue]
    versions: dict[str, str]
    caveat: str  # what a reader should know of the backend's mode, or nothing
    reference_type: str  # what the reference was computed in
    reference_in_float32: tuple[str, ...] = ()  # operators of a float64 reference that ran in float32
    why_reference_is_narrower: str = ""  # how float64 failed, if the reference is not in float64
    recompiled: list[str] = Field(default_factory=list)  # why a dynamic build was compiled again
    has_around: bool = False  # the model has stages around it
    check_s: float = 0.0  # how long checking its outputs took


class BurstMeasured(Event):
    samples_ns: list[int]
    conditions: schema.Conditions


class TrafficWindow(Event):
    window: LoadWindow | None
    reason: str = ""  # why there is no window: the cell cannot serve with these settings


class FurtherMeasured(Event):
    throughput: schema.Throughput | None = None
    device_time: schema.DeviceTime | None = None
    energy: schema.Energy | None = None
    stages: list[schema.CallStage] = Field(default_factory=list)
    around: list[schema.AroundCall] = Field(default_factory=list)


class Finished(Event):
    """The cell was checked once more, and this worker is done."""

    accuracy_after: schema.Accuracy
    placement: schema.Placement | None
    memory: schema.Memory
    recompilations: int  # since it was ready


class Evaluated(Event):
    """It comes after `Finished`, so that a process that dies or hangs in a user's function has reported all else."""

    metrics: Metrics


class KernelsTraced(Event):
    """It comes after `Finished`, so that a process that dies in a trace has reported all else."""

    times: schema.KernelTimes | None  # None: nothing could be traced


class EagerCall(schema.Frozen):
    """How long a call of eager takes on a GPU, roughly."""

    call_ms: float
    host_ms: float  # until the host has handed its work over


class Found(Event):
    """What the function of `LookInto` has returned."""

    answer: str  # JSON of a model that the asking room knows


class ReferenceComputed(Event):
    work: schema.Work | None
    uncounted: str  # why there is no `work`
    traits: ModelTraits = NO_TRAITS
    memory: schema.Memory | None = None  # the peak of the process that computed the outputs in float64
    weights: str = ""  # digest of the model's, unless they are those at another size
    fingerprint: str = ""  # of the model, where builds and references are kept
    is_changed: bool = False  # the model, since an earlier run with the same fingerprint or since the interruption
    named_variables: tuple[str, ...] = ()  # environment variables that the user's files read
    own_files: tuple[Path, ...] = ()  # the user's source files that it needs, and what Python read while it was loaded
    eager_call: EagerCall | None = None  # None: not on a GPU, or not inference


class AxesFound(Event):
    axes: tuple[OpenAxis, ...]
    weights_vary: bool  # the sizes change the values of weights, as where those are drawn after inputs


class CeilingsMeasured(Event):
    ceilings: schema.Ceilings


class TorchFacts(Event):
    torch: str
    cuda: str | None  # the version that torch was built with
    cuda_devices: int
    threads: int
    cuda_error: str = ""  # why torch sees no device, though it was built with CUDA
    python: str = ""
    versions: dict[str, str] = Field(default_factory=dict)  # of the libraries beside this interpreter


class HeadersMade(Event):
    """The builds find torch's C++ headers, and its answers about the C++ compiler."""

    checks_s: float  # so long torch checked the compiler


class Tried(Event):
    reason: str  # why it does not work, or nothing


class Failed(Event):
    """The worker will not go on."""

    status: schema.Status
    failure: Failure


# --- how they travel

_ANY_EVENT: Any = functools.reduce(operator.or_, Event.__subclasses__())
_COMMAND: TypeAdapter[Command] = TypeAdapter(Command)
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[_ANY_EVENT, Field(discriminator="kind")])


def send(connection: Connection, message: Message) -> None:
    """Send a message. Raises OSError when the other side is gone."""
    connection.send_bytes(message.model_dump_json().encode())


def receive_command(connection: Connection) -> Command:
    """Wait for a command, as `receive_event` does. Both raise EOFError or OSError when the other side is gone."""
    return _COMMAND.validate_json(connection.recv_bytes())


def receive_event(connection: Connection) -> Event:
    return _EVENT.validate_json(connection.recv_bytes())
