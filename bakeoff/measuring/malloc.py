"""The memory allocator that workers start with. A deployment can start with the same one."""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from bakeoff.planning.request import Malloc
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError

NAMES: tuple[Malloc, ...] = tuple(name for name in get_args(Malloc) if name)
"""The allocators that can be asked for, for all cells or as `NAME` of rows such as `eager@NAME`."""

KEEPING_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "1073741824"}
"""The variables with which glibc gives back no memory below 1 GiB. Source: mallopt(3)."""

LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
}
"""The library to preload, and the package of Debian and Ubuntu that has it."""


def variables_of(malloc: Malloc) -> Mapping[str, str]:
    """Return the variables that choose an allocator when a process starts. Raises UsageError where it is not here."""
    if malloc == "glibc-tuned":
        return KEEPING_MEMORY
    if malloc not in LIBRARIES:
        return {}
    library, package = LIBRARIES[malloc]
    if not sys.platform.startswith("linux"):
        raise UsageError(f"{malloc} needs Linux, and this is {sys.platform}")
    # what the loader says. jemalloc can only be there from the start, because of its static TLS
    started = subprocess.run(["/bin/sh", "-c", ":"], env={"LD_PRELOAD": library}, capture_output=True, text=True)
    if reason := started.stderr.strip().rpartition("ERROR: ")[2]:
        raise UsageError(f"{malloc}: {library} is not here ({reason}): apt-get install {package}")
    return {"LD_PRELOAD": library}


def interpreter_with(malloc: Malloc, folder: Path) -> Path:
    """Write a script into `folder` that starts this Python with an allocator, and return it. Raises UsageError where
    the allocator is not here."""
    chosen = shlex.join(f"{name}={value}" for name, value in variables_of(malloc).items())
    cleared = " ".join(f"-u {name}" for name in ("LD_PRELOAD", *KEEPING_MEMORY))
    script = folder / malloc / "python"
    script.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(script, f'#!/bin/sh\nexec env {cleared} {chosen} {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return script


def in_force(malloc: Malloc) -> contextlib.AbstractContextManager[None]:
    """Have every process that is started in the block use this allocator. An empty name leaves the user's variables."""
    if not malloc:
        return contextlib.nullcontext()
    before = {name: value for name, value in os.environ.items() if name == "LD_PRELOAD" or name.startswith("MALLOC_")}
    return variables_in_place_of(before, variables_of(malloc))


@contextlib.contextmanager
def variables_in_place_of(before: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[None]:
    _replace(before, chosen)
    try:
        yield
    finally:
        _replace(chosen, before)


def _replace(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)
