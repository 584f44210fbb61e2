"""The commands below `bakeoff env` and `bakeoff cache`, and what they print. docs/json.md lists every key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from bakeoff.commands import environments
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Frozen
from bakeoff.records.text import counted, spell_minutes
from bakeoff.reports.console import AsJson, answered, print_json, say

if TYPE_CHECKING:
    from bakeoff.measuring.controller.build_cache import BuildCache, CachedBuild


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
        size_bytes=sum(entry.size_bytes for entry in entries),
        builds=[KeptBuild.of(entry, used_at=used_at(entry)) for entry in entries],
    )


def used_at(build: CachedBuild) -> str:
    """Return when a build was used last. A cell claims its folder before it is built, and so the latter counts, too."""
    used = datetime.fromtimestamp(build.used_s, UTC).isoformat(timespec="seconds")
    return max(used, build.built_at, key=datetime.fromisoformat)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _usable_cache() -> BuildCache:
    """Return the cache. Raises UsageError if nothing can be kept in its folder."""
    from bakeoff.measuring.controller.build_cache import BuildCache

    cache = BuildCache()
    if why := cache.why_unusable():
        raise UsageError(f"no build is kept: {why}. Set BAKEOFF_CACHE_DIR to a folder that can be written")
    return cache


env = typer.Typer(help="Other versions of a library, for backends such as onnx@NAME.")


@env.command("add")
def add_environment(
    name: Annotated[str, typer.Argument(help="Its name, as in onnx@NAME")],
    packages: Annotated[list[str], typer.Argument(help="What differs in it, such as onnxruntime==1.30.0")],
    as_json: AsJson = False,
) -> int:
    """Make an environment that has these packages, and else all that this one has."""
    python = environments.add(name, packages)
    return answered(of_environments(), 0, as_json, lambda: say(f"{name}: {python}"))


@env.command("list")
def list_environments(as_json: AsJson = False) -> int:
    """The environments, with what differs in each."""
    answer = of_environments()
    for one in answer.environments if not as_json else ():
        say(f"{one.name}: {', '.join(f'{package} {version}' for package, version in one.packages.items())}")
    return print_json(answer, 0) if as_json else 0


@env.command("remove")
def remove_environment(name: str, as_json: AsJson = False) -> int:
    """Remove an environment."""
    environments.remove(name)
    return print_json(of_environments(), 0) if as_json else 0


cache_commands = typer.Typer(help="Builds of earlier runs, which later runs of the same model use again.")


@cache_commands.command("list")
def list_builds(as_json: AsJson = False) -> int:
    """What is kept, with its size and when it was built and used; --fresh builds anew."""
    kept = of_cache(_usable_cache())
    lines = [
        f"{build.what}  ({_megabytes(build.size_bytes)}, built {spell_minutes(build.built_at)}, "
        f"used {spell_minutes(build.used_at)})"
        for build in kept.builds
    ]
    total = f"{_megabytes(kept.size_bytes)} in {kept.folder}"
    return answered(kept, 0, as_json, lambda: say("\n".join([*lines, total])))


@cache_commands.command("clear")
def clear_builds(as_json: AsJson = False) -> int:
    """Remove every build that no run uses."""
    with _usable_cache() as cache:
        answer = of_cache(cache, cache.clear())
    used = f" A run uses {counted(len(answer.builds), 'build')}, which stayed." if answer.builds else ""
    return answered(answer, 0, as_json, lambda: say(f"Removed {_megabytes(answer.removed_bytes)}.{used}"))
