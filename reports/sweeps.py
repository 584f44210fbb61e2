"""Contests that differ in one dimension only, seen as lines over it: pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from judging.contests import ContestView, Row
from records.schema import Cell
from reports import format
from reports.chart_data import ends, ratio_over_baseline


@dataclass(frozen=True)
class Value:
    """What is drawn of a cell, with the ends of its interval."""

    middle: float
    ends: tuple[float, float]
    spelt: str


Quantity = Callable[[Row], Value | None]


def latency(row: Row) -> Value | None:
    """In ms; None for a cell that failed, though an incorrect one has numbers."""
    found = row.record.latency
    if found is None or row.record.status.is_failure:
        return None
    interval = found.median_ci95_ms
    reached = (interval.low, interval.high) if interval else (found.median_ms, found.median_ms)
    return Value(found.median_ms, reached, f"{format.median(found)} ms")


def speedup(row: Row) -> Value | None:
    """Over the baseline of its contest."""
    ratio = ratio_over_baseline(row)
    if ratio is None:
        return None
    return Value(ratio.value, ends(ratio), f"{format.ratio(ratio.value)}x {format.ratio_interval(ratio.ci95)}")


@dataclass(frozen=True)
class Point:
    """One configuration at one size. `row` has no latency where the cell ended without."""

    size: float
    row: Row


@dataclass(frozen=True)
class Sweep:
    """Contests in the order of the sizes that they differ in."""

    dimension: str  # "batch"
    contests: Sequence[ContestView]

    @property
    def sizes(self) -> list[float]:
        return [_size(contest.cell, self.dimension) for contest in self.contests]

    @property
    def title(self) -> str:
        """`mlp (features 256, hidden 512) on cpu, fp32, over batch`."""
        cell = self.contests[0].cell
        kept = [f"{name} {value}" for name, value in cell.dimensions.items() if name != self.dimension]
        task = "" if cell.task == "inference" else f", {cell.task}"
        sizes = f" ({', '.join(kept)})" if kept else ""
        return f"{cell.model}{sizes} on {cell.device}, {cell.precision}{task}, over {self.dimension}"

    @property
    def lines(self) -> dict[str, list[Point]]:
        """The points of each configuration, from the smallest size to the largest."""
        found: dict[str, list[Point]] = {}
        for contest in self.contests:
            for row in contest.rows:
                found.setdefault(row.label, []).append(Point(_size(contest.cell, self.dimension), row))
        return found

    def failures(self, quantity: Quantity) -> dict[str, list[Point]]:
        """By configuration, the points without that quantity because their cells failed."""
        found = {
            label: [point for point in points if point.row.record.status.is_failure and not quantity(point.row)]
            for label, points in self.lines.items()
        }
        return {label: points for label, points in found.items() if points}

    @property
    def has_ratio(self) -> bool:
        """Whether it has anything but a baseline over itself."""
        return any(
            ratio_over_baseline(row) and row.label != contest.verdict.baseline
            for contest in self.contests
            for row in contest.ranked
        )

    @property
    def finding(self) -> str:
        """Who is the fastest from which size on."""
        stretches: list[tuple[str, float]] = []
        for contest in self.contests:
            verdict = contest.verdict
            shared = ("undecided" if verdict.unstable else "a tie") if verdict.tied else "nobody"
            name = verdict.winner or shared
            if not stretches or stretches[-1][0] != name:
                stretches.append((name, _size(contest.cell, self.dimension)))
        first, *others = stretches
        if not others:
            return f"fastest at every {self.dimension}: {first[0]}"
        further = ", ".join(f"from {self.dimension} {size:,.10g} on {name}" for name, size in others)
        return f"fastest: {first[0]}, {further}"


def sweeps_of(contests: Sequence[ContestView]) -> list[Sweep]:
    """Every set of at least two contests that agree in all but the size of one dimension, which is a number.

    Where several dimensions were swept, it is the one with the most values, and each combination of the others makes a
    sweep of its own.
    """
    families: dict[tuple[object, ...], list[ContestView]] = defaultdict(list)
    for contest in contests:
        cell = contest.cell
        family = (cell.model, cell.task, cell.device, cell.precision, cell.seed, *sorted(cell.dimensions))
        families[family].append(contest)
    return [sweep for members in families.values() for sweep in _sweeps_of_family(members)]


def _sweeps_of_family(contests: Sequence[ContestView]) -> list[Sweep]:
    dimension = _most_varied(contests)
    if dimension is None:
        return []
    groups: dict[tuple[object, ...], dict[float, ContestView]] = defaultdict(dict)
    for contest in contests:
        others = tuple(sorted((name, str(v)) for name, v in contest.cell.dimensions.items() if name != dimension))
        groups[others].setdefault(_size(contest.cell, dimension), contest)
    return [Sweep(dimension, [sizes[size] for size in sorted(sizes)]) for sizes in groups.values() if len(sizes) > 1]


def _most_varied(contests: Sequence[ContestView]) -> str | None:
    """The dimension with the most values, of those that are numbers throughout; None where none has two."""
    values = {name: {contest.cell.dimensions[name] for contest in contests} for name in contests[0].cell.dimensions}
    numbers = {name: len(found) for name, found in values.items() if all(isinstance(value, int) for value in found)}
    widest = max(numbers, key=lambda name: numbers[name], default=None)
    return widest if widest is not None and numbers[widest] > 1 else None


def _size(cell: Cell, dimension: str) -> float:
    return float(cell.dimensions[dimension])
