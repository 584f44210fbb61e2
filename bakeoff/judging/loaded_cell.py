"""What one cell carried under load: its rate or latency, what its soaks showed, and what a million requests cost."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bakeoff.judging.answer import Row
from bakeoff.records.load_samples import Load, LoadWindow, Objective

TREND = 0.8
"""Latencies change over the soak if so many more pairs of its windows rise than fall, or the other way round, as a
share of all: 13 of 15. Without a trend, that happens once in 60 times. A queue alone makes windows differ by half.
Source: Kendall, A New Measure of Rank Correlation, Biometrika 30, 1938."""

MISSED = 1.10
"""The objective is missed over the soak if its percentile is over this many times the limit. The rate was found in
shorter windows, each of which began with an empty queue."""

LOWER_SHARES = (0.9, 0.7, 0.5, 0.35)
"""While the objective is missed over the soaks, a further one has the next of these shares of the rate. Rates found in
windows are up to 7 % above those of a long run. Where that is not why, a plainly lower rate is more likely to hold."""

BELOW = 0.05
"""A soak was at a lower rate than a cell is ranked with if its rate is less by more than this share. It has the rate of
the turns in its own process."""

MILLION = 1_000_000


@dataclass(frozen=True)
class SoakSummary:
    """What a cell did while it served for a long time, at the rate that was found in the same process."""

    seconds: float
    rate: float  # requests per second: those asked for, in the scenario `server`, and answered in all others
    p50_ms: float | None  # None in the scenario `offline`, where a request waits for all before it
    p99_ms: float | None
    objective_ms: float | None  # the percentile of the objective
    has_missed: bool  # the objective, which does not hold over it
    drift: float | None  # the median latency of the last third over the first one's, minus 1; None without a trend
    joules_per_million: float | None
    energy_source: str
    resident_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True)
class RatePoint:
    rate: float
    p50_ms: float
    p99_ms: float
    is_chosen: bool  # with the settings that were chosen


@dataclass(frozen=True, kw_only=True)
class LoadedCell(Row):
    """What is known of one cell under load. Its value is requests per second, or the median latency in ms."""

    load: Load
    soaks: tuple[SoakSummary, ...]
    points: tuple[RatePoint, ...]
    rate: float | None  # requests per second, in every scenario
    price_per_million: float | None

    @property
    def soak(self) -> SoakSummary | None:
        return self.soaks[0] if self.soaks else None

    @property
    def held(self) -> SoakSummary | None:
        """The first soak that held: at the rate found, or at a lower one."""
        return next((soak for soak in self.soaks if not soak.has_missed), None)

    @property
    def windows_of_turns(self) -> list[LoadWindow]:
        return [window for turn in self.load.turns for window in turn.windows]

    @property
    def is_soaked_below(self) -> bool:
        """Return True if the soak was at a clearly lower rate than the one that the cell is ranked with."""
        return bool(self.soak and self.rate and self.soak.rate < (1 - BELOW) * self.rate)


def loaded_cell(row: Row, load: Load, price_per_hour: float | None) -> LoadedCell:
    """Return what a cell carried, of which `row` is its place in the answer. The price is of the machine."""
    rate = None if row.value is None else load.scenario.spec.rate_from(row.value, load.streams)
    windows = [(window, one.settings == load.settings) for one in load.tried for window in one.windows]
    windows += [(window, True) for turn in load.turns for window in turn.windows]
    return LoadedCell(
        **vars(row),
        load=load,
        soaks=tuple(soaks_of(load)),
        points=tuple(
            RatePoint(window.rate, window.p50_ms, window.p99_ms, is_chosen)
            for window, is_chosen in windows
            if window.asked_rate
        ),
        rate=rate,
        price_per_million=price_per_hour / 3600 / rate * MILLION if price_per_hour and rate else None,
    )


def soaks_of(load: Load) -> list[SoakSummary]:
    """Return what a cell did in each of its soaks: at the rate found, and then at lower ones until one held."""
    at_less = (list(windows) for _, windows in itertools.groupby(load.lower_soak, lambda window: window.asked_rate))
    return [_summarise_soak(load, windows) for windows in (load.soak, *at_less) if windows]


def held_no_soak(load: Load) -> bool:
    """Return True if a cell was soaked, and missed the objective at each rate."""
    soaks = soaks_of(load)
    return bool(soaks) and all(soak.has_missed for soak in soaks)


def has_lost(objective: Objective | None, windows: Sequence[LoadWindow], share: float) -> bool:
    """Return True if the objective is missed however a soak goes on, of which these windows are a `share`: more
    requests were late already than may be late in all of it."""
    latencies_us = [latency for window in windows for latency in window.latencies_us]
    if objective is None or not latencies_us:
        return False
    late = sum(latency > 1e3 * MISSED * objective.limit_ms for latency in latencies_us)
    return late > (1 - objective.quantile) * len(latencies_us) / share


def _summarise_soak(load: Load, windows: Sequence[LoadWindow]) -> SoakSummary:
    limit = load.objective
    objective_ms = _pooled_quantile(windows, limit.quantile, "objective_ms") if limit else None
    requests = sum(window.requests for window in windows)
    joules = [window.joules for window in windows if window.joules is not None]
    third = max(1, len(windows) // 3)
    has_latencies = not load.scenario.spec.requests_wait_for_all
    times = [window.p50_ms if has_latencies else 1e3 / window.rate for window in windows]
    before, after = (np.median(part) for part in (times[:third], times[-third:]))
    steps = [np.sign(later - earlier) for earlier, later in itertools.combinations(times, 2) if later != earlier]
    return SoakSummary(
        seconds=sum(window.seconds for window in windows),
        rate=windows[0].asked_rate or float(np.mean([window.rate for window in windows])),
        p50_ms=_pooled_quantile(windows, 0.5, "p50_ms") if has_latencies else None,
        p99_ms=_pooled_quantile(windows, 0.99, "p99_ms") if has_latencies else None,
        objective_ms=objective_ms,
        has_missed=bool(limit and objective_ms and objective_ms > MISSED * limit.limit_ms),
        drift=float(after / before) - 1 if steps and abs(np.mean(steps)) >= TREND else None,
        joules_per_million=sum(joules) / requests * MILLION if len(joules) == len(windows) else None,
        energy_source=windows[0].energy_source,
        resident_bytes=windows[-1].resident_bytes,
        device_bytes=windows[-1].device_bytes,
    )


def _pooled_quantile(windows: Sequence[LoadWindow], quantile: float, name: str) -> float:
    """Return the quantile over all requests, or the median of the windows' own where they were not kept."""
    kept = [latency for window in windows for latency in window.latencies_us]
    if kept:
        return float(np.quantile(kept, quantile)) / 1e3
    return float(np.median([getattr(window, name) for window in windows]))
