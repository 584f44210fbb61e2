"""Makes outside text safe to show, and spells latencies the same everywhere."""

from __future__ import annotations

import math
import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return `text` without terminal escapes and control characters. Line breaks and tabs are kept."""
    return _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, limit: int | None = None) -> str:
    """Return `text` on one line, without control characters, cut to `limit` characters."""
    line = " ".join(visible(text).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def spell_ms(milliseconds: float) -> str:
    """Return milliseconds with three significant digits at least: `0.0175 ms`, `12.3 ms`, `1,234 ms`."""
    if milliseconds >= 100:
        return f"{milliseconds:,.0f} ms"
    digits = 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3 if milliseconds >= 0.1 else 4
    if 0 < milliseconds < 0.01:
        digits = min(6, 2 - math.floor(math.log10(milliseconds)))  # the clock ticks in nanoseconds
    return f"{milliseconds:.{digits}f} ms"
