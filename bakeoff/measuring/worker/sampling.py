"""Taking samples: warm-up, bursts, throughput, device time. It runs in one thread and does not depend on any
backend."""

import gc
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from bakeoff.backends.base import Compiled
from bakeoff.judging.intervals import covered
from bakeoff.measuring.messages import THROUGHPUT_BLOCKS
from bakeoff.measuring.worker import conditions
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.planning.sampling_plan import ENOUGH_CALLS, WARM_UP_LIMIT_S
from bakeoff.records import schema

MIN_WARM_UP_CALLS = 10
MIN_WINDOW_CALLS = 2

REPEATED_WARM_UP_LIMIT_S = 1.0
"""Only the first process of a cell has to show that latencies become steady. Later processes get less time."""

STEADY_WINDOWS = 3
STEADY_WITHIN = 0.02
"""A warm-up is steady when the medians of its last `STEADY_WINDOWS` windows agree within this share."""

TREND_WINDOWS = 12
MAX_TREND_STATISTIC = 18
"""Above this value of Mann and Kendall's statistic, `TREND_WINDOWS` windows have a trend. It is 1.28 standard
deviations: without a trend, one case in five is above it."""

FINAL_LIMIT_S = 180.0
"""A build that is not final after so many seconds of calls has to stay as it is. One or two compilations fit in."""

FINAL_WINDOW_S = 0.5

REWARM_S = 0.01
"""Length of the untimed calls before a burst. A process that was stopped has cold caches and sleeping threads."""

WANTED_CALLS_LIMIT_S = 2.0
"""A burst takes at most this long to reach the number of calls that a required percentile needs."""

DEVICE_TIME_S = 0.25
MIN_DEVICE_CALLS, MAX_DEVICE_CALLS = 10, 100

STAGES_S = 0.5
MIN_STAGES_CALLS = 20

TRACED_CALLS, LONGEST_KERNELS = 3, 3

TracedKernel = tuple[str, float, float]
"""A kernel or copy: its name, and when it began and ended, in microseconds."""

THROUGHPUT_BLOCK_S = 0.1

QUIET_LIMIT_S = 2.0
QUIET_STEP_S = 0.1
QUIET_WITHIN = 1.25
"""The machine is quiet again when calls take at most so many times as long as in the bursts."""


def call_until_final(
    compiled: Compiled, sets: Sequence[Inputs], clock: Clock, limit_s: float = FINAL_LIMIT_S
) -> schema.Phase | None:
    """Call a build until it is final, and after `limit_s` have it stay as it is. Return None if it was final before."""
    if compiled.is_final():
        return None
    samples_ns: list[int] = []
    end_ns = clock.now_ns() + int(limit_s * 1e9)
    while not compiled.is_final():
        if clock.now_ns() >= end_ns:
            compiled.finalise()
            break
        compiled.restore()
        samples_ns += burst(compiled, sets, clock, FINAL_WINDOW_S, 1)
    return schema.Phase(name=schema.SETTLE, calls=len(samples_ns), seconds=sum(samples_ns) / 1e9)


@dataclass
class Windows:
    """The windows of a warm-up so far. Each property is one reason to end the warm-up."""

    compilations: list[int]  # before the first window, and after each
    medians_ns: list[float] = field(default_factory=list)

    def add(self, samples_ns: Sequence[int], compilations: int) -> None:
        self.medians_ns.append(statistics.median(samples_ns))
        self.compilations.append(compilations)

    @property
    def are_steady(self) -> bool:
        recent = self.medians_ns[-STEADY_WINDOWS:]
        return (
            len(recent) == STEADY_WINDOWS
            and max(recent) <= min(recent) * (1 + STEADY_WITHIN)
            and not self._compiled_in_last(STEADY_WINDOWS)
        )

    @property
    def show_no_trend(self) -> bool:
        """Return True when the last windows get neither faster nor slower: then the machine is loud, not cold."""
        recent = self.medians_ns[-TREND_WINDOWS:]
        if len(recent) < TREND_WINDOWS or self._compiled_in_last(TREND_WINDOWS):
            return False
        # This is Mann and Kendall's test (Mann, Econometrica 13, 1945; Kendall, Rank Correlation Methods, 1948).
        rising = sum((after > before) - (after < before) for before, after in itertools.combinations(recent, 2))
        return abs(rising) <= MAX_TREND_STATISTIC and recent[-1] > min(recent)

    @property
    def stopped_getting_faster(self) -> bool:
        return (
            len(self.medians_ns) > STEADY_WINDOWS
            and self.medians_ns[-1] > min(self.medians_ns[:-1]) * (1 - STEADY_WITHIN)
            and not self._compiled_in_last(1)
        )

    def _compiled_in_last(self, windows: int) -> bool:
        return self.compilations[-windows - 1] != self.compilations[-1]


def warm_up(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    min_s: float,
    is_first: bool = True,
    limit_s: float = WARM_UP_LIMIT_S,
) -> schema.WarmUp:
    """Call until latencies are steady, for `min_s` and ten calls or more. Give up at `limit_s`, or without a trend. A
    later process of a cell needs a quarter of `min_s`, and may also end once calls stop getting faster."""
    if not is_first:
        min_s, limit_s = min_s / 4, REPEATED_WARM_UP_LIMIT_S
    limit_s = max(limit_s, min_s)
    window_s = min_s / (STEADY_WINDOWS + 1)
    start_ns = clock.now_ns()
    windows = Windows([compiled.compilations()])
    calls = 0
    while True:
        samples_ns = burst(compiled, sets, clock, window_s, MIN_WINDOW_CALLS)
        calls += len(samples_ns)
        windows.add(samples_ns, compiled.compilations())
        elapsed_s = (clock.now_ns() - start_ns) / 1e9
        is_over = windows.are_steady or windows.show_no_trend or (not is_first and windows.stopped_getting_faster)
        if (is_over and elapsed_s >= min_s and calls >= MIN_WARM_UP_CALLS) or elapsed_s >= limit_s:
            steady = windows.are_steady
            return schema.WarmUp(
                calls=calls, seconds=elapsed_s, steady=steady, trendless=windows.show_no_trend and not steady
            )


def burst(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    seconds: float,
    min_calls: int,
    wanted_calls: int = 0,
    enough_calls: float = math.inf,
    watch: conditions.Watch | None = None,
) -> list[int]:
    """Call for `seconds` and at least `min_calls` times, with `sets` in turn. Return the latencies in nanoseconds. Half
    of the time is enough for `enough_calls`, and `WANTED_CALLS_LIMIT_S` limits the time for `wanted_calls`."""
    samples_ns: list[int] = []
    now_ns, synchronise, bind, run = clock.now_ns, clock.synchronise, compiled.bind, compiled.run
    calls_in_time = max(min_calls, wanted_calls)
    with no_garbage_collection():
        begun_ns = now_ns()
        half_ns, end_ns = begun_ns + int(seconds * 0.5e9), begun_ns + int(seconds * 1e9)
        limit_ns = begun_ns + int(max(seconds, WANTED_CALLS_LIMIT_S) * 1e9)
        slice_ends_ns = math.inf if watch is None else begun_ns + watch.slice_ns
        while True:
            bind(sets[len(samples_ns) % len(sets)])
            synchronise()
            start_ns = now_ns()
            run()
            synchronise()
            stop_ns = now_ns()
            samples_ns.append(stop_ns - start_ns)
            made = len(samples_ns)
            is_time_over = stop_ns >= (half_ns if made >= enough_calls else end_ns)
            if is_time_over and made >= (min_calls if stop_ns >= limit_ns else calls_in_time):
                return samples_ns
            if watch is not None and stop_ns >= slice_ends_ns:
                watch.mark(made)
                slice_ends_ns = now_ns() + watch.slice_ns


def rewarm(compiled: Compiled, sets: Sequence[Inputs], clock: Clock, core: int | None = None) -> None:
    """Call for 10 ms, at least once, without timing it: before a burst, the process was stopped and is cold."""
    # Where two of its threads share a core, calls of 20 µs can take 30 ms.
    with conditions.beginning_on(core):
        burst(compiled, sets, clock, REWARM_S, 1)


def throughput(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    core: int | None = None,
    usual_ms: float | None = None,
    blocks: int = THROUGHPUT_BLOCKS,
    sleep: Callable[[float], None] = time.sleep,
) -> schema.Throughput:
    """Return the rate of calls back to back. If it is far below that of calls of `usual_ms`, wait until calls take as
    long as usual, and measure once again."""
    found = _throughput(compiled, sets, clock, core, blocks)
    if usual_ms is None or not found.is_far_below(usual_ms):
        return found
    end_ns = clock.now_ns() + int(QUIET_LIMIT_S * 1e9)
    while clock.now_ns() < end_ns:
        sleep(QUIET_STEP_S)
        if statistics.median(burst(compiled, sets, clock, REWARM_S, 1)) / 1e6 <= usual_ms * QUIET_WITHIN:
            break
    # The higher rate counts, since other load only takes from it.
    return max(found, _throughput(compiled, sets, clock, core, blocks), key=lambda each: each.calls_per_s)


def _throughput(
    compiled: Compiled, sets: Sequence[Inputs], clock: Clock, core: int | None, wanted: int
) -> schema.Throughput:
    """Call back to back in blocks of 100 ms with one synchronisation each. Return the median block's rate."""
    rewarm(compiled, sets, clock, core)
    blocks: list[tuple[float, float]] = []
    with no_garbage_collection():
        compiled.bind(sets[0])
        with clock.timed() as first_call_s:
            compiled.run()
        first_s = max(1e-9, first_call_s[0])
        least_s = THROUGHPUT_BLOCK_S / (2 if first_s * ENOUGH_CALLS <= THROUGHPUT_BLOCK_S / 2 else 1)
        # Calls are limited, because a host that runs far ahead of its device would queue minutes of work.
        max_calls = 1 + int(2 * least_s / first_s)
        while len(blocks) < wanted:
            compiled.bind(sets[len(blocks) % len(sets)])
            clock.synchronise()
            calls = 0
            start_ns = clock.now_ns()
            end_ns = start_ns + int(least_s * 1e9)
            while calls < max_calls and clock.now_ns() < end_ns:
                compiled.run()
                calls += 1
            clock.synchronise()
            block_s = (clock.now_ns() - start_ns) / 1e9
            if block_s < least_s:
                max_calls *= 2
                continue
            blocks.append((calls / block_s, block_s))
    calls_per_s, block_s = statistics.median_low(blocks)
    range_per_s = schema.Interval(low=min(blocks)[0], high=max(blocks)[0]) if wanted > 1 else None
    return schema.Throughput(calls_per_s=calls_per_s, blocks=len(blocks), block_s=block_s, range_per_s=range_per_s)


def device_time(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> schema.DeviceTime | None:
    """Return the median time between two CUDA events around a call, or None on a device without such events. It
    includes the gaps between kernel launches. What the latency has beyond it is the host's share."""
    if clock.stream is None:
        return None
    times_ms: list[float] = []
    end_ns = clock.now_ns() + int(DEVICE_TIME_S * 1e9)
    while len(times_ms) < MIN_DEVICE_CALLS or (len(times_ms) < MAX_DEVICE_CALLS and clock.now_ns() < end_ns):
        compiled.bind(sets[len(times_ms) % len(sets)])
        clock.synchronise()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(clock.stream)
        compiled.run()
        stop.record(clock.stream)
        clock.synchronise()
        times_ms.append(start.elapsed_time(stop))
    return schema.DeviceTime(median_ms=statistics.median(times_ms), calls=len(times_ms))


def stages(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> list[schema.CallStage]:
    """Time each part of a call on its own, for half a second and twenty calls. A call without parts has no stages."""
    parts = compiled.stages()
    times_ms: dict[str, list[float]] = {name: [] for name, _ in parts}
    with no_garbage_collection():
        end_ns, calls = clock.now_ns() + int(STAGES_S * 1e9), 0
        while parts and (calls < MIN_STAGES_CALLS or clock.now_ns() < end_ns):
            compiled.bind(sets[calls % len(sets)])
            for name, part in parts:
                # The device is synchronised between parts, so that no part runs into the next one's time.
                with clock.timed() as seconds:
                    part()
                times_ms[name].append(1e3 * seconds[0])
            calls += 1
    return [
        schema.CallStage(
            name=name,
            calls=len(times),
            median_ms=statistics.median(times),
            mean_ms=statistics.fmean(times),
            std_ms=statistics.stdev(times),
        )
        for name, times in times_ms.items()
    ]


def trace_kernels(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> schema.KernelTimes | None:
    """Return what the GPU does in a call, as CUPTI traces it, or None without a GPU or without a trace."""
    if clock.stream is None:
        return None
    from torch.autograd.profiler import profile  # that of torch.profiler imports Inductor

    compiled.restore()
    compiled.bind(sets[0])
    compiled.run()
    clock.synchronise()
    with profile(use_device="cuda", use_cpu=False, use_kineto=True) as traced:
        for _ in range(TRACED_CALLS):
            compiled.run()
        clock.synchronise()
    # A trace slows the host down, but not what runs on the GPU, so only times on the GPU are read from it.
    on_device = [event for event in traced.function_events or [] if event.device_type.name == "CUDA"]
    return summed_kernels(
        [(event.name, event.time_range.start, event.time_range.end) for event in on_device], TRACED_CALLS
    )


def summed_kernels(events: Sequence[TracedKernel], calls: int) -> schema.KernelTimes | None:
    """Return the sums of what was traced in so many calls, for one of them. None if nothing was."""
    if not events:
        return None
    times_us: defaultdict[str, float] = defaultdict(float)
    for name, begun_us, ended_us in events:
        times_us[name] += ended_us - begun_us
    total_us = sum(times_us.values()) or 1.0
    longest = sorted(times_us, key=lambda name: -times_us[name])[:LONGEST_KERNELS]
    return schema.KernelTimes(
        busy_ms=covered(((begun, ended) for _, begun, ended in events)) / calls / 1e3,
        kernels=len(events) / calls,
        longest=[schema.Kernel(name=name, share=times_us[name] / total_us) for name in longest],
        calls=calls,
    )


def freeze_garbage() -> None:
    """Collect garbage once, and exclude what is left from later collections."""
    gc.collect()
    # A compiler leaves a million objects. Collecting among them takes a tenth of a second, longer than a burst.
    gc.freeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage before the block and not in it: a collection is the interpreter's doing, not the backend's."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
