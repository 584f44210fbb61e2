"""Taking samples: warm-up, bursts, throughput, device time. All in the child, single-threaded, blind to the backend."""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backends.base import Compiled
from harness.worker.clock import Clock, now_ns
from models.base import Inputs
from records.schema import DeviceTime, Settling, Stage, Throughput, WarmUp

WARM_UP_CALLS = 10
WARM_UP_WINDOWS = 3
WARM_UP_AGREEMENT = 0.02
TREND_WINDOWS = 12
"""So many are looked at for whether calls still get faster or slower."""

TREND_PAIRS = 18
"""Of the pairs of those windows so many more go one way than the other by chance in one of five cases where there is no
trend (Mann and Kendall's statistic, 1.28 standard deviations)."""
WARM_UP_LIMIT_S = 30.0
FURTHER_WARM_UP_LIMIT_S = 1.0
"""Of a cell's further processes: whether it becomes steady is the first one's to tell, and where calls drift for long,
each would take the longer limit. They are steady after half of the first one's least time, too."""

SETTLE_LIMIT_S = 180.0
"""A configuration that goes on choosing has so long to come to an end: a compilation or two beside its calls."""

SETTLE_WINDOW_S = 0.5
REWARM_S = 0.01
"""Untimed calls at the head of a burst: a process that was stopped comes back to cold caches and sleeping threads."""

WANTED_LIMIT_S = 2.0
"""A burst takes no longer than this for the calls that a required percentile wants beyond those."""

STAGES_S = 0.5
STAGES_CALLS = 20

THROUGHPUT_BLOCKS = 3
THROUGHPUT_BLOCK_S = 0.1


def settle(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> Settling | None:
    """Call until how it runs is final, or have it stay as it is after `SETTLE_LIMIT_S`; None where it always was."""
    if compiled.is_final():
        return None
    samples_ns: list[int] = []
    end_ns = now_ns() + int(SETTLE_LIMIT_S * 1e9)
    while not compiled.is_final():
        if now_ns() >= end_ns:
            compiled.finalise()
            break
        compiled.restore()
        samples_ns += burst(compiled, sets, clock, SETTLE_WINDOW_S, 1)
    return Settling(calls=len(samples_ns), seconds=sum(samples_ns) / 1e9)


def warm_up(
    compiled: Compiled, sets: Sequence[Inputs], clock: Clock, at_least_s: float, is_first: bool = True
) -> WarmUp:
    """Call until it is steady: three windows whose medians agree within 2 %, with nothing compiled meanwhile.

    At least 10 calls and `at_least_s` seconds. It is given up where the last twelve windows differ and yet show no
    trend, which is the machine's doing and no warm-up ends: Mann and Kendall's test, and the last one not the fastest.
    And after 30 seconds, or the least if that is more.

    In a process that is not the cell's first, half of the seconds will do, and after four windows it ends, steady or
    not, with one that is not 2 % faster than all before it and had nothing compiled in it: whether the cell becomes
    steady is the first process's to tell. A second is the limit there, or half of the seconds.
    """
    start_ns = now_ns()
    at_least_s *= 1 if is_first else 0.5
    limit_s = max(WARM_UP_LIMIT_S if is_first else FURTHER_WARM_UP_LIMIT_S, at_least_s)
    window_s = at_least_s / (WARM_UP_WINDOWS + 1)
    medians: list[float] = []
    compilations = [compiled.compilations()]
    calls = 0
    while True:
        window = burst(compiled, sets, clock, window_s, WARM_UP_CALLS // WARM_UP_WINDOWS + 1)
        calls += len(window)
        medians.append(statistics.median(window))
        compilations.append(compiled.compilations())
        recent = medians[-WARM_UP_WINDOWS:]
        elapsed_s = (now_ns() - start_ns) / 1e9
        steady = (
            len(medians) >= WARM_UP_WINDOWS
            and max(recent) <= min(recent) * (1 + WARM_UP_AGREEMENT)
            and compilations[-WARM_UP_WINDOWS - 1] == compilations[-1]
        )
        goes_nowhere = (
            len(medians) >= TREND_WINDOWS
            and not _has_trend(medians[-TREND_WINDOWS:])
            and compilations[-TREND_WINDOWS - 1] == compilations[-1]
        )
        is_warm_again = (
            not is_first
            and len(medians) > WARM_UP_WINDOWS
            and medians[-1] > min(medians[:-1]) * (1 - WARM_UP_AGREEMENT)
            and compilations[-2] == compilations[-1]
        )
        is_over = steady or goes_nowhere or is_warm_again
        if (is_over and elapsed_s >= at_least_s and calls >= WARM_UP_CALLS) or elapsed_s >= limit_s:
            return WarmUp(calls=calls, seconds=elapsed_s, steady=steady, trendless=goes_nowhere and not steady)


def _has_trend(medians: Sequence[float]) -> bool:
    """Whether windows still get faster or slower, by Mann and Kendall's statistic, or have just become fastest.

    Source: Kendall, Rank Correlation Methods, 1948; Mann, Nonparametric Tests Against Trend, Econometrica 13, 1945.
    """
    rising = sum((after > before) - (after < before) for before, after in itertools.combinations(medians, 2))
    return abs(rising) > TREND_PAIRS or medians[-1] <= min(medians)


def burst(
    compiled: Compiled,
    sets: Sequence[Inputs],
    clock: Clock,
    seconds: float,
    at_least_calls: int,
    wanted_calls: int = 0,
) -> list[int]:
    """End-to-end latencies in nanoseconds of calls over `seconds`, at least `at_least_calls` of them.

    `wanted_calls` of them, if so many are made within `WANTED_LIMIT_S`. Inputs rotate over `sets` and are bound outside
    of the timed interval.
    """
    samples_ns: list[int] = []
    synchronise, bind, run = clock.synchronise, compiled.bind, compiled.run
    fewest = max(at_least_calls, wanted_calls)
    with _no_garbage_collection():
        begun_ns = now_ns()
        end_ns, limit_ns = begun_ns + int(seconds * 1e9), begun_ns + int(max(seconds, WANTED_LIMIT_S) * 1e9)
        while True:
            bind(sets[len(samples_ns) % len(sets)])
            synchronise()
            start_ns = now_ns()
            run()
            synchronise()
            stop_ns = now_ns()
            samples_ns.append(stop_ns - start_ns)
            if stop_ns >= end_ns and len(samples_ns) >= (at_least_calls if stop_ns >= limit_ns else fewest):
                return samples_ns


def rewarm(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> None:
    """Untimed calls after the process was stopped."""
    burst(compiled, sets, clock, REWARM_S, 2)


def throughput(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> Throughput:
    """Calls back to back, one synchronisation per block of at least 100 ms; the median block.

    Inputs are bound once per block, so that binding is not in it. A block ends by the host's clock, and by a number of
    calls that keeps a host which runs far ahead of its device from queueing minutes of work.
    """
    compiled.bind(sets[0])
    clock.synchronise()
    start_ns = now_ns()
    compiled.run()
    clock.synchronise()
    at_most = 1 + int(2 * THROUGHPUT_BLOCK_S * 1e9 / max(1, now_ns() - start_ns))
    blocks: list[tuple[float, float]] = []
    with _no_garbage_collection():
        while len(blocks) < THROUGHPUT_BLOCKS:
            compiled.bind(sets[len(blocks) % len(sets)])
            clock.synchronise()
            calls = 0
            start_ns = now_ns()
            end_ns = start_ns + int(THROUGHPUT_BLOCK_S * 1e9)
            while calls < at_most and now_ns() < end_ns:
                compiled.run()
                calls += 1
            clock.synchronise()
            block_s = (now_ns() - start_ns) / 1e9
            if block_s < THROUGHPUT_BLOCK_S:
                at_most *= 2
                continue
            blocks.append((calls / block_s, block_s))
    calls_per_s, block_s = statistics.median_low(blocks)
    return Throughput(calls_per_s=calls_per_s, blocks=len(blocks), block_s=block_s)


def device_time(compiled: Compiled, sets: Sequence[Inputs], clock: Clock, calls: int = 100) -> DeviceTime | None:
    """Median time between two CUDA events around a call on the cell's stream; None where there is no such device.

    It is the time the device was given, the gaps between launches included: what a faster host could not take away is
    the rest.
    """
    if clock.stream is None:
        return None
    import torch

    times_ms = []
    for index in range(calls):
        compiled.bind(sets[index % len(sets)])
        clock.synchronise()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(clock.stream)
        compiled.run()
        stop.record(clock.stream)
        clock.synchronise()
        times_ms.append(start.elapsed_time(stop))
    return DeviceTime(median_ms=statistics.median(times_ms), calls=calls)


def stages(compiled: Compiled, sets: Sequence[Inputs], clock: Clock) -> list[Stage]:
    """Each part of a call timed apart, over half a second and twenty calls at least; nothing where a call is one whole.

    The device is waited for between the parts, so that one does not run on into the next one's time.
    """
    parts = compiled.stages()
    times_ms: dict[str, list[float]] = {name: [] for name, _ in parts}
    with _no_garbage_collection():
        end_ns, calls = now_ns() + int(STAGES_S * 1e9), 0
        while parts and (calls < STAGES_CALLS or now_ns() < end_ns):
            compiled.bind(sets[calls % len(sets)])
            for name, part in parts:
                with clock.timed() as seconds:
                    part()
                times_ms[name].append(1e3 * seconds[0])
            calls += 1
    return [
        Stage(
            name=name,
            calls=len(times),
            median_ms=statistics.median(times),
            mean_ms=statistics.fmean(times),
            std_ms=statistics.stdev(times),
        )
        for name, times in times_ms.items()
    ]


def freeze_garbage() -> None:
    """Collect what building has left, and have later collections leave all that is there now alone.

    A compiler leaves a million objects, and going through them takes a tenth of a second: before every burst, that is
    longer than the burst.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection is the interpreter's doing, not the backend's: it runs before, not in the middle of samples."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
