"""A time that a user gives, such as `90s` or `5m`."""

import re
from dataclasses import dataclass
from typing import Self

from bakeoff.records.errors import UsageError


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
