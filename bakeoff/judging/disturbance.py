"""Finds what disturbed a measurement, from the conditions that each burst carries."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bakeoff.judging.doubts import (
    AlwaysWaited,
    ClockFell,
    ClockHeldDown,
    CoresStolen,
    CoresTaken,
    Doubt,
    GpuShared,
    SpeedDrifted,
)
from bakeoff.records.schema import Burst, Conditions, Record

WAIT_SHARE = 0.02
"""A burst is disturbed if its threads waited for a core this much more of its time than is usual for the cell.
A cell with more threads than cores waits for itself in every burst, which is usual for it."""

OTHERS_CORES = 0.2
"""From so many cores that other processes kept busy, on the average, what a cell's threads waited is not its own."""

MIN_QUIET_CALLS = 3
"""So many calls in quiet slices stand for a burst, or a third of its calls, or one."""

OF_CALLER = 0.95
"""If the thread that makes the calls has this share of a cell's CPU time, it works alone."""

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

DRIFT = 0.05
"""A drift of the machine's speed over the run is a doubt if it is more than this."""

DRIFT_WINDOW = 5
"""The machine's speed at a time is the median calibration of this many rounds."""

NAMED_SHARE = 0.05
"""What disturbed a smaller share of the bursts is no doubt: it does not move a median over rounds."""


@dataclass(frozen=True)
class Usual:
    """The usual conditions of one cell's bursts. A value that the platform does not tell is None.

    Beside others that never rest no waiting is usual, and the calibration tells of the controller's own core only.
    """

    calibration_ms: float | None
    sm_clock_mhz: float | None
    wait_share: float | None
    steal_share: float | None


def usual_of(bursts: Iterable[Burst]) -> Usual:
    """Return the median of calibrations and clocks, and the lower quartile of waiting and stolen time.

    A neighbour that is busy half of the time would lift the median of the latter two.
    """
    conditions = _conditions(bursts)
    is_shared = are_cores_shared(conditions)
    return Usual(
        calibration_ms=None if is_shared else _quantile([seen.calibration_ms for seen in conditions], 2),
        sm_clock_mhz=_quantile([seen.sm_clock_mhz for seen in conditions], 2),
        wait_share=0.0 if is_shared else _quantile([seen.wait_share for seen in conditions], 1),
        steal_share=_quantile([seen.steal_share for seen in conditions], 1),
    )


def disturbed(burst: Burst, usual: Usual) -> bool:
    """Return True if something else than the cell slowed this burst down. `usual` is that of its cell."""
    seen = burst.conditions
    return seen is not None and (_waited(seen, usual) or was_slowed(seen, usual))


def was_slowed(seen: Conditions, usual: Usual) -> bool:
    """Return True if cores were slow or stolen, or the GPU was slow."""
    return _was_robbed(seen, usual) or _began_slowly(seen, usual) or _was_throttled(seen, usual)


def are_cores_shared(conditions: Sequence[Conditions]) -> bool:
    """Return True if other processes, or a quota, took part of the cores' time in these bursts."""
    others = [seen.others_cores for seen in conditions if seen.others_cores is not None]
    throttled = [seen.throttled_share for seen in conditions if seen.throttled_share is not None]
    return bool(
        (others and statistics.fmean(others) >= OTHERS_CORES)
        or (throttled and statistics.fmean(throttled) >= WAIT_SHARE)
    )


@dataclass(frozen=True)
class Given:
    """What a burst says of its cell, by what its threads were given."""

    ms: float | None  # the latency without waiting; None: that of all calls stands
    is_waiting: bool = False  # it contains waiting
    reach: float = 0.0  # the logarithm of how many times shorter it may be without waiting


def given(burst: Burst, usual: Usual) -> Given:
    """Return the latency of a burst without waiting, or how far waiting may have moved it.

    Quiet slices stand for a burst that waited. Where one thread does all the work, its waiting is in the
    latency, and is taken off; what is left is an upper bound. Otherwise threads wait for one another, and it is only
    known that all of them together waited no less than the calls did.
    """
    seen = burst.conditions
    if seen is None:
        return Given(None)
    if not _waited(seen, usual):
        return Given(None)
    ms, share, enough = None, seen.wait_share or 0.0, max(1, min(MIN_QUIET_CALLS, len(burst.samples_ns) // 3))
    if seen.quiet_ms is not None and (seen.quiet_calls or 0) >= enough:
        ms, share = seen.quiet_ms, seen.quiet_wait_share or 0.0
        if not _exceeds(share, usual.wait_share, WAIT_SHARE):
            return Given(ms)
    if seen.cpu_share is None:  # an earlier version did not read what is needed
        return Given(None, is_waiting=True)
    if seen.given_ms and seen.caller_share is not None and seen.caller_share >= OF_CALLER * seen.cpu_share:
        return Given(seen.given_ms, is_waiting=True, reach=COLD_REACH)
    inflicted = share - (usual.wait_share or 0.0)
    return Given(ms, is_waiting=True, reach=-math.log(max(LEAST_SHARE, 1 - inflicted)))


def is_starved(bursts: Iterable[Burst]) -> bool:
    """Return True if the cell's threads waited for a core so long that its latency says little about the cell."""
    return (usual_of(bursts).wait_share or 0.0) >= MAX_WAIT_SHARE


def doubts_of_conditions(records: Iterable[Record]) -> list[Doubt]:
    """Return one doubt for each kind of thing that disturbed the bursts of these records."""
    records = list(records)
    by_label = {record.cell.label: record.bursts for record in records if _conditions(record.bursts)}
    measured = list(by_label.values())
    everything = [seen for bursts in measured for seen in _conditions(bursts)]
    if not everything:
        return []
    waiting, stolen = (len(_those(measured, test)) / len(everything) for test in (_waited, _was_robbed))
    doubts: list[Doubt | None] = [
        _clock_fell(measured, everything),
        _clock_held_down(everything),
        CoresTaken(waiting) if waiting >= NAMED_SHARE else None,
        _threads_always_waited(by_label, {each.cell.label: each.settings.get("threads") for each in records}),
        CoresStolen(stolen) if stolen >= NAMED_SHARE else None,
        _speed_drifted(measured),
        _gpu_shared(everything),
    ]
    return [doubt for doubt in doubts if doubt]


def _waited(seen: Conditions, usual: Usual) -> bool:
    return _exceeds(seen.wait_share, usual.wait_share, WAIT_SHARE)


def _was_robbed(seen: Conditions, usual: Usual) -> bool:
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


def _those(measured: Iterable[Sequence[Burst]], test: Callable[[Conditions, Usual], bool]) -> list[Conditions]:
    """Return the conditions of all bursts that `test` holds for, each compared with what is usual for its cell."""
    found = []
    for bursts in measured:
        usual = usual_of(bursts)
        found += [seen for seen in _conditions(bursts) if test(seen, usual)]
    return found


def _clock_fell(measured: Iterable[Sequence[Burst]], everything: Sequence[Conditions]) -> ClockFell | None:
    """Compare with each cell's highest clock, since a clock that was low most of the time has a low median."""
    slow = []
    for bursts in measured:
        clocks_mhz = [(seen, seen.sm_clock_mhz) for seen in _conditions(bursts) if seen.sm_clock_mhz is not None]
        highest_mhz = max((clock for _, clock in clocks_mhz), default=0)
        slow += [seen for seen, clock in clocks_mhz if clock < THROTTLED_CLOCK * highest_mhz]
    if not slow:
        return None
    lowest_mhz = min(seen.sm_clock_mhz for seen in slow if seen.sm_clock_mhz is not None)
    return ClockFell(len(slow) / len(everything), lowest_mhz, _throttle_reasons(slow), _hottest_c(slow))


def _clock_held_down(everything: Sequence[Conditions]) -> ClockHeldDown | None:
    held = [seen for seen in everything if seen.throttle_reasons]
    if len(held) < NAMED_SHARE * len(everything):
        return None
    return ClockHeldDown(len(held) / len(everything), _throttle_reasons(held), _hottest_c(held))


def _throttle_reasons(slowed: Iterable[Conditions]) -> tuple[str, ...]:
    return tuple(sorted({reason for seen in slowed for reason in seen.throttle_reasons}))


def _hottest_c(slowed: Iterable[Conditions]) -> int | None:
    return max((seen.temperature_c for seen in slowed if seen.temperature_c is not None), default=None)


def _threads_always_waited(
    by_label: Mapping[str, Sequence[Burst]], threads: Mapping[str, object]
) -> AlwaysWaited | None:
    """Find cells that never had a core for each thread: they have too many threads, or a neighbour never rests."""
    shares = {label: usual_of(bursts).wait_share or 0.0 for label, bursts in by_label.items()}
    named = {label: share for label, share in shares.items() if share > WAIT_SHARE}
    return AlwaysWaited(named, all(threads[label] == 1 for label in named)) if named else None


def _speed_drifted(measured: Iterable[Sequence[Burst]]) -> SpeedDrifted | None:
    """Compare medians of windows of calibrations, one for each round: a single slow one is no drift."""
    calibrations: dict[tuple[int, int, int], tuple[float, float]] = {}
    for burst in itertools.chain.from_iterable(measured):
        if burst.conditions is not None and burst.conditions.calibration_ms is not None:
            key = (burst.process, burst.group, burst.round)
            calibrations.setdefault(key, (burst.started_s, burst.conditions.calibration_ms))
    in_time = [calibration_ms for _, calibration_ms in sorted(calibrations.values())]
    windows = [in_time[begin : begin + DRIFT_WINDOW] for begin in range(0, len(in_time), DRIFT_WINDOW)]
    levels_ms = [statistics.median(window) for window in windows if len(window) == DRIFT_WINDOW]
    if len(levels_ms) < 2 or max(levels_ms) <= (1 + DRIFT) * min(levels_ms):
        return None
    return SpeedDrifted(max(levels_ms) / min(levels_ms) - 1)


def _gpu_shared(everything: Iterable[Conditions]) -> GpuShared | None:
    most = max((seen.foreign_gpu_processes or 0 for seen in everything), default=0)
    return GpuShared(most) if most else None


def _conditions(bursts: Iterable[Burst]) -> list[Conditions]:
    return [burst.conditions for burst in bursts if burst.conditions is not None]


def _quantile(values: Iterable[float | None], quarter: int) -> float | None:
    """Return the `quarter`-th quartile of the known values, or None if none is known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return statistics.quantiles(known, n=4, method="inclusive")[quarter - 1]
