"""Judges one contest: its ranked cells, its winner, and the doubts about both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bakeoff.judging.certainty import Certainty, Evidence, certainty_of
from bakeoff.judging.constraints import RequirementMissed, Requirements
from bakeoff.judging.costs import BreakEven, Costs
from bakeoff.judging.decision import CLOSE_MARGIN
from bakeoff.judging.doubt import Doubt, Stop
from bakeoff.judging.doubts import doubts_of
from bakeoff.judging.doubts_of_winner import TOLD_ONCE
from bakeoff.judging.end_to_end import EndToEnd, judge_end_to_end
from bakeoff.judging.fit import Fit
from bakeoff.judging.load import LoadJudgement, judge_load
from bakeoff.judging.metrics import MetricJudgement, judge_metrics
from bakeoff.judging.pareto import Front, front_of
from bakeoff.judging.precisions import best_of_each
from bakeoff.judging.ranking import Ranking, median_ms
from bakeoff.judging.samples import Distributions, Turn, distributions_of, turns_of
from bakeoff.judging.starts import StartsJudgement, judge_starts
from bakeoff.judging.tolerance import Tolerance
from bakeoff.records.doubts import Effect
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Generated, Latency, Ratio, Record, Roofline, Status, Verdict


@dataclass(frozen=True)
class CellJudgement:
    """What is known of one cell of a contest.

    `rank` is None for a cell that is not ranked, with or without numbers. What may be the fastest can have another
    rank than 1.
    """

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
    def turns(self) -> tuple[tuple[Turn, ...], ...]:
        """Return how the latency of each process moved over the rounds."""
        return turns_of(self.record)


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


@dataclass(frozen=True)
class GeneratingCell:
    """A backend with both graphs right. Its rank is by the whole generation.

    Across precisions, a cell without a rank rounds more in one of the graphs than may win, or lacks what is required.
    """

    prefill: CellJudgement
    decode: CellJudgement
    total_ms: float  # of a whole generation
    tokens_per_s: float  # of all sequences of a batch, while decoding
    rank: int | None
    place: int | None  # in its precision, in a contest across several
    speedup: Ratio | None  # of a whole generation, over the baseline
    pays_after_tokens: int | None  # building both graphs has paid against the baseline; None: not established

    @property
    def label(self) -> str:
        return self.decode.label

    @property
    def generated(self) -> Generated | None:
        """Return how the tokens of the decode steps agree with eager's."""
        return self.decode.record.generated

    @property
    def relative_rmse(self) -> float | None:
        """Return the larger error of the two graphs, or None where the outputs of one could not be compared."""
        errors = [cell.relative_rmse for cell in (self.prefill, self.decode)]
        known = [error for error in errors if error is not None]
        return max(known) if len(known) == len(errors) else None


@dataclass(frozen=True)
class Generation:
    """What is known of the whole generations of one model: ranked cells first, the fastest first of all."""

    prompt: int
    new_tokens: int
    sequences: int
    cells: tuple[GeneratingCell, ...]
    baseline: str | None
    peak_bytes: Mapping[int, Mapping[str, int]]  # of decoding, by context and label; of all contexts of this run
    of_precisions: tuple[PrecisionJudgement, ...] = ()  # by whole generations
    lead: Ratio | None = None  # of the best one over the first that does not share its place
    tied: tuple[str, ...] = ()  # labels that share the first place, also if there is one

    @property
    def ranked(self) -> list[GeneratingCell]:
        return [cell for cell in self.cells if cell.rank is not None]


@dataclass(frozen=True)
class ContestJudgement:
    """What is known of one contest. `cells` are in the order of reading: ranked cells first, then the others."""

    cells: tuple[CellJudgement, ...]
    baseline: str | None  # label of the cell that speed-ups and costs are taken to, if it has sound numbers
    winner: str | None  # None if no cell is ranked, or if the best ones tie
    tied: tuple[str, ...]  # labels that share the first place, if there are several
    runner_up: str | None  # the first label after those that share the first place
    leads: dict[str, Ratio]  # the best cell over every other ranked one, by label
    open_labels: tuple[str, ...]  # measuring ended before the best cell's leads over these were decided
    certainty: Certainty
    doubts_by_effect: Mapping[Effect, tuple[Doubt, ...]]  # each in order of weight
    costs: Costs  # of all cells that ended well
    front: Front  # the ranked cells that no other one dominates
    fit: Fit  # the latencies and ratios that all of this comes from
    required_metrics: tuple[str, ...] = ()  # names of the user's own that are required of a winner
    calls: int | None = None  # over which each cell is compared with the baseline, if the user asked for that
    of_precisions: tuple[PrecisionJudgement, ...] = ()  # in a contest across several, in the order asked for
    tolerance: Tolerance | None = None  # of the first precision, where it decides what may win a contest across several
    load: LoadJudgement | None = None  # what the cells carried under load, if that was asked for
    end_to_end: EndToEnd | None = None  # what whole requests take, if they are more than the model
    starts: StartsJudgement | None = None  # what it takes to start its cells, if that was asked for
    generation: Generation | None = None  # of decode steps: what a whole generation takes
    tied_within: float | None = None  # the first place is shared by cells that are this close, and may not be equal
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
        """Return every doubt, those first that could change who wins, then those that could change its numbers."""
        return tuple(doubt for effect in Effect for doubt in self.doubts_by_effect[effect])

    @property
    def candidates(self) -> list[str]:
        """Return the labels that may be the fastest: the winner alone, or those that tie or are not decided."""
        best = [self.best.label] if self.best else []
        return list(dict.fromkeys([*best, *self.tied, *self.open_labels]))

    @property
    def unstable(self) -> bool:
        """Return True if measuring ended before the verdict was decided."""
        return bool(self.open_labels)

    @property
    def lead(self) -> Ratio | None:
        """Return the ratio of the best cell to the runner-up, or None where only waiting for cores was measured."""
        lead = self.leads[self.runner_up] if self.runner_up else None
        return lead if lead and lead.is_told else None

    @property
    def ranked(self) -> list[CellJudgement]:
        return [cell for cell in self.cells if cell.rank is not None]

    @property
    def shown(self) -> list[CellJudgement]:
        """Return the cells of tables and charts: all but those that are left out."""
        left_out = set(map(id, self.left_out))
        return [each for each in self.cells if id(each) not in left_out]

    @property
    def left_out(self) -> list[CellJudgement]:
        """Return the cells that cannot run here or that `best` left out, and that nobody named, unless all are such."""
        found = [each for each in self.cells if each.record.status in TOLD_ONCE and not each.record.asked_by_name]
        return found if len(found) < len(self.cells) else []

    def cell_of(self, label: str | None) -> CellJudgement | None:
        """Return the cell with this label, if there is one."""
        return next((cell for cell in self.cells if cell.label == label), None)

    @property
    def unranked(self) -> list[CellJudgement]:
        return [cell for cell in self.cells if cell.rank is None]

    @property
    def awaits_others(self) -> bool:
        """Return True if each cell beside the best one was not reached, so that none of them has failed."""
        return {cell.record.status for cell in self.shown if cell is not self.best} == {Status.NOT_REACHED}

    @property
    def roofline(self) -> Roofline | None:
        """Return the roofline of any cell: it is the same for all of them, except for the share.

        Precisions have different ones: then there is none of the whole contest.
        """
        known = (cell.record.roofline for cell in self.cells if cell.record.roofline and not cell.cell.compared)
        return next(known, None)

    @property
    def best(self) -> CellJudgement | None:
        """Return the winner, or the first of those that tie."""
        return self.cells[0] if self.cells[0].rank is not None else None

    @cached_property
    def distributions(self) -> Distributions:
        """Return how the single calls of each cell are distributed."""
        return distributions_of([cell.record for cell in self.cells])

    @property
    def contenders(self) -> list[str]:
        """Return the labels of the cells that may win."""
        return [cell.label for cell in self.ranked]


def judge_contest(
    records: Sequence[Record],
    requirements: Requirements | None = None,
    calls: int | None = None,
    run_id: str | None = None,
    price_per_hour: float | None = None,
    stop: Stop = Stop.TIME_LIMIT,
    last: Verdict | None = None,
) -> ContestJudgement:
    """Judge the cells of one contest, beside the verdict of the `last` run if there is one.

    Raises ValueError without records, or with those of two contests.
    """
    if not records:
        raise ValueError("there is no record to judge")
    ranking = Ranking(records, requirements)
    costs = Costs(ranking)
    tied = ranking.sharing_first_place()
    behind = ranking.ranked[len(tied) :]
    ranked = [_ranked_cell(record, ranking, costs) for record in ranking.ranked]
    labels = [record.cell.label for record in ranking.ranked]
    unranked = [record for record in ranking.records if record.cell.label not in labels]
    doubts, is_so_far = doubts_of(Evidence(ranking, stop, last)), stop is Stop.INTERRUPTED
    # sorting is stable: failures stay in the order in which they were asked for
    unranked.sort(key=_distance_from_success)
    others = [_unranked_cell(record, ranking) for record in unranked]
    others.sort(key=lambda cell: median_ms(cell.record) if cell.beyond else math.inf)
    cells = (*ranked, *others)
    baseline = ranking.baseline.cell.label if ranking.baseline else None
    may_not_win = [cell.label for cell in cells if cell.beyond or cell.unmet]
    load = judge_load(records, price_per_hour, baseline, may_not_win, is_so_far)
    return ContestJudgement(
        cells=cells,
        baseline=baseline,
        winner=tied[0].cell.label if len(tied) == 1 else None,
        tied=tuple(record.cell.label for record in tied) if len(tied) > 1 else (),
        runner_up=behind[0].cell.label if behind else None,
        leads={other.cell.label: ratio for other, ratio in ranking.leads()},
        open_labels=tuple(other.cell.label for other, _ in ranking.open_pairs()),
        certainty=certainty_of(ranking, is_doubted=bool(doubts[Effect.WINNER])),
        doubts_by_effect=doubts,
        costs=costs,
        front=front_of(ranking.ranked, [other.cell.label for other, _ in ranking.open_pairs()]),
        fit=ranking.fit,
        required_metrics=requirements.metrics if requirements else (),
        calls=calls,
        end_to_end=judge_end_to_end(ranking.ranked, records, ranking.fit, baseline),
        of_precisions=_of_precisions_under_load(cells, load) if load else _of_precisions(cells, ranking),
        tolerance=ranking.tolerance,
        load=load,
        starts=judge_starts(started) if (started := [each for record in records for each in record.starts]) else None,
        tied_within=CLOSE_MARGIN if ranking.is_tie_close else None,
        run_id=run_id,
        is_so_far=is_so_far,
    )


def _ranked_cell(record: Record, ranking: Ranking, costs: Costs) -> CellJudgement:
    baseline = ranking.baseline
    is_baseline = record is baseline
    pays = costs.break_even(record.cell.label, baseline.cell.label, "cold") if baseline and not is_baseline else None
    return CellJudgement(
        record,
        rank=ranking.ranks[record.cell.label],
        place=ranking.places_in_precisions.get(record.cell.label),
        speedup=_speedup(record, ranking),
        break_even=BreakEven(0, 0, 0, is_established=True) if is_baseline else pays,
        is_baseline=is_baseline,
        metrics=judge_metrics(record),
        over_own_build=_over_own_build(record, ranking),
    )


def _speedup(record: Record, ranking: Ranking) -> Ratio | None:
    """Return the speed-up over the baseline, if there is one and more than waiting for cores was measured."""
    speedup = ranking.ratio(record, ranking.baseline) if ranking.baseline else None
    return speedup if speedup and speedup.is_told else None


def _over_own_build(record: Record, ranking: Ranking) -> Ratio | None:
    """Return how many times as long a call of a dynamic build takes as one of the build for this size alone."""
    labels = {other.cell.label: other for other in ranking.measured}
    own = labels.get(record.cell.own_build_label) if record.cell.dynamic else None
    return ranking.ratio(own, record) if own and record.cell.label in labels else None


def _unranked_cell(record: Record, ranking: Ranking) -> CellJudgement:
    label = record.cell.label
    unmet, place = tuple(ranking.unmet.get(label, ())), ranking.places_in_precisions.get(label)
    return CellJudgement(
        record,
        unmet=unmet,
        place=place,
        beyond=None if ranking.keeps(record) or place is None else ranking.tolerance,
        speedup=None if place is None else _speedup(record, ranking),
        is_baseline=record is ranking.baseline,
        metrics=judge_metrics(record),
        over_own_build=_over_own_build(record, ranking),
    )


def _of_precisions(cells: Sequence[CellJudgement], ranking: Ranking) -> tuple[PrecisionJudgement, ...]:
    by_label = {cell.label: cell for cell in cells if cell.place is not None}
    order = sorted((cell.cell for cell in by_label.values()), key=lambda cell: median_ms(by_label[cell.label].record))
    may_win = [cell.label for cell in cells if cell.rank is not None]
    return tuple(
        PrecisionJudgement(
            precision, labels, best, median_ms(best.record), best.speedup, best.relative_rmse, best.rank is not None
        )
        for precision, labels in best_of_each(order, may_win, ranking.is_beaten).items()
        for best in [by_label[labels[0]]]
    )


def _of_precisions_under_load(cells: Sequence[CellJudgement], load: LoadJudgement) -> tuple[PrecisionJudgement, ...]:
    by_label = {cell.label: cell for cell in cells}
    loaded = {cell.label: cell for cell in load.cells}
    may_win = [cell.label for cell in load.ranked]
    return tuple(
        PrecisionJudgement(
            precision,
            labels,
            by_label[best.label],
            best.value,
            best.speedup,
            by_label[best.label].relative_rmse,
            best.rank is not None,
        )
        for precision, labels in best_of_each(
            [by_label[label].cell for label in load.order], may_win, load.is_beaten
        ).items()
        for best in [loaded[labels[0]]]
        if best.value is not None
    )


def _distance_from_success(record: Record) -> int:
    """Return a low number for a cell with numbers, a high one for a cell that was never tried."""
    if record.status.is_absence:
        return 4
    return {Status.OK: 0, Status.FALLBACK: 1, Status.INCORRECT: 2}.get(record.status, 3)
