"""Fits one latency to each cell of a contest. Every latency, ratio and rank that an output shows comes from this fit.

Two cells that were alive together give one log ratio for each epoch: the median over the rounds that they shared.
Logarithmic least squares finds the effects that agree best with all of them (Crawford and Williams, A note on the
analysis of subjective judgment matrices, Journal of Mathematical Psychology 29, 1985). A pair counts by the inverse of
its variance over rounds, and the epochs count the same, since processes differ more than rounds: least squares again,
over cells and epochs. Drift divides out, and cells need not have lived in the same epochs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from bakeoff.judging.disturbance import COLD_REACH
from bakeoff.judging.estimate import (
    FEWEST_ROUNDS,
    LEAST_ERROR,
    Series,
    Turn,
    Turns,
    are_enough,
    medians_and_errors,
    most_reach,
    series_of,
    shared_logs,
    slower_by_pages,
    used_rounds,
)
from bakeoff.judging.intervals import (
    around,
    median_interval,
    percentile,
    student_half_width,
    student_quantile,
    welch_half_width,
)
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import MOST_WAITING, Burst, Cell, Interval, Latency, Ratio, Record, Report, Status
from bakeoff.records.text import SIGNIFICANT_DIGITS

Array = np.ndarray[Any, np.dtype[np.float64]]

FEWEST_UNPAIRED = 3
"""Without common rounds, fewer values on either side say too little about their spread."""

STEADY_LEVEL = 0.2
"""A cell's own level counts if its error is at most this, as a logarithm. On a quiet machine it is, from six rounds on.
"""

PROCESS_DEVIATION = 0.04
"""The usual standard deviation of equal processes, as logarithms. Two identical ones can differ by 4 % for as long as
they live."""

MOST_DISTURBED_WHEN_QUIET = 0.1
"""A machine is quiet if other programs, waiting or clocks disturbed at most this share of the rounds."""


@dataclass(frozen=True)
class Fit:
    """The fitted latency of each cell, and the ratio of any two of them. Latencies have as many digits as outputs
    print, so that a printed ratio is the ratio of two printed latencies."""

    latency_ms: Mapping[str, float]
    series: Mapping[str, Series]  # that it was made from
    _epochs: Sequence[_Effects]

    def latency_ci95_ms(self, label: str) -> Interval | None:
        """Return the interval of a cell's latency over its processes, or over the rounds of a single one. It contains
        what calls may take without waiting."""
        ends = self.ends_as_measured(label)
        if ends is None or not (reach := self.reach(label)):
            return ends
        # without waiting, a call takes no less than the quickest call took
        quickest_ms = min(turn.quickest_ms for turn in _turns(self.series[label]))
        return Interval(low=min(ends.low, max(quickest_ms, ends.low * math.exp(-reach))), high=ends.high)

    def reach(self, label: str) -> float:
        """Return the logarithm of how many times shorter the cell's latency may be without waiting for cores."""
        medians = [np.median([turn.reach for turn in turns.values()]) for turns in self.series[label].values()]
        return float(np.mean(medians))

    def ends_as_measured(self, label: str) -> Interval | None:
        """Return the interval of a cell's latency without what waiting for cores may have done."""
        levels = self.process_logs[label]
        if len(levels) > 1:
            rounds = [_logs(turns) for turns in self.series[label].values()]
            half = _half_width(levels, rounds, self._disturbed_share(label), PROCESS_DEVIATION)
            return around(self.latency_ms[label], half)
        (turns,), (level,) = self.series[label].values(), levels
        interval = _moved(median_interval(_logs(turns)), level, self.latency_ms[label])
        interval = self._at_least_as_wide_as_processes(interval, self.latency_ms[label], self.process_logs.values())
        # the fit may have moved the latency, because of what other cells say of the machine's drift
        own_ms = math.exp(level)
        return interval and Interval(low=min(interval.low, own_ms), high=max(interval.high, own_ms))

    def factor_of_other_processes(self, label: str) -> float:
        """Return how many times longer or shorter a cell of one process may take, as far as other cells' differ."""
        half = _half_width_of_one(self.process_logs.values()) if len(self.process_logs[label]) == 1 else None
        return math.exp(half or 0.0)

    def ratio(self, fast: str, slow: str) -> Ratio:
        """Return how many times faster one cell is than another, with its 95 % interval.

        The interval is Student's t over the epochs that both lived in, and `processes` is their number. Two epochs say
        too little of how much processes differ, so that their variance is moderated by a usual one (Smyth, Statistical
        Applications in Genetics and Molecular Biology 3, 2004). The interval of two epochs, or of a busy machine, is at
        least as wide as their rounds have it. With a single epoch it is that of the rounds, from order statistics. Two
        cells that shared none are compared through a third, and the widths of both intervals add up.
        The interval of a single epoch is at least as wide as one process of each would have it,
        where other cells show how much processes differ; only then do four or five rounds have one, by Student's t.
        If no epoch connects the two, their processes are compared by Welch's t, and `paired` is False: such a ratio
        contains the machine's drift. Raises KeyError for a cell without samples.

        Every interval contains what waiting for cores may have done. Where that is too much, there is none, and the
        value is that of calls that did not wait.
        """
        ratio = self._ratio(fast, slow)
        slower = slow if ratio.value >= 1 else fast
        ratio = ratio.model_copy(update={"by_pages": slower_by_pages(self.series[slower])})
        if fast == slow:  # what processes differ by is no part of it
            return ratio.model_copy(update={"ci95": ratio.ci95 and Interval(low=ratio.value, high=ratio.value)})
        to_slow, to_fast = self._reaches(slow, fast)
        if not to_slow + to_fast:
            has_waited = any(turn.reach for label in (slow, fast) for turn in _turns(self.series[label]))
            return ratio.model_copy(update={"is_rough": has_waited and ratio.ci95 is None})
        ends, waiting = ratio.ci95, math.exp(to_slow + to_fast)
        if waiting > MOST_WAITING:
            # The ratio of calls without waiting, in whatever rounds.
            levels = [
                [
                    math.log(turn.ms)
                    for turns in self.series[label].values()
                    for turn in turns.values()
                    if turn.reach <= COLD_REACH
                ]
                for label in (slow, fast)
            ]
            value = math.exp(float(np.median(levels[0]) - np.median(levels[1]))) if all(levels) else None
            changes: dict[str, Any] = {"value": value or ratio.value, "ci95": None, "is_rough": value is not None}
        else:
            wider = ends and Interval(low=ends.low * math.exp(-to_slow), high=ends.high * math.exp(to_fast))
            changes = {"ci95": wider}
        return ratio.model_copy(update={**changes, "waiting": waiting})

    def _reaches(self, slow: str, fast: str) -> tuple[float, float]:
        """Return the logarithms of how many times shorter either cell's calls may be without waiting for cores."""
        reaches = [
            [float(np.median([turns[key].reach for key in rounds])) for turns in (ours, theirs)]
            for ours, theirs, rounds in self._used_rounds(slow, fast)
        ]
        if not reaches:
            reaches = [[self.reach(slow), self.reach(fast)]]
        to_slow, to_fast = np.mean(reaches, axis=0).tolist()
        return to_slow, to_fast

    def has_waited_too_long(self, label: str) -> bool:
        """Return True if waiting for cores may have changed each of the cell's ratios by over a factor of two."""
        others = self.series.keys() - {label}
        return bool(others) and all(sum(self._reaches(label, other)) > math.log(MOST_WAITING) for other in others)

    def _used_rounds(self, one: str, other: str) -> Iterator[tuple[Turns, Turns, Sequence[tuple[int, int]]]]:
        """Yield the turns of both cells in each process that they shared rounds in, and the rounds that count."""
        ours, theirs = self.series[one], self.series[other]
        for process in sorted(ours.keys() & theirs.keys()):
            if rounds := used_rounds(ours[process], theirs[process]):
                yield ours[process], theirs[process], rounds

    def _ratio(self, fast: str, slow: str) -> Ratio:
        value = self.latency_ms[slow] / self.latency_ms[fast]
        logs = self.epoch_logs(slow, fast)
        if not logs:
            return self._unpaired(value, fast, slow)
        if len(logs) > 1:
            rounds, disturbed = self._rounds_of_processes(fast, slow), self._disturbed_share(fast, slow)
            half = _half_width(logs, rounds, disturbed, math.sqrt(2) * PROCESS_DEVIATION)
            return Ratio(value=value, ci95=around(value, half), paired=True, processes=len(logs))
        interval = _moved(self._interval_of_rounds(fast, slow), 0.0, value)
        interval = self._at_least_as_wide_as_processes(interval, value, self._logs_of_pairs)
        return Ratio(value=value, ci95=interval, paired=True)

    @cached_property
    def process_logs(self) -> Mapping[str, Sequence[float]]:
        return {
            label: [float(np.median(_logs(turns))) for turns in series.values()]
            for label, series in self.series.items()
        }

    def epoch_logs(self, slow: str, fast: str) -> list[float]:
        return [epoch.log(slow, fast) for epoch in self._epochs if epoch.connects(slow, fast)]

    def round_logs(self, slow: str, fast: str) -> list[float]:
        return [log for logs in self._rounds_of_processes(fast, slow) for log in logs]

    def _rounds_of_processes(self, fast: str, slow: str) -> list[list[float]]:
        ours, theirs = self.series[fast], self.series[slow]
        return [shared_logs(ours[process], theirs[process]) for process in sorted(ours.keys() & theirs.keys())]

    def _disturbed_share(self, *labels: str) -> float:
        disturbed = [
            turn.disturbed for label in labels for turns in self.series[label].values() for turn in turns.values()
        ]
        return float(np.mean(disturbed))

    def _interval_of_rounds(self, fast: str, slow: str) -> Interval | None:
        """Return how far the logarithm of slow / fast may be off to either side, by the rounds of a single process."""
        if self.round_logs(slow, fast):
            return self._around_its_median(self.round_logs(slow, fast))
        rounds = []
        for third in self.latency_ms:
            sides = [self._around_its_median(self.round_logs(*pair)) for pair in ((slow, third), (third, fast))]
            if sides[0] and sides[1]:
                rounds.append(Interval(low=sides[0].low + sides[1].low, high=sides[0].high + sides[1].high))
        return min(rounds, key=lambda interval: interval.high - interval.low, default=None)

    def _around_its_median(self, logs: Sequence[float]) -> Interval | None:
        """Return the interval of the median as distances from it, or None for too few values. Order statistics need
        six. Four or five have Student's t where it is known by how much processes differ."""
        if (interval := median_interval(logs)) is not None:
            middle = float(np.median(logs))
            return Interval(low=interval.low - middle, high=interval.high - middle)
        if len(logs) < FEWEST_ROUNDS or all(len(group) < 2 for group in self._logs_of_pairs):
            return None
        half = student_half_width(logs)
        return None if half is None else Interval(low=-half, high=half)

    @cached_property
    def _logs_of_pairs(self) -> Sequence[Sequence[float]]:
        return [self.epoch_logs(*pair) for pair in itertools.combinations(self.latency_ms, 2)]

    def _unpaired(self, value: float, fast: str, slow: str) -> Ratio:
        sides = self.process_logs[fast], self.process_logs[slow]
        processes = min(map(len, sides))
        if processes == 1:
            sides = _all_logs(self.series[fast]), _all_logs(self.series[slow])
        half = welch_half_width(*sides) if min(map(len, sides)) >= FEWEST_UNPAIRED else None
        return Ratio(value=value, ci95=around(value, half), paired=False, processes=processes)

    def _at_least_as_wide_as_processes(
        self, interval: Interval | None, value: float, groups: Iterable[Sequence[float]]
    ) -> Interval | None:
        """Widen the interval of a single process by what processes differ in, which its rounds cannot show. `groups`
        hold logarithms, one for each process, whose mean variance stands for the unknown one."""
        half = _half_width_of_one(groups)
        if interval is None or half is None:
            return interval
        return Interval(low=min(interval.low, value * math.exp(-half)), high=max(interval.high, value * math.exp(half)))


def _half_width_of_one(groups: Iterable[Sequence[float]]) -> float | None:
    """Return how far a single process may be off, by the mean variance of groups of logarithms; None without any."""
    repeated = [group for group in groups if len(group) > 1]
    if not repeated:
        return None
    deviation = math.sqrt(float(np.mean([np.var(group, ddof=1) for group in repeated])))
    return student_quantile(0.95, max(map(len, repeated)) - 1) * deviation


def _half_width(
    logs: Sequence[float], rounds: Sequence[Sequence[float]], disturbed: float, usual_deviation: float
) -> float | None:
    """Return half the width of Student's t-interval over processes, each with the logarithms of its rounds. `disturbed`
    is the share of rounds that something disturbed. `usual_deviation` counts as one degree of freedom beside two."""
    half, count = student_half_width(logs), len(logs)
    if count == 2:
        variance = (float(np.var(logs, ddof=1)) + usual_deviation**2) / 2
        half = student_quantile(0.95, 2) * math.sqrt(variance / count)
    if half is None or len(rounds) != count or min(map(len, rounds)) < 2:
        return half
    if count > 2 and disturbed <= MOST_DISTURBED_WHEN_QUIET:
        return half
    errors = [float(medians_and_errors(np.array([logs_of_rounds]))[1][0]) for logs_of_rounds in rounds]
    degrees = sum(map(len, rounds)) - count
    # processes may agree by chance, so the interval is at least as wide as their rounds have it
    return max(half, student_quantile(0.95, degrees) * math.hypot(*errors) / count)


@dataclass(frozen=True)
class _Effects:
    """The log latencies of some cells, up to a summand that all connected cells share. Their mean is 0."""

    by_label: Mapping[str, float]
    components: Mapping[str, int]  # cells of one component are connected by shared rounds, maybe through others

    def connects(self, one: str, other: str) -> bool:
        return one in self.components and self.components[one] == self.components.get(other)

    def log(self, slow: str, fast: str) -> float:
        return self.by_label[slow] - self.by_label[fast]


def fit(cells: Mapping[str, Series]) -> Fit:
    """Fit the cells of one contest, given by label. A cell without samples is left out."""
    sampled = {label: cells[label] for label in sorted(cells) if cells[label]}  # the order of records does not count
    processes = sorted({process for series in sampled.values() for process in series})
    epochs = [_effects_of_epoch(sampled, process) for process in processes]
    overall = _mean_effects(list(sampled), epochs)
    shifts: dict[int, list[tuple[float, float]]] = {}
    for label, series in sampled.items():
        level = float(np.mean([np.median(_logs(turns)) for turns in series.values()]))
        # a cell that waited for cores says little of the level, and would lift or lower all others
        shift = level - overall.by_label[label], _error_of_level(series)
        shifts.setdefault(overall.components[label], []).append(shift)
    latency_ms = {
        label: rounded_ms(math.exp(effect + _shared_shift(shifts[overall.components[label]])))
        for label, effect in overall.by_label.items()
    }
    by_ratios = Fit(latency_ms, sampled, epochs)
    # ratios that waiting made say nothing of a latency: it would lie below the quickest call, or far above all of them
    waited = [label for label in sampled if by_ratios.has_waited_too_long(label)]
    own_ms = {label: rounded_ms(math.exp(float(np.mean(by_ratios.process_logs[label])))) for label in waited}
    return Fit(latency_ms | own_ms, sampled, epochs)


def _error_of_level(series: Series) -> float:
    """Return how far the logarithm of a cell's latency may be off by itself: by its rounds, and by what it waited."""
    intervals = [median_interval(_logs(turns)) for turns in series.values()]
    errors = [(interval.high - interval.low) / 4 if interval else math.inf for interval in intervals]
    reaches = [float(np.median([turn.reach for turn in turns.values()])) for turns in series.values()]
    return math.hypot(*errors) / len(errors) + float(np.mean(reaches))


def _shared_shift(shifts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of the shifts whose errors are small, or not much larger than the smallest one."""
    most = max(STEADY_LEVEL, 2 * min(error for _, error in shifts))
    return float(np.mean([shift for shift, error in shifts if error <= most]))


def fit_records(records: Iterable[Record]) -> Fit:
    return fit({record.cell.label: series_of(record.bursts) for record in records})


def fitted(records: Sequence[Record], fit_of_records: Fit | None = None) -> list[Record]:
    """Return the records of one contest with their fitted latencies, and the share of the roofline that follows.
    Records without samples stay as they are, and fitting twice changes nothing."""
    fit_of_records = fit_of_records or fit_records(records)
    with_latency = [_with_latency(record, fit_of_records) for record in records]
    # a floor that a right cell has beaten is no floor, so no cell of that precision has a share of it
    beaten = {record.cell.precision for record in with_latency if _beats_floor(record)}
    return [_without_share(record) if record.cell.precision in beaten else record for record in with_latency]


def fitted_report(report: Report) -> Report:
    by_id = {record.cell.id: record for records in by_contest(report.records).values() for record in fitted(records)}
    return report.model_copy(update={"records": [by_id[record.cell.id] for record in report.records]})


class OfCell(Protocol):
    @property
    def cell(self) -> Cell: ...


One = TypeVar("One", bound=OfCell)


def by_contest(ones: Iterable[One]) -> dict[str, list[One]]:
    """Return records, or what else is of one cell, by the id of their contest, in the order given."""
    return grouped(ones, lambda one: one.cell.contest_id)


def summarise(bursts: Sequence[Burst]) -> Latency | None:
    """Return the summary of a cell that stands alone, or None without a sample."""
    series = series_of(bursts)
    if not series:
        return None
    alone = fit({"": series})
    calls_ms = np.concatenate([np.asarray(burst.samples_ns, dtype=np.float64) for burst in bursts]) / 1e6
    medians_ms = [float(np.median([turn.ms for turn in turns.values()])) for turns in series.values()]
    return Latency(
        calls=len(calls_ms),
        median_ms=alone.latency_ms[""],
        median_ci95_ms=alone.latency_ci95_ms(""),
        mean_ms=float(calls_ms.mean()),
        std_ms=float(calls_ms.std(ddof=1)) if len(calls_ms) > 1 else 0.0,
        min_ms=float(calls_ms.min()),
        p90_ms=percentile(calls_ms, 0.90),
        p95_ms=percentile(calls_ms, 0.95),
        p99_ms=percentile(calls_ms, 0.99),
        p999_ms=percentile(calls_ms, 0.999),
        processes=len(medians_ms),
        process_spread=max(medians_ms) / min(medians_ms) - 1 if len(medians_ms) > 1 else None,
    )


def speedup(fast: Sequence[Burst], slow: Sequence[Burst]) -> Ratio:
    """Return how many times faster one cell is than another, by these two alone. Raises ValueError if one is empty."""
    fitted = fit({"fast": series_of(fast), "slow": series_of(slow)})
    if len(fitted.latency_ms) < 2:
        raise ValueError("a ratio needs at least one burst on either side")
    return fitted.ratio("fast", "slow")


def _beats_floor(record: Record) -> bool:
    """Return True if a right cell, which does all of the model's work, took less time than the floor."""
    roofline, latency, placement = record.roofline, record.latency, record.placement
    if record.status is not Status.OK or roofline is None or latency is None:
        return False
    if placement is not None and placement.frozen_choices:
        return False
    interval = latency.median_ci95_ms
    return roofline.floor_ms > max(latency.median_ms, interval.high if interval else 0.0) * (1 + LEAST_ERROR)


def _without_share(record: Record) -> Record:
    if record.roofline is None:
        return record
    return record.model_copy(update={"roofline": record.roofline.model_copy(update={"share": None, "is_beaten": True})})


def _with_latency(record: Record, fit: Fit) -> Record:
    label = record.cell.label
    if record.latency is None or label not in fit.latency_ms:
        return record
    before_ms, median_ms = record.latency.median_ms, fit.latency_ms[label]
    latency = {"median_ms": median_ms, "median_ci95_ms": fit.latency_ci95_ms(label)}
    changes: dict[str, Any] = {"latency": record.latency.model_copy(update=latency)}
    if record.roofline and record.roofline.share is not None:
        changes["roofline"] = record.roofline.model_copy(
            update={"share": record.roofline.share * before_ms / median_ms}
        )
    return record.model_copy(update=changes)


def _effects_of_epoch(cells: Mapping[str, Series], process: int) -> _Effects:
    """Fit the processes of one epoch: weighted least squares over the median of each pair of cells."""
    present = {label: series[process] for label, series in cells.items() if process in series}
    medians, errors = _pairs(list(present.values()))
    weights = np.nan_to_num((LEAST_ERROR / np.maximum(errors, LEAST_ERROR)) ** 2)
    normal = np.diag(weights.sum(axis=1)) - weights
    return _solve(list(present), normal, (weights * np.nan_to_num(medians)).sum(axis=1))


def _mean_effects(labels: Sequence[str], epochs: Sequence[_Effects]) -> _Effects:
    """Combine the epochs: least squares over cells and epochs. It is the mean if every cell lived in all of them."""
    places = {label: place for place, label in enumerate(labels)}
    normal, right = np.zeros((len(labels), len(labels))), np.zeros(len(labels))
    for epoch in epochs:
        for component in set(epoch.components.values()):
            those = [label for label, its in epoch.components.items() if its == component]
            at = [places[label] for label in those]
            normal[np.ix_(at, at)] += np.eye(len(at)) - 1 / len(at)
            right[at] += [epoch.by_label[label] for label in those]
    return _solve(labels, normal, right)


def _solve(labels: Sequence[str], normal: Array, right: Array) -> _Effects:
    """Solve the normal equations of differences. Cells without an equation in common are of different components."""
    component, before = np.arange(len(labels)), None
    while before is None or (component != before).any():
        before, component = component, np.minimum(component, _lowest(component, among=normal != 0))
    # differences do not determine the sum of a component's effects: one more equation for each makes it 0
    together = (component[:, None] == component).astype(float)
    solved = np.linalg.solve(normal + together, right)
    return _Effects(dict(zip(labels, solved.tolist(), strict=True)), dict(zip(labels, component.tolist(), strict=True)))


def _lowest(values: Any, among: Any) -> Any:
    """Return for each row of `among` the lowest of the values in its columns, or their number where there is none."""
    return np.where(among, values, len(values)).min(axis=1, initial=len(values))


def _pairs(cells: Sequence[Mapping[tuple[int, int], Turn]]) -> tuple[Array, Array]:
    """Return the median of row / column over shared rounds, as logarithms, and its standard error, for each two cells.
    Rounds count as in `used_rounds`. NaN stands for two cells that share no round."""
    rounds = {key: place for place, key in enumerate(sorted({key for turns in cells for key in turns}))}
    logs = np.full((len(cells), len(rounds)), np.nan)
    reach = np.full(logs.shape, np.nan)
    calm = np.zeros(logs.shape, dtype=bool)
    for row, turns in enumerate(cells):
        for key, turn in turns.items():
            logs[row, rounds[key]] = math.log(turn.ms)
            calm[row, rounds[key]], reach[row, rounds[key]] = not turn.disturbed, turn.reach
    medians, errors = np.full((2, len(cells), len(cells)), np.nan)
    for row in range(len(cells) - 1):
        others = slice(row + 1, None)
        ratios = logs[row] - logs[others]
        shared = ~np.isnan(ratios)
        both_calm = shared & calm[row] & calm[others]
        enough = are_enough(both_calm.sum(axis=1), shared.sum(axis=1))
        both_reach = reach[row] + reach[others]
        used = np.where(enough[:, None], both_calm, both_reach <= most_reach(both_reach)[:, None])
        median, error = medians_and_errors(np.where(used, ratios, np.nan))
        medians[row, others], errors[row, others] = median, error
        medians[others, row], errors[others, row] = -median, error
    return medians, errors


def _moved(interval: Interval | None, log_middle: float, value: float) -> Interval | None:
    """Return an interval of logarithms around `log_middle` as one around `value`."""
    if interval is None:
        return None
    return Interval(low=value * math.exp(interval.low - log_middle), high=value * math.exp(interval.high - log_middle))


def _logs(turns: Mapping[Any, Turn]) -> list[float]:
    return [math.log(turn.ms) for turn in turns.values()]


def _turns(series: Series) -> Iterator[Turn]:
    return itertools.chain.from_iterable(turns.values() for turns in series.values())


def _all_logs(series: Series) -> list[float]:
    return [log for turns in series.values() for log in _logs(turns)]


def rounded_ms(value_ms: float) -> float:
    return float(f"{value_ms:.{SIGNIFICANT_DIGITS}g}")
