"""Finds the reasons to believe the ranking of a contest less."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bakeoff.judging.certainty import Effect, close_rivals, effect_of
from bakeoff.judging.decision import FEWEST_PROCESSES, NARROW_LEAD, Relation, is_covered_by_waiting, relation
from bakeoff.judging.disturbance import doubts_of_conditions
from bakeoff.judging.doubts import (
    BuildSpread,
    CoarseCheck,
    CoresStolen,
    CoresTaken,
    Doubt,
    EvaluationVaries,
    FreshMemory,
    JudgedByCalibration,
    MachineBusy,
    ModelChanges,
    NarrowLead,
    NoBaseline,
    NotEvaluated,
    NotRanked,
    NotToldApart,
    OfRecords,
    PartlyElsewhere,
    ProcessSpread,
    RoughLatency,
    SettledLate,
    Stop,
    ThroughputContradicted,
    TwoSpeeds,
    Undecided,
    Unpaired,
    WithoutInterval,
    weight,
)
from bakeoff.judging.estimate import compares_disturbed_rounds, series_of, undisturbed
from bakeoff.judging.fit import fit
from bakeoff.judging.intervals import analysis_of_variance
from bakeoff.judging.last_run import contradictions, ratios_of
from bakeoff.judging.metrics import is_reference, judge_metrics
from bakeoff.judging.ranking import BASELINE, Ranking
from bakeoff.records.doubts import DecidedByRounding, RecordDoubt, Unchecked
from bakeoff.records.precision import Precision
from bakeoff.records.schema import MOST_OF_LATENCY_RATE, SETTLE, Accuracy, Extent, Record, Status, Verdict

CANNOT_RUN = (Status.UNAVAILABLE, Status.UNSUPPORTED)
"""A cell that cannot run on this machine, or not by this backend, is no reason to doubt the others."""

TOLD_ONCE = (*CANNOT_RUN, Status.LEFT_OUT)
"""Cells that ended like this are told in one sentence, and have no row of a contest."""

MAX_PROCESS_SPREAD = 0.05
"""If equal processes of a cell are further apart than this, that is a doubt."""

MAX_INTERVAL_RATIO = 2.0
"""If the ends of a latency's interval are further apart than this, it is known only roughly."""

COARSE_ERROR = 10**-0.5
"""An error of this share of the outputs (10 dB) passes only where eager's is of that size. Zeros have an error of 1."""

FALLBACKS_NAMED = 5

PAGE_FAULT_MS = 1e-3
"""What a page from the kernel costs at least. With clearing it, 2 µs were measured on an AMD EPYC."""

MAX_PAGING_SHARE = 0.05
"""If a call gets pages from the kernel for more than this share of its time, that is a doubt."""


def doubts_of(
    ranking: Ranking, records: Sequence[Record], stop: Stop, last: Verdict | None = None
) -> dict[Effect, tuple[Doubt, ...]]:
    """Return every doubt about the contest of these records by what it does to the answer, in order of weight.

    `last` is the verdict of the last run.
    """
    found: list[Doubt] = [*_of_absence(records), *(doubt for doubts in ranking.unmet.values() for doubt in doubts)]
    found += [*ranking.open_requirements, *_of_metrics(ranking)]
    found += [*_of_records(ranking.ranked), *_of_checks(ranking.ranked)]
    if ranking.ranked:
        found += _of_baseline(ranking)
        found += _of_first_place(ranking, stop)
        found += contradictions(last.run_id, ratios_of(last), ranking.fit)[:1] if last else []
        found += [] if all(ratio.paired for _, ratio in ranking.leads()) else [Unpaired()]
        found += [*_of_builds(ranking.ranked), *_of_spread(ranking.ranked), *_of_intervals(ranking, stop)]
        found += [*_of_throughput(ranking.ranked), *_of_memory(ranking.ranked), *_of_conditions(ranking)]
    if any(isinstance(doubt, MachineBusy) for doubt in found):  # which says more
        found = [doubt for doubt in found if not isinstance(doubt, CoresTaken)]
    in_order = sorted(found, key=weight)
    return {effect: tuple(doubt for doubt in in_order if effect_of(doubt, ranking) is effect) for effect in Effect}


def doubt_of_placement(record: Record) -> PartlyElsewhere | None:
    """Return a doubt if all or part of the cell ran elsewhere than it was asked to."""
    placement = record.placement
    if placement is None or placement.extent is Extent.FULL:
        return None
    if placement.frozen_choices and not placement.fallbacks:
        return None  # all of it ran where it was asked to, and `FrozenChoices` says what it lacks
    elsewhere = tuple(placement.fallbacks[:FALLBACKS_NAMED])
    engines = () if elsewhere else tuple(name for name, count in placement.engines.items() if count)
    return PartlyElsewhere(record.cell.label, placement.extent, elsewhere, engines)


def _of_absence(records: Sequence[Record]) -> list[NotRanked]:
    """Return one doubt for all cells that ended alike."""
    endings: dict[tuple[Status, str], list[str]] = {}
    for record in records:
        if record.status is not Status.OK and record.status not in TOLD_ONCE:
            endings.setdefault((record.status, record.reason), []).append(record.cell.label)
    is_live = any(record.cell.is_live for record in records)
    return [NotRanked(tuple(labels), status, reason, is_live) for (status, reason), labels in endings.items()]


def _of_baseline(ranking: Ranking) -> Iterator[ModelChanges | NoBaseline]:
    """Yield that eager failed its own check, or that the baseline was not measured."""
    for record in ranking.records:
        is_model = record.cell.backend == BASELINE and record.cell.mode == "default"
        is_wrong = record.status is Status.INCORRECT and _was_right_at_first(record)
        differs = any(isinstance(doubt, Unchecked) and doubt.is_eager_different for doubt in record.doubts)
        if is_model and (is_wrong or differs):
            yield ModelChanges(record.cell.label)
    if not any(record.latency and record.cell.label == ranking.baseline_label for record in ranking.records):
        yield NoBaseline(ranking.baseline_label)


def _was_right_at_first(record: Record) -> bool:
    """Return True if the cell passed its first check. The record has that check, or that of a further process."""
    return record.accuracy is not None and (record.accuracy.passed or len(record.processes) > 1)


def _of_records(ranked: Sequence[Record]) -> list[Doubt]:
    """Return the doubts that the records carry, once for all cells that share one, and those about single cells."""
    shared: dict[RecordDoubt, list[str]] = {}
    single: list[Doubt] = []
    for record in ranked:
        for doubt in record.doubts:
            shared.setdefault(doubt, []).append(record.cell.label)
        if placement := doubt_of_placement(record):
            single.append(placement)
        for phase in record.phases:
            if phase.name == SETTLE and phase.calls:
                single.append(SettledLate(record.cell.label, phase.calls, phase.seconds))
    return [*(OfRecords(doubt, tuple(labels)) for doubt, labels in shared.items()), *single]


def _of_checks(ranked: Sequence[Record]) -> list[CoarseCheck]:
    """Return one doubt about all cells whose check would hardly have found a fault."""
    told = {record.cell.label for record in ranked if any(isinstance(one, DecidedByRounding) for one in record.doubts)}
    coarse = {
        record.cell.label: record.accuracy.relative_rmse
        for record in ranked
        if record.accuracy and is_coarse(record.accuracy) and record.cell.label not in told
    }
    return [CoarseCheck(tuple(coarse), max(coarse.values()))] if coarse else []


def is_coarse(check: Accuracy) -> bool:
    """Return True if a large error passes only because eager's is as large."""
    return check.passed and not check.unchecked and not check.allclose and check.relative_rmse > COARSE_ERROR


def _of_metrics(ranking: Ranking) -> Iterator[NotEvaluated | WithoutInterval | JudgedByCalibration | EvaluationVaries]:
    """Yield why the user's own function gave no metrics, once for all cells that share the reason, or weak ones."""
    failed: dict[tuple[str, bool], list[str]] = {}
    for records, of_reference in ((ranking.ranked, False), (ranking.measured, True)):
        for record in records:
            metrics = record.reference_metrics if of_reference else record.metrics
            if metrics is not None and metrics.failure is not None:
                failed.setdefault((metrics.failure.sentence, of_reference), []).append(record.cell.label)
    for (reason, of_reference), labels in failed.items():
        yield NotEvaluated(tuple(labels), reason, of_reference)
    if plain := ranking.plain_metrics:
        yield WithoutInterval(plain)
    int8 = [record for record in ranking.ranked if record.cell.precision is Precision.INT8 and record.metrics]
    if int8 and (reference := int8[0].reference_metrics) and reference.calibrating:
        yield JudgedByCalibration(tuple(record.cell.label for record in int8), reference.calibrating, reference.judged)
    for record in filter(is_reference, ranking.measured):
        for name, metric in judge_metrics(record).items():
            if metric.varies:
                yield EvaluationVaries(record.cell.label, name, metric.value, metric.reference)


def _of_first_place(ranking: Ranking, stop: Stop) -> Iterator[MachineBusy | Undecided | NarrowLead | NotToldApart]:
    """Yield the doubts about undecided pairs, a narrow lead, and cells that vary too much to be told apart."""
    cell, tied, open_pairs = ranking.ranked[0].cell, ranking.sharing_first_place(), ranking.open_pairs()
    best, cut_short = cell.label, (stop, cell.is_live)
    ratios = {other.cell.label: ratio for other, ratio in open_pairs}
    if busy := {label: ratio for label, ratio in ratios.items() if is_covered_by_waiting(ratio)}:
        yield MachineBusy(best, busy)
    if others := {label: ratio for label, ratio in ratios.items() if label not in busy}:
        yield Undecided(best, others, min(ratio.processes for ratio in others.values()), *cut_short)
    leads = ranking.leads()
    if len(tied) == 1 and leads:
        lead = leads[0][1]
        if lead.processes < FEWEST_PROCESSES and lead.value < 1 + NARROW_LEAD:
            yield NarrowLead(best, lead.processes, *cut_short)
    named = {record.cell.label for record in (*tied, *(record for record, _ in open_pairs))}
    told_apart = named | ranking.beaten_in_rounds.keys()
    behind = {
        other.cell.label: ratio
        for other, ratio in leads
        if other.cell.label not in told_apart and relation(ratio) is not Relation.FASTER
    }
    if behind:
        yield NotToldApart(best, behind, *cut_short)


def _of_builds(ranked: Sequence[Record]) -> list[BuildSpread]:
    spreads = {record.cell.label: spread_of_builds(record) for record in ranked}
    wide = {label: spread for label, spread in spreads.items() if spread is not None}
    return [BuildSpread(wide)] if wide else []


def _of_spread(ranked: Sequence[Record]) -> list[ProcessSpread]:
    spreads = {record.cell.label: (record.latency and record.latency.process_spread) or 0.0 for record in ranked}
    wide = {label: spread for label, spread in spreads.items() if spread > MAX_PROCESS_SPREAD}
    return [ProcessSpread(wide)] if wide else []


def _of_intervals(ranking: Ranking, stop: Stop) -> list[RoughLatency]:
    """Return one doubt about all cells whose latency has a wide interval. Their ratios may have narrow ones."""
    known = {record.cell.label: record for record in ranking.ranked if record.latency}
    intervals = {label: record.latency.median_ci95_ms for label, record in known.items() if record.latency}
    busy = {
        label
        for other, ratio in ranking.leads()
        if ratio.is_of_busy_machine
        for label in (ranking.ranked[0].cell.label, other.cell.label)
    }
    wide = {
        label: each
        for label, each in intervals.items()
        if each and each.high > MAX_INTERVAL_RATIO * each.low and label not in busy
    }
    below = tuple(
        label
        for label, interval in wide.items()
        if (roofline := known[label].roofline) and not roofline.is_beaten and interval.low < roofline.floor_ms
    )
    leads = ranking.leads()
    has_ratios, is_live = bool(leads) and all(ratio.paired for _, ratio in leads), ranking.ranked[0].cell.is_live
    return [RoughLatency(wide, below, has_ratios, stop, is_live)] if wide else []


def _of_throughput(ranked: Sequence[Record]) -> list[ThroughputContradicted | TwoSpeeds]:
    """Return a doubt about the cells whose calls back to back took far longer than single ones, or far less."""
    shares, factors = dict[str, float](), dict[str, float]()
    for record in ranked:
        if record.throughput and record.latency:
            ratio = record.throughput.calls_per_s * record.latency.median_ms / 1e3
            if record.is_throughput_doubtful:
                shares[record.cell.label] = ratio
            elif (
                ratio > MOST_OF_LATENCY_RATE
                and record.latency.processes < FEWEST_PROCESSES  # several show it themselves
                and not record.cell.device.is_cuda
            ):
                factors[record.cell.label] = ratio
    doubts = ThroughputContradicted(shares) if shares else None, TwoSpeeds(factors) if factors else None
    return [doubt for doubt in doubts if doubt]


def _of_memory(ranked: Sequence[Record]) -> list[FreshMemory]:
    """Return one doubt about all cells on a CPU whose calls get much of their memory anew."""
    pages = {record.cell.label: _pages_in_a_call(record) for record in ranked if not record.cell.device.is_cuda}
    many = {
        record.cell.label: pages[record.cell.label]
        for record in ranked
        if record.latency
        and pages.get(record.cell.label, 0.0) * PAGE_FAULT_MS > MAX_PAGING_SHARE * record.latency.median_ms
    }
    return [FreshMemory(many)] if many else []


def _pages_in_a_call(record: Record) -> float:
    known = [(burst.conditions.page_faults, len(burst.samples_ns)) for burst in record.bursts if burst.conditions]
    return statistics.median([faults / calls for faults, calls in known if faults is not None and calls] or [0.0])


def _of_conditions(ranking: Ranking) -> list[Doubt]:
    """Return what disturbed the contest, and whether the winner's narrow leads depend on disturbed rounds."""
    doubts = doubts_of_conditions(ranking.measured)
    if not any(isinstance(doubt, CoresTaken | CoresStolen) for doubt in doubts):
        return doubts
    is_counted = _depends_on_disturbed_rounds(ranking)
    return [
        replace(doubt, is_counted=is_counted) if isinstance(doubt, CoresTaken | CoresStolen) else doubt
        for doubt in doubts
    ]


def _depends_on_disturbed_rounds(ranking: Ranking) -> bool:
    """Return True if a narrow lead was taken over disturbed rounds, too, and the others alone do not say the same."""
    series = {record.cell.label: series_of(record.bursts) for record in ranking.ranked}
    best = ranking.ranked[0].cell.label
    rivals = [rival for rival in close_rivals(ranking) if compares_disturbed_rounds(series[best], series[rival])]
    calm = fit({label: undisturbed(turns) for label, turns in series.items()}) if rivals else None
    return calm is not None and not all(
        {best, rival} <= calm.latency_ms.keys()
        and (said := relation(calm.ratio(best, rival))) is not Relation.UNDECIDED
        and said is relation(ranking.fit.ratio(best, rival))
        for rival in rivals
    )


MIN_SPREAD = 0.05
"""A smaller difference is ignored. Some processes come in two kinds, 4 % apart, and chance may sort a few by build."""

MAX_CHANCE = 0.01
"""Builds differ if processes alone would spread them so far with at most this probability."""


def spread_of_builds(record: Record) -> float | None:
    """Return slowest over fastest build - 1 if that is more than processes of one build explain, else None.

    A build is the geometric mean of its processes. At least one needs two of them, as each has by default. An autotuner
    may choose differently each time. Source: Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013,
    who repeat a measurement at the level where the variance arises.
    """
    logs: dict[int, list[float]] = {}
    for process in record.processes:
        if process.median_ms is not None:
            logs.setdefault(process.build, []).append(math.log(process.median_ms))
    means = [float(np.mean(each)) for each in logs.values()]
    spread = math.exp(max(means) - min(means)) - 1 if means else 0.0
    return spread if spread >= MIN_SPREAD and _chance(list(logs.values())) <= MAX_CHANCE else None


def _chance(builds: Sequence[Sequence[float]]) -> float:
    return analysis_of_variance(builds) if len(builds) > 1 and any(len(each) > 1 for each in builds) else 1.0
