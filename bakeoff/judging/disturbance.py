"""Finds what disturbed a measurement, from the conditions that each burst carries."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bakeoff.records.schema import Burst, Conditions

WAIT_SHARE = 0.02
"""A burst is disturbed if its threads waited for a core this much more of its time than is usual for the cell.
A cell with more threads than cores waits for itself in every burst, which is usual for it."""

OTHERS_CORES = 0.2
"""From so many cores that other processes kept busy, on the average, what a cell's threads waited is not its own."""

MIN_QUIET_CALLS = 3
"""So many calls in quiet slices stand for a burst, or a third of its calls, or one."""

OF_CALLER = 0.95
"""If the thread that makes the calls has this share of a cell's CPU time, it works alone."""

LEAST_OF_CPU_TIME = 0.5
"""A latency without waiting that is shorter than this share of the caller's CPU time in a call is not believed."""

COLD_REACH = math.log(1.35)
"""Calls that lost their core take more CPU time, since caches are cold when they get it back. Calls of 8 ms took 19 to
24 % more of it beside programs that spin, and 53 % beside some that copy memory."""

LEAST_SHARE = 1e-3
"""What is left of a call without its waiting is at least this share of it."""

MAX_WAIT_SHARE = 0.9
"""If the threads of a cell waited for a core this much of the time in most rounds, its latency may be any. Beside busy
neighbours, calls took 170 times as long as alone while threads waited 94 %. Up to 85 %, ratios were right."""

STEAL_SHARE = 0.02
"""A burst is disturbed if the hypervisor gave this much more of the cores' time to others than is usual."""

CALIBRATION_EXCESS = 0.10
"""A round is disturbed if the calibration at its start took this much longer than usual."""

THROTTLED_CLOCK = 0.75
"""A burst is disturbed if the SM clock after it is below this share of the usual clock."""


@dataclass(frozen=True)
class Usual:
    """The usual conditions of one cell's bursts. A value that the platform does not report is None."""

    calibration_ms: float | None
    sm_clock_mhz: float | None
    wait_share: float | None
    steal_share: float | None


def usual_of(bursts: Iterable[Burst]) -> Usual:
    """Return the median of calibrations and clocks, and the lower quartile of waiting and stolen time, whose median a
    neighbour that is busy half of the time would lift."""
    conditions = conditions_of(bursts)
    # Other processes, or a quota, took part of the cores' time in these bursts.
    others = [seen.others_cores for seen in conditions if seen.others_cores is not None]
    throttled = [seen.throttled_share for seen in conditions if seen.throttled_share is not None]
    # beside others that never rest, calibration tells of the controller's own core only, and no waiting is usual
    is_shared = bool(
        (others and statistics.fmean(others) >= OTHERS_CORES)
        or (throttled and statistics.fmean(throttled) >= WAIT_SHARE)
    )
    return Usual(
        calibration_ms=None if is_shared else _quantile([seen.calibration_ms for seen in conditions], 2),
        sm_clock_mhz=_quantile([seen.sm_clock_mhz for seen in conditions], 2),
        wait_share=0.0 if is_shared else _quantile([seen.wait_share for seen in conditions], 1),
        steal_share=_quantile([seen.steal_share for seen in conditions], 1),
    )


def disturbed(burst: Burst, usual: Usual) -> bool:
    """Return True if something else than the cell slowed this burst down. `usual` is that of its cell."""
    seen = burst.conditions
    return seen is not None and (waited(seen, usual) or was_slowed(seen, usual))


def was_slowed(seen: Conditions, usual: Usual) -> bool:
    return was_robbed(seen, usual) or _began_slowly(seen, usual) or _was_throttled(seen, usual)


@dataclass(frozen=True)
class Given:
    """What a burst says of its cell, by what its threads were given."""

    ms: float | None  # the latency without waiting; None: that of all calls stands
    is_waiting: bool = False  # it contains waiting
    reach: float = 0.0  # the logarithm of how many times shorter it may be without waiting


def given(burst: Burst, usual: Usual) -> Given:
    """Return the latency of a burst without waiting, or how far waiting may have moved it. Quiet slices stand for a
    burst that waited."""
    seen = burst.conditions
    if seen is None:
        return Given(None)
    if not waited(seen, usual):
        return Given(None)
    ms, share, enough = None, seen.wait_share or 0.0, max(1, min(MIN_QUIET_CALLS, len(burst.samples_ns) // 3))
    if seen.quiet_ms is not None and (seen.quiet_calls or 0) >= enough:
        ms, share = seen.quiet_ms, seen.quiet_wait_share or 0.0
        if not _exceeds(share, usual.wait_share, WAIT_SHARE):
            return Given(ms)
    if seen.cpu_share is None:  # an earlier version did not read what is needed
        return Given(None, is_waiting=True)
    if seen.given_ms and seen.caller_share is not None and seen.caller_share >= OF_CALLER * seen.cpu_share:
        # where one thread does all the work, its waiting is in the latency: taken off, it leaves an upper bound
        cpu_ms = seen.caller_share * statistics.fmean(burst.samples_ns) / 1e6
        if seen.given_ms >= LEAST_OF_CPU_TIME * cpu_ms:
            return Given(seen.given_ms, is_waiting=True, reach=COLD_REACH)
    inflicted = share - (usual.wait_share or 0.0)
    return Given(ms, is_waiting=True, reach=-math.log(max(LEAST_SHARE, 1 - inflicted)))


def is_starved(bursts: Iterable[Burst]) -> bool:
    """Return True if the cell's threads waited for a core so long that its latency says little about the cell."""
    return (usual_of(bursts).wait_share or 0.0) >= MAX_WAIT_SHARE


def waited(seen: Conditions, usual: Usual) -> bool:
    return _exceeds(seen.wait_share, usual.wait_share, WAIT_SHARE)


def was_robbed(seen: Conditions, usual: Usual) -> bool:
    """Return True if the hypervisor gave more of the cores' time to others than is usual."""
    return _exceeds(seen.steal_share, usual.steal_share, STEAL_SHARE)


def _began_slowly(seen: Conditions, usual: Usual) -> bool:
    if seen.calibration_ms is None or usual.calibration_ms is None:
        return False
    return seen.calibration_ms > (1 + CALIBRATION_EXCESS) * usual.calibration_ms


def _was_throttled(seen: Conditions, usual: Usual) -> bool:
    if seen.sm_clock_mhz is None or usual.sm_clock_mhz is None:
        return False
    return seen.sm_clock_mhz < THROTTLED_CLOCK * usual.sm_clock_mhz


def _exceeds(share: float | None, usual: float | None, threshold: float) -> bool:
    return share is not None and share > (usual or 0.0) + threshold


def conditions_of(bursts: Iterable[Burst]) -> list[Conditions]:
    return [burst.conditions for burst in bursts if burst.conditions is not None]


def _quantile(values: Iterable[float | None], quarter: int) -> float | None:
    numbers = [value for value in values if value is not None]
    if len(numbers) < 2:
        return numbers[0] if numbers else None
    return statistics.quantiles(numbers, n=4, method="inclusive")[quarter - 1]
