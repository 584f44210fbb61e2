"""What a GPU does during a call: its kernels and copies, as NVIDIA's CUPTI traces them for torch's profiler.

A trace slows the host down, but not what runs on the GPU. So only times on the GPU are read from it.
"""

from collections import defaultdict
from collections.abc import Sequence

from bakeoff.backends.base import Compiled
from bakeoff.judging.intervals import covered
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.schema import Kernel, KernelTimes

CALLS = 3
LONGEST = 3

Traced = tuple[str, float, float]
"""A kernel or copy: its name, and when it began and ended, in microseconds."""


def trace(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> KernelTimes | None:
    """Return what the GPU does in a call, or None without a GPU, and where nothing could be traced."""
    if clock.stream is None:
        return None
    from torch.autograd.profiler import profile  # that of torch.profiler imports Inductor

    compiled.restore()
    compiled.bind(sets[0])
    compiled.run()
    clock.synchronise()
    with profile(use_device="cuda", use_cpu=False, use_kineto=True) as traced:
        for _ in range(CALLS):
            compiled.run()
        clock.synchronise()
    on_device = [event for event in traced.function_events or [] if event.device_type.name == "CUDA"]
    return summed([(event.name, event.time_range.start, event.time_range.end) for event in on_device], CALLS)


def summed(events: Sequence[Traced], calls: int) -> KernelTimes | None:
    """Return the sums of what was traced in so many calls, for one of them. None if nothing was."""
    if not events:
        return None
    times_us: defaultdict[str, float] = defaultdict(float)
    for name, begun_us, ended_us in events:
        times_us[name] += ended_us - begun_us
    total_us = sum(times_us.values()) or 1.0
    longest = sorted(times_us, key=lambda name: -times_us[name])[:LONGEST]
    return KernelTimes(
        busy_ms=covered(((begun, ended) for _, begun, ended in events)) / calls / 1e3,
        kernels=len(events) / calls,
        longest=[Kernel(name=name, share=times_us[name] / total_us) for name in longest],
        calls=calls,
    )
