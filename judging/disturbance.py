"""What disturbed a measurement, seen from the conditions that each burst carries: pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from records.schema import Burst, Conditions, Record

WAIT_SHARE = 0.02
"""A burst is disturbed if its threads waited for a core for this much of its time beyond what is usual for the cell.
Not beyond nothing: a cell with more threads than cores keeps itself waiting, in every burst alike."""

STEAL_SHARE = 0.02
"""The same of the cores' time that the hypervisor gave to others."""

CALIBRATION_EXCESS = 0.10
"""A round is disturbed if the calibrating work at its start took this much longer than it usually does."""

THROTTLED_CLOCK = 0.75
"""A burst is disturbed if the SM clock after it is below this part of what is usual for the cell."""

DRIFT = 0.05
"""A drift of the machine's speed over the run is named from here on."""

DRIFT_WINDOW = 5
"""Rounds whose median calibration stands for the machine's speed at that time."""

NAMED_SHARE = 0.05
"""What befell a smaller part of the bursts is not named: a median over rounds does not feel it."""


@dataclass(frozen=True)
class Usual:
    """What is usual for the bursts of one cell. None where the platform does not tell."""

    calibration_ms: float | None
    sm_clock_mhz: float | None
    wait_share: float | None
    steal_share: float | None


def usual_of(bursts: Iterable[Burst]) -> Usual:
    """The median of calibrations and clocks; of waiting and steal the lower quartile, since a neighbour that is busy
    half of the time would lift their median."""
    conditions = _conditions(bursts)
    return Usual(
        calibration_ms=_quantile([seen.calibration_ms for seen in conditions], 2),
        sm_clock_mhz=_quantile([seen.sm_clock_mhz for seen in conditions], 2),
        wait_share=_quantile([seen.wait_share for seen in conditions], 1),
        steal_share=_quantile([seen.steal_share for seen in conditions], 1),
    )


def disturbed(burst: Burst, usual: Usual) -> bool:
    """Whether something that is not of the cell's own making slowed this burst down, `usual` being of its cell."""
    seen = burst.conditions
    return seen is not None and (
        _waited(seen, usual) or _was_robbed(seen, usual) or _began_slowly(seen, usual) or _was_throttled(seen, usual)
    )


def conditions_doubts(records: Iterable[Record]) -> list[str]:
    """What went wrong while these records' bursts were taken, in one sentence for each kind of thing."""
    measured = [record.bursts for record in records if _conditions(record.bursts)]
    if not measured:
        return []
    everything = [seen for bursts in measured for seen in _conditions(bursts)]
    doubts = [
        _clock_doubt(measured, everything),
        _throttling_doubt(everything),
        _waiting_doubt(measured, everything),
        _own_waiting_doubt(records),
        _steal_doubt(measured, everything),
        _drift_doubt(measured),
        _neighbours_doubt(everything),
    ]
    return [doubt for doubt in doubts if doubt]


def percent(share: float) -> str:
    """`12 %`."""
    return f"{100 * share:.0f} %"


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
    """The conditions of all bursts that `test` holds of, each against what is usual for its cell."""
    found = []
    for bursts in measured:
        usual = usual_of(bursts)
        found += [seen for seen in _conditions(bursts) if test(seen, usual)]
    return found


def _clock_doubt(measured: Iterable[Sequence[Burst]], everything: Sequence[Conditions]) -> str | None:
    """Against each cell's highest clock, since one that was low for most of the time has a low median."""
    slow = []
    for bursts in measured:
        clocks_mhz = [(seen, seen.sm_clock_mhz) for seen in _conditions(bursts) if seen.sm_clock_mhz is not None]
        highest_mhz = max((clock for _, clock in clocks_mhz), default=0)
        slow += [seen for seen, clock in clocks_mhz if clock < THROTTLED_CLOCK * highest_mhz]
    if not slow:
        return None
    lowest_mhz = min(seen.sm_clock_mhz for seen in slow if seen.sm_clock_mhz is not None)
    return f"SM clock fell to {lowest_mhz:,} MHz in {_share(slow, everything)} of the bursts{_reasons(slow)}"


def _throttling_doubt(everything: Sequence[Conditions]) -> str | None:
    held = [seen for seen in everything if seen.throttle_reasons]
    if len(held) < NAMED_SHARE * len(everything):
        return None
    return f"the GPU's clock was held down in {_share(held, everything)} of the bursts{_reasons(held)}"


def _reasons(held: Sequence[Conditions]) -> str:
    """Why the clock was held down, in NVML's words, and how hot the GPU was meanwhile."""
    reasons = sorted({reason for seen in held for reason in seen.throttle_reasons})
    temperatures = [seen.temperature_c for seen in held if seen.temperature_c is not None]
    named = ", ".join([*reasons, *([f"at up to {max(temperatures)} °C"] if temperatures else [])])
    return f" ({named})" if named else ""


def _waiting_doubt(measured: Iterable[Sequence[Burst]], everything: Sequence[Conditions]) -> str | None:
    waiting = _those(measured, _waited)
    if len(waiting) < NAMED_SHARE * len(everything) or not waiting:
        return None
    switches = [seen.involuntary_switches for seen in waiting if seen.involuntary_switches is not None]
    counted = f" (involuntary context switches: {statistics.median(switches):,.0f} a burst)" if switches else ""
    return f"other processes kept our threads waiting in {_share(waiting, everything)} of the bursts{counted}"


def _own_waiting_doubt(records: Iterable[Record]) -> str | None:
    """Of cells whose threads never all had a core: more threads than cores, or a neighbour that never rests."""
    always = {record.cell.label: usual_of(record.bursts).wait_share or 0.0 for record in records}
    named = [f"{label} {percent(share)}" for label, share in always.items() if share > WAIT_SHARE]
    if not named:
        return None
    return (
        f"threads waited for a core even in the best bursts ({', '.join(named)} of the time, summed over threads): "
        "they are more than the cores, or a neighbour never rests"
    )


def _steal_doubt(measured: Iterable[Sequence[Burst]], everything: Sequence[Conditions]) -> str | None:
    robbed = _those(measured, _was_robbed)
    if len(robbed) < NAMED_SHARE * len(everything) or not robbed:
        return None
    return f"the hypervisor gave our cores to others in {_share(robbed, everything)} of the bursts"


def _drift_doubt(measured: Iterable[Sequence[Burst]]) -> str | None:
    """From one calibration per round, by medians of windows: a single slow one is a disturbance and no drift."""
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
    fastest_ms, slowest_ms = min(levels_ms), max(levels_ms)
    return (
        f"the machine's speed drifted by {percent(slowest_ms / fastest_ms - 1)} over the run "
        f"(calibration {fastest_ms:.3g} to {slowest_ms:.3g} ms)"
    )


def _neighbours_doubt(everything: Iterable[Conditions]) -> str | None:
    most = max((seen.foreign_gpu_processes or 0 for seen in everything), default=0)
    if not most:
        return None
    return f"{most} other process{'es' if most > 1 else ''} used the GPU meanwhile"


def _conditions(bursts: Iterable[Burst]) -> list[Conditions]:
    return [burst.conditions for burst in bursts if burst.conditions is not None]


def _quantile(values: Iterable[float | None], quarter: int) -> float | None:
    """The `quarter`-th quartile of the known values, or None where none is known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return statistics.quantiles(known, n=4, method="inclusive")[quarter - 1]


def _share(some: Sequence[Conditions], everything: Sequence[Conditions]) -> str:
    return percent(max(0.01, len(some) / len(everything)))
