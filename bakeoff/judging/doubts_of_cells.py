"""The doubts about single cells: how they were checked and evaluated, and how their numbers vary."""

import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Self

import numpy as np

from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.doubt import Doubt, FirstPlace, OfCandidates, OfCell, OfCells, OfValues, Stop
from bakeoff.judging.estimate import PAGE_FAULT_NS
from bakeoff.judging.metric_changes import is_reference, judge_metrics
from bakeoff.judging.ranking import Evidence
from bakeoff.records.doubts import DecidedByRounding, Effect
from bakeoff.records.precision import Precision
from bakeoff.records.schema import MOST_OF_LATENCY_RATE, SETTLE, Accuracy, Extent, Interval, Ratio, Record
from bakeoff.records.text import (
    counted,
    is_unknown,
    listed,
    percent,
    spell_interval,
    spell_ms,
    spell_ratio,
    spell_times,
    to_go_on,
)


class NotEvaluated(OfCandidates):
    """The user's own function gave no metrics of these cells."""

    reason: str
    of_reference: bool  # it failed for the reference, so that no build was evaluated
    brief = "its metrics are not known"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Yield one doubt for all cells that share the reason."""
        failed: dict[tuple[str, bool], list[str]] = {}
        for records, of_reference in ((evidence.ranking.ranked, False), (evidence.ranking.measured, True)):
            for record in records:
                metrics = record.reference_metrics if of_reference else record.metrics
                if metrics is not None and metrics.failure is not None:
                    failed.setdefault((metrics.failure.sentence, of_reference), []).append(record.cell.label)
        for (reason, of_reference), labels in failed.items():
            yield cls(tuple(labels), reason, of_reference)

    def say(self) -> str:
        if self.of_reference:
            return f"nothing was evaluated: evaluate failed for the float32 reference: {self.reason}"
        return f"{listed(self.labels)} could not be evaluated: {self.reason}"


class WithoutInterval(Doubt):
    """These required metrics are plain numbers, and chance may be in them."""

    quantities: tuple[str, ...]
    worst = Effect.NONE

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if evidence.ranking.plain_metrics:
            yield cls(evidence.ranking.plain_metrics)

    def say(self) -> str:
        return (
            f"{listed(self.quantities)}: evaluate returns a plain number, which has no interval, so that a "
            "difference may be chance. Let it return the score of each sample"
        )


class EvaluationVaries(OfCell):
    """The user's own function says something else of this cell than of the reference, though they are the same."""

    metric: str
    value: float
    reference: float
    worst = Effect.NONE

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        for record in filter(is_reference, evidence.ranking.measured):
            for name, metric in judge_metrics(record).items():
                if metric.varies:
                    yield cls(record.cell.label, name, metric.value, metric.reference)

    def say(self) -> str:
        return (
            f"evaluate is not repeatable: {self.label} is the reference itself, and its {self.metric} is "
            f"{self.value:.4g} here and {self.reference:.4g} there. Let it use the same samples in "
            "each call"
        )


class JudgedByCalibration(OfCandidates):
    """The user's own function judges these cells by samples that they are calibrated with."""

    samples: int
    judged: int
    brief = "it is judged by its calibration data"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        ranked = evidence.ranking.ranked
        int8 = [record for record in ranked if record.cell.precision is Precision.INT8 and record.metrics]
        if int8 and (reference := int8[0].reference_metrics) and reference.calibrating:
            yield cls(tuple(record.cell.label for record in int8), reference.calibrating, reference.judged)

    def say(self) -> str:
        return (
            f"{listed(self.labels)}: {self.samples:,} of the {self.judged:,} samples that evaluate judges are "
            "calibration data, so that the metric may look better than it is. Let calibrate return others"
        )


COARSE_ERROR = 10**-0.5
"""An error of this share of the outputs (10 dB) passes only where eager's is of that size. Zeros have an error of 1."""


def is_coarse(check: Accuracy) -> bool:
    """Return True if a large error passes only because eager's is as large."""
    return check.passed and not check.unchecked and not check.allclose and check.relative_rmse > COARSE_ERROR


class CoarseCheck(OfCells):
    """Eager itself is so far from the reference that the check of these cells rejects little."""

    error: float  # the largest one, relative to the outputs

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Yield one doubt about all cells whose check would hardly have found a fault, unless another one says so."""
        errors = {
            record.cell.label: record.accuracy.relative_rmse
            for record in evidence.ranking.ranked
            if record.accuracy and is_coarse(record.accuracy)
            if not any(isinstance(doubt, DecidedByRounding) for doubt in record.doubts)
        }
        if errors:
            yield cls(tuple(errors), max(errors.values()))

    def say(self) -> str:
        return (
            f"{', '.join(self.labels)}: the error is up to {100 * self.error:.0f} % of the outputs and passes, because "
            "eager's is as large: this check finds only gross faults. Random weights often do this: check trained ones"
        )


class SettledLate(OfCell):
    """A build was final only after many calls."""

    calls: int
    seconds: float
    worst = Effect.NONE

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        for record in evidence.ranking.ranked:
            for phase in record.phases:
                if phase.name == SETTLE and phase.calls:
                    yield cls(record.cell.label, phase.calls, phase.seconds)

    def say(self) -> str:
        return (
            f"{self.label}: this build was final only after {counted(self.calls, 'call')} ({self.seconds:.1f} s). They "
            "count as part of building it"
        )


FALLBACKS_NAMED = 5


class PartlyElsewhere(OfCell):
    """Part of a cell's work ran elsewhere than it was asked to."""

    extent: Extent
    elsewhere: tuple[str, ...]  # what ran elsewhere, or why; empty: the library does not say
    engines: tuple[str, ...] = ()  # that took it all, where the library says no more

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        return filter(None, map(cls.of, evidence.ranking.ranked))

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Return a doubt if all or part of the cell ran elsewhere than it was asked to."""
        placement = record.placement
        if placement is None or placement.extent is Extent.FULL:
            return None
        if placement.frozen_choices and not placement.fallbacks:
            return None  # all of it ran where it was asked to, and `FrozenChoices` says what it lacks
        elsewhere = tuple(placement.fallbacks[:FALLBACKS_NAMED])
        engines = () if elsewhere else tuple(name for name, count in placement.engines.items() if count)
        return cls(record.cell.label, placement.extent, elsewhere, engines)

    def say(self) -> str:
        # a library's reason becomes a part of a sentence, so that it loses its full stop
        elsewhere = ", ".join(reason.rstrip(". ") for reason in self.elsewhere)
        if self.extent is Extent.FALLBACK:
            did_it = f"{', '.join(self.engines)} did the work" if self.engines else elsewhere
            where = f": {did_it}" if did_it else ""
            return f"{self.label} did not run where it was asked to (fallback){where}. With --strict it is not ranked"
        where = elsewhere or ", ".join(self.engines) or "the library does not say what ran elsewhere"
        return (
            f"{self.label} ran only in part where it was asked to ({self.extent}): {where}. Its latency is that of "
            "both parts; with --strict it is not ranked"
        )


MIN_SPREAD = 0.05
"""A smaller difference is ignored. Some processes come in two kinds, 4 % apart, and chance may sort a few by build."""

MAX_CHANCE = 0.01
"""Builds differ if processes alone would spread them so far with at most this probability."""


class BuildSpread(OfValues):
    """Builds of these cells differ by more than processes of one build do: slowest build / fastest build - 1."""

    brief = "other builds may differ"

    @classmethod
    def find(cls, evidence: Evidence) -> list[Self]:
        spreads = {record.cell.label: spread_of_builds(record) for record in evidence.ranking.ranked}
        return cls.of({label: spread for label, spread in spreads.items() if spread is not None})

    def effect(self, first: FirstPlace) -> Effect:
        spread = {label: 1 + self.values.get(label, 0.0) for label in (first.labels[0], *first.leads)}
        if any(lead.value < spread[first.labels[0]] * spread[other] for other, lead in first.leads.items()):
            return Effect.WINNER
        return super().effect(first)

    def say(self) -> str:
        return (
            f"builds of the same cell differ, the slowest from the fastest by: {percentages(self.values)}. That is "
            "more than processes of one build do, so the interval holds for these builds only: raise --builds"
        )


def spread_of_builds(record: Record) -> float | None:
    """Return slowest over fastest build - 1 if that is more than processes of one build explain, else None. Source:
    Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013."""
    logs: dict[int, list[float]] = {}
    for process in record.processes:
        if process.median_ms is not None:
            logs.setdefault(process.build, []).append(math.log(process.median_ms))
    # a build is the geometric mean of its processes; at least one build needs two of them
    means = [float(np.mean(of_build)) for of_build in logs.values()]
    spread = math.exp(max(means) - min(means)) - 1 if means else 0.0
    return spread if spread >= MIN_SPREAD and _chance(list(logs.values())) <= MAX_CHANCE else None


def _chance(builds: Sequence[Sequence[float]]) -> float:
    if len(builds) < 2 or all(len(build) < 2 for build in builds):
        return 1.0
    # scipy.stats takes half a second to import, and few cells have several builds
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        return float(stats.f_oneway(*builds).pvalue)


def percentages(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {percent(share)}" for label, share in shares.items())


MAX_PROCESS_SPREAD = 0.05
"""If equal processes of a cell are further apart than this, that is a doubt."""


class ProcessSpread(OfValues):
    """Equal processes of these cells differ: slowest process / fastest process - 1. `widened` are cells of one process
    whose intervals are wide by this alone: how many times to either side."""

    widened: Mapping[str, float] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[str, ...]:
        return (*self.values, *self.widened)

    @classmethod
    def find(cls, evidence: Evidence) -> list[Self]:
        spreads = {
            record.cell.label: spread
            for record in evidence.ranking.ranked
            if record.latency and (spread := record.latency.process_spread or 0.0) > MAX_PROCESS_SPREAD
        }
        fit = evidence.ranking.fit
        factors = {label: fit.factor_of_other_processes(label) for label in evidence.ranking.labels}
        widened = {label: factor for label, factor in factors.items() if factor**2 > MAX_INTERVAL_RATIO}
        return [cls(spreads, widened)] if spreads else []

    def say(self) -> str:
        said = (
            f"processes of the same cell differ, the slowest from the fastest by: {percentages(self.values)}. The "
            "intervals contain this, and more --processes narrow them"
        )
        if not self.widened:
            return said
        factor = spell_times(max(self.widened.values()))
        return (
            f"{said}. Of {listed(list(self.widened))} a single process ran, which may be as far off: the latency's "
            f"interval reaches to {factor} times as long and as short"
        )


MAX_INTERVAL_RATIO = 2.0
"""If the ends of a latency's interval are further apart than this, it is known only roughly."""

QUIET = "Stop what else runs, or let the run wait: --wait-for-quiet 10m"


class RoughLatency(Doubt):
    """The intervals of these cells' latencies are so wide that they say little."""

    intervals: Mapping[str, Interval]  # in milliseconds, by label
    below_floor: tuple[str, ...] = ()  # the labels whose interval reaches below the shortest time of a call
    by_waiting: tuple[str, ...] = ()  # the labels whose interval is wide by what threads waited for cores alone
    has_ratios: bool = True  # to other cells, from rounds that they shared
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(self.intervals)

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Yield one doubt about all cells whose latency has a wide interval. Their ratios may have narrow ones."""
        leads = evidence.first.leads
        busy = {label for label, lead in leads.items() if lead.is_of_busy_machine}
        busy |= {evidence.ranking.labels[0]} if busy else set()
        records = {record.cell.label: record for record in evidence.ranking.ranked if record.cell.label not in busy}
        wide = {
            label: interval
            for label, record in records.items()
            if record.latency and (interval := record.latency.median_ci95_ms)
            if _is_wide(interval)
        }
        below_floor = tuple(
            label
            for label, interval in wide.items()
            if (roofline := records[label].roofline) and not roofline.is_beaten and interval.low < roofline.floor_ms
        )
        fit = evidence.ranking.fit
        by_waiting = tuple(
            label for label in wide if (ends := fit.ends_as_measured(label)) and not _is_wide(ends) and fit.reach(label)
        )
        has_ratios = bool(leads) and all(lead.paired for lead in leads.values())
        if wide:
            yield cls(wide, below_floor, by_waiting, has_ratios, evidence.stop, evidence.is_live)

    def say(self) -> str:
        ranges = [
            f"{label} [unknown]"
            if is_unknown(ends.low, ends.high, spell_ms)
            else f"{label} {spell_interval(ends.low, ends.high, lambda ms: spell_ms(ms).removesuffix(' ms'))} ms"
            f"{', which begins below the floor' if label in self.below_floor else ''}"
            for label, ends in self.intervals.items()
        ]
        ratios = " Ratios are taken within rounds and have intervals of their own." if self.has_ratios else ""
        others = [label for label in self.intervals if label not in self.by_waiting]
        more = to_go_on(self.is_live) if self.stop is Stop.INTERRUPTED else "Raise --processes"
        reasons = [
            (self.by_waiting, "threads waited for cores, and without that calls may take so much less", QUIET),
            (others, "processes or rounds differ too much, or are too few", more),
        ]
        causes = [f"{listed(labels)}: {why}" for labels, why, _ in reasons if labels]
        todo = ". ".join(what for labels, _, what in reasons if labels)
        return f"the latency is known only roughly: {'; '.join(ranges)}. For {'; for '.join(causes)}.{ratios} {todo}"


class RoughLead(Doubt):
    """A winner is sure, but not by how much, though no latency is known so roughly."""

    best: str
    other: str
    lead: Ratio

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        best, lead = evidence.ranking.answer.leader, next(iter(evidence.first.leads.items()), None)
        if best and lead and lead[1].ci95 and _is_wide(lead[1].ci95) and not any(RoughLatency.find(evidence)):
            yield cls(best, *lead)

    def say(self) -> str:
        ends = self.lead.ci95
        assert ends is not None
        what = "the rounds of one process" if self.lead.processes == 1 else f"{self.lead.processes} processes of each"
        return (
            f"how many times faster {self.best} is than {self.other} is known only roughly ({spell_ratio(ends.low)} to "
            f"{spell_ratio(ends.high)}): {what} differ too much, or are too few. Raise --processes"
        )


def _is_wide(interval: Interval) -> bool:
    return interval.high > MAX_INTERVAL_RATIO * interval.low


class ThroughputContradicted(OfValues):
    """Calls back to back took far longer than single ones: the share of the rate that the latency allows."""

    @classmethod
    def find(cls, evidence: Evidence) -> list[Self]:
        return cls.of(_throughput_ratios(evidence.ranking.ranked, are_doubtful=True))

    def say(self) -> str:
        return (
            f"the throughput is only a part of what the latency allows ({percentages(self.values)}), also when "
            "measured again: other load took the machine meanwhile. Measure it on a quiet machine"
        )


class TwoSpeeds(OfValues):
    """On a CPU, calls back to back were much faster than single ones, by these factors."""

    brief = "some processes have two speeds"

    @classmethod
    def find(cls, evidence: Evidence) -> list[Self]:
        few = [  # several processes show it themselves
            record
            for record in evidence.ranking.ranked
            if record.latency and record.latency.processes < FEWEST_PROCESSES and not record.cell.device.is_cuda
        ]
        ratios = _throughput_ratios(few, are_doubtful=False)
        return cls.of({label: ratio for label, ratio in ratios.items() if ratio > MOST_OF_LATENCY_RATE})

    def effect(self, first: FirstPlace) -> Effect:
        if any(lead.value < self.values.get(other, 0.0) for other, lead in first.leads.items()):
            return Effect.WINNER
        return super().effect(first)

    def say(self) -> str:
        factors = ", ".join(f"{label} {factor:.1f} times" for label, factor in self.values.items())
        return (
            f"calls back to back were far faster than the latency of single calls allows ({factors}): these processes "
            "have two speeds, and the interval contains one of them. Raise --processes"
        )


def _throughput_ratios(records: Sequence[Record], are_doubtful: bool) -> dict[str, float]:
    return {
        record.cell.label: record.throughput.calls_per_s * record.latency.median_ms / 1e3
        for record in records
        if record.throughput and record.latency and record.is_throughput_doubtful is are_doubtful
    }


MAX_PAGING_SHARE = 0.1
"""If a call gets pages from the kernel for more than this share of its time, that is a doubt."""


class FreshMemory(OfValues):
    """The C library gives memory back to the kernel after each call of these cells: the pages that a call gets."""

    @classmethod
    def find(cls, evidence: Evidence) -> list[Self]:
        pages = {
            record.cell.label: count
            for record in evidence.ranking.ranked
            if record.latency and not record.cell.device.is_cuda
            if (count := _pages_in_a_call(record)) * PAGE_FAULT_NS > MAX_PAGING_SHARE * record.latency.median_ms * 1e6
        }
        return cls.of(pages)

    def say(self) -> str:
        pages = ", ".join(f"{label} {count:,.0f}" for label, count in self.values.items())
        return (
            "each call gets memory from the kernel that the C library had given back after the last one (pages: "
            f"{pages}). Another allocator may be much faster: measure rows such as eager@glibc-tuned, and serve so"
        )


def _pages_in_a_call(record: Record) -> float:
    faults = [(burst.conditions.page_faults, len(burst.samples_ns)) for burst in record.bursts if burst.conditions]
    return statistics.median([count / calls for count, calls in faults if count is not None and calls] or [0.0])
