"""What installed distributions bring. Reading it takes tens of milliseconds, so it is read once for a search path."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata


def plug_ins(group: str) -> dict[str, str]:
    """Return the entry points of a group: each name, and the `module:attribute` that it stands for."""
    return {point.name: point.value for point in _entry_points(tuple(sys.path)).select(group=group)}


def versions() -> tuple[str, ...]:
    """Return a line for each installed distribution, with its name and version, in alphabetical order."""
    return _versions(tuple(sys.path))


@cache
def _entry_points(search_path: tuple[str, ...]) -> metadata.EntryPoints:
    return metadata.entry_points()


@cache
def _versions(search_path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({f"{each.name} {each.version}\n" for each in metadata.distributions()}))
