"""Judges what it takes to start: the median of each stage, who answers first, and what a deployment requires."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bakeoff.judging.constraints import Quantity, Requirements
from bakeoff.judging.doubts import RequirementMissed
from bakeoff.judging.intervals import median_interval
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.starts import Start, StartedCell, Starts

LEAST_STARTS = 7
"""Fewest starts of each cell. Six give an interval of 95 %, which is then their whole range."""

STAGES: Mapping[str, Callable[[Start], float]] = {
    "interpreter": lambda start: start.interpreter_s,
    "imports": lambda start: start.imports_s,
    "load": lambda start: start.load_s,
    "first answer": lambda start: start.first_answer_s,
}
"""The stages until the first answer, in their order."""


@dataclass(frozen=True)
class JudgedStart:
    """One cell that was started."""

    cell: StartedCell
    stages: dict[str, float]  # median seconds of each stage
    start_s: float  # median seconds until the first answer
    start_ci95_s: Interval | None
    tenth_answer_s: float
    peak_bytes: int | None
    steady_bytes: int | None
    device_bytes: int | None
    unmet: list[RequirementMissed]
    behind: Ratio | None  # how many times faster the first one starts; None for the first one

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def is_surely_behind(self) -> bool:
        """Return True if the first one surely starts faster."""
        return bool(self.behind and self.behind.ci95 and self.behind.ci95.low > 1)


@dataclass(frozen=True)
class StartsJudgement:
    """The cells in the order of their starts; those that do not meet the requirements come last."""

    starts: Starts
    requirements: Requirements
    cells: list[JudgedStart]

    @property
    def candidates(self) -> list[JudgedStart]:
        """The one that starts fastest, and those that cannot be told apart from it, of those that may win."""
        return [cell for cell in self.cells if not cell.unmet and not cell.is_surely_behind]

    @property
    def without_starts(self) -> list[StartedCell]:
        return [cell for cell in self.starts.cells if not cell.starts]


QUANTITIES: Mapping[str, Quantity[JudgedStart]] = {
    "start_s": Quantity(lambda cell: cell.start_s),
    **{
        f"{name.replace(' ', '_')}_s": Quantity(lambda cell, name=name: cell.stages[name])  # type: ignore[misc]
        for name in STAGES
    },
    "tenth_answer_s": Quantity(lambda cell: cell.tenth_answer_s),
    "peak_resident_bytes": Quantity(lambda cell: cell.peak_bytes),
    "steady_resident_bytes": Quantity(lambda cell: cell.steady_bytes),
    "device_bytes": Quantity(lambda cell: cell.device_bytes),
    "artifact_bytes": Quantity(lambda cell: cell.cell.artifact_bytes),
    "environment_bytes": Quantity(lambda cell: cell.cell.environment_bytes),
}
"""What `--require` of `bakeoff start` can name."""


def judge_starts(starts: Starts, require: str = "") -> StartsJudgement:
    """Return the cells in the order in which they start. Raises UsageError for a requirement that cannot be read."""
    requirements = Requirements.parse(require, QUANTITIES)
    judged = [_judge(cell, requirements) for cell in starts.cells if cell.starts]
    judged.sort(key=lambda cell: (bool(cell.unmet), cell.start_s))
    if judged:
        first = judged[0]
        judged[1:] = [
            # what may not win may well start faster than the first one
            JudgedStart(**{**vars(cell), "behind": _ratio(first.cell, cell.cell)})
            for cell in judged[1:]
        ]
    return StartsJudgement(starts, requirements, judged)


def _judge(cell: StartedCell, requirements: Requirements) -> JudgedStart:
    totals_s = [start.start_s for start in cell.starts]
    judged = JudgedStart(
        cell=cell,
        stages={name: statistics.median(map(of, cell.starts)) for name, of in STAGES.items()},
        start_s=statistics.median(totals_s),
        start_ci95_s=median_interval(totals_s),
        tenth_answer_s=statistics.median(start.tenth_answer_s for start in cell.starts),
        peak_bytes=_median([start.peak_bytes for start in cell.starts]),
        steady_bytes=_median([start.steady_bytes for start in cell.starts]),
        device_bytes=_median([start.device_bytes for start in cell.starts]),
        unmet=[],
        behind=None,
    )
    for requirement in requirements.each:
        if missed := requirement.missed_by(cell.label, QUANTITIES[requirement.name].of(judged)):
            judged.unmet.append(missed)
    return judged


def _median(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def _ratio(first: StartedCell, other: StartedCell) -> Ratio:
    """Return how many times faster `first` starts, from the ratios of each turn."""
    ratios = [b.start_s / a.start_s for a, b in zip(first.starts, other.starts, strict=True)]
    return Ratio(value=statistics.median(ratios), ci95=median_interval(ratios), paired=True, processes=len(ratios))
