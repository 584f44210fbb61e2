"""What a worker sees of its surroundings, and how everything that it starts is found and ended."""

import contextlib
import ctypes
import getpass
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import psutil

from bakeoff.measuring.variables import allowed_variables
from bakeoff.models.base import LIVE_MODEL

MARK = "BAKEOFF_CELL"
"""Environment variable that every process of a cell inherits and is found by."""


def child_environment(given: Mapping[str, str], workspace: Path, mark: str) -> dict[str, str]:
    """Return a worker's variables: those of `given` that are passed on, and private, empty caches in `workspace`."""
    caches = workspace / "cache"
    # By the rules of huggingface_hub.
    home = given.get("HF_HOME") or os.path.join(given.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub_cache = os.path.expanduser(given.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    # By torch.hub's own rules.
    default = os.path.join(given.get("XDG_CACHE_HOME") or "~/.cache", "torch")
    torch_home = os.path.expanduser(given.get("TORCH_HOME") or default)
    return {
        **allowed_variables(given),
        MARK: mark,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": hub_cache,
        **({LIVE_MODEL: given[LIVE_MODEL]} if LIVE_MODEL in given else {}),
        "TORCH_HOME": torch_home,
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(workspace / "tmp"),
        "XDG_CACHE_HOME": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch_extensions"),
    }


FULL_BYTES = 16 * 2**20
"""A disk with less space is full: what failed to be written there may have been cut short, and not be missing."""


def has_full_disk(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < FULL_BYTES


def make_workspace(folder: Path) -> Path:
    for name in ("tmp", "cache", "artifact"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Its `tmp` leads to the machine's precompiled headers of torch, where there are any.
    own = headers_of_torch(folder / "tmp")
    if headers_of_torch().is_dir() and not own.exists():
        own.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # where links are forbidden, torch compiles them for this worker alone
            own.symlink_to(headers_of_torch(), target_is_directory=True)
    return folder


def headers_of_torch(temporary: Path | None = None) -> Path:
    """Return the folder in which torch keeps its precompiled C++ headers, by default the machine's own."""
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    # All programs of a user share it. Source: `_HEADER_DIR` in torch/_inductor/codecache.py.
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return Path(temporary or tempfile.gettempdir(), name, "precompiled_headers")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies. Elsewhere than on Linux the closed pipe ends it."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that it can be found. This works on Linux only."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_first() -> None:
    """Have the kernel end this process before any other when memory runs out, so that a run outlives its models."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_tree(pid: int, mark: str) -> None:
    """Kill the process group that `pid` leads, its descendants, and every other process with `mark`."""
    victims = descendants(pid)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for process in [*victims, *_marked(mark)]:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()


def kill_alone(pid: int) -> None:
    """Kill this one process. It must be known to be alive: the kernel gives the numbers of ended ones to others."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def _marked(mark: str) -> list[psutil.Process]:
    """Return processes with `mark` in their environment: some have left both the group and the tree."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def ignore_torchs_own_warning() -> None:
    """Ignore a warning of torch's about its own code, which nobody who measures a model can do anything about."""
    warnings.filterwarnings("ignore", r".*isinstance.treespec, LeafSpec", FutureWarning)
