"""Judges what it takes to start: the median of each stage, who answers first, and what a deployment requires."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bakeoff.judging.answer import Answer, Question, Row, Score, rank
from bakeoff.judging.constraints import STARTED_QUANTITIES, RequirementMissed, Requirements
from bakeoff.judging.intervals import median_interval
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.start_samples import StartedCell

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
class StartScore(Score):
    """The seconds until the first answer. The n-th starts of all cells are of the same turn."""

    cells: Mapping[str, StartedCell] = field(default_factory=dict)

    def ms(self, label: str) -> float:
        return 1e3 * self.value(label)

    def value(self, label: str) -> float:
        return statistics.median(self._totals_s(label))

    def interval(self, label: str) -> Interval | None:
        return median_interval(self._totals_s(label))

    def ratio(self, fast: str, slow: str) -> Ratio:
        """Return the ratio of the medians, with the interval of each turn's ratio."""
        value = self.value(slow) / self.value(fast)
        ratios = [theirs / ours for ours, theirs in zip(self._totals_s(fast), self._totals_s(slow), strict=True)]
        ends = median_interval(ratios)
        interval = ends and Interval(low=min(ends.low, value), high=max(ends.high, value))
        return Ratio(value=value, ci95=interval, paired=True, processes=len(ratios))

    def is_beaten(self, fast: str, slow: str) -> bool:
        interval = self.ratio(fast, slow).ci95
        return interval is not None and interval.low > 1

    def _totals_s(self, label: str) -> list[float]:
        return [start.start_s for start in self.cells[label].starts]


@dataclass(frozen=True, kw_only=True)
class JudgedStart(Row):
    """One cell that was started. Its value is the median of the seconds until the first answer."""

    cell: StartedCell
    stages: dict[str, float]  # median seconds of each stage
    unmet: list[RequirementMissed]
    behind: Ratio | None  # how many times faster the first one starts; None for the first one

    def quantity(self, name: str) -> float | None:
        return STARTED_QUANTITIES[name].of(self.cell)


@dataclass(frozen=True)
class StartsJudgement:
    """The cells in the order of their starts; those that do not meet the requirements come last."""

    requirements: Requirements
    answer: Answer
    cells: list[JudgedStart]
    without_starts: list[StartedCell]


def judge_starts(cells: Sequence[StartedCell], require: str = "") -> StartsJudgement:
    """Return the cells in the order in which they start. Raises UsageError for a requirement that cannot be read."""
    requirements = Requirements.parse(require, STARTED_QUANTITIES)
    started = {cell.label: cell for cell in cells if cell.starts}
    unmet = {label: _unmet(cell, requirements) for label, cell in started.items()}
    score = StartScore((), cells=started)
    answer = rank(
        Question.START,
        score,
        [label for label in started if not unmet[label]],
        [label for label in started if unmet[label]],
        unit="s",
        processes={label: len(cell.starts) for label, cell in started.items()},
    )
    judged = [
        JudgedStart(
            **vars(row),
            cell=started[row.label],
            stages={name: started[row.label].median(quantity) or 0.0 for name, quantity in STAGES.items()},
            unmet=unmet[row.label],
            # what may not win may well start faster than the first one
            behind=score.ratio(answer.rows[0].label, row.label) if row is not answer.rows[0] else None,
        )
        for row in answer.rows
    ]
    return StartsJudgement(requirements, answer, judged, [cell for cell in cells if not cell.starts])


def _unmet(cell: StartedCell, requirements: Requirements) -> list[RequirementMissed]:
    missed = [
        requirement.missed_by(cell.label, STARTED_QUANTITIES[requirement.name].of(cell))
        for requirement in requirements.items
    ]
    return [doubt for doubt in missed if doubt]
