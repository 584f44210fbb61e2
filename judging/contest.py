"""What is known of one contest and of each of its cells, in the order of reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from judging.costs import Costs
from judging.pareto import Front, front_of
from judging.verdict import BASELINE
from records.schema import Cell, Record, Roofline, Standing, Status, Verdict


@dataclass(frozen=True)
class CellJudgement:
    """One cell of a contest. `standing` is None where it is not ranked, whether or not it has numbers."""

    record: Record
    standing: Standing | None

    @property
    def label(self) -> str:
        return self.record.cell.label


@dataclass(frozen=True)
class ContestJudgement:
    """The rows of one contest in the order of reading, and the verdict on them."""

    cells: Sequence[CellJudgement]
    verdict: Verdict
    calls: int | None = None  # over which each configuration is compared with the baseline, if that was asked for

    @property
    def cell(self) -> Cell:
        """Any of its cells: good for what all of them share."""
        return self.cells[0].record.cell

    @property
    def title(self) -> str:
        return self.verdict.title

    @property
    def ranked(self) -> list[CellJudgement]:
        return [row for row in self.cells if row.standing]

    @property
    def unranked(self) -> list[CellJudgement]:
        return [row for row in self.cells if not row.standing]

    @property
    def roofline(self) -> Roofline | None:
        """Any of its cells': the same for all of them but for the share."""
        return next((row.record.roofline for row in self.cells if row.record.roofline), None)

    @property
    def best(self) -> CellJudgement | None:
        """The first of the ranked rows: the winner, or the fastest of those that tie."""
        return self.cells[0] if self.cells[0].standing else None

    @property
    def contenders(self) -> list[str]:
        """Labels of those that may win."""
        return [row.label for row in self.ranked]

    @property
    def baseline(self) -> str | None:
        """The label that costs are compared with, whether or not it may win; None where it has no sound numbers."""
        label = self.verdict.baseline or BASELINE
        return next((row.label for row in self._sound if row.label == label), None)

    @cached_property
    def costs(self) -> Costs:
        """Of all cells that ended well."""
        return Costs([row.record for row in self._sound], self.baseline)

    @cached_property
    def front(self) -> Front:
        """Those of the contenders that none of them dominates."""
        return front_of([row.record for row in self.ranked])

    @property
    def _sound(self) -> list[CellJudgement]:
        return [row for row in self.cells if row.record.status is Status.OK and row.record.latency]
