"""The reasons to believe the ranking of a contest less: a class for each, with what it knows.

`bakeoff.judging.find_doubts` finds them, `bakeoff.judging.certainty` says what each does to the answer, and
`bakeoff.reports.doubt_sentences` says each in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bakeoff.records import doubts as record_doubts
from bakeoff.records.schema import Extent, Interval, Ratio, Status


class Stop(StrEnum):
    """Why a contest gets no further process. Where its answer is open, the reader learns how to go on."""

    INTERRUPTED = "interrupted"  # `resume` goes on
    PROCESSES = "processes"  # all that may be measured were measured
    BUDGET = "budget"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class OfRecords:
    """A doubt that the records of these cells carry."""

    doubt: record_doubts.RecordDoubt
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Undecided:
    """Measuring ended before it was decided whether these cells are as fast as the best one."""

    best: str
    ratios: Mapping[str, Ratio]  # of the best cell to each undecided one, by label
    processes: int  # of each cell, at least
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False  # the model lived in a program, so that `resume` cannot


@dataclass(frozen=True)
class MachineBusy:
    """Threads waited for cores so long that it is not known how these cells compare with the best one."""

    best: str
    ratios: Mapping[str, Ratio]  # of the best cell to each of them, by label


@dataclass(frozen=True)
class LastRunDiffers:
    """The last run of this contest gave a ratio whose 95 % interval does not meet that of this one."""

    run_id: str  # of the last run
    label: str
    other: str
    before: Ratio  # of the first cell to the other one
    now: Ratio

    @property
    def is_opposite(self) -> bool:
        """Return True if the two runs do not agree on which of the cells is faster."""
        return (self.before.value > 1) != (self.now.value > 1)


@dataclass(frozen=True)
class NotToldApart:
    """Cells behind the runner-up vary so much that they may be as fast as the winner."""

    best: str
    ratios: Mapping[str, Ratio]  # of the winner to each of them, by label
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False


@dataclass(frozen=True)
class NarrowLead:
    """The winner leads by little, in few processes."""

    best: str
    processes: int
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False


@dataclass(frozen=True)
class NoBaseline:
    """The cell that speed-ups are taken to was not measured."""

    baseline: str


@dataclass(frozen=True)
class ModelChanges:
    """Eager is the model itself, and failed a check: the builds were checked against its first answers only."""

    label: str


@dataclass(frozen=True)
class Unpaired:
    """Some cells shared no rounds with the best one."""


@dataclass(frozen=True)
class RequirementMissed:
    """A cell does not meet a requirement, or the required quantity was not measured."""

    label: str
    quantity: str
    comparison: str  # one of <, <=, >, >=
    limit: str  # as it was written
    value: float | None  # None: it was not measured
    reference: float | None = None  # of a metric that is to be near this
    is_of_metric: bool = False  # of the user's own
    why: str = ""  # a metric was not measured


@dataclass(frozen=True)
class RequirementOpen:
    """These cells may miss what is required of a metric, of a start or of energy, for all that was measured of it."""

    labels: tuple[str, ...]
    quantity: str
    comparison: str
    limit: str
    value: float
    reference: float | None  # None: the limit is the metric's own, and no change
    samples: int
    further: int | None  # so many more samples would tell; None: no number of samples that anybody has


@dataclass(frozen=True)
class NotEvaluated:
    """The user's own function gave no metrics of these cells."""

    labels: tuple[str, ...]
    reason: str
    of_reference: bool  # it failed for the reference, so that no build was evaluated


@dataclass(frozen=True)
class WithoutInterval:
    """These required metrics are plain numbers, and chance may be in them."""

    quantities: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationVaries:
    """The user's own function says something else of this cell than of the reference, though they are the same."""

    label: str
    metric: str
    value: float
    reference: float


@dataclass(frozen=True)
class JudgedByCalibration:
    """The user's own function judges these cells by samples that they are calibrated with."""

    labels: tuple[str, ...]
    samples: int
    judged: int


@dataclass(frozen=True)
class CoarseCheck:
    """Eager itself is so far from the reference that the check of these cells rejects little."""

    labels: tuple[str, ...]
    error: float  # the largest one, relative to the outputs


@dataclass(frozen=True)
class SettledLate:
    """A build was final only after many calls."""

    label: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class PartlyElsewhere:
    """Part of a cell's work ran elsewhere than it was asked to."""

    label: str
    extent: Extent
    elsewhere: tuple[str, ...]  # what ran elsewhere, or why; empty: the library does not say
    engines: tuple[str, ...] = ()  # that took it all, where the library says no more


@dataclass(frozen=True)
class BuildSpread:
    """Builds of these cells differ by more than processes of one build do."""

    spreads: Mapping[str, float]  # slowest build / fastest build - 1, by label


@dataclass(frozen=True)
class ProcessSpread:
    """Equal processes of these cells differ."""

    spreads: Mapping[str, float]  # slowest process / fastest process - 1, by label


@dataclass(frozen=True)
class RoughLatency:
    """The intervals of these cells' latencies are so wide that they say little."""

    intervals: Mapping[str, Interval]  # in milliseconds, by label
    below_floor: tuple[str, ...] = ()  # the labels whose interval reaches below the shortest time of a call
    has_ratios: bool = True  # to other cells, from rounds that they shared
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False


@dataclass(frozen=True)
class ThroughputContradicted:
    """Calls back to back took far longer than single calls of these cells."""

    shares: Mapping[str, float]  # of the rate that the latency allows, by label


@dataclass(frozen=True)
class TwoSpeeds:
    """On a CPU, calls back to back were much faster than single calls of these cells."""

    factors: Mapping[str, float]  # of the rate over that of the latency, by label


@dataclass(frozen=True)
class FreshMemory:
    """The C library gives memory back to the kernel after each call of these cells."""

    pages: Mapping[str, float]  # that a call gets from the kernel, by label


@dataclass(frozen=True)
class ClockFell:
    """The GPU's clock fell in this share of the bursts."""

    share: float
    lowest_mhz: int
    reasons: tuple[str, ...]  # in NVML's words
    temperature_c: int | None  # the highest one


@dataclass(frozen=True)
class ClockHeldDown:
    """The GPU says that its clock was held down in this share of the bursts."""

    share: float
    reasons: tuple[str, ...]  # in NVML's words
    temperature_c: int | None  # the highest one


@dataclass(frozen=True)
class CoresTaken:
    """Other processes kept the cores busy in this share of the bursts."""

    share: float
    is_counted: bool = False  # the winner depends on such rounds; else it is the same without them


@dataclass(frozen=True)
class CoresStolen:
    """The hypervisor gave the cores to others in this share of the bursts."""

    share: float
    is_counted: bool = False  # the winner depends on such rounds; else it is the same without them


@dataclass(frozen=True)
class AlwaysWaited:
    """The threads of these cells never all had a core."""

    shares: Mapping[str, float]  # time that they waited, summed over threads / time of the calls, by label
    have_one_thread: bool = False  # so that it is others who keep the cores busy


@dataclass(frozen=True)
class SpeedDrifted:
    """The machine's speed changed over the run."""

    share: float  # slowest time / fastest time - 1, of the calibration


@dataclass(frozen=True)
class GpuShared:
    """Other processes used the GPU."""

    processes: int


@dataclass(frozen=True)
class NotRanked:
    """Cells ended in a way that keeps them from being ranked."""

    labels: tuple[str, ...]
    status: Status
    reason: str
    is_live: bool = False


Doubt = (
    OfRecords
    | Undecided
    | MachineBusy
    | LastRunDiffers
    | NotToldApart
    | NarrowLead
    | NoBaseline
    | ModelChanges
    | Unpaired
    | RequirementMissed
    | RequirementOpen
    | NotEvaluated
    | WithoutInterval
    | JudgedByCalibration
    | EvaluationVaries
    | CoarseCheck
    | SettledLate
    | PartlyElsewhere
    | BuildSpread
    | ProcessSpread
    | RoughLatency
    | ThroughputContradicted
    | TwoSpeeds
    | FreshMemory
    | ClockFell
    | ClockHeldDown
    | CoresTaken
    | AlwaysWaited
    | CoresStolen
    | SpeedDrifted
    | GpuShared
    | NotRanked
)

_IN_ORDER_OF_WEIGHT: tuple[type, ...] = (
    record_doubts.Unchecked,
    record_doubts.FrozenChoices,
    record_doubts.InputsNotWritten,
    record_doubts.Dropped,
    record_doubts.Growing,
    record_doubts.Recalled,
    ModelChanges,
    MachineBusy,
    LastRunDiffers,
    Undecided,
    NotToldApart,
    NarrowLead,
    NoBaseline,
    Unpaired,
    RequirementOpen,
    NotEvaluated,
    RequirementMissed,
    JudgedByCalibration,
    EvaluationVaries,
    WithoutInterval,
    record_doubts.AcceptedByMetric,
    record_doubts.AcceptedByLimit,
    record_doubts.Caveat,
    record_doubts.DecidedByRounding,
    record_doubts.NarrowReference,
    record_doubts.OtherWidths,
    CoarseCheck,
    record_doubts.Recompiled,
    record_doubts.WarmUpTrend,
    record_doubts.WarmUpNoise,
    record_doubts.ProcessLost,
    record_doubts.BuiltAnew,
    SettledLate,
    PartlyElsewhere,
    BuildSpread,
    ProcessSpread,
    RoughLatency,
    TwoSpeeds,
    ThroughputContradicted,
    FreshMemory,
    ClockFell,
    ClockHeldDown,
    CoresTaken,
    AlwaysWaited,
    CoresStolen,
    SpeedDrifted,
    GpuShared,
    NotRanked,
)


def weight(doubt: Doubt) -> int:
    """Return the doubt's place in the order in which doubts are told: the weightiest has the lowest number."""
    return _IN_ORDER_OF_WEIGHT.index(type(doubt.doubt if isinstance(doubt, OfRecords) else doubt))


def cells_of(doubt: Doubt) -> tuple[str, ...]:
    """Return the labels of the cells whose numbers it doubts. It is empty if it is about the whole contest."""
    match doubt:
        case OfRecords() | CoarseCheck() | NotRanked() | NotEvaluated() | RequirementOpen() | JudgedByCalibration():
            return doubt.labels
        case SettledLate() | PartlyElsewhere() | EvaluationVaries() | ModelChanges():
            return (doubt.label,)
        case LastRunDiffers():
            return doubt.label, doubt.other
        case BuildSpread() | ProcessSpread():
            return tuple(doubt.spreads)
        case RoughLatency():
            return tuple(doubt.intervals)
        case TwoSpeeds():
            return tuple(doubt.factors)
        case FreshMemory():
            return tuple(doubt.pages)
        case AlwaysWaited() | ThroughputContradicted():
            return tuple(doubt.shares)
    return ()
