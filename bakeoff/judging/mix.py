"""One verdict over recorded calls of several sizes: the mean time of a request, each size weighted by its frequency.

Each size is a contest of its own, and each build is made for its size. The mean time of a backend is the sum of weight
times latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.judging.answer import Answer, Question, Row, Score, Term, rank
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.doubts_of_winner import NarrowLead, NotToldApart, Undecided
from bakeoff.records.doubts import Effect
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Record

CALL = "call"
"""The dimension of a cell that names its size among the recorded ones."""


@dataclass(frozen=True)
class MixSize:
    name: str
    contest: ContestJudgement
    calls: int  # recorded of this size
    weight: float  # its share of the calls of all measured sizes


@dataclass(frozen=True, kw_only=True)
class MixRow(Row):
    """One backend and mode over all sizes of a mix. Its value is the mean time of a request in ms, or None where it was
    not ranked at every size."""

    cells: tuple[CellJudgement | None, ...]  # by size

    @property
    def build_s(self) -> float | None:
        """Return the seconds of the builds for all sizes together, or None where one is missing."""
        built = [cell.record.build_s for cell in self.cells if cell and cell.latency]
        return sum(built) if len(built) == len(self.cells) else None

    @property
    def missing(self) -> tuple[int, Record] | None:
        """Return the first size that it is not ranked at, by its place, with the record there."""
        unranked = ((place, cell.record) for place, cell in enumerate(self.cells) if cell and cell.rank is None)
        return next(unranked, None)


@dataclass(frozen=True)
class Mix:
    """The contests of one file of recorded calls, and what each backend is over them. Rows: the best mean first."""

    sizes: tuple[MixSize, ...]  # the most frequent first
    of_calls: int  # recorded, with those of sizes that were not measured
    rows: tuple[MixRow, ...]
    answer: Answer  # its doubts are of single sizes

    @property
    def covered(self) -> float:
        return sum(size.calls for size in self.sizes) / self.of_calls


def mixes_of(contests: Sequence[ContestJudgement]) -> list[Mix]:
    recorded = [contest for contest in contests if contest.cell.recorded]
    return [mix_of(members) for members in grouped(recorded, _file_of).values() if len(members) > 1]


def mix_of(contests: Sequence[ContestJudgement]) -> Mix:
    counted = [(contest, contest.cell.recorded.calls) for contest in contests if contest.cell.recorded]
    counted.sort(key=lambda pair: -pair[1])
    calls = sum(count for _, count in counted)
    sizes = tuple(
        MixSize(str(contest.cell.dimensions[CALL]), contest, count, count / calls) for contest, count in counted
    )
    baselines = {size.contest.baseline for size in sizes}
    labels = dict.fromkeys(cell.label for size in sizes for cell in size.contest.cells)
    cells = {label: tuple(size.contest.cell_of(label) for size in sizes) for label in labels}
    answer = rank(
        Question.SIZES,
        Score([Term(size.contest.fit, size.weight, size.contest.left) for size in sizes]),
        [label for label, of_label in cells.items() if all(cell and cell.rank is not None for cell in of_label)],
        baseline=baselines.pop() if len(baselines) == 1 else None,
        processes={
            label: min(len(cell.record.processes) for cell in of_label if cell) for label, of_label in cells.items()
        },
    )
    rows = {row.label: row for row in answer.rows}
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
        rows=tuple(
            MixRow(**vars(rows.get(label, Row(label=label))), cells=cells[label])
            for label in dict.fromkeys([*rows, *labels])
        ),
        answer=answer.doubted(doubts),
    )


def _file_of(contest: ContestJudgement) -> tuple[object, ...]:
    """Return what the contests of all sizes in one file of recorded calls share."""
    cell, recorded = contest.cell, contest.cell.recorded
    others = {name: value for name, value in cell.dimensions.items() if name != CALL}
    same = cell.but(dimensions=others, backend="", mode="", recorded=None)
    return (same.contest_id, recorded and (recorded.file, recorded.of_calls), contest.run_id)
