"""What a process has told torch that changes what a call computes, or what is compiled for it. Imports torch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Settings = tuple[tuple[str, Any], ...]
"""Names and values. They can be compared, pickled and spelled."""

ATTRIBUTES = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
)
"""Of `torch.backends`."""

FP32 = tuple(
    f"{library}.{kind}.fp32_precision"
    for library, kinds in (("cuda", ("matmul",)), ("cudnn", ("conv", "rnn")), ("mkldnn", ("matmul", "conv", "rnn")))
    for kind in kinds
)
"""Of `torch.backends`, from torch 2.9 on. Where they were set, torch refuses to read the older switches."""

ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


def read() -> Settings:
    """As they stand now."""
    return tuple(_read())


def apply(settings: Settings) -> None:
    """Have this process compute as the one that `settings` are from. Raises what torch raises for one it refuses."""
    for name, value in settings:
        if name in SETTERS:
            SETTERS[name](value)
        else:
            owner, _, attribute = name.rpartition(".")
            setattr(operator.attrgetter(owner)(torch.backends), attribute, value)


def _read() -> Iterator[tuple[str, Any]]:
    yield "threads", torch.get_num_threads()
    yield "dtype", torch.get_default_dtype()
    yield "device", str(torch.get_default_device())
    yield (
        "deterministic",
        (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    )
    yield from _attributes(ATTRIBUTES)
    for kind in ATTENTION:
        yield f"{kind}_attention", getattr(torch.backends.cuda, f"{kind}_sdp_enabled")()
    try:
        older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # "you have used mix of the legacy and new APIs"
        yield from _attributes(FP32)
        return
    yield from zip(("matmul_precision", "cudnn.allow_tf32"), older, strict=True)


def _attributes(names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Of these the ones that this torch has."""
    for name in names:
        with contextlib.suppress(AttributeError):
            yield name, operator.attrgetter(name)(torch.backends)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_device(name: str) -> None:
    if name != str(torch.get_default_device()):  # torch has every function pass a mode of its own once one was set
        torch.set_default_device(name)


SETTERS: dict[str, Callable[[Any], object]] = {
    "threads": torch.set_num_threads,
    "dtype": torch.set_default_dtype,
    "device": _set_device,
    "deterministic": _set_deterministic,
    "matmul_precision": torch.set_float32_matmul_precision,
    **{f"{kind}_attention": getattr(torch.backends.cuda, f"enable_{kind}_sdp") for kind in ATTENTION},
}


@functools.cache
def processor() -> str:
    """A name for what compiled code may ask of the processor: packages are compiled for the one they are made on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
