"""What an hour of a machine costs."""

import re
from dataclasses import dataclass
from typing import Self

from bakeoff.records.errors import UsageError


@dataclass(frozen=True)
class Price:
    per_hour: float

    @classmethod
    def parse(cls, text: str, written: str = "", example: str = "2.5/h") -> Self:
        """Read a price such as `2.5/h`. Raises UsageError for another form, with all that is `written` around it."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*h\s*", text, re.ASCII)
        if not match or not float(match[1]):
            raise UsageError(f"--price {written or text}: write what an hour of a machine costs, such as {example}")
        return cls(float(match[1]))

    def __str__(self) -> str:
        return f"{self.per_hour:.12g}/h"
