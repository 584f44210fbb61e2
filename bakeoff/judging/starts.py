"""Judges what it takes to start: the median of each stage, who answers first, and what a deployment requires."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bakeoff.judging.constraints import STARTED_QUANTITIES, RequirementMissed, Requirements
from bakeoff.judging.intervals import median_interval
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.starts import StartedCell

LEAST_STARTS = 7
"""Fewest starts of each cell. Six give an interval of 95 %, which is then their whole range."""

STAGES: Mapping[str, str] = {
    "interpreter": "interpreter_s",
    "imports": "imports_s",
    "load": "load_s",
    "first answer": "first_answer_s",
}
"""The quantities of the stages until the first answer, by their names, in their order."""


@dataclass(frozen=True)
class JudgedStart:
    """One cell that was started."""

    cell: StartedCell
    stages: dict[str, float]  # median seconds of each stage
    start_s: float  # median seconds until the first answer
    start_ci95_s: Interval | None
    unmet: list[RequirementMissed]
    behind: Ratio | None  # how many times faster the first one starts; None for the first one

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def is_surely_behind(self) -> bool:
        """Return True if the first one surely starts faster."""
        return bool(self.behind and self.behind.ci95 and self.behind.ci95.low > 1)

    def quantity(self, name: str) -> float | None:
        """Return one of the quantities that can be required."""
        return STARTED_QUANTITIES[name].of(self.cell)


@dataclass(frozen=True)
class StartsJudgement:
    """The cells in the order of their starts; those that do not meet the requirements come last."""

    requirements: Requirements
    cells: list[JudgedStart]
    without_starts: list[StartedCell]

    @property
    def candidates(self) -> list[JudgedStart]:
        """The one that starts fastest, and those that cannot be told apart from it, of those that may win."""
        return [cell for cell in self.cells if not cell.unmet and not cell.is_surely_behind]


def judge_starts(cells: Sequence[StartedCell], require: str = "") -> StartsJudgement:
    """Return the cells in the order in which they start. Raises UsageError for a requirement that cannot be read.

    The n-th starts of all cells are of the same turn.
    """
    requirements = Requirements.parse(require, STARTED_QUANTITIES)
    started = [(cell, _unmet(cell, requirements)) for cell in cells if cell.starts]
    started.sort(key=lambda each: (bool(each[1]), each[0].median("start_s")))
    judged = [
        # what may not win may well start faster than the first one
        _judge(cell, unmet, _ratio(started[0][0], cell) if place else None)
        for place, (cell, unmet) in enumerate(started)
    ]
    return StartsJudgement(requirements, judged, [cell for cell in cells if not cell.starts])


def _unmet(cell: StartedCell, requirements: Requirements) -> list[RequirementMissed]:
    missed = [each.missed_by(cell.label, STARTED_QUANTITIES[each.name].of(cell)) for each in requirements.each]
    return [each for each in missed if each]


def _judge(cell: StartedCell, unmet: list[RequirementMissed], behind: Ratio | None) -> JudgedStart:
    totals_s = [start.start_s for start in cell.starts]
    return JudgedStart(
        cell=cell,
        stages={name: cell.median(quantity) or 0.0 for name, quantity in STAGES.items()},
        start_s=statistics.median(totals_s),
        start_ci95_s=median_interval(totals_s),
        unmet=unmet,
        behind=behind,
    )


def _ratio(first: StartedCell, other: StartedCell) -> Ratio:
    """Return how many times faster `first` starts: the ratio of the medians, with the interval of each turn's ratio."""
    medians_s = [statistics.median(start.start_s for start in cell.starts) for cell in (first, other)]
    value = medians_s[1] / medians_s[0]
    ratios = [b.start_s / a.start_s for a, b in zip(first.starts, other.starts, strict=True)]
    if ends := median_interval(ratios):
        ends = Interval(low=min(ends.low, value), high=max(ends.high, value))
    return Ratio(value=value, ci95=ends, paired=True, processes=len(ratios))
