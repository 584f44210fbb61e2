"""The versions of libraries that are installed beside this interpreter."""

import contextlib
from collections.abc import Iterable
from importlib import metadata

from bakeoff import backends
from bakeoff.records.errors import BakeoffError

COMMON = ("torch", "triton", "numpy", "transformers", "safetensors", "pydantic", "scipy", "matplotlib", "nvidia-ml-py")
"""Libraries that bear on numbers whatever the backend."""


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Return the version of each library that is installed."""
    versions = {}
    for library in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return versions


def all_versions() -> dict[str, str]:
    """Return the versions of the common libraries and of those that any backend names."""
    libraries = list(COMMON)
    for name in backends.names():
        with contextlib.suppress(BakeoffError):  # one of a third party may not load
            libraries += backends.create(name).libraries
    return versions_of(dict.fromkeys(libraries))
