"""The versions of libraries that are installed beside this interpreter."""

import contextlib
import re
from collections.abc import Iterable
from importlib import metadata

from bakeoff import backends

COMMON = ("torch", "triton", "numpy", "transformers", "safetensors", "pydantic", "scipy", "matplotlib", "nvidia-ml-py")
"""Libraries that bear on numbers whatever the backend."""

TESTED_TORCH = ("2.8", "2.14")
"""The oldest and the newest torch that our workflows test with (constraints-oldest.txt, constraints-newest.txt)."""


def untested_torch(version: str) -> str:
    """Say that this torch is newer than what was tested, or nothing. Torch is never replaced by an older one."""
    oldest, newest = TESTED_TORCH
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) <= tuple(map(int, newest.split("."))):
        return ""
    return f"torch {version} is newer than what Bakeoff was tested with ({oldest} to {newest})"


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    versions = {}
    for library in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return versions


def all_versions() -> dict[str, str]:
    """Return the versions of the common libraries and of those that any backend names."""
    own = (library for backend in backends.all_that_load() for library in backend.libraries)
    return versions_of(dict.fromkeys([*COMMON, *own]))
