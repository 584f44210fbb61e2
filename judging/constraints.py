"""What a deployment requires of a configuration that may win: `p99_ms<5, peak_device_bytes<4GB, build_s<60`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from judging.estimate import calls_needed
from records.errors import UsageError, unknown
from records.schema import Record

PERCENTILES = {"p90_ms": 0.90, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}

FORM = "write NAME<NUMBER[,NAME<NUMBER...], with <, <=, > or >=: p99_ms<5, peak_device_bytes<4GB"


@dataclass(frozen=True)
class Requirements:
    """All that must hold of a configuration for it to win. Falsy where nothing is required."""

    text: str = ""
    each: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """Of `NAME<NUMBER[UNIT]`, comma-separated; empty text requires nothing.

        Raises UsageError, in one line, for a quantity or a unit that nobody knows, or another form.
        """
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        return cls(", ".join(parts), tuple(map(_parse_one, parts)))

    def unmet(self, record: Record) -> list[str]:
        """Each reason why `record` may not win, in words; empty where it may."""
        return [reason for requirement in self.each if (reason := requirement.unmet(record))]

    @property
    def calls(self) -> int:
        """So many calls of a configuration are needed to judge it: those that its percentiles take."""
        quantiles = [PERCENTILES[requirement.name] for requirement in self.each if requirement.name in PERCENTILES]
        return calls_needed(max(quantiles)) if quantiles else 0

    def __bool__(self) -> bool:
        return bool(self.each)


@dataclass(frozen=True)
class Requirement:
    """One of them: `comparison` is one of <, <=, >, >=; `limit` is in the quantity's own unit."""

    name: str
    comparison: str
    limit: float
    limit_text: str  # as it was written

    def unmet(self, record: Record) -> str:
        """Why `record` does not meet it, in words; empty where it does. What cannot be judged is not met."""
        quantity = QUANTITIES[self.name]
        value = quantity.of(record)
        if value is None:
            return f"{self.name} cannot be judged: {quantity.absent}"
        if _COMPARISONS[self.comparison](value, self.limit):
            return ""
        return f"{self.name} is {_spell(value, quantity)}, not {self.comparison} {self.limit_text}"


@dataclass(frozen=True)
class Quantity:
    """Something measurable of a record: `of` gives None where it was not measured, `absent` says why it may not be."""

    of: Callable[[Record], float | None]
    absent: str
    is_bytes: bool = False


def _field(part: str, name: str, absent: str, is_bytes: bool = False) -> Quantity:
    return Quantity(lambda record: getattr(getattr(record, part), name, None), absent, is_bytes)


_NO_LATENCY = "no latency was measured"
_FEW_CALLS = "the sample is too small for this percentile: raise --min-time"
_NO_ERROR = "no error was measured"
_NOT_WARM = "it was never started warm"
_NO_CALL = "no first call was timed"
_NO_DEVICE = "no memory of a device was read"

QUANTITIES = {
    "median_ms": _field("latency", "median_ms", _NO_LATENCY),
    "mean_ms": _field("latency", "mean_ms", _NO_LATENCY),
    "min_ms": _field("latency", "min_ms", _NO_LATENCY),
    "p90_ms": _field("latency", "p90_ms", _FEW_CALLS),
    "p95_ms": _field("latency", "p95_ms", _FEW_CALLS),
    "p99_ms": _field("latency", "p99_ms", _FEW_CALLS),
    "p999_ms": _field("latency", "p999_ms", _FEW_CALLS),
    "calls_per_s": _field("throughput", "calls_per_s", "no throughput was measured"),
    "build_s": Quantity(lambda record: record.build_s if record.phases else None, "no phase was timed"),
    "first_call_s": Quantity(lambda record: record.first_call_s, _NO_CALL),
    "first_answer_s": Quantity(lambda record: record.first_call_s and record.build_s + record.first_call_s, _NO_CALL),
    "warm_build_s": _field("warm_start", "build_s", _NOT_WARM),
    "warm_first_answer_s": _field("warm_start", "first_answer_s", _NOT_WARM),
    "peak_device_bytes": _field("memory", "peak_device_bytes", _NO_DEVICE, is_bytes=True),
    "peak_resident_bytes": _field("memory", "peak_resident_bytes", "no memory was read", is_bytes=True),
    "artifact_bytes": _field("memory", "artifact_bytes", "it leaves no artefact", is_bytes=True),
    "rmse": _field("accuracy", "rmse", _NO_ERROR),
    "relative_rmse": _field("accuracy", "relative_rmse", _NO_ERROR),
    "max_abs_error": _field("accuracy", "max_abs_error", _NO_ERROR),
    "joules_per_call": _field("energy", "joules_per_call", "this machine counts no energy"),
}
"""By the name to write: that of the report's field, wherever it has one of its own."""

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
"""Bytes in each; a plain number counts bytes."""

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_REQUIREMENT = re.compile(r"(\w+)\s*(<=|>=|<|>)\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)", re.ASCII)


def _parse_one(text: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        raise UsageError(f"--require '{text}': {FORM}")
    name, comparison, number, unit = found.groups()
    if name not in QUANTITIES:
        raise unknown("quantity", name, QUANTITIES, f"--require '{text}'")
    if unit and not QUANTITIES[name].is_bytes:
        raise UsageError(f"--require '{text}': {name} takes a plain number, not one in {unit}")
    if unit and unit not in UNITS:
        raise unknown("unit of bytes", unit, UNITS, f"--require '{text}'")
    return Requirement(name, comparison, float(number) * UNITS.get(unit, 1), f"{number}{f' {unit}' if unit else ''}")


def _spell(value: float, quantity: Quantity) -> str:
    """Six digits, so that what just misses a limit does not read like the limit; bytes with a unit."""
    if not quantity.is_bytes:
        return f"{value:.6g}"
    unit = next(unit for unit in ("GB", "MB", "kB", "B") if value >= UNITS[unit] or unit == "B")
    return f"{value / UNITS[unit]:.6g} {unit}"
