"""Making outside text safe to show: no terminal escapes, no control characters."""

from __future__ import annotations

import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """`text` without terminal escape sequences and control characters; only line breaks and tabs are kept."""
    return _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, limit: int | None = None) -> str:
    """`text` on one line, without control characters, cut to `limit` characters."""
    line = " ".join(visible(text).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
