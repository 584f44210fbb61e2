"""A fingerprint of all that decides what a build of a model is: equal fingerprints mean that a build can be used again.

It holds the weights and example inputs by content, the structure and settings of every part of the model, the source
files of the user's own that were imported, the versions of all installed packages, and the hardware. No name of a file
or of a model is in it.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.records.package import PACKAGE

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Inputs

PIECE_ELEMENTS = 2**24
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(module: Any, sets: Sequence[Inputs]) -> str:
    """Return the fingerprint of a model that was loaded and has not been called, with its input sets, in hex."""
    from torch.utils import _pytree as pytree

    found = hashlib.sha256()
    for text in (*_hardware(), *_installed(), *_own_sources(), *_structure(module)):
        found.update(text.encode())
    tensors = [*module.state_dict(keep_vars=True).items(), *module.named_buffers()]
    for name, tensor in tensors:
        found.update(name.encode() + _content(tensor))
    for one in sets:
        leaves, spec = pytree.tree_flatten((one.args, dict(one.kwargs)))
        found.update(str(spec).encode())
        for leaf in leaves:
            found.update(_content(leaf))
    return found.hexdigest()


def _content(value: Any) -> bytes:
    """Return a digest of a tensor's type, shape, strides and values. Other values are told by their `repr`."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    layout = (value.dtype, tuple(value.shape), value.stride() if value.layout is torch.strided else value.layout)
    digest = hashlib.sha256(repr(layout).encode())
    dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    if dense.is_quantized:
        dense = dense.int_repr()
    words = _words(dense)
    for start in range(0, words.numel(), PIECE_ELEMENTS):
        piece = words[start : start + PIECE_ELEMENTS]
        digest.update(_sums(piece) if piece.is_cuda else piece.cpu().numpy().data)
    return digest.digest()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor as a flat tensor of whole numbers, as wide as its elements but for 16 bytes."""
    import torch

    flat = tensor.contiguous().reshape(-1)
    if flat.dtype is torch.bool:
        return flat.to(torch.uint8)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def _sums(words: torch.Tensor) -> bytes:
    """Return two sums over a piece on a GPU, weighted by place, modulo 2**64. Copying it to the host takes longer."""
    import torch

    places = torch.arange(1, words.numel() + 1, device=words.device, dtype=torch.int64)
    values = words.to(torch.int64)
    odd = places * 0x9E3779B97F4A7C1 | 1
    return repr([int((values * odd).sum()), int((values * places).sum())]).encode()


def _structure(module: Any) -> Iterable[str]:
    """Return each part's class and plain attributes."""
    for name, part in module.named_modules():
        kind = type(part)
        plain = {key: value for key, value in sorted(vars(part).items()) if _is_plain(value)}
        yield f"{name} {kind.__module__}.{kind.__qualname__} {part.extra_repr()} {plain}\n"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _own_sources() -> Iterable[str]:
    """Return digests of the imported source files that no package manager has installed, Bakeoff's among them."""
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = {path for file in files if file and (path := Path(file).resolve()).suffix == ".py"}
    own = {path for path in own if not any(path.is_relative_to(folder) for folder in installed)}
    own |= set(PACKAGE.rglob("*.py"))
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in own if path.is_file())


def _installed() -> Iterable[str]:
    return sorted({f"{each.name} {each.version}\n" for each in metadata.distributions()})


def _hardware() -> Iterable[str]:
    import torch

    yield f"{platform.platform()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    yield torch.__config__.show()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from dict.fromkeys(line for line in lines if line.startswith(("model name", "flags")))
    if torch.cuda.is_available():
        yield f"{torch.version.cuda} {torch.backends.cudnn.version()}"
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            yield f"{found.name} {found.major}.{found.minor} {found.total_memory} {found.multi_processor_count}"
        yield _driver()


def _driver() -> str:
    from bakeoff.measuring.nvml import nvml

    with nvml() as library:
        return str(library.nvmlSystemGetDriverVersion()) if library is not None else ""
