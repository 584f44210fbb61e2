"""Estimates how much a latency changed between two runs, which share no rounds, and brings their contests together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bakeoff.judging.fit import Fit
from bakeoff.judging.intervals import around, welch_half_width
from bakeoff.records.schema import Burst, Interval, Report


@dataclass(frozen=True)
class Change:
    """A quantity of the new run over that of the base run, as a logarithm: above 0 the new run takes longer."""

    log: float
    half_width: float | None  # of its 95 % interval, which is symmetric in the logarithm; None below two processes
    waiting: float = 0.0  # what of it comes from threads that waited for cores

    @property
    def value(self) -> float:
        return math.exp(self.log)

    @property
    def ci95(self) -> Interval | None:
        return around(self.value, self.half_width)

    def widened(self, by: Change) -> Change:
        """Return the same change with an interval that contains the uncertainty of another change, too."""
        if self.half_width is None or by.half_width is None:
            return self
        return Change(self.log, math.hypot(self.half_width, by.half_width), math.hypot(self.waiting, by.waiting))


def latency_change(base: Fit, new: Fit, label: str) -> Change | None:
    """Return the change of a cell's fitted latency, or None if it has no samples in one of the runs. The interval is
    Welch's over processes, whose numbers and variances may differ."""
    if label not in base.latency_ms or label not in new.latency_ms:
        return None
    log = math.log(new.latency_ms[label] / base.latency_ms[label])
    half = welch_half_width(new.process_logs[label], base.process_logs[label])
    return _with_waiting(log, half, base, new, label)


def relative_change(base: Fit, new: Fit, label: str, baseline: str) -> Change | None:
    """Return the change of a cell's latency over the baseline's, from the rounds that they shared in each run, or None
    if they shared none in one of the runs."""
    logs = [fit.epoch_logs(label, baseline) if label in fit.latency_ms else [] for fit in (base, new)]
    if not all(logs):
        return None
    before, after = (math.log(fit.latency_ms[label] / fit.latency_ms[baseline]) for fit in (base, new))
    return _with_waiting(after - before, welch_half_width(*logs), base, new, label, baseline)


def _with_waiting(log: float, half_width: float | None, base: Fit, new: Fit, *labels: str) -> Change:
    """Return a change whose interval contains what these cells may have waited for cores in either run."""
    waiting = sum(fit.reach(label) for fit in (base, new) for label in labels)
    return Change(log, half_width and half_width + waiting, waiting if half_width else 0.0)


def calibration_change(base: Sequence[Burst], new: Sequence[Burst]) -> Change | None:
    """Return the change of a fixed piece of work that was timed beside the cells, if both runs timed it."""
    before, after = _calibration_logs(base), _calibration_logs(new)
    if not before or not after:
        return None
    return Change(float(np.mean(after) - np.mean(before)), welch_half_width(after, before))


def _calibration_logs(bursts: Iterable[Burst]) -> list[float]:
    by_process: dict[int, list[float]] = {}
    for burst in bursts:
        if burst.conditions and burst.conditions.calibration_ms:
            by_process.setdefault(burst.process, []).append(burst.conditions.calibration_ms)
    return [math.log(float(np.median(by_process[process]))) for process in sorted(by_process)]


def grouped_alike(reports: Sequence[Report]) -> list[Report]:
    """Return the reports with a contest for each precision where one has precisions together that another has apart."""
    contests: dict[str, set[str]] = {}
    for cell in (record.cell for report in reports for record in report.records):
        contests.setdefault(cell.id, set()).add(cell.contest_id)
    differing = {contest_id for ids in contests.values() if len(ids) > 1 for contest_id in ids}
    apart = []
    for report in reports:
        records = [
            record.but(cell=record.cell.but(compared=())) if record.cell.contest_id in differing else record
            for record in report.records
        ]
        apart.append(report.but(records=records))
    return apart
