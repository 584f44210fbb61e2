"""What installed distributions bring. Reading it takes tens of milliseconds, so it is read once for a search path."""

import sys
from functools import cache
from importlib import metadata


def plug_ins(group: str) -> dict[str, str]:
    """Return the entry points of a group: each name, and the `module:attribute` that it stands for."""
    return dict(_entry_points(group, tuple(sys.path)))


def versions() -> tuple[str, ...]:
    """Return a line for each installed distribution, with its name and version, in alphabetical order."""
    return _versions(tuple(sys.path))


@cache
def _entry_points(group: str, search_path: tuple[str, ...]) -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=group)}


@cache
def _versions(search_path: tuple[str, ...]) -> tuple[str, ...]:
    lines = set()
    for distribution in metadata.distributions():
        described = distribution.metadata  # `name` and `version` would parse it twice
        # what was installed from a folder or a repository may change in one version: RECORD has digests of its files
        files = distribution.read_text("RECORD") if distribution.read_text("direct_url.json") else ""
        lines.add(f"{described['Name']} {described['Version']} {files}\n")
    return tuple(sorted(lines))
