"""The rates that this machine reaches at best: floating-point operations and bytes moved in a second."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from harness.nvml import handle, nvml
from harness.precision import dtype_of
from harness.worker.clock import Clock, now_ns
from records.device import Device
from records.errors import Unsupported
from records.precision import Precision
from records.schema import Ceilings, TensorCores

if TYPE_CHECKING:
    import torch

MIB = 2**20

CPU_SIZES = (256, 512, 1024, 2048, 4096)
CUDA_SIZES = (2048, 4096, 8192)
"""Edges of the square matrices multiplied, tried in this order until one product takes `LONG_ENOUGH_S`."""

LONG_ENOUGH_S = 0.02
REPEAT_S = 0.1
REPEAT_CALLS = 3
"""Each measurement is repeated over this many seconds and calls at least, and the best one counts."""

COPY_BYTES = {"cpu": 256 * MIB, "cuda": 1024 * MIB}
"""Size of the array copied: far over any L2 of a GPU (50 MiB on an H200) and most last-level caches of a CPU."""

COPY_TIMES_CACHE = 4
COPY_LIMIT_BYTES = 1024 * MIB
COPY_SHARE_OF_MEMORY = 8
"""On a CPU whose caches are larger, the array is this many times theirs, within these bounds."""

CUDA_CALLS = 8
"""Calls between two synchronisations on CUDA, which take as long as some per cent of one copy."""

FP32, TF32, BF16, FP16, INT8, FP8 = Precision

FLOPS_PER_CLOCK = {
    (7, 0): {FP16: 1024},
    (8, 0): {FP16: 2048, BF16: 2048, TF32: 1024, INT8: 4096},
    (9, 0): {FP16: 4096, BF16: 4096, TF32: 2048, INT8: 8192, FP8: 8192},
    (10, 0): {FP16: 8192, BF16: 8192, TF32: 4096, INT8: 16384, FP8: 16384},
}
"""Compute capability -> precision -> dense operations of the tensor cores of one SM in one clock, accumulated in 32
bits, a multiply-add as two.

Source: NVIDIA's whitepapers of V100, A100 and H100, and B200's data sheet; `torch.cuda._device_limits` has the same of
8.0, 9.0 and 10.0. Times SMs and clock they are NVIDIA's figures for fp16: 125 TFLOP/s on a V100 (80 SMs, 1.53 GHz), 312
on an A100 (108, 1.41), 989 on an H100 (132, 1.83), 2,250 on a B200 (148, 1.86). 7.5, 8.6 and 8.9 are left out: a
GeForce of these has half the rate of a T4, an A40 or an L40S, and the capability does not tell which it is.
"""

SLOWED = frozenset({"H20"})
"""GPUs whose tensor cores do less than others of their capability: of an H20 148 TFLOP/s are told, not 630."""


def tensor_cores(
    gpu: str, capability: tuple[int, int], multiprocessors: int, sm_clock_mhz: int, precision: Precision
) -> TensorCores | None:
    """What the tensor cores of such a GPU do at most, by NVIDIA's figures; None where these are not known.

    A ceiling measured by a library's product says nothing of that product: this one stands beside it.
    """
    per_clock = FLOPS_PER_CLOCK.get(capability, {}).get(precision)
    if per_clock is None or SLOWED.intersection(re.split(r"\W", gpu)):
        return None
    return TensorCores(flops_per_s=multiprocessors * per_clock * sm_clock_mhz * 1e6, sm_clock_mhz=sm_clock_mhz)


def measure(device: Device, precision: Precision) -> Ceilings:
    """The best of a large matrix product and of a large copy, with torch's threads and switches as they stand.

    Raises Unsupported where torch has no such product on this device.
    """
    import torch

    clock = Clock(device)
    # a CPU without arithmetic of its own for a small type computes in float32, and torch's product does not always
    tried = {precision, FP32} if clock.device.type == "cpu" else {precision}
    with clock.on_stream(), torch.inference_mode():
        return Ceilings(
            flops_per_s=max(_best_flops_per_s(clock, one) for one in tried),
            bytes_per_s=_best_bytes_per_s(clock),
            tensor_cores=_tensor_cores_of(clock.device, precision),
        )


def _tensor_cores_of(device: torch.device, precision: Precision) -> TensorCores | None:
    import torch

    if device.type != "cuda":
        return None
    sm_clock_mhz = _max_sm_clock_mhz(device.index or 0)
    gpu = torch.cuda.get_device_properties(device)
    if sm_clock_mhz is None:
        return None
    return tensor_cores(gpu.name, (gpu.major, gpu.minor), gpu.multi_processor_count, sm_clock_mhz, precision)


def _max_sm_clock_mhz(index: int) -> int | None:
    """The highest clock of the multiprocessors of a CUDA device; None where NVML does not tell."""
    with nvml() as library:
        if library is None:
            return None
        try:
            return int(library.nvmlDeviceGetMaxClockInfo(handle(library, index), library.NVML_CLOCK_SM))
        except library.NVMLError:  # a slice of a GPU, say
            return None


def _best_flops_per_s(clock: Clock, precision: Precision) -> float:
    """The best rate over sizes: the largest is not always the fastest, and on a slow machine takes long."""
    best = 0.0
    for size in CPU_SIZES if clock.device.type == "cpu" else CUDA_SIZES:
        seconds = _best_s(clock, _product(size, clock.device, precision))
        best = max(best, 2 * size**3 / seconds)
        if seconds >= LONG_ENOUGH_S:
            break
    return best


def _product(size: int, device: torch.device, precision: Precision) -> Callable[[], object]:
    """A product of two square matrices in `precision`, the second one transposed, as a linear layer has it.

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


def _best_bytes_per_s(clock: Clock) -> float:
    """Bytes read and bytes written by a copy both count."""
    import torch

    size = _copy_bytes(clock.device)
    source = torch.ones(size, dtype=torch.uint8, device=clock.device)
    target = torch.zeros_like(source)
    return 2 * size / _best_s(clock, lambda: target.copy_(source))


def _copy_bytes(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        return min(COPY_BYTES["cuda"], torch.cuda.mem_get_info(device)[0] // COPY_SHARE_OF_MEMORY)
    wanted = max(COPY_BYTES["cpu"], COPY_TIMES_CACHE * last_level_cache_bytes())
    return min(wanted, COPY_LIMIT_BYTES, psutil.virtual_memory().available // COPY_SHARE_OF_MEMORY)


def last_level_cache_bytes(processors: Path = Path("/sys/devices/system/cpu")) -> int:
    """All last-level caches of this machine together, as Linux tells of them; 0 where it does not."""
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
    """Seconds that the fastest call takes, after a first one that is not counted."""
    calls = CUDA_CALLS if clock.device.type == "cuda" else 1
    call()
    return min(_seconds_per_call(clock, call, calls))


def _seconds_per_call(clock: Clock, call: Callable[[], object], calls: int) -> Iterable[float]:
    end_ns, made = now_ns() + int(REPEAT_S * 1e9), 0
    while made < REPEAT_CALLS or now_ns() < end_ns:
        with clock.timed() as seconds:
            for _ in range(calls):
                call()
        made += calls
        yield seconds[0] / calls
