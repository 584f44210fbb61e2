"""Reads what a deployment requires of a cell that may win, such as `p99_ms<5, peak_device_bytes<4GB, top1>-1%`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bakeoff.judging.doubt import OfCandidates, OfCell
from bakeoff.judging.optional_field import OptionalField
from bakeoff.records.doubts import Effect
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Accuracy, Energy, Interval, Latency, Memory, Process, Record, Throughput
from bakeoff.records.start_samples import StartedCell
from bakeoff.records.text import first as first_names
from bakeoff.records.text import listed

if TYPE_CHECKING:
    from bakeoff.judging.metric_changes import Margin

T = TypeVar("T")

PERCENTILES = {"p90_ms": 0.90, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}

ERRORS = ("rmse", "relative_rmse", "max_abs_error")
"""The quantities that say how far outputs are off."""

FORM = "write NAME<NUMBER[,NAME<NUMBER...], with <, <=, > or >=: p99_ms<5, peak_device_bytes<4GB, top1>-1%"


@dataclass(frozen=True)
class Requirements:
    """Everything that a cell must meet in order to win. Falsy if nothing is required."""

    text: str = ""
    items: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str, names: Collection[str] = (), option: str = "--require") -> Requirements:
        """Read `NAME<NUMBER[UNIT]`, separated by commas. `names` are the quantities that can be required: by default a
        record's, and any metric of the user. Raise UsageError for anything else."""
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        return cls(", ".join(parts), tuple(_parse_one(part, names, option) for part in parts))

    def unmet(self, record: Record) -> list[RequirementMissed]:
        doubts = (requirement.doubt(record) for requirement in self.items)
        return [doubt for doubt in doubts if isinstance(doubt, RequirementMissed)]

    def open(self, records: Sequence[Record]) -> list[RequirementOpen]:
        """Return one doubt for each requirement that records may miss, for all that their samples show."""
        doubts = (requirement.doubt(record) for requirement in self.items for record in records)
        are_open = [doubt for doubt in doubts if isinstance(doubt, RequirementOpen)]
        alike = grouped(are_open, lambda doubt: replace(doubt, labels=()))
        return [replace(doubt, labels=tuple(one.labels[0] for one in ones)) for doubt, ones in alike.items()]

    def are_surely_kept(self, record: Record) -> bool:
        """Return True if a metric is required, and each of them is met by the whole of its interval."""
        return bool(self.metrics) and all(requirement.is_surely_met(record) for requirement in self.of_metrics().items)

    def without_interval(self, records: Sequence[Record]) -> tuple[str, ...]:
        """Return the required metrics that are plain numbers in some of these records."""
        plain = {
            requirement.name: None
            for requirement in self.items
            for record in records
            if requirement.is_of_metric and (margin := requirement.margin(record)) and not margin.samples
        }
        return tuple(plain)

    def refuse_metrics(self, returned: Collection[str] = ()) -> None:
        """Raise UsageError for a name that is neither a quantity nor one of the metrics that `evaluate` returned."""
        for requirement in self.items:
            if requirement.is_of_metric and requirement.name not in returned:
                names = [*QUANTITIES, *returned]
                raise _unknown(requirement.name, names, f"--require '{requirement}'; a metric: --evaluate")

    def without_starts(self) -> Requirements:
        """Return what is left without the quantities of starts, which are measured after a contest has ended."""
        return self._where(lambda requirement: not requirement.is_of_start)

    def of_metrics(self) -> Requirements:
        return self._where(lambda requirement: requirement.is_of_metric)

    def without_metrics(self) -> Requirements:
        return self._where(lambda requirement: not requirement.is_of_metric)

    def _where(self, is_kept: Callable[[Requirement], bool]) -> Requirements:
        kept = tuple(filter(is_kept, self.items))
        return Requirements(", ".join(map(str, kept)), kept) if len(kept) < len(self.items) else self

    @property
    def judge_starts(self) -> bool:
        return any(requirement.is_of_start for requirement in self.items)

    @property
    def judge_errors(self) -> bool:
        """Return True if they say how far outputs may be off: by their error, or by a metric of the user's own."""
        return bool(self.metrics) or any(requirement.name in ERRORS for requirement in self.items)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(requirement.name for requirement in self.items if requirement.is_of_metric))

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Return for each required metric of the user's own whether higher is better, as its sign says."""
        return {requirement.name: requirement.comparison.startswith(">") for requirement in self.of_metrics().items}

    @property
    def calls(self) -> int:
        from bakeoff.judging.intervals import calls_needed  # it imports numpy, which usage errors need not wait for

        quantiles = [PERCENTILES[requirement.name] for requirement in self.items if requirement.name in PERCENTILES]
        return calls_needed(max(quantiles)) if quantiles else 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def __str__(self) -> str:
        return self.text


NOTHING = Requirements()


def parse_limits_on_errors(text: str) -> Requirements:
    """Read the limits of `--accept`, such as `rmse<1e-3`. Raise UsageError for what is no upper limit of an error."""
    limits = Requirements.parse(text, ERRORS, "--accept")
    if wrong := next((limit for limit in limits.items if not limit.comparison.startswith("<")), None):
        raise UsageError(f"--accept '{wrong}': an error has an upper limit: write {wrong.name}<{wrong.limit_text}")
    return limits


@dataclass(frozen=True)
class Requirement:
    """One quantity and its limit, which is in the quantity's own unit."""

    name: str
    comparison: str  # one of <, <=, >, >=
    limit: float
    limit_text: str  # as it was written
    is_of_metric: bool = False  # of the user's own
    is_change: bool = False  # the limit is a share of the float reference's value, by which a metric may change

    @property
    def is_of_start(self) -> bool:
        return self.name in OF_STARTS

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.limit_text}"

    def spell_value(self, value: float, reference: float | None = None) -> str:
        """Return `p99_ms is 5.2`, or for a metric `top1 is 0.98 (reference 1)`."""
        if not self.is_of_metric:
            return f"{self.name} is {_spell_quantity(self.name, value)}"
        return f"{self.name} is {value:.4g}{'' if reference is None else f' (reference {reference:.4g})'}"

    def spell_limit(self) -> str:
        """Return the comparison and the limit as it was written, with bytes in MiB, too."""
        number, _, unit = self.limit_text.partition(" ")
        if not is_bytes(self.name) or self.is_of_metric or unit == "MiB":
            return f"{self.comparison} {self.limit_text}"
        in_mib = _spell_quantity(self.name, float(number) * UNITS.get(unit, 1))
        return f"{self.comparison} {self.limit_text} ({in_mib})"

    def margin(self, record: Record) -> Margin | None:
        """Return how far a metric of the record is above the limit, or None if it was not measured."""
        from bakeoff.judging.metric_changes import change_margin, value_margin

        return (change_margin if self.is_change else value_margin)(record, self.name, self.limit)

    def is_surely_met(self, record: Record) -> bool:
        margin = self.margin(record)
        return margin is not None and margin.samples > 0 and margin.outcome(self._is_met) == "met"

    def holds_for(self, accuracy: Accuracy) -> bool:
        return bool(_COMPARISONS[self.comparison](getattr(accuracy, self.name), self.limit))

    def doubt(self, record: Record) -> RequirementMissed | RequirementOpen | None:
        """Return nothing if `record` meets this. A limit within the interval, or what a stop left out, is open."""
        label, (value, reference) = record.cell.label, self._values(record)
        margin = self.margin(record) if self.is_of_metric else None
        if value is None or (self.is_of_metric and margin is None):
            why, started = self._why_not_measured(record), next(iter(record.starts), _NEVER)
            is_cut_off = started.is_cut_off if self.is_of_start else record.is_in_part
            if is_cut_off and not (self.is_of_metric and record.metrics):
                return RequirementOpen((label,), self, None, None, 0, None, why)
            return RequirementMissed(label, self, value, reference, why)
        if margin is None:
            spread = QUANTITIES[self.name].spread(record)
            if spread and spread.ci95.low <= self.limit <= spread.ci95.high:
                return RequirementOpen((label,), self, value, None, spread.repeats, None)
            return self.missed_by(label, value)
        match margin.outcome(self._is_met):
            case "missed":
                return RequirementMissed(label, self, value, reference)
            case "open":
                further = margin.further_samples(self._is_met)
                return RequirementOpen((label,), self, value, reference, margin.samples, further)
            case "met":
                return None

    def missed_by(self, label: str, value: float | None) -> RequirementMissed | None:
        """Return a doubt if this value of a cell's quantity does not meet the requirement. None: not measured."""
        if value is not None and _COMPARISONS[self.comparison](value, self.limit):
            return None
        return RequirementMissed(label, self, value)

    def _is_met(self, above: float) -> bool:
        return _COMPARISONS[self.comparison](above, 0.0)

    def _why_not_measured(self, record: Record) -> str:
        if not self.is_of_metric:
            return next(iter(record.starts), _NEVER).reason if self.is_of_start else QUANTITIES[self.name].missing
        if record.reference_metrics is not None and record.reference_metrics.failure is not None:
            return "evaluate failed for the reference"  # a doubt of its own says why, once for all cells
        for metrics in (record.reference_metrics, record.metrics):
            if metrics is not None and metrics.failure is not None:
                return metrics.failure.sentence
            if metrics is not None and self.name not in metrics.values:
                return f"evaluate returned {', '.join(metrics.values)} alone"
        return "it was not evaluated"

    def _values(self, record: Record) -> tuple[float | None, float | None]:
        """Return the quantity or the metric of the record, and that of the reference if the limit is a change."""
        if not self.is_of_metric:
            return QUANTITIES[self.name].of(record), None
        ours, theirs = (
            metrics.values.get(self.name) if metrics else None for metrics in (record.metrics, record.reference_metrics)
        )
        return ours.value if ours else None, theirs.value if theirs and self.is_change else None


@dataclass(frozen=True)
class Spread:
    """The interval of a quantity over so many repetitions."""

    ci95: Interval
    repeats: int


def _spread_of_energy(record: Record) -> Spread | None:
    energy = record.energy
    return Spread(energy.ci95, energy.turns) if energy and energy.ci95 and energy.resolved_j is not None else None


def _spread_of_throughput(record: Record) -> Spread | None:
    """Return the interval of a rate that other load held down. How much more it would be is not known."""
    if record.throughput is None or not record.is_throughput_doubtful:
        return None
    return Spread(Interval(low=record.throughput.calls_per_s, high=math.inf), record.throughput.blocks)


def _spread_of_start(record: Record) -> Spread | None:
    from bakeoff.judging.intervals import median_interval

    starts_s = [start.start_s for cell in record.starts[:1] for start in cell.starts]
    interval = median_interval(starts_s) or Interval(low=0.0, high=math.inf)  # of too few starts
    return Spread(interval, len(starts_s))


MISSING = "it was not measured"
NOT_STARTED = "no start was measured"
_NEVER = StartedCell(cell_id="", label="", reason=NOT_STARTED, is_cut_off=True)


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """A quantity of a record, or of another thing. `of` returns None if it was not measured."""

    of: Callable[[T], float | None]
    spread: Callable[[T], Spread | None] = lambda of_nothing: None
    """How it varies, where a limit within its interval is neither met nor missed."""
    missing: str = MISSING
    """Why it may not have been measured."""


_LATENCY = OptionalField[Record, Latency](lambda record: record.latency)
_THROUGHPUT = OptionalField[Record, Throughput](lambda record: record.throughput)
_WARM_START = OptionalField[Record, Process](lambda record: record.warm_start)
_MEMORY = OptionalField[Record, Memory](lambda record: record.memory)
_ACCURACY = OptionalField[Record, Accuracy](lambda record: record.accuracy)
_ENERGY = OptionalField[Record, Energy](lambda record: record.energy)
_START = OptionalField[Record, StartedCell](lambda record: next(iter(record.starts), None))

_START_TIMES = ("start_s", "interpreter_s", "imports_s", "load_s", "first_answer_s", "tenth_answer_s")

STARTED_QUANTITIES: Mapping[str, Quantity[StartedCell]] = {
    **{name: Quantity(lambda cell, name=name: cell.median(name)) for name in _START_TIMES},  # type: ignore[misc]
    "peak_resident_bytes": Quantity(lambda cell: cell.median("peak_bytes")),
    "steady_resident_bytes": Quantity(lambda cell: cell.median("steady_bytes")),
    "device_bytes": Quantity(lambda cell: cell.median("device_bytes")),
    "artifact_bytes": Quantity(lambda cell: cell.artifact_bytes),
    "environment_bytes": Quantity(lambda cell: cell.environment_bytes),
}
"""What `--require` of `bakeoff start` can name. Times are medians over all starts."""

OF_STARTS = ("start_s", "imports_s", "load_s", "tenth_answer_s", "steady_resident_bytes", "environment_bytes")
"""Those of them that `--require` of a run with `--starts` can name, too: of the exported folder."""


def _read(part: OptionalField[Record, Any], missing: str, *names: str) -> dict[str, Quantity[Record]]:
    return {name: Quantity(part(operator.attrgetter(name)), missing=missing) for name in names}


QUANTITIES: dict[str, Quantity[Record]] = {
    **_read(_LATENCY, "no latency was measured", "median_ms", "mean_ms", "min_ms"),
    **_read(_LATENCY, "the sample is too small for this percentile: raise --min-time", *PERCENTILES),
    "calls_per_s": Quantity(
        _THROUGHPUT(lambda it: it.calls_per_s), _spread_of_throughput, "no throughput was measured"
    ),
    "build_s": Quantity(lambda record: record.build_s if record.phases else None, missing="no phase was timed"),
    "first_call_s": Quantity(lambda record: record.first_call_s, missing="no first call was timed"),
    "first_answer_s": Quantity(
        lambda record: record.first_call_s and record.build_s + record.first_call_s, missing="no first call was timed"
    ),
    "warm_build_s": Quantity(_WARM_START(lambda it: it.build_s), missing="it was never started warm"),
    "warm_first_answer_s": Quantity(_WARM_START(lambda it: it.first_answer_s), missing="it was never started warm"),
    **_read(_MEMORY, "no memory of a device was read", "peak_device_bytes"),
    **_read(_MEMORY, "no memory was read", "peak_resident_bytes"),
    **_read(_MEMORY, "no process without torch has loaded it", "engine_resident_bytes"),
    **_read(_MEMORY, "it leaves no artefact", "artifact_bytes"),
    **_read(_ACCURACY, "no error was measured", *ERRORS),
    "joules_per_call": Quantity(
        _ENERGY(lambda it: it.resolved_j), _spread_of_energy, "no energy was counted, or less than the counter resolves"
    ),
    **{name: Quantity(_START(STARTED_QUANTITIES[name].of), missing=NOT_STARTED) for name in OF_STARTS},
    "start_s": Quantity(_START(STARTED_QUANTITIES["start_s"].of), _spread_of_start, NOT_STARTED),
}
"""By name, which is that of the report's field if there is one."""

UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""The bytes of each unit. A plain number counts bytes."""

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_REQUIREMENT = re.compile(
    r"(\w+)\s*(<=|>=|<|>)\s*([+-]?)((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*|%)", re.ASCII
)


def is_bytes(name: str) -> bool:
    return name.endswith("_bytes")


def _parse_one(text: str, names: Collection[str], option: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} '{text}': {FORM}")
    name, comparison, sign, number, unit = match.groups()
    if not names and name not in QUANTITIES:
        if unit in UNITS:
            raise _unknown(name, filter(is_bytes, QUANTITIES), f"{option} '{text}'")
        if unit not in ("", "%"):
            raise UsageError(f"{option} '{text}': {name} takes a plain number, or a change such as -1%")
        limit = float(f"{sign}{number}")
        written = f"{sign}{number}{unit}"
        return Requirement(name, comparison, limit / 100 if unit else limit, written, True, bool(unit))
    if sign:
        raise UsageError(f"{option} '{text}': {FORM}")
    if name not in (names or QUANTITIES):
        raise _unknown(name, names, f"{option} '{text}'")
    if unit and not is_bytes(name):
        raise UsageError(f"{option} '{text}': {name} takes a plain number, not one in {unit}")
    if unit and unit not in UNITS:
        raise unknown("unit of bytes", unit, UNITS, f"{option} '{text}'")
    return Requirement(name, comparison, float(number) * UNITS.get(unit, 1), f"{number}{f' {unit}' if unit else ''}")


def _unknown(name: str, names: Iterable[str], asked: str) -> UsageError:
    """Return an error that names the nearest quantity, of those that end in the same unit if there are any."""
    names = ["median_ms"] if name in ("latency_ms", "p50_ms") else list(names)
    unit = name.rpartition("_")[2]
    return unknown("quantity", name, [one for one in names if one.endswith(f"_{unit}")] or names, asked)


class RequirementMissed(OfCell):
    """A cell does not meet a requirement, or the required quantity was not measured."""

    required: Requirement
    value: float | None  # None: it was not measured
    reference: float | None = None  # of a metric that is to be near this
    why: str = ""  # a metric was not measured
    worst = Effect.NONE

    def say(self) -> str:
        return f"{self.label} may not win: {self.unmet}"

    @property
    def unmet(self) -> str:
        """Return which requirement is not met: `p99_ms is 5.2, not < 5`."""
        name = self.required.name
        if self.value is None:
            missing = QUANTITIES[name].missing if name in QUANTITIES else MISSING
            return f"{name} cannot be judged: {self.why or missing}"
        return f"{self.required.spell_value(self.value, self.reference)}, not {self.required.spell_limit()}"


class RequirementOpen(OfCandidates):
    """These cells may miss what is required of a metric, of a start or of energy, for all that was measured of it."""

    required: Requirement
    value: float | None  # None: the run was stopped before it was measured
    reference: float | None  # None: the limit is the metric's own, and no change
    samples: int
    further: int | None  # so many more samples would decide; None: no number of samples that anybody has
    why: str = ""  # it was not measured

    @property
    def brief(self) -> str:
        return f"{listed(first_names(self.labels))} may miss {self.asked}: {self._further_samples}"

    @property
    def asked(self) -> str:
        return f"{self.required.name} {self.required.comparison} {self.required.limit_text}"

    def say(self) -> str:
        if self.value is None:
            return f"{listed(self.labels)} may miss {self.asked}: {self.why}"
        is_of_metric, value = self.required.is_of_metric, self.required.spell_value(self.value, self.reference)
        samples = f"{self.samples:,} {'samples' if is_of_metric else 'repetitions'}"
        text = (
            f"{listed(self.labels)} may miss what is required: {value}, and {samples} do not show whether it is "
            f"{self.required.spell_limit()}"
        )
        if not is_of_metric:
            return text
        if self.further is None:
            return f"{text}. It is so near that {self._further_samples}"
        return f"{text}. {self._further_samples.capitalize()}, if they are like these"

    @property
    def _further_samples(self) -> str:
        if self.further is None:
            return self.why or "more samples would hardly decide"
        return f"about {self.further:,} more samples would decide"


def _spell_quantity(name: str, value: float) -> str:
    """Return six digits, so that a value that just misses a limit does not read like it. Tables have MiB, too."""
    return f"{value / UNITS['MiB']:.6g} MiB" if is_bytes(name) else f"{value:.6g}"
