"""Judges a contest under load: how much each cell carries, who carries most, and what there is to doubt.

A turn's value goes through the fit of latencies (`bakeoff.judging.fit`) as the milliseconds for a request. So rates are
compared within rounds and processes, as latencies are, and two copies of one backend tie.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bakeoff.judging.answer import Answer, Question, Row, Score, Term, rank
from bakeoff.judging.doubts_of_answers import ByEffect, doubts_about
from bakeoff.judging.estimate import Series, series_of
from bakeoff.judging.fit import fit
from bakeoff.records.load import Load, LoadTurn, LoadWindow, Objective
from bakeoff.records.scenarios import Scenario, ScenarioSpec
from bakeoff.records.schema import Burst, Conditions, Interval, Record, Status

NEAR_CEILING = 0.5
"""A value over this share of what the generator can do may be the generator's. It is ranked, and the answer doubted."""

DRIFT = 0.10
"""Latencies that change by more over the soak have drifted."""

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

LONG_WINDOW_S = 1.8
LONG_WINDOW_REQUESTS = 900
"""In a shorter window with fewer requests a queue can hardly grow. In simulated queues, rates found in half a second
were 5 to 18 % too high, and those found in two seconds 1 to 7 %."""

MILLION = 1_000_000


@dataclass(frozen=True)
class NearCeiling:
    """The generator can hardly do more than a cell carried."""

    label: str
    value: float
    ceiling: float  # of the generator, in the unit of `value`


@dataclass(frozen=True)
class SoakMissed:
    """The objective does not hold over the soak."""

    label: str
    missed: tuple[SoakSummary, ...]  # at the rate found, and at lower ones that did not hold, either
    held: SoakSummary | None  # at the first lower rate that held
    below: float | None  # the rate that the cell is ranked with, where the soak's was clearly lower


@dataclass(frozen=True)
class LatencyDrifted:
    """Latencies changed over the soak."""

    label: str
    share: float  # of the first third's median that the last third's is longer
    rate: float  # of the soak, in requests per second


@dataclass(frozen=True)
class ShortWindows:
    """The windows were so short that no long queue could grow."""

    label: str
    seconds: float


@dataclass(frozen=True)
class RequestsFailed:
    """Requests raised errors or were left out."""

    label: str
    failed: int
    requests: int
    example: str  # of the errors


LoadDoubt = NearCeiling | SoakMissed | LatencyDrifted | ShortWindows | RequestsFailed


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
    """The latencies at one rate, in one window."""

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
        """What the cell did at the rate found."""
        return self.soaks[0] if self.soaks else None

    @property
    def held(self) -> SoakSummary | None:
        """The first soak that held: at the rate found, or at a lower one."""
        return next((each for each in self.soaks if not each.has_missed), None)

    @property
    def is_soaked_below(self) -> bool:
        """Return True if the soak was at a clearly lower rate than the one that the cell is ranked with."""
        return bool(self.soak and self.rate and self.soak.rate < (1 - BELOW) * self.rate)


@dataclass(frozen=True)
class LoadJudgement:
    """What is known of one contest under load. `cells` are in the order of reading, the best first.

    A cell that may not win has a value, and no rank.
    """

    scenario: Scenario
    streams: int
    objective: Objective | None
    cells: tuple[LoadedCell, ...]
    answer: Answer
    doubts: tuple[LoadDoubt, ...]
    is_so_far: bool = False  # the run was interrupted, and `resume` goes on
    is_live: bool = False  # the model lived in a program, so that `resume` cannot

    @property
    def ranked(self) -> list[LoadedCell]:
        return [cell for cell in self.cells if cell.rank is not None]

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages around the model that each request had: `before`, `after`, or none."""
        windows = (window for cell in self.cells for turn in cell.load.turns for window in turn.windows)
        return tuple(next((window.stages for window in windows), ()))


@dataclass(frozen=True)
class LoadScore(Score):
    """The milliseconds of a request, with the value that the scenario asks for: a rate, or a latency."""

    spec: ScenarioSpec = Scenario.SERVER.spec

    def value(self, label: str) -> float:
        return self.spec.value_from_ms(self.ms(label))

    def interval(self, label: str) -> Interval | None:
        fitted = super().interval(label)
        low, high = sorted(map(self.spec.value_from_ms, (fitted.low, fitted.high))) if fitted else (0.0, 0.0)
        return Interval(low=low, high=high) if fitted else None


def judge_load(
    records: Sequence[Record],
    price_per_hour: float | None = None,
    baseline: str | None = None,
    may_not_win: Sequence[str] = (),
    is_so_far: bool = False,
    doubts: ByEffect | None = None,
) -> LoadJudgement | None:
    """Judge the cells of one contest under load, or return None if none of them was.

    Cells whose labels are in `may_not_win` have values, and no rank. Those that held no soak have neither, unless an
    interrupted run has not soaked them at lower rates yet. `doubts` are those at single calls.
    """
    loads = {record.cell.label: record.load for record in records if record.load}
    if not loads:
        return None
    first = next(iter(loads.values()))
    sound = {record.cell.label for record in records if record.status is Status.OK}
    serving = {label: load for label, load in loads.items() if label in sound and not _is_out(load, is_so_far)}
    fitted = fit({label: _series(load) for label, load in serving.items()})
    answer = rank(
        Question.LOAD,
        LoadScore([Term(fitted)], looks_once=True, spec=first.scenario.spec),
        [label for label in fitted.latency_ms if label not in may_not_win],
        [label for label in fitted.latency_ms if label in may_not_win],
        baseline,
        unit=first.scenario.spec.unit,
        cells=[record.cell for record in records],
        processes={label: len({turn.process for turn in load.turns}) for label, load in loads.items()},
    )
    rows = {row.label: row for row in answer.rows}
    cells = [
        _loaded_cell(rows.get(label, Row(label=label)), loads[label], price_per_hour)
        for label in dict.fromkeys([*rows, *loads])
    ]
    of_load = tuple(doubt for cell in cells for doubt in _doubts_of(cell))
    return LoadJudgement(
        scenario=first.scenario,
        streams=first.streams,
        objective=first.objective,
        cells=tuple(cells),
        answer=_doubted(answer, of_load, doubts or {}),
        doubts=of_load,
        is_so_far=is_so_far,
        is_live=any(record.cell.is_live for record in records),
    )


def _doubted(answer: Answer, doubts: Sequence[LoadDoubt], of_builds: ByEffect) -> Answer:
    """Return the answer with what could change who carries most, and what is said of any outcome.

    That are rates near the load generator's ceiling, and cells without a rate that may carry the most.
    """
    if not answer.best:
        return answer
    best, ranked = answer.best, {row.label for row in answer.ranked}
    of_any = [doubt for doubt in doubts if _is_of_any_outcome(doubt, ranked, best.value or 0.0)]
    of_best = [*(doubt for doubt in doubts if doubt.label == best.label), *of_any]
    found = [*doubts_about([best.label], of_builds), *dict.fromkeys(of_best)]
    return answer.doubted(found, always=found if len(ranked) == 1 else of_any)


def _is_of_any_outcome(doubt: LoadDoubt, ranked: Collection[str], best: float) -> bool:
    match doubt:
        case NearCeiling():
            return doubt.label in ranked
        case SoakMissed(held=None):
            return min(soak.rate for soak in doubt.missed) > best
    return False


def _series(load: Load) -> Series:
    """Return the turns of one cell that have a value, in milliseconds a request. Calibration tells disturbed rounds."""
    return series_of([_as_burst(load.scenario.spec, turn) for turn in load.turns if turn.value is not None])


def _as_burst(spec: ScenarioSpec, turn: LoadTurn) -> Burst:
    assert turn.value is not None
    return Burst(
        group=turn.group,
        round=turn.round,
        started_s=turn.started_s,
        samples_ns=[max(1, round(1e6 * spec.ms_per_request(turn.value)))],
        process=turn.process,
        conditions=Conditions(calibration_ms=turn.calibration_ms),
    )


def _loaded_cell(row: Row, load: Load, price_per_hour: float | None) -> LoadedCell:
    rate = None if row.value is None else load.scenario.spec.rate_from(row.value, load.streams)
    return LoadedCell(
        **vars(row),
        load=load,
        soaks=tuple(soaks_of(load)),
        points=_points(load),
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


def _is_out(load: Load, is_so_far: bool) -> bool:
    return held_no_soak(load) and not (is_so_far and len(soaks_of(load)) <= len(LOWER_SHARES))


def has_lost(objective: Objective | None, windows: Sequence[LoadWindow], share: float) -> bool:
    """Return True if the objective is missed however a soak goes on, of which these windows are a `share`.

    More requests were late already than may be late in all of it.
    """
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
        rate=soaked_rate(windows),
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


def soaked_rate(windows: Sequence[LoadWindow]) -> float:
    """Return the requests per second of a soak: those asked for, or those answered where none were asked for."""
    return windows[0].asked_rate or float(np.mean([window.rate for window in windows]))


def _pooled_quantile(windows: Sequence[LoadWindow], quantile: float, name: str) -> float:
    """Return the quantile over all requests, or the median of the windows' own where they were not kept."""
    kept = [latency for window in windows for latency in window.latencies_us]
    if kept:
        return float(np.quantile(kept, quantile)) / 1e3
    return float(np.median([getattr(window, name) for window in windows]))


def _points(load: Load) -> tuple[RatePoint, ...]:
    windows = [(window, one.settings == load.settings) for one in load.tried for window in one.windows]
    windows += [(window, True) for turn in load.turns for window in turn.windows]
    return tuple(
        RatePoint(window.rate, window.p50_ms, window.p99_ms, is_chosen)
        for window, is_chosen in windows
        if window.asked_rate
    )


def _doubts_of(cell: LoadedCell) -> list[LoadDoubt]:
    doubts: list[LoadDoubt] = []
    label, load = cell.label, cell.load
    if cell.value is not None and load.ceiling is not None:
        ours, most = (cell.value, load.ceiling) if load.scenario.spec.is_rate else (load.ceiling, cell.value)
        if ours > NEAR_CEILING * most:
            doubts.append(NearCeiling(label, cell.value, load.ceiling))
    soak = cell.soak
    if soak and soak.has_missed:
        missed = tuple(each for each in cell.soaks if each.has_missed)
        doubts.append(SoakMissed(label, missed, cell.held, cell.rate if cell.is_soaked_below else None))
    if soak and soak.drift is not None and abs(soak.drift) > DRIFT:
        doubts.append(LatencyDrifted(label, soak.drift, soak.rate))
    of_turns = [window for turn in load.turns for window in turn.windows]
    if of_turns and load.scenario.spec.sends_at_rate:
        seconds = float(np.median([window.seconds for window in of_turns]))
        requests = float(np.median([window.requests for window in of_turns]))
        if seconds < LONG_WINDOW_S and requests < LONG_WINDOW_REQUESTS:
            doubts.append(ShortWindows(label, seconds))
    windows = [*load.soak, *load.lower_soak, *of_turns]
    if failed := sum(window.failed for window in windows):
        example = next((window.failure for window in windows if window.failure), "")
        doubts.append(RequestsFailed(label, failed, sum(window.requests for window in windows), example))
    return doubts
