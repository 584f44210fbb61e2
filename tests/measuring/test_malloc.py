"""The allocator that workers start with: as variables of the processes that a run starts, and of no others."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.commands.environments import with_interpreters
from bakeoff.measuring import malloc
from bakeoff.measuring.variables import allowed_variables
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Malloc, Request
from bakeoff.records.errors import UsageError

FREED_AND_TAKEN = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def take():
    taken = libc.malloc(50_000_000)
    ctypes.memset(taken, 1, 50_000_000)
    libc.free(taken)
take(), take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def at_start() -> dict[str, str]:
    """Return what decides the allocator of processes that are started now."""
    variables = allowed_variables(os.environ)
    return {name: value for name, value in variables.items() if name.startswith(("LD_PRELOAD", "MALLOC_"))}


def test_processes_that_a_run_starts_get_the_allocator_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setitem(malloc.LIBRARIES, "jemalloc", ("libc.so.6", "libc6"))  # it is there for certain
    expected: dict[Malloc, dict[str, str]] = {
        "": {"MALLOC_ARENA_MAX": "2"},
        "glibc": {},
        "glibc-tuned": dict(malloc.KEEPING_MEMORY),
        "jemalloc": {"LD_PRELOAD": "libc.so.6"},
    }
    for name, variables in expected.items():
        with malloc.in_force(name):
            assert at_start() == variables
        assert at_start() == {"MALLOC_ARENA_MAX": "2"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a shell and glibc's variables")
def test_rows_of_an_allocator_have_an_interpreter_that_starts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    request = with_interpreters(Request(models=("mlp",), backends=("eager", "eager@glibc", "eager@glibc-tuned")))
    assert request.env.keys() == {"glibc", "glibc-tuned"}
    tell = "import os, sys; print(os.environ.get('MALLOC_TRIM_THRESHOLD_'), sys.prefix)"
    for name, threshold in {"glibc": "None", "glibc-tuned": "1073741824"}.items():
        told = subprocess.run([request.env[name], "-c", tell], capture_output=True, text=True, check=True).stdout
        assert told.split() == [threshold, sys.prefix]
    (contest,) = plan(request.model_copy(update={"devices": ("cpu",)}))
    assert [planned.cell.label for planned in contest.cells] == ["eager", "eager@glibc", "eager@glibc-tuned"]


def test_a_library_that_can_only_be_there_from_the_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("loading it here may fail for its static TLS"))
    monkeypatch.setitem(malloc.LIBRARIES, "jemalloc", ("libc.so.6", "libc6"))
    assert malloc.variables_of("jemalloc") == {"LD_PRELOAD": "libc.so.6"}


def test_a_library_that_is_not_here_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(malloc.LIBRARIES, "tcmalloc", ("libnowhere.so.9", "libnowhere9"))
    with pytest.raises(UsageError, match=r"^--malloc tcmalloc: libnowhere.so.9 is not here .*: apt-get install libn"):
        malloc.variables_of("tcmalloc")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_a_tuned_glibc_keeps_what_is_freed() -> None:
    faults: dict[Malloc, int] = {}
    names: tuple[Malloc, ...] = ("glibc", "glibc-tuned")
    for name in names:
        with malloc.in_force(name):
            done = subprocess.run([sys.executable, "-c", FREED_AND_TAKEN], capture_output=True, text=True, check=True)
        faults[name] = int(done.stdout)
    assert faults["glibc"] > 100 * max(1, faults["glibc-tuned"])
