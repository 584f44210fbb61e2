"""Estimates how much a latency changed between two runs, which share no rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from judging.estimate import burst_ms, process_medians_ms
from judging.intervals import welch_interval
from records.schema import Burst, Interval


@dataclass(frozen=True)
class Change:
    """A quantity of the new run over that of the base run, as a logarithm: above 0 the new run takes longer."""

    log: float
    half_width: float | None  # of its 95 % interval, which is symmetric in the logarithm; None below two processes

    @property
    def value(self) -> float:
        return math.exp(self.log)

    @property
    def ci95(self) -> Interval | None:
        if self.half_width is None:
            return None
        return Interval(low=math.exp(self.log - self.half_width), high=math.exp(self.log + self.half_width))

    def widened(self, by: Change) -> Change:
        """Return the same change with an interval that contains the uncertainty of another change, too."""
        if self.half_width is None or by.half_width is None:
            return self
        return Change(self.log, math.hypot(self.half_width, by.half_width))


def unpaired_change(base: Sequence[float], new: Sequence[float]) -> Change:
    """Return the change of the geometric mean from `base` to `new`, which hold one positive value for each process.

    The interval is Welch's t-interval of the difference of mean logarithms (Welch, Biometrika 34, 1947): the processes
    are the sample, and their numbers and variances may differ. There is none below two processes on either side.
    Raises ValueError if a side is empty.
    """
    if not base or not new:
        raise ValueError("a change needs at least one process on either side")
    old_logs, new_logs = np.log(base), np.log(new)
    log = float(np.mean(new_logs) - np.mean(old_logs))
    if min(len(base), len(new)) < 2:
        return Change(log, None)
    if np.ptp(old_logs) == 0 and np.ptp(new_logs) == 0:
        return Change(log, 0.0)
    interval = welch_interval(new_logs.tolist(), old_logs.tolist())
    return Change(log, (interval.high - interval.low) / 2)


def change_between(base: Sequence[float], new: Sequence[float]) -> Change | None:
    """Return the change, or None if a side has no process."""
    return unpaired_change(base, new) if base and new else None


def latency_change(base: Sequence[Burst], new: Sequence[Burst]) -> Change | None:
    """Return the change of the processes' median latencies."""
    return change_between(*(list(process_medians_ms(bursts).values()) for bursts in (base, new)))


def calibration_change(base: Sequence[Burst], new: Sequence[Burst]) -> Change | None:
    """Return the change of a fixed piece of work that was timed beside the cells, if both runs timed it."""
    return change_between(_calibrations_ms(base), _calibrations_ms(new))


def process_ratios(bursts: Iterable[Burst], baseline: Iterable[Burst]) -> list[float]:
    """Return for each process the median over rounds of a burst's median over that of `baseline` in the same round.

    A process that shares no round with `baseline` is left out.
    """
    baseline_ms = {(burst.group, burst.round): burst_ms(burst) for burst in baseline if burst.samples_ns}
    return _medians_by_process(
        (burst.process, burst_ms(burst) / baseline_ms[burst.group, burst.round])
        for burst in bursts
        if burst.samples_ns and (burst.group, burst.round) in baseline_ms
    )


def _calibrations_ms(bursts: Iterable[Burst]) -> list[float]:
    return _medians_by_process(
        (burst.process, burst.conditions.calibration_ms)
        for burst in bursts
        if burst.conditions and burst.conditions.calibration_ms
    )


def _medians_by_process(values: Iterable[tuple[int, float]]) -> list[float]:
    by_process: dict[int, list[float]] = {}
    for process, value in values:
        by_process.setdefault(process, []).append(value)
    return [float(np.median(by_process[process])) for process in sorted(by_process)]
