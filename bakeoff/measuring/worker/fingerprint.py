"""A fingerprint of all that decides what a build of a model is: equal fingerprints mean that a build can be used again.

docs/recipes.md lists what it holds: no name of a file or of a model. The reference adds the files that eager's calls
read, and what it saw eager call (`ReadingWatch.functions`).
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.measuring.nvml import nvml
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError
from bakeoff.records.package import digests
from bakeoff.records.plug_ins import versions
from bakeoff.truth import global_settings
from bakeoff.truth.tensor_content import content
from bakeoff.truth.user_code import described, described_attributes, described_variables, user_sources

_QUOTED_NAME = re.compile(r"""["']([A-Za-z_]\w+)["']""")
_READ_NAME = re.compile(r"""(?:\benviron(?:\.get\(|\.pop\(|\[)|\bgetenv\()\s*["']([A-Za-z_]\w+)["'](?!\s*\]\s*=[^=])""")


MAX_READ_BYTES = 64 * 2**20
"""Larger files hold weights or data, which a model has as tensors."""

MAX_COMPILER_BYTES = 2**20
"""A larger compiler is identified by its version alone. A smaller one may be a script with options of its own."""

COMPILERS_OPTIONS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")


def digest_of_weights(module: Any) -> str:
    digest = hashlib.sha256()
    # Beside parameters, a buffer may be memory that nobody has set, which is other in each process.
    for name, tensor in (dict(module.named_parameters()) or dict(module.named_buffers())).items():
        digest.update(name.encode() + content(tensor))
    return digest.hexdigest()


def require_weights(module: Any, digest: str) -> None:
    """Raise BakeoffError if a model that was loaded has other weights than those of this digest, if there is one."""
    if digest and digest_of_weights(module) != digest:
        raise BakeoffError(
            "the model has other weights than those that were measured: put them back, or begin a new run"
        )


def fingerprint(
    module: Any, sets: Sequence[Inputs], code_without_file: str = "", data_files: Sequence[Path] = (), weights: str = ""
) -> str:
    """Return the fingerprint, in hex, of a loaded model that has not been called. `data_files` were read while it was
    loaded; `code_without_file` and `weights` are digests of code in no file, and of its weights."""
    digest = hashlib.sha256(f"{code_without_file} {weights or digest_of_weights(module)}".encode())
    own = own_files()
    variables = (f"{name}={os.environ[name]}\n" for name in named_variables() if name in os.environ)
    code = (*digests([*own, *_files_of_parts(module)]), *variables, *described_variables(), *_structure(module))
    for text in (*_hardware(), *_compiler(), *versions(), *_settings(), *code, *digests_of_data(data_files)):
        digest.update(text.encode())
    for part in _scripted(module):
        digest.update(part)
    for name, value in [*module.state_dict(keep_vars=True).items(), *module.named_buffers()]:
        if not isinstance(value, torch.nn.Parameter):
            digest.update(name.encode() + content(value))
    for inputs in sets:
        leaves, spec = pytree.tree_flatten((inputs.args, dict(inputs.kwargs)))
        digest.update(str(spec).encode())
        for leaf in leaves:
            digest.update(content(leaf))
    return digest.hexdigest()


def digests_of_data(files: Sequence[Path]) -> list[str]:
    return [_digest_of_file(path) for path in files if path.stat().st_size <= MAX_READ_BYTES]


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _compiler() -> Iterable[str]:
    if (found := shutil.which(os.environ.get("CXX") or "g++")) is None:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # it cannot compile, either
        yield subprocess.run([found, "--version"], capture_output=True, timeout=10).stdout.decode(errors="replace")
        if (path := Path(found).resolve()).stat().st_size <= MAX_COMPILER_BYTES:
            yield _digest_of_file(path)


def _settings() -> Iterable[str]:
    """Return torch's global settings, and those options of its compilers that are not at their defaults."""
    yield from (f"{name}={value}\n" for name, value in global_settings.read().items())
    kernels = torch.backends.cuda
    yield f"{kernels.flash_sdp_enabled()} {kernels.mem_efficient_sdp_enabled()} {kernels.math_sdp_enabled()} "
    yield f"{kernels.cudnn_sdp_enabled()}\n"
    for name in COMPILERS_OPTIONS:
        if (options := sys.modules.get(name)) is not None:
            were_set = [option for option in sorted(options._config) if not options._is_default(option)]
            for option in were_set:
                value = described(getattr(options, option))
                if value != described(options._config[option].default):  # a file may have put it back
                    yield f"{name}.{option}={value}\n"


def _structure(module: Any) -> Iterable[str]:
    for name, part in module.named_modules():
        kind = type(part)
        yield f"{name} {kind.__module__}.{kind.__qualname__} {part.extra_repr()} {described_attributes(part)}\n"


def _scripted(module: Any) -> Iterable[bytes]:
    """Return each part in TorchScript as its file. Its attributes show neither its code nor its constants."""
    if isinstance(module, torch.jit.ScriptModule):
        try:
            yield module.save_to_buffer()
        except RuntimeError:  # it holds an object that cannot be saved, so that it is like no other one
            yield os.urandom(16)
    else:
        for child in module.children():
            yield from _scripted(child)


def _files_of_parts(module: Any) -> Iterable[Path]:
    for name in {type(part).__module__ for part in module.modules()}:
        if file := getattr(sys.modules.get(name), "__file__", None):
            yield Path(file)


def named_variables() -> tuple[str, ...]:
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in own_files()]
    quoted = {name for text in texts for name in _QUOTED_NAME.findall(text)}
    read = {name for text in texts for name in _READ_NAME.findall(text)}
    # One that is set counts wherever its name stands between quotes, and another one only where it is read.
    return tuple(sorted(quoted & os.environ.keys() | read))


def own_files() -> tuple[Path, ...]:
    return tuple(sorted(path for path in user_sources() if path.is_file()))


def _hardware() -> Iterable[str]:
    yield f"{platform.platform()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    yield torch.__config__.show()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from dict.fromkeys(line for line in lines if line.startswith(("model name", "flags")))
    if torch.cuda.is_available():
        yield f"{torch.version.cuda} {torch.backends.cudnn.version()}"
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            yield f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.total_memory} {gpu.multi_processor_count}"
        with nvml() as library:
            yield str(library.nvmlSystemGetDriverVersion()) if library is not None else ""
