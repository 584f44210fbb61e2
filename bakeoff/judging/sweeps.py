"""Finds contests that differ in one dimension only, and turns them into lines over that dimension."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.intervals import ends
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Ratio

COMPILED = "inductor"
"""The configuration that sweeps compare with eager where they ask what compiling is worth: torch.compile's default."""


@dataclass(frozen=True)
class Value:
    """A number of one cell with the ends of its interval."""

    middle: float
    ends: tuple[float, float]


Quantity = Callable[[CellJudgement], Value | None]


def latency(row: CellJudgement) -> Value | None:
    """Return the median latency in ms. None for a cell that failed, although an incorrect one has numbers."""
    latency = row.record.latency
    if latency is None or row.record.status.is_failure:
        return None
    return Value(latency.median_ms, ends(latency.median_ms, latency.median_ci95_ms))


def speedup(row: CellJudgement) -> Value | None:
    return _value_of(row.speedup)


def over_own_build(row: CellJudgement) -> Value | None:
    return _value_of(row.over_own_build)


def _value_of(ratio: Ratio | None) -> Value | None:
    return Value(ratio.value, ends(ratio.value, ratio.ci95)) if ratio else None


@dataclass(frozen=True)
class Point:
    """One backend and mode at one size. Its cell may have failed, and then has no latency."""

    size: float
    row: CellJudgement


@dataclass(frozen=True)
class Stretch:
    """The sizes from `first_size` on, up to the next stretch, over which the same configuration is fastest."""

    first_size: float
    winner: str | None
    is_tie: bool  # several share the first place
    is_open: bool  # measuring ended before this was decided


@dataclass(frozen=True)
class Sweep:
    """Contests that differ in one size only, in the order of that size."""

    dimension: str  # "batch"
    contests: Sequence[ContestJudgement]

    @property
    def sizes(self) -> list[float]:
        return [float(contest.cell.dimensions[self.dimension]) for contest in self.contests]

    @property
    def lines(self) -> dict[str, list[Point]]:
        points = (Point(float(one.cell.dimensions[self.dimension]), row) for one in self.contests for row in one.cells)
        return grouped(points, lambda point: point.row.label)

    def failures(self, quantity: Quantity) -> dict[str, list[Point]]:
        failures = {
            label: [point for point in points if point.row.record.status.is_failure and not quantity(point.row)]
            for label, points in self.lines.items()
        }
        return {label: points for label, points in failures.items() if points}

    @property
    def has_ratio(self) -> bool:
        return any(
            speedup(row) and row.label != contest.baseline for contest in self.contests for row in contest.ranked
        )

    @property
    def fastest(self) -> list[Stretch]:
        """Return which label is fastest over which sizes, from the smallest size on."""
        stretches: list[Stretch] = []
        for contest in self.contests:
            leader = contest.fastest.leader, bool(contest.fastest.tied), contest.fastest.is_open
            if not stretches or (stretches[-1].winner, stretches[-1].is_tie, stretches[-1].is_open) != leader:
                stretches.append(Stretch(float(contest.cell.dimensions[self.dimension]), *leader))
        return stretches


def sweeps_of(contests: Sequence[ContestJudgement]) -> list[Sweep]:
    """Return every set of at least two contests that differ only in one dimension, which is a number. If several were
    swept, the axis is the one with the most values, for each combination of the others."""

    def family(contest: ContestJudgement) -> tuple[object, ...]:
        cell = contest.cell
        kinds = sorted((name, isinstance(value, int)) for name, value in cell.dimensions.items())  # a stream is no size
        return (cell.model, cell.task, cell.device, cell.precisions, cell.seed, *kinds)

    return [sweep for members in grouped(contests, family).values() for sweep in _sweeps_of_family(members)]


def _sweeps_of_family(contests: Sequence[ContestJudgement]) -> list[Sweep]:
    values = {name: {contest.cell.dimensions[name] for contest in contests} for name in contests[0].cell.dimensions}
    numbers = {name: len(sizes) for name, sizes in values.items() if all(isinstance(value, int) for value in sizes)}
    # the dimension with the most values, of those that are always numbers
    dimension = max(numbers, key=lambda name: numbers[name], default=None)
    if dimension is None or numbers[dimension] < 2:
        return []
    groups: dict[tuple[object, ...], dict[float, ContestJudgement]] = defaultdict(dict)
    for contest in contests:
        others = tuple(sorted((name, str(v)) for name, v in contest.cell.dimensions.items() if name != dimension))
        groups[others].setdefault(float(contest.cell.dimensions[dimension]), contest)
    return [Sweep(dimension, [sizes[size] for size in sorted(sizes)]) for sizes in groups.values() if len(sizes) > 1]
