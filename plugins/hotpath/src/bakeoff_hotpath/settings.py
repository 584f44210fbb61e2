"""The settings of torch that change what a call computes, or what is compiled for it. Imports torch."""

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
"""Names and values. They can be compared, pickled and printed."""

ATTRIBUTES = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
)
"""These are attributes of `torch.backends`."""

FP32 = tuple(
    f"{library}.{kind}.fp32_precision"
    for library, kinds in (("cuda", ("matmul",)), ("cudnn", ("conv", "rnn")), ("mkldnn", ("matmul", "conv", "rnn")))
    for kind in kinds
)
"""These are attributes of `torch.backends` since torch 2.9. Once they are set, torch refuses to read the older ones."""

ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


def read() -> Settings:
    return tuple(_read())


def apply(settings: Settings) -> None:
    """Give this process the settings of another one. Raises what torch raises for a value it refuses."""
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
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
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
    """Yield those that this torch has."""
    for name in names:
        with contextlib.suppress(AttributeError):
            yield name, operator.attrgetter(name)(torch.backends)


def _set_device(name: str) -> None:
    if name != str(torch.get_default_device()):  # once it was set, every function of torch goes through a mode
        torch.set_default_device(name)


SETTERS: dict[str, Callable[[Any], object]] = {
    "threads": torch.set_num_threads,
    "dtype": torch.set_default_dtype,
    "device": _set_device,
    "deterministic": lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    "matmul_precision": torch.set_float32_matmul_precision,
    **{f"{kind}_attention": getattr(torch.backends.cuda, f"enable_{kind}_sdp") for kind in ATTENTION},
}


@functools.cache
def processor() -> str:
    """Return a name for the processor's abilities: a package is compiled for the processor that it is made on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
