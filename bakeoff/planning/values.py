"""What options of a run mean: each value is read once from what a user types, and spells itself in the same way."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from bakeoff.judging.constraints import UNITS
from bakeoff.records.errors import UsageError, unknown


@dataclass(frozen=True)
class Shard:
    number: int  # from 1 on
    machines: int

    @classmethod
    def parse(cls, text: str) -> Self:
        match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        number, machines = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= machines:
            raise UsageError(f"--shard {text}: write I/N with I from 1 to N, such as 2/8")
        return cls(number, machines)

    @property
    def contests(self) -> slice:
        """Which contests of the whole plan are those of this machine."""
        return slice(self.number - 1, None, self.machines)

    def __str__(self) -> str:
        return f"{self.number}/{self.machines}"


@dataclass(frozen=True)
class Duration:
    seconds: float

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Read the value of an option such as --budget. Raises UsageError for another form."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text, re.ASCII)
        seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
        if not seconds:
            raise UsageError(f"{flag} {text}: write seconds, minutes or hours: 90, 90s, 5m or 1h")
        return cls(seconds)

    def __str__(self) -> str:
        for unit, seconds in (("h", 3600), ("m", 60)):
            if self.seconds > seconds and self.seconds % seconds == 0:
                return f"{self.seconds / seconds:.0f}{unit}"
        return f"{self.seconds:.12g}s"


@dataclass(frozen=True)
class Size:
    size_bytes: float

    @classmethod
    def parse_limit(cls, text: str) -> Self:
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)", text, re.ASCII)
        if match is None:
            raise UsageError(f"--artifact-limit {text}: write a size such as 500MB or 2GB")
        number, unit = match.groups()
        if unit and unit not in UNITS:
            raise unknown("unit of bytes", unit, UNITS, f"--artifact-limit {text}")
        return cls(float(number) * UNITS.get(unit, 1))

    def __str__(self) -> str:
        unit = next(unit for unit in ("GB", "MB", "kB", "B") if self.size_bytes >= UNITS[unit] or unit == "B")
        return f"{self.size_bytes / UNITS[unit]:.15g}{unit}"


def parse_interpreters(entries: Sequence[str]) -> dict[str, str]:
    """Read the values of --env: the interpreter of each named environment. Raises UsageError for another form."""
    interpreters = {}
    for entry in entries:
        name, equals, python = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not equals or not python:
            raise UsageError(f"--env {entry}: write NAME=PYTHON, such as old=/venvs/old/bin/python")
        interpreters[name] = python
    return interpreters


def spell_named(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
