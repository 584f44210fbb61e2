"""What a worker sees of its surroundings, and how everything that it starts is found and ended."""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import hashlib
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from bakeoff.models.base import LIVE_MODEL
from bakeoff.records.errors import UsageError

READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
"""What the C library reads when a process starts: names, or how they begin."""

MARK = "BAKEOFF_CELL"
"""Environment variable that every process of a cell inherits and is found by."""

# fmt: off
OF_LIBRARIES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TERM", "SHELL", "VIRTUAL_ENV", "PYTHONPATH",
    "PYTHONHOME", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH",
    "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "CUDNN_HOME", "CUDNN_PATH",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GLIBC_TUNABLES", "SYSTEMROOT",
    "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME",
})
OF_LIBRARIES_PREFIXES = (
    "LC_", "MALLOC_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NCCL_", "TORCH_SYMM_", "NVSHMEM_",
)
"""What libraries may read of a user's variables. It decides whether a build can be used again."""

WITHHELD = frozenset({
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY", "TMPDIR", "TEMP", "TMP", "RANK", "WORLD_SIZE",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_JOBS", "USE_TORCH", "USE_TF",
    "USE_FLAX", "USE_JAX",
})
WITHHELD_PREFIXES = (
    "TORCH", "PYTORCH_", "TRITON_", "AOTI", "AOT_", "CUDA", "CUDNN", "CUBLAS", "CUTLASS", "CUTE_", "NV", "TRT_",
    "TENSORRT", "ORT_", "ONNX", "OPENVINO", "OV_", "DNNL_", "ONEDNN_", "ATEN_", "XNNPACK", "TF_", "TVM_", "IREE_",
    "XLA_", "JAX_", "TFLITE_", "LITERT", "NUMBA_", "BLIS_", "VECLIB", "TBB_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_",
    "DIFFUSERS_", "ACCELERATE_", "TIMM_", "TOKENIZERS_", "SAFETENSORS_", "XFORMERS_", "FLASH_", "XDG_CACHE",
    "RAY_", "BAKEOFF_", "CONDA_", "CMAKE_", "PYTHON", "LD_", "DYLD_", "GLIBC_",
)
# fmt: on
"""TF32 overrides, options and caches of compilers, proxies and places in a cluster: they would change what is measured,
or let two runs of one command differ."""


def child_environment(given: Mapping[str, str], workspace: Path, mark: str) -> dict[str, str]:
    """Return a worker's variables: those of `given` that are passed on, and private, empty caches in `workspace`."""
    caches = workspace / "cache"
    return {
        **allowed_variables(given),
        MARK: mark,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": _hub_cache(given),
        **({LIVE_MODEL: given[LIVE_MODEL]} if LIVE_MODEL in given else {}),
        "TORCH_HOME": _torch_home(given),
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(workspace / "tmp"),
        "XDG_CACHE_HOME": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch_extensions"),
    }


def allowed_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `given` that a worker may see: the user's own, and those of libraries that are known."""
    return {name: value for name, value in given.items() if not is_withheld(name)}


def is_withheld(name: str) -> bool:
    """Return True for a variable that no worker sees, because it would change what is measured."""
    is_of_a_library = name.upper() in WITHHELD or name.upper().startswith(WITHHELD_PREFIXES)
    return is_of_a_library and not _is_known(name)


def variables_of_libraries(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `given` that libraries in a worker read, without the user's own."""
    return {name: value for name, value in given.items() if _is_known(name)}


def own_digests(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of each of these variables that is a user's own, or "" for one that is not in `given`.

    Values may be secrets, so that they are written nowhere.
    """
    own = [name for name in names if not is_withheld(name) and not _is_known(name)]
    return {name: hashlib.sha256(given[name].encode()).hexdigest()[:16] if name in given else "" for name in own}


def require_own_variables(recorded: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise UsageError if a variable of the user's own is not as it was recorded: the model may be another one."""
    for name, digest in own_digests(recorded, given).items():
        if digest == recorded[name]:
            continue
        remedy = f"set {name} as it was" if recorded[name] else f"unset {name}"
        now = ("has another value than" if recorded[name] else "is set and was not") if digest else "is not set and was"
        raise UsageError(
            f"the model's files read the environment variable {name}, which {now} when the run began: "
            f"{remedy}, or begin a new run"
        )


def _is_known(name: str) -> bool:
    return name in OF_LIBRARIES or name.startswith(OF_LIBRARIES_PREFIXES)


def _hub_cache(given: Mapping[str, str]) -> str:
    """Return the folder into which the controller downloads models, by the rules of huggingface_hub."""
    home = given.get("HF_HOME") or os.path.join(given.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.expanduser(given.get("HF_HUB_CACHE") or os.path.join(home, "hub"))


def _torch_home(given: Mapping[str, str]) -> str:
    """Return the folder in which torch.hub keeps the weights that it has downloaded, by its own rules."""
    default = os.path.join(given.get("XDG_CACHE_HOME") or "~/.cache", "torch")
    return os.path.expanduser(given.get("TORCH_HOME") or default)


def make_workspace(folder: Path) -> Path:
    """Create a worker's folder, with `tmp` and `cache` for itself and `artifact` for what it builds.

    Its `tmp` leads to the machine's precompiled headers of torch, where there are any.
    """
    for name in ("tmp", "cache", "artifact"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    own = headers_of_torch(folder / "tmp")
    if headers_of_torch().is_dir() and not own.exists():
        own.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # where links are forbidden, torch compiles them for this worker alone
            own.symlink_to(headers_of_torch(), target_is_directory=True)
    return folder


def headers_of_torch(temporary: Path | None = None) -> Path:
    """Return the folder in which torch keeps its precompiled C++ headers, by default the machine's own.

    Torch keeps them for all programs of a user, since they depend on no model, and its `fresh_cache` leaves them alone.
    Their names tell the version of the compiler and of torch, and the flags. Source: torch/_inductor/codecache.py,
    `_HEADER_DIR`.
    """
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
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
