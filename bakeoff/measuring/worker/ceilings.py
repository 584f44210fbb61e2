"""The rates that this machine reaches at best: floating-point operations, and bytes moved at each level of memory."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import torch

from bakeoff.measuring.nvml import max_sm_clock_mhz
from bakeoff.measuring.worker import conditions
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, MemoryLevel, TensorCores

MIB = 2**20

PRODUCT_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
"""Edges of the square matrices, tried in this order until one product takes `LONG_PRODUCT_S`."""

LONG_PRODUCT_S = 0.02
LEAST_GROWTH = 3
"""A product of twice the size takes about eight times as long. If it does not take even so much longer, one waited."""

MIN_REPEAT_S = 0.06
MIN_REPEAT_CALLS = 3

LEVEL_REPEAT_S = 0.005
"""Seconds of one operator on one working set: there are three operators, and eight working sets or more."""

GRAPH_BYTES = 1024 * MIB
MAX_GRAPH_CALLS = 256
"""On a GPU, so many calls are one CUDA graph: launched one by one they take longer than L2 takes for a working set."""

SMALLEST_SET_BYTES = {"cpu": MIB // 2, "cuda": 4 * MIB}
"""In smaller working sets an operator starts longer than it reads."""

MIN_LARGEST_SET_BYTES = {"cpu": 256 * MIB, "cuda": 1024 * MIB}
"""The largest working set is far larger than a GPU's L2 cache and most CPUs' last-level caches."""

LARGEST_SET_OVER_CACHE = 4
MAX_SET_BYTES = 1024 * MIB
SET_SHARE_OF_MEMORY = 1 / 8

MIN_STARTS = 2
"""An operator that takes less than this many times as long as an empty one says nothing about the memory."""

MAX_ATTEMPTS = 3
REPEAT_LIMIT_S = 3.0
"""No attempt begins later than this: on a machine that stays busy, each takes long."""

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
    """Return the highest rate of such a GPU's tensor cores by NVIDIA's figures, or None where they are not known."""
    per_clock = FLOPS_PER_SM_AND_CLOCK.get(capability, {}).get(precision)
    if per_clock is None or SLOWED_GPUS.intersection(re.split(r"\W", gpu)):
        return None
    return TensorCores(flops_per_s=multiprocessors * per_clock * sm_clock_mhz * 1e6, sm_clock_mhz=sm_clock_mhz)


def measure(
    device: Device,
    precision: Precision,
    sizes: Sequence[int] = (),
    sets: Sequence[int] = (),
    now_ns: Callable[[], int] = time.perf_counter_ns,
    waited_ns: Callable[[], int | None] = conditions.waited_ns,
) -> Ceilings:
    """Measure the best rates of products and of memory. `sizes` and `sets` replace the products and working sets that
    suit the device. Raises Unsupported where torch has no such product on it."""
    clock = Clock(device, now_ns)
    attempts: list[Ceilings] = []
    ends_s = time.perf_counter() + REPEAT_LIMIT_S
    # Other load takes from every rate: while threads waited for a core, all is measured again.
    while not attempts or (
        attempts[-1].are_of_busy_machine and len(attempts) < MAX_ATTEMPTS and time.perf_counter() < ends_s
    ):
        begun_s, before_ns = time.perf_counter(), waited_ns()
        measured = _measure(clock, precision, sizes, sets)
        seconds, after_ns = time.perf_counter() - begun_s, waited_ns()
        wait_share = 0.0 if before_ns is None or after_ns is None else max(0, after_ns - before_ns) / seconds / 1e9
        attempts.append(measured.but(wait_share=wait_share))
    best = best_of(attempts)
    # Nothing keeps one thread waiting for long, and its rate counts for each.
    if best.are_of_busy_machine and not device.is_cuda:
        return best_of([best, _of_one_thread_each(clock, precision, sizes, sets)])
    return best


def _of_one_thread_each(clock: Clock, precision: Precision, sizes: Sequence[int], sets: Sequence[int]) -> Ceilings:
    """Return the rates of one thread, times the number of threads. No program is faster, but memory may be slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single = _measure(clock, precision, sizes, sets)
    finally:
        torch.set_num_threads(threads)
    levels = [level.but(bytes_per_s=threads * level.bytes_per_s) for level in single.levels]
    return single.but(flops_per_s=threads * single.flops_per_s, levels=levels, wait_share=math.inf)


def best_of(attempts: Sequence[Ceilings]) -> Ceilings:
    levels: list[MemoryLevel] = []
    for same in zip(*(reversed(attempt.levels) for attempt in attempts), strict=True):
        rate = max(each.bytes_per_s for each in [*same, *levels[-1:]])
        levels.append(same[0].but(bytes_per_s=rate))
    return attempts[0].but(
        flops_per_s=max(attempt.flops_per_s for attempt in attempts),
        bytes_per_s=levels[0].bytes_per_s,
        levels=levels[::-1],
        wait_share=min(attempt.wait_share for attempt in attempts),
    )


def _measure(clock: Clock, precision: Precision, sizes: Sequence[int], sets: Sequence[int]) -> Ceilings:
    sizes = sizes or PRODUCT_SIZES[clock.device.type]
    cache_bytes = cache_bytes_of(clock.device)
    is_cpu = clock.device.type == "cpu"
    # a CPU without arithmetic for a small type computes in float32, and torch's own product does not always
    tried = {precision, FP32} if is_cpu else {precision}
    free_bytes = psutil.virtual_memory().available if is_cpu else torch.cuda.mem_get_info(clock.device)[0]
    with clock.on_stream(), torch.inference_mode():
        levels = _levels(clock, sets or working_sets(clock.device.type, cache_bytes, free_bytes))
        return Ceilings(
            flops_per_s=max(_best_flops_per_s(clock, each, sizes) for each in tried),
            bytes_per_s=levels[-1].bytes_per_s,
            levels=levels,
            cache_bytes=cache_bytes,
            tensor_cores=_tensor_cores_of(clock.device, precision),
        )


def _tensor_cores_of(device: torch.device, precision: Precision) -> TensorCores | None:
    if device.type != "cuda":
        return None
    sm_clock_mhz = max_sm_clock_mhz(device.index or 0)
    gpu = torch.cuda.get_device_properties(device)
    if sm_clock_mhz is None:
        return None
    return tensor_cores(gpu.name, (gpu.major, gpu.minor), gpu.multi_processor_count, sm_clock_mhz, precision)


def _best_flops_per_s(clock: Clock, precision: Precision, sizes: Sequence[int]) -> float:
    """Return the best rate over `sizes`. The largest is not always the fastest, and it takes long on a slow machine."""
    best, before_s = 0.0, math.inf
    for size in sizes:
        seconds = _best_s(clock, _product(size, clock.device, precision))
        best = max(best, 2 * size**3 / seconds)
        # A small product that had to wait for a core takes long as well, but not far longer than the one before.
        if seconds >= LONG_PRODUCT_S and seconds >= LEAST_GROWTH * before_s:
            break
        before_s = seconds
    return best


def _product(size: int, device: torch.device, precision: Precision) -> Callable[[], object]:
    if precision is INT8:
        whole = torch.randint(-127, 128, (size, size), dtype=torch.int8, device=device)
        return lambda: torch._int_mm(whole, whole.t())
    # The values are random: a GPU multiplies zeros at less power and a higher clock.
    values = torch.randn(size, size, device=device)
    if precision is FP8:
        if device.type == "cpu":
            raise Unsupported("no fp8 product to measure on the CPU")
        small, unit = values.to(torch.float8_e4m3fn), torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            small, small.t(), scale_a=unit, scale_b=unit, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    left = values.to(dtype_of(precision))
    right = torch.randn(size, size, device=device).to(left.dtype)
    return lambda: torch.mm(left, right.t())


def _levels(clock: Clock, sets: Sequence[int]) -> list[MemoryLevel]:
    """Return the highest rate of reading and writing each working set again and again, the smallest set first."""
    everything = torch.zeros(max(sets) // 4, device=clock.device)
    few = everything[:6]
    # The time that each operator takes to start is left out of the rates.
    starts_s = [_memory_s(clock, operator, few.nbytes) for operator in _memory_operators(few)]
    levels = []
    for size in sets:
        rates = []
        for start_s, operator in zip(starts_s, _memory_operators(everything[: size // 4]), strict=True):
            seconds = _memory_s(clock, operator, size)
            if seconds > MIN_STARTS * start_s or size == max(sets):
                rates.append(size / max(seconds - start_s, seconds / 2))
        levels.append(MemoryLevel(working_set_bytes=size, bytes_per_s=max(rates, default=0.0)))
    return levels


def _memory_s(clock: Clock, operator: Callable[[], object], size: int) -> float:
    if clock.device.type != "cuda":
        return _best_s(clock, operator, LEVEL_REPEAT_S)
    calls = max(1, min(MAX_GRAPH_CALLS, GRAPH_BYTES // size))
    operator()
    clock.synchronise()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")  # `torch.cuda.graph` collects garbage, which takes long
    for _ in range(calls):
        operator()
    graph.capture_end()
    return _best_s(clock, graph.replay, LEVEL_REPEAT_S) / calls


def _memory_operators(values: torch.Tensor) -> tuple[Callable[[], object], ...]:
    half = len(values) // 2
    source, target, total = values[:half], values[half : 2 * half], values.new_empty(())
    third = len(values) // 3
    first, second, written = values[:third], values[third : 2 * third], values[2 * third : 3 * third]
    return (
        lambda: torch.sum(values, 0, out=total),
        lambda: target.copy_(source),
        lambda: torch.add(first, second, out=written),
    )


def working_sets(kind: str, cache_bytes: int, free_bytes: int) -> list[int]:
    """Return sizes, each twice the one before. The last is far larger than the caches, and fits into memory."""
    wanted = max(MIN_LARGEST_SET_BYTES[kind], LARGEST_SET_OVER_CACHE * cache_bytes)
    largest = min(wanted, MAX_SET_BYTES, int(free_bytes * SET_SHARE_OF_MEMORY))
    sizes = [SMALLEST_SET_BYTES[kind]]
    while 2 * sizes[-1] < largest:
        sizes.append(2 * sizes[-1])
    return [*sizes[:-1], largest] if len(sizes) > 1 else [largest]


def cache_bytes_of(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return last_level_cache_bytes()


def last_level_cache_bytes(processors: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the size of all last-level caches of this machine together, or 0 where Linux does not report it."""
    levels: dict[int, dict[str, int]] = {}  # level -> processors that share a cache -> its size
    for cache in processors.glob("cpu[0-9]*/cache/index*"):
        try:
            level, shared, size = (
                (cache / name).read_text(encoding="ascii").strip() for name in ("level", "shared_cpu_list", "size")
            )
            levels.setdefault(int(level), {})[shared] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(levels[max(levels)].values()) if levels else 0


def _best_s(clock: Clock, call: Callable[[], object], repeat_s: float = MIN_REPEAT_S) -> float:
    call()
    return min(_seconds_per_call(clock, call, repeat_s))


def _seconds_per_call(clock: Clock, call: Callable[[], object], repeat_s: float) -> Iterator[float]:
    calls = CUDA_CALLS_PER_SYNCHRONISATION if clock.device.type == "cuda" else 1
    end_ns, made = clock.now_ns() + int(repeat_s * 1e9), 0
    while made < MIN_REPEAT_CALLS or clock.now_ns() < end_ns:
        with clock.timed() as seconds:
            for _ in range(calls):
                call()
        made += calls
        yield seconds[0] / calls
