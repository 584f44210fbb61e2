"""The rates that this machine reaches at best: floating-point operations and bytes moved in a second."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bakeoff.measuring.nvml import max_sm_clock_mhz
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, TensorCores

if TYPE_CHECKING:
    import torch

MIB = 2**20

PRODUCT_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
"""Edges of the square matrices, tried in this order until one product takes `LONG_PRODUCT_S`."""

LONG_PRODUCT_S = 0.02
LEAST_GROWTH = 3
"""A product of twice the size takes about eight times as long. If it does not take even so much longer, one waited."""

MIN_REPEAT_S = 0.1
MIN_REPEAT_CALLS = 3

MIN_COPY_BYTES = {"cpu": 256 * MIB, "cuda": 1024 * MIB}
"""The size of the array that is copied. It is far larger than a GPU's L2 cache and most CPUs' last-level caches."""

COPY_SIZE_OVER_CACHE = 4
MAX_COPY_BYTES = 1024 * MIB
COPY_SHARE_OF_MEMORY = 1 / 8

CUDA_CALLS_PER_SYNCHRONISATION = 8
"""One synchronisation takes some per cent of the time of one copy."""

FP32, TF32, BF16, FP16, INT8, FP8, *_ = Precision

FLOPS_PER_SM_AND_CLOCK = {
    (7, 0): {FP16: 1024},
    (8, 0): {FP16: 2048, BF16: 2048, TF32: 1024, INT8: 4096},
    (9, 0): {FP16: 4096, BF16: 4096, TF32: 2048, INT8: 8192, FP8: 8192},
    (10, 0): {FP16: 8192, BF16: 8192, TF32: 4096, INT8: 16384, FP8: 16384},
}
"""Dense operations of the tensor cores by compute capability and precision. A multiply-add counts as two operations.

Sources: NVIDIA's whitepapers on V100, A100 and H100, B200's data sheet, and `torch.cuda._device_limits`. Times SMs and
clock they give NVIDIA's fp16 figures: 125 TFLOP/s on a V100, 312 on an A100, 989 on an H100, 2,250 on a B200. 7.5, 8.6
and 8.9 are left out: GeForce cards of these have half the rate of a T4, an A40 or an L40S.
"""

SLOWED_GPUS = frozenset({"H20"})
"""GPUs with slower tensor cores than others of their compute capability."""


def tensor_cores(
    gpu: str, capability: tuple[int, int], multiprocessors: int, sm_clock_mhz: int, precision: Precision
) -> TensorCores | None:
    """Return the highest rate of such a GPU's tensor cores by NVIDIA's figures, or None where they are not known.

    The measured ceiling is a library's product. This rate tells how good that product is.
    """
    per_clock = FLOPS_PER_SM_AND_CLOCK.get(capability, {}).get(precision)
    if per_clock is None or SLOWED_GPUS.intersection(re.split(r"\W", gpu)):
        return None
    return TensorCores(flops_per_s=multiprocessors * per_clock * sm_clock_mhz * 1e6, sm_clock_mhz=sm_clock_mhz)


def measure(
    device: Device,
    precision: Precision,
    sizes: Sequence[int] = (),
    copy_bytes: int | None = None,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> Ceilings:
    """Measure the best of a large matrix product and of a large copy, with torch's threads and switches as they are.

    `sizes` and `copy_bytes` take the place of the sizes that suit the device. Raises Unsupported where torch has no
    such product on it.
    """
    import torch

    clock = Clock(device, now_ns)
    sizes = sizes or PRODUCT_SIZES[clock.device.type]
    # a CPU without arithmetic for a small type computes in float32, and torch's own product does not always
    tried = {precision, FP32} if clock.device.type == "cpu" else {precision}
    with clock.on_stream(), torch.inference_mode():
        return Ceilings(
            flops_per_s=max(_best_flops_per_s(clock, one, sizes) for one in tried),
            bytes_per_s=_best_bytes_per_s(clock, copy_bytes or _copy_bytes_for(clock.device)),
            tensor_cores=_tensor_cores_of(clock.device, precision),
        )


def _tensor_cores_of(device: torch.device, precision: Precision) -> TensorCores | None:
    import torch

    if device.type != "cuda":
        return None
    sm_clock_mhz = max_sm_clock_mhz(device.index or 0)
    gpu = torch.cuda.get_device_properties(device)
    if sm_clock_mhz is None:
        return None
    return tensor_cores(gpu.name, (gpu.major, gpu.minor), gpu.multi_processor_count, sm_clock_mhz, precision)


def _best_flops_per_s(clock: Clock, precision: Precision, sizes: Sequence[int]) -> float:
    """Return the best rate over `sizes`: the largest is not always the fastest, and it takes long on a slow machine.

    A small product that had to wait for a core takes long as well. So a long one is the last only if it took far longer
    than the one before.
    """
    best, before_s = 0.0, math.inf
    for size in sizes:
        seconds = _best_s(clock, _product(size, clock.device, precision))
        best = max(best, 2 * size**3 / seconds)
        if seconds >= LONG_PRODUCT_S and seconds >= LEAST_GROWTH * before_s:
            break
        before_s = seconds
    return best


def _product(size: int, device: torch.device, precision: Precision) -> Callable[[], object]:
    """Return a product of two square matrices in `precision`. The second one is transposed, as in a linear layer.

    The values are random: a GPU multiplies zeros at less power and a higher clock.
    """
    import torch

    if precision is INT8:
        whole = torch.randint(-127, 128, (size, size), dtype=torch.int8, device=device)
        return lambda: torch._int_mm(whole, whole.t())
    values = torch.randn(size, size, device=device)
    if precision is FP8:
        if device.type == "cpu":
            raise Unsupported("no fp8 product to measure on the CPU")
        small, one = values.to(torch.float8_e4m3fn), torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            small, small.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    left = values.to(dtype_of(precision))
    right = torch.randn(size, size, device=device).to(left.dtype)
    return lambda: torch.mm(left, right.t())


def _best_bytes_per_s(clock: Clock, size: int) -> float:
    """Return the best rate of copying `size` bytes. Bytes read and bytes written both count."""
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=clock.device)
    target = torch.zeros_like(source)
    return 2 * size / _best_s(clock, lambda: target.copy_(source))


def _copy_bytes_for(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        return min(MIN_COPY_BYTES["cuda"], int(torch.cuda.mem_get_info(device)[0] * COPY_SHARE_OF_MEMORY))
    return cpu_copy_bytes(last_level_cache_bytes(), psutil.virtual_memory().available)


def cpu_copy_bytes(cache_bytes: int, available_bytes: int) -> int:
    """Return the size of an array that is far larger than the caches and fits into memory."""
    wanted = max(MIN_COPY_BYTES["cpu"], COPY_SIZE_OVER_CACHE * cache_bytes)
    return min(wanted, MAX_COPY_BYTES, int(available_bytes * COPY_SHARE_OF_MEMORY))


def last_level_cache_bytes(processors: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the size of all last-level caches of this machine together, or 0 where Linux does not tell."""
    levels: dict[int, dict[str, int]] = {}  # level -> processors that share a cache -> its size
    for cache in processors.glob("cpu[0-9]*/cache/index*"):
        try:
            level, shared, size = (_line(cache / name) for name in ("level", "shared_cpu_list", "size"))
            levels.setdefault(int(level), {})[shared] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(levels[max(levels)].values()) if levels else 0


def _line(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()


def _best_s(clock: Clock, call: Callable[[], object]) -> float:
    """Return the seconds of the fastest call, after a first one that is not counted."""
    call()
    return min(_seconds_per_call(clock, call))


def _seconds_per_call(clock: Clock, call: Callable[[], object]) -> Iterator[float]:
    calls = CUDA_CALLS_PER_SYNCHRONISATION if clock.device.type == "cuda" else 1
    end_ns, made = clock.now_ns() + int(MIN_REPEAT_S * 1e9), 0
    while made < MIN_REPEAT_CALLS or clock.now_ns() < end_ns:
        with clock.timed() as seconds:
            for _ in range(calls):
                call()
        made += calls
        yield seconds[0] / calls
