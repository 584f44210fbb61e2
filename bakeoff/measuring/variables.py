"""Which of a user's environment variables reach a worker. No other library is imported here."""

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping

READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
"""What the C library reads when a process starts: names, or how they begin."""


def _names(pattern: str) -> Callable[[str], object]:
    """Return what says whether a name is one of those that a pattern lists."""
    return re.compile(pattern, re.VERBOSE | re.DOTALL).fullmatch


_OF_SHELLS = "PATH | USER | LOGNAME | LANG | LANGUAGE | TERM | SHELL | VIRTUAL_ENV | LC_.*"
"""What differs between two terminals of one machine. No build depends on it, but on which tools `PATH` finds."""

_OF_SEVERAL_GPUS = "(NCCL | NVSHMEM | TORCH_SYMM)_.*"
"""What GPUs that talk to one another read. No cell takes more than one GPU."""

_OF_SPEED = f"""
    CUDA_VISIBLE_DEVICES | CUDA_MODULE_LOADING | LD_PRELOAD | GLIBC_TUNABLES |
    (MALLOC | OMP | MKL | KMP | GOMP | OPENBLAS)_.* | {_OF_SEVERAL_GPUS}
"""

_is_of_shells = _names(_OF_SHELLS)
_is_of_several_gpus = _names(_OF_SEVERAL_GPUS)
_is_of_speed = _names(_OF_SPEED)

_is_known = _names(f"""
    {_OF_SHELLS} | {_OF_SPEED} | HOME | TZ | SYSTEMROOT | HF_HOME | HF_HUB_CACHE | XDG_CACHE_HOME |
    PYTHONPATH | PYTHONHOME | PYTHONHASHSEED | PYTHONPYCACHEPREFIX | LD_LIBRARY_PATH | LIBRARY_PATH |
    CPATH | C_INCLUDE_PATH | CPLUS_INCLUDE_PATH | CC | CXX | CFLAGS | CXXFLAGS |
    CUDA_HOME | CUDA_PATH | CUDA_DEVICE_ORDER | CUDNN_HOME | CUDNN_PATH | NVIDIA_VISIBLE_DEVICES |
    NVIDIA_DRIVER_CAPABILITIES | TRITON_LIBCUDA_PATH | TRITON_PTXAS_PATH | PYTORCH_ALLOC_CONF | PYTORCH_CUDA_ALLOC_CONF
""")
"""What libraries may read of a user's variables."""

_is_of_a_library = _names(r"""(?i:
    (HTTP | HTTPS | ALL | FTP | NO)_PROXY | TMPDIR | TEMP | TMP | RANK | WORLD_SIZE | LOCAL_RANK | LOCAL_WORLD_SIZE |
    GROUP_RANK | MASTER_ADDR | MASTER_PORT | MAX_JOBS | USE_(TORCH | TF | FLAX | JAX) |
    ( TORCH | PYTORCH_ | TRITON_ | AOTI | AOT_ | CUDA | CUDNN | CUBLAS | CUTLASS | CUTE_ | NV | TRT_ | TENSORRT | ORT_
    | ONNX | OPENVINO | OV_ | DNNL_ | ONEDNN_ | ATEN_ | XNNPACK | TF_ | TVM_ | IREE_ | XLA_ | JAX_ | TFLITE_ | LITERT
    | NUMBA_ | BLIS_ | VECLIB | TBB_ | HF_ | HUGGINGFACE_ | TRANSFORMERS_ | DIFFUSERS_ | ACCELERATE_ | TIMM_
    | TOKENIZERS_ | SAFETENSORS_ | XFORMERS_ | FLASH_ | XDG_CACHE | RAY_ | BAKEOFF_ | CONDA_ | CMAKE_ | PYTHON | LD_
    | DYLD_ | GLIBC_ ).*
)""")
"""TF32 overrides, options and caches of compilers, proxies and places in a cluster: they would change what is measured,
or let two runs of one command differ."""

BUILD_TOOLS = ("cc", "gcc", "g++", "c++", "clang", "clang++", "ld", "nvcc", "ptxas")

DIGEST_ROUNDS = 200_000


def allowed_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `given` that a worker may see: the user's own, and those of libraries that are known."""
    return {name: value for name, value in given.items() if not is_withheld(name)}


def is_withheld(name: str) -> bool:
    return bool(_is_of_a_library(name)) and not _is_known(name)


def variables_of_libraries(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if _is_known(name)}


def variables_of_speed(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `given` that bear on how fast a worker computes, such as OMP_NUM_THREADS."""
    return {name: value for name, value in given.items() if _is_of_speed(name)}


def with_variables(command: str, given: Mapping[str, str]) -> str:
    """Return a command with the variables of `given` that change its result. Those of `--malloc` follow from it."""
    chosen = {name: value for name, value in variables_of_speed(given).items() if not _is_of_several_gpus(name)}
    if "--malloc" in command:
        chosen = {name: value for name, value in chosen.items() if not name.startswith(READ_AT_START)}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in sorted(chosen.items())), command])


def variables_of_builds(given: Mapping[str, str]) -> dict[str, str]:
    """Return what decides of the variables of `given` whether a build can be used again, with paths of found tools."""
    kept = {name: value for name, value in variables_of_libraries(given).items() if not _is_of_shells(name)}
    tools = {tool: shutil.which(tool, path=given.get("PATH")) for tool in BUILD_TOOLS}
    return kept | {f"PATH:{tool}": path for tool, path in tools.items() if path}


def own_digests(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of each of these variables that is a user's own, or "" for one that is not in `given`."""
    own = [name for name in names if not is_withheld(name) and not _is_known(name)]
    # Values may be secrets. The name is the salt, so that equal values have other digests, and guesses take long.
    return {name: _digest(name, given[name]) if name in given else "" for name in own}


def _digest(name: str, value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), name.encode(), DIGEST_ROUNDS).hex()[:16]
