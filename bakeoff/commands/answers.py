"""What `bakeoff env` and `bakeoff cache` print with `--json`. docs/json.md lists every key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bakeoff.commands import environments
from bakeoff.records.schema import Frozen

if TYPE_CHECKING:
    from bakeoff.measuring.controller.build_cache import BuildCache


class EnvironmentAnswer(Frozen):
    """One environment beside the one that runs Bakeoff."""

    name: str
    python: str
    packages: dict[str, str]  # versions of what differs in it


class EnvironmentsAnswer(Frozen):
    """What `bakeoff env list --json` prints, and so do `add` and `remove`, after what they do."""

    environments: list[EnvironmentAnswer]


class KeptBuild(Frozen):
    """One build that later runs use again."""

    what: str  # model, device, backend and mode
    size_bytes: int
    built_at: str
    used_at: str


class CacheAnswer(Frozen):
    """What `bakeoff cache list --json` prints, and so does `clear`, after what it does."""

    folder: str
    removed_bytes: int
    size_bytes: int
    builds: list[KeptBuild]


def of_environments() -> EnvironmentsAnswer:
    return EnvironmentsAnswer(
        environments=[
            EnvironmentAnswer(name=name, python=str(environments.python_of(name)), packages=environments.contents(name))
            for name in environments.names()
        ]
    )


def of_cache(cache: BuildCache, removed_bytes: int = 0) -> CacheAnswer:
    entries = cache.entries()
    return CacheAnswer(
        folder=str(cache.folder),
        removed_bytes=removed_bytes,
        size_bytes=sum(each.size_bytes for each in entries),
        builds=[
            KeptBuild(
                what=each.what,
                size_bytes=each.size_bytes,
                built_at=each.built_at,
                used_at=datetime.fromtimestamp(each.used_s, UTC).isoformat(timespec="seconds"),
            )
            for each in entries
        ],
    )
