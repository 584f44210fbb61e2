"""The errors a user sees. They live at the bottom of the import order so that every folder can raise them.

BakeoffError            something this project says in one line, never as a traceback
├── UsageError          the request is wrong: what, where, and what to do now (exit status 2)
├── Unavailable         this machine lacks what the cell needs
└── Unsupported         a backend learns only while building that this cell makes no sense for it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BakeoffError(Exception):
    """Base of the errors whose message is the whole story."""


class UsageError(BakeoffError, ValueError):
    """The request cannot be carried out as written."""


class Unavailable(BakeoffError):
    """This machine lacks what the cell needs: the message says what, and how to get it."""


class Unsupported(BakeoffError):
    """This backend cannot build this cell, and no other version of the request would help: the message says why."""


def first_line(error: object) -> str:
    """Return the first line of the message that is not empty, or else the name of the error's type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """An error for a name nobody knows: it names the nearest known one, or all of them, and `where` to look."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(known) or 'none'}"
    return UsageError(f"unknown {kind} '{name}': {hint}{f' ({where})' if where else ''}")
