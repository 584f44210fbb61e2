"""Judges one contest: its ranked cells, its winner, and the doubts about both."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bakeoff.judging.answer import Answer, Row
from bakeoff.judging.constraints import QUANTITIES, RequirementMissed, Requirements
from bakeoff.judging.costs import BreakEven, Costs
from bakeoff.judging.doubt import Doubt, Stop
from bakeoff.judging.doubts import doubts_about_latency, doubts_of, is_open_requirement, of_any_outcome
from bakeoff.judging.doubts_of_winner import TOLD_ONCE
from bakeoff.judging.end_to_end import EndToEnd, judge_end_to_end
from bakeoff.judging.fit import Fit
from bakeoff.judging.metric_changes import MetricJudgement, judge_metrics
from bakeoff.judging.ranking import Evidence, Ranking, Tolerance, median_ms
from bakeoff.judging.samples import Deviation, Distributions, deviations_of, distributions_of
from bakeoff.judging.start_times import StartsJudgement, judge_starts
from bakeoff.judging.under_load import LoadJudgement, judge_load
from bakeoff.records.doubts import Effect
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Generated, Latency, LeftEarly, Ratio, Record, Roofline, Status, Verdict


@dataclass(frozen=True)
class CellJudgement:
    """What is known of one cell of a contest. `rank` is None for a cell that is not ranked, with or without numbers. A
    cell that may be the fastest can have another rank than 1."""

    record: Record
    rank: int | None = None
    speedup: Ratio | None = None  # over the contest's baseline
    break_even: BreakEven | None = None  # against the baseline, from a cold start
    is_baseline: bool = False
    unmet: tuple[RequirementMissed, ...] = ()  # requirements that it does not meet
    metrics: Mapping[str, MetricJudgement] = field(default_factory=dict)  # of the user's own, by name
    place: int | None = None  # in its precision, in a contest across several; those that tie for the first share it
    beyond: Tolerance | None = None  # the first precision's, if it rounds more than that allows
    over_own_build: Ratio | None = None  # its latency over that of the build for this size alone, if it is dynamic

    @property
    def cell(self) -> Cell:
        return self.record.cell

    @property
    def label(self) -> str:
        return self.record.cell.label

    @property
    def latency(self) -> Latency | None:
        return self.record.latency

    @property
    def relative_rmse(self) -> float | None:
        """Return its error, or None where its outputs could not be compared."""
        accuracy = self.record.accuracy
        return accuracy.relative_rmse if accuracy and accuracy.has_errors else None

    @cached_property
    def deviations(self) -> tuple[tuple[Deviation, ...], ...]:
        return deviations_of(self.record)


@dataclass(frozen=True)
class PrecisionJudgement:
    """The best of one precision at what was asked, in a contest across several."""

    precision: Precision
    candidates: tuple[str, ...]  # the best, and those that may be as good
    best: CellJudgement
    value: float  # of the best one, in the unit of what was asked: ms, requests per second or tokens per second
    speedup: Ratio | None  # over the baseline of the contest, at what was asked
    relative_rmse: float | None  # None: its outputs could not be compared
    may_win: bool  # the best one may win the whole contest


@dataclass(frozen=True, kw_only=True)
class GeneratingCell(Row):
    """A backend with both graphs right. Its value is in tokens per second of decode, of all sequences of a batch, and
    its rank is by the whole generation: None in a contest across precisions where it may not win."""

    prefill: CellJudgement
    decode: CellJudgement
    total_ms: float  # of a whole generation
    pays_after_tokens: int | None  # building both graphs has paid against the baseline; None: not established

    @property
    def generated(self) -> Generated | None:
        return self.decode.record.generated

    @property
    def relative_rmse(self) -> float | None:
        """Return the larger error of the two graphs, or None where the outputs of one could not be compared."""
        errors = [cell.relative_rmse for cell in (self.prefill, self.decode)]
        values = [error for error in errors if error is not None]
        return max(values) if len(values) == len(errors) else None


@dataclass(frozen=True)
class Generation:
    """What is known of the whole generations of one model: ranked cells first, the fastest first of all."""

    prompt: int
    new_tokens: int
    sequences: int
    answer: Answer
    cells: tuple[GeneratingCell, ...]
    peak_bytes: Mapping[int, Mapping[str, int]]  # of decoding, by context and label; of all contexts of this run


@dataclass(frozen=True)
class Front:
    """The labels that nothing dominates, in the order of the records, and the quantities that were compared."""

    labels: Sequence[str]
    aims: Sequence[str]
    left_out: Sequence[str]  # quantities that some record does not have


@dataclass(frozen=True)
class ContestJudgement:
    """What is known of one contest. `cells` are in the order of reading: ranked cells first, then the others."""

    cells: tuple[CellJudgement, ...]
    baseline: str | None  # label of the cell that speed-ups and costs are taken to, if it has sound numbers
    fastest: Answer  # which build answers a call fastest, whatever was asked
    doubts_by_effect: Mapping[Effect, tuple[Doubt, ...]]  # on the answer at single calls, each in order of weight
    costs: Costs  # of all cells that ended well
    front: Front  # the ranked cells that no other one dominates
    fit: Fit  # the latencies and ratios that all of this comes from
    required_metrics: tuple[str, ...] = ()  # names of the user's own that are required of a winner
    calls: int | None = None  # over which each cell is compared with the baseline, if the user asked for that
    over_calls: Answer | None = None  # which build costs least over these calls, if any has costs
    tolerance: Tolerance | None = None  # of the first precision, where it decides what may win a contest across several
    load: LoadJudgement | None = None  # what the cells carried under load, if that was asked for
    end_to_end: EndToEnd | None = None  # what whole requests take, if they are more than the model
    starts: StartsJudgement | None = None  # what it takes to start its cells, if that was asked for
    generation: Generation | None = None  # of decode steps: what a whole generation takes
    run_id: str | None = None  # set if several reports are shown together and hold the same contest
    is_so_far: bool = False  # its run was interrupted: the answer is that of what was measured until then

    @property
    def cell(self) -> Cell:
        """Return any of the cells. Use it for what all of them share."""
        return self.cells[0].cell

    @property
    def contest_id(self) -> str:
        return self.cell.contest_id

    @property
    def title(self) -> str:
        """Return a title such as `conv (batch 4, size 128) on cpu, fp32`."""
        return f"{self.cell.title}, {self.run_id}" if self.run_id else self.cell.title

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return tuple(doubt for effect in Effect for doubt in self.doubts_by_effect[effect])

    @property
    def answer(self) -> Answer:
        if self.load or self.generation or self.over_calls is None:
            return self.answer_of_builds
        return self.over_calls

    @property
    def doubts_of_answer(self) -> Mapping[Effect, tuple[Doubt, ...]]:
        """Return the doubts by what they do to the answer, since over many calls another build may win."""
        answer, of_winner = self.answer, self.doubts_by_effect[Effect.WINNER]
        labels = answer.candidates
        moved = [doubt for doubt in self.doubts if doubt == answer.doubt or is_open_requirement(doubt, labels)]
        if self.load or all(doubt in of_winner for doubt in moved):
            return self.doubts_by_effect
        others = {
            effect: tuple(doubt for doubt in doubts if doubt not in moved)
            for effect, doubts in self.doubts_by_effect.items()
        }
        return others | {Effect.WINNER: tuple(doubt for doubt in self.doubts if doubt in of_winner or doubt in moved)}

    @property
    def answer_of_builds(self) -> Answer:
        """Return the same, but for a number of calls: the best of each precision is not chosen by them."""
        asked = self.load or self.generation
        return asked.answer if asked else self.fastest

    @cached_property
    def of_precisions(self) -> tuple[PrecisionJudgement, ...]:
        """The best of each precision, in a contest across several, in the order asked for."""
        answer, errors = self.answer_of_builds, {cell.label: cell.relative_rmse for cell in self.cells}
        if self.generation:
            errors = {cell.label: cell.relative_rmse for cell in self.generation.cells}
        return tuple(
            PrecisionJudgement(
                precision, labels, best, row.value or 0.0, row.speedup, errors[best.label], row.rank is not None
            )
            for precision, labels in answer.by_precision.items()
            if (row := answer.row_of(labels[0])) and (best := self.cell_of(labels[0]))
        )

    @property
    def ranked(self) -> list[CellJudgement]:
        return [cell for cell in self.cells if cell.rank is not None]

    @property
    def shown(self) -> list[CellJudgement]:
        """Return the cells of tables and charts: all but those that are left out."""
        left_out = set(map(id, self.left_out))
        return [cell for cell in self.cells if id(cell) not in left_out]

    @property
    def left_out(self) -> list[CellJudgement]:
        """Return the cells that cannot run here or that `best` left out, and that nobody named, unless all are such."""
        cells = [cell for cell in self.cells if cell.record.status in TOLD_ONCE and not cell.record.asked_by_name]
        return cells if len(cells) < len(self.cells) else []

    def cell_of(self, label: str | None) -> CellJudgement | None:
        return next((cell for cell in self.cells if cell.label == label), None)

    @property
    def left(self) -> dict[str, LeftEarly]:
        return {cell.label: cell.record.left for cell in self.cells if cell.record.left}

    def least_times_slower(self, cell: CellJudgement) -> float | None:
        """Return how many times slower a cell that left early is at least, or None if its interval includes 1. The
        interval contains the differences between processes, so its rounds alone may say more."""
        left = cell.record.left
        if left is None:
            return None
        is_fitted = {left.than, cell.label} <= self.fit.latency_ms.keys()
        ends = self.fit.ratio(left.than, cell.label).ci95 if is_fitted else None
        least = min(left.ratio, ends.low) if ends else left.ratio
        return least if least > 1 else None

    @property
    def unranked(self) -> list[CellJudgement]:
        return [cell for cell in self.cells if cell.rank is None]

    @property
    def awaits_others(self) -> bool:
        """Return True if each cell beside the best one was not reached, so that none of them has failed."""
        return {cell.record.status for cell in self.shown if cell is not self.best} == {Status.NOT_REACHED}

    @property
    def roofline(self) -> Roofline | None:
        """Return the roofline of any cell, which is the same for all of them except for the share. A contest across
        precisions has none."""
        rooflines = (cell.record.roofline for cell in self.cells if cell.record.roofline and not cell.cell.compared)
        return next(rooflines, None)

    @property
    def best(self) -> CellJudgement | None:
        return self.cells[0] if self.cells[0].rank is not None else None

    @cached_property
    def distributions(self) -> Distributions:
        return distributions_of([cell.record for cell in self.cells])

    @property
    def contenders(self) -> list[str]:
        return [cell.label for cell in self.ranked]


def judge_contest(
    records: Sequence[Record],
    requirements: Requirements | None = None,
    calls: int | None = None,
    run_id: str | None = None,
    price_per_hour: float | None = None,
    stop: Stop = Stop.TIME_LIMIT,
    last: Verdict | None = None,
    over_best: bool = False,
) -> ContestJudgement:
    """Judge the cells of one contest, beside the verdict of the `last` run if there is one. Raise ValueError without
    records, or with those of two contests."""
    if not records:
        raise ValueError("there is no record to judge")
    ranking = Ranking(records, requirements, over_best)
    costs, answer = Costs(ranking), ranking.answer
    rows = {row.label: row for row in answer.rows}
    ranked = [_judged_cell(record, rows, ranking, costs) for record in ranking.ranked]
    unranked = [record for record in ranking.records if record.cell.label not in ranking.labels]
    doubts, is_so_far = doubts_of(Evidence(ranking, stop, last)), stop is Stop.INTERRUPTED
    # sorting is stable: failures stay in the order in which they were asked for
    unranked.sort(key=_distance_from_success)
    others = [_judged_cell(record, rows, ranking, costs) for record in unranked]
    others.sort(key=lambda cell: median_ms(cell.record) if cell.beyond else math.inf)
    cells = (*ranked, *others)
    of_winner = doubts[Effect.WINNER][:1]
    fastest = answer.doubted(of_winner, always=of_any_outcome(of_winner))
    over_calls = costs.answer(calls, "cold", [row.label for row in fastest.ranked]) if calls else None
    return ContestJudgement(
        cells=cells,
        baseline=answer.baseline,
        fastest=fastest,
        doubts_by_effect=doubts,
        costs=costs,
        front=front_of(ranking.ranked, answer.open_labels),
        fit=ranking.fit,
        required_metrics=requirements.metrics if requirements else (),
        calls=calls,
        over_calls=over_calls and over_calls.doubted(*doubts_about_latency(over_calls, fastest, doubts)),
        end_to_end=judge_end_to_end(ranking.ranked, records, ranking.fit, answer.baseline),
        tolerance=ranking.tolerance,
        load=judge_load(
            records,
            price_per_hour,
            answer.baseline,
            may_not_win=[cell.label for cell in cells if cell.beyond or cell.unmet],
            is_so_far=is_so_far,
            doubts=doubts,
        ),
        starts=judge_starts(started) if (started := [start for record in records for start in record.starts]) else None,
        run_id=run_id,
        is_so_far=is_so_far,
    )


def _judged_cell(record: Record, rows: Mapping[str, Row], ranking: Ranking, costs: Costs) -> CellJudgement:
    label, is_baseline = record.cell.label, record is ranking.baseline
    row = rows.get(label, Row(label=label))
    pays = costs.break_even(label, ranking.baseline_label, "cold") if row.rank is not None else None
    own_label = record.cell.own_build_label
    has_both = record.cell.dynamic and {label, own_label} <= {other.cell.label for other in ranking.measured}
    return CellJudgement(
        record,
        rank=row.rank,
        place=row.place,
        speedup=row.speedup if row.rank is not None or row.place is not None else None,
        break_even=BreakEven(0, 0, 0, is_established=True) if is_baseline and row.rank is not None else pays,
        is_baseline=is_baseline,
        unmet=tuple(ranking.unmet.get(label, ())),
        beyond=None if ranking.keeps(record) or row.place is None else ranking.tolerance,
        metrics=judge_metrics(record),
        over_own_build=ranking.score.ratio(own_label, label) if has_both else None,
    )


def _distance_from_success(record: Record) -> int:
    if record.status.is_absence:
        return 4
    return {Status.OK: 0, Status.FALLBACK: 1, Status.INCORRECT: 2}.get(record.status, 3)


@dataclass(frozen=True)
class Aim:
    """A quantity of which less is better. Two values with a ratio of at most `tie` are equal."""

    name: str
    of: Callable[[Record], float | None]
    tie: float = 1.02


def front_of(records: Sequence[Record], undecided: Collection[str] = ()) -> Front:
    """Return the Pareto front over latency, throughput, memory, build time and error, as far as all records have them.
    Records may win, and those in `undecided` may be the fastest, so none dominates them."""
    kind = "device" if any(record.cell.device.is_cuda for record in records) else "resident"
    all_aims = [
        Aim("latency", QUANTITIES["median_ms"].of),
        Aim("throughput", lambda record: 1 / record.throughput.calls_per_s if record.throughput else None),
        Aim(f"{kind} memory", QUANTITIES[f"peak_{kind}_bytes"].of),
        Aim("build time", QUANTITIES["build_s"].of),
        # two roundings of the same precision may differ by a factor of two
        Aim("error", QUANTITIES["relative_rmse"].of, tie=2.0),
    ]
    aims = [aim for aim in all_aims if all(aim.of(record) is not None for record in records)]
    values = [[aim.of(record) or 0.0 for aim in aims] for record in records]
    ties = [aim.tie for aim in aims]
    labels = [
        record.cell.label
        for record, ours in zip(records, values, strict=True)
        # with a margin, three cells may dominate each other in a circle, and are then all missing
        if record.cell.label in undecided or not any(dominates(theirs, ours, ties) for theirs in values)
    ]
    left_out = [aim.name for aim in all_aims if aim not in aims]
    return Front(labels, [aim.name for aim in aims], left_out)


def dominates(one: Sequence[float], other: Sequence[float], ties: Sequence[float]) -> bool:
    """Return True if `one` is nowhere worse than `other` and somewhere better. Less is better."""
    is_worse = any(ours > theirs * tie for ours, theirs, tie in zip(one, other, ties, strict=True))
    is_better = any(ours * tie < theirs for ours, theirs, tie in zip(one, other, ties, strict=True))
    return is_better and not is_worse
