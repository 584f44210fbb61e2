"""The table of hand-written Triton kernels, by the model that they compute. Only a kernel's own file imports Triton.

A kernel's file computes what the model's module computes, in the type of its inputs. It has

    VARIANTS                          the few configurations that are tried; the first one is the fallback
    prepare(module, inputs, variant)  the launch of one variant for these inputs, with outputs of its own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bakeoff.models.lazily import torch

Variant = Mapping[str, int | bool | str]
"""Block sizes, warps and so on. `loads` says how tiles come from memory: by `pointer` or by `descriptor`."""


@dataclass(frozen=True)
class KernelRow:
    """The module with a model's kernel, and the ways of loading that it has variants for."""

    module: str
    loads: tuple[str, ...]


TABLE: dict[str, KernelRow] = {
    "fused_add_relu_mul": KernelRow("bakeoff.backends.kernels.fused_add_relu_mul", ("pointer",)),
    "matmul_fp16": KernelRow("bakeoff.backends.kernels.matmul", ("descriptor",)),
    "matmul_fp8": KernelRow("bakeoff.backends.kernels.matmul", ("descriptor",)),
    "rope": KernelRow("bakeoff.backends.kernels.rope", ("pointer",)),
    "tma_copy": KernelRow("bakeoff.backends.kernels.tma_copy", ("pointer", "descriptor")),
}


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments and outputs. `run` enqueues it on the current stream."""

    run: Callable[[], object]
    outputs: tuple[torch.Tensor, ...]


MIN_OVERLAP_CAPABILITY = (9, 0)
"""The first compute capability with programmatic dependent launch."""


def can_overlap(tensor: torch.Tensor) -> bool:
    """Return whether a kernel on the tensor's GPU can start while the one before it ends."""
    is_nvidias = tensor.is_cuda and torch.version.hip is None
    return is_nvidias and torch.cuda.get_device_capability(tensor.device) >= MIN_OVERLAP_CAPABILITY


def processors(tensor: torch.Tensor) -> int:
    """Return the number of multiprocessors of the tensor's GPU; 1 on the CPU, where kernels are interpreted."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 1
