"""One verdict over recorded calls of several sizes: the mean time of a request, each size weighted by its frequency.

Each size is a contest of its own, and each build is made for its size. The mean time of a backend is the sum of weight
times latency. Contests are measured one after the other, so that their errors are independent: distances to the ends of
the intervals add up as squares (Zou and Donner, Construction of confidence limits about effect measures, Statistics in
Medicine 27, 2008). What a ratio allows to say is decided as in a single contest (`judging.decision`).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bakeoff.judging.certainty import Certainty
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import Relation, is_apart, is_decided, relation
from bakeoff.judging.doubt import Doubt
from bakeoff.judging.doubts_of_winner import NarrowLead, NotToldApart, Undecided
from bakeoff.judging.fit import rounded_ms
from bakeoff.judging.intervals import around, half_width_of, interval_of_sum, ratio_of_sums
from bakeoff.judging.precisions import ranks_of
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Interval, Ratio, Record

CALL = "call"
"""The dimension of a cell that names its size among the recorded ones."""


@dataclass(frozen=True)
class MixSize:
    """One size of the mix."""

    name: str
    contest: ContestJudgement
    calls: int  # recorded of this size
    weight: float  # its share of the calls of all measured sizes


@dataclass(frozen=True)
class MixRow:
    """One backend and mode over all sizes of a mix."""

    label: str
    cells: tuple[CellJudgement | None, ...]  # by size
    mean_ms: float | None  # of a request; None: it was not ranked at every size
    mean_ci95_ms: Interval | None = None
    speedup: Ratio | None = None  # over the baseline
    rank: int | None = None

    @property
    def build_s(self) -> float | None:
        """Return the seconds of the builds for all sizes together, or None where one is missing."""
        built = [cell.record.build_s for cell in self.cells if cell and cell.latency]
        return sum(built) if len(built) == len(self.cells) else None

    @property
    def missing(self) -> tuple[int, Record] | None:
        """Return the first size that it is not ranked at, by its place, with the record there."""
        found = ((place, cell.record) for place, cell in enumerate(self.cells) if cell and cell.rank is None)
        return next(found, None)


@dataclass(frozen=True)
class Mix:
    """The contests of one file of recorded calls, and what each backend is over them. Rows: the best mean first."""

    sizes: tuple[MixSize, ...]  # the most frequent first
    of_calls: int  # recorded, with those of sizes that were not measured
    rows: tuple[MixRow, ...]
    leads: dict[str, Ratio]  # of the best one over every other ranked one
    tied: tuple[str, ...]  # share the first place, if there are several
    open_labels: tuple[str, ...]  # measuring ended before the leads over these were decided
    baseline: str | None
    doubts: tuple[Doubt, ...]  # of single sizes, that could change who wins

    @property
    def covered(self) -> float:
        """Return the share of the recorded calls whose sizes were measured."""
        return sum(size.calls for size in self.sizes) / self.of_calls

    @property
    def best(self) -> MixRow | None:
        return self.rows[0] if self.rows and self.rows[0].rank is not None else None

    @property
    def winner(self) -> str | None:
        return self.candidates[0] if len(self.candidates) == 1 else None

    @property
    def candidates(self) -> list[str]:
        """Return the labels that may be the fastest over the mix."""
        return list(dict.fromkeys([*([self.best.label] if self.best else []), *self.tied, *self.open_labels]))

    @property
    def runner_up(self) -> str | None:
        """Return the first label after those that share the first place."""
        return next((label for label in self.leads if label not in self.tied), None)

    @cached_property
    def certainty(self) -> Certainty:
        if self.best is None:
            return Certainty.NOTHING
        if self.open_labels:
            return Certainty.OPEN
        if self.tied:
            return Certainty.TIE
        if not self.leads:
            return Certainty.ALONE
        return Certainty.DOUBTED if self.doubts else Certainty.SURE


def mixes_of(contests: Sequence[ContestJudgement]) -> list[Mix]:
    """Return every file of recorded calls that makes at least two contests."""
    groups: dict[tuple[object, ...], list[ContestJudgement]] = {}
    for contest in contests:
        cell = contest.cell
        if cell.recorded:
            same = cell.model_copy(update={"dimensions": _others(contest), "backend": "", "mode": "", "recorded": None})
            key = (same.contest_id, cell.recorded.file, cell.recorded.of_calls, contest.run_id)
            groups.setdefault(key, []).append(contest)
    return [mix_of(members) for members in groups.values() if len(members) > 1]


def mix_of(contests: Sequence[ContestJudgement]) -> Mix:
    """Judge these contests as one, each weighted by how often its size was recorded."""
    counted = [(contest, contest.cell.recorded.calls) for contest in contests if contest.cell.recorded]
    counted.sort(key=lambda each: -each[1])
    calls = sum(count for _, count in counted)
    sizes = tuple(
        MixSize(str(contest.cell.dimensions[CALL]), contest, count, count / calls) for contest, count in counted
    )
    baselines = {size.contest.baseline for size in sizes}
    baseline = baselines.pop() if len(baselines) == 1 else None
    labels = dict.fromkeys(cell.label for size in sizes for cell in size.contest.cells)
    rows = [_row(label, sizes) for label in labels]
    ranked = sorted((row for row in rows if row.mean_ms is not None), key=lambda row: row.mean_ms or math.inf)
    leads = {row.label: _ratio(ranked[0], row, sizes) for row in ranked[1:]}
    tied = [label for label, _ in itertools.takewhile(lambda each: not _is_behind(*each, ranked), leads.items())]
    open_labels = [
        label
        for label, lead in leads.items()
        if not is_decided(lead) and relation(lead) is not Relation.FASTER and not _is_behind(label, lead, ranked)
    ]
    by_label = {row.label: row for row in ranked}
    over = by_label.get(baseline or "")

    def is_behind(fast: str, slow: str) -> bool:
        lead = _ratio(by_label[fast], by_label[slow], sizes)
        return is_apart(lead) or _is_behind(slow, lead, ranked)

    ranks = ranks_of(list(by_label), is_behind)
    placed = [
        MixRow(
            row.label,
            row.cells,
            row.mean_ms,
            _interval(row, sizes),
            _ratio(row, over, sizes) if over else None,
            ranks[row.label],
        )
        for row in ranked
    ]
    recorded = contests[0].cell.recorded
    doubts = [
        doubt
        for size in sizes
        for doubt in size.contest.doubts_by_effect[Effect.WINNER]
        if not isinstance(doubt, Undecided | NotToldApart | NarrowLead)  # these are of the size's own verdict
    ]
    return Mix(
        sizes=sizes,
        of_calls=recorded.of_calls if recorded else calls,
        rows=(*placed, *(row for row in rows if row.mean_ms is None)),
        leads=leads,
        tied=(ranked[0].label, *tied) if tied else (),
        open_labels=tuple(open_labels),
        baseline=baseline,
        doubts=tuple(doubts),
    )


def _others(contest: ContestJudgement) -> dict[str, int | str]:
    return {name: value for name, value in contest.cell.dimensions.items() if name != CALL}


def _row(label: str, sizes: Sequence[MixSize]) -> MixRow:
    cells = tuple(size.contest.cell_of(label) for size in sizes)
    if not all(cell and cell.rank is not None for cell in cells):
        return MixRow(label, cells, None)
    return MixRow(label, cells, rounded_ms(sum(_parts_ms(label, sizes))))


def _parts_ms(label: str, sizes: Sequence[MixSize]) -> list[float]:
    """Return what each size adds to the mean time of a request."""
    return [size.weight * size.contest.fit.latency_ms[label] for size in sizes]


def _interval(row: MixRow, sizes: Sequence[MixSize]) -> Interval | None:
    fits = [(size.weight, size.contest.fit) for size in sizes]
    parts = [(weight, fit.latency_ms[row.label], fit.latency_ci95_ms(row.label)) for weight, fit in fits]
    return None if row.mean_ms is None else interval_of_sum(row.mean_ms, parts)


def _ratio(fast: MixRow, slow: MixRow, sizes: Sequence[MixSize]) -> Ratio:
    """Return how many times faster one is over the mix."""
    ratios = [size.contest.fit.ratio(fast.label, slow.label) for size in sizes]
    value, reach = ratio_of_sums(
        _parts_ms(fast.label, sizes),
        _parts_ms(slow.label, sizes),
        [half_width_of(ratio.ci95) for ratio in ratios],
        [half_width_of(size.contest.fit.latency_ci95_ms(fast.label)) for size in sizes],
    )
    assert fast.mean_ms and slow.mean_ms
    value = slow.mean_ms / fast.mean_ms  # of the printed means
    return Ratio(
        value=value,
        ci95=around(value, reach),
        paired=all(ratio.paired for ratio in ratios),
        processes=min(ratio.processes for ratio in ratios),
    )


def _is_behind(label: str, lead: Ratio, ranked: Sequence[MixRow]) -> bool:
    """Return True if the best one is called faster, or if the cell was surely beaten and left early at every size."""
    row = next(row for row in ranked if row.label == label)
    left = all(cell and cell.record.left for cell in row.cells)
    return relation(lead) is Relation.FASTER or (left and lead.value > 1)
