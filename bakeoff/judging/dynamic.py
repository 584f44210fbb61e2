"""What one build for a range of sizes costs, beside builds for each size alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import Relation, relation
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Range, Status


@dataclass(frozen=True)
class DynamicPoint:
    """One size: the cell of the dynamic build, and the cell that was built for this size alone, if there is one."""

    contest: ContestJudgement
    dynamic: CellJudgement | None  # None: the backend builds nothing for a size
    alone: CellJudgement | None


@dataclass(frozen=True)
class DynamicBuild:
    """One configuration over all sizes that were measured."""

    configuration: str  # "onnx", which one of its labels is, too
    points: tuple[DynamicPoint, ...]

    @property
    def is_needed(self) -> bool:
        """Return False for a backend that builds nothing for a size, such as eager."""
        return any(point.dynamic for point in self.points)

    @property
    def serves_all(self) -> bool:
        return all(point.dynamic and point.dynamic.record.status is Status.OK for point in self.points)

    @property
    def build_s(self) -> float | None:
        built = [point.dynamic.record for point in self.points if point.dynamic and point.dynamic.latency]
        return built[0].build_s if built else None

    @property
    def builds_s(self) -> float | None:
        built = [point.alone.record.build_s for point in self.points if point.alone and point.alone.latency]
        return sum(built) if len(built) == len(self.points) else None

    @property
    def recompiled(self) -> list[str]:
        return [reason for point in self.points if point.dynamic for reason in point.dynamic.record.recompiled]

    @property
    def costs(self) -> list[float]:
        """Return at each size, where both are sound, how many times as long a call takes as with a build of its own."""
        return [ratio.value for point in self.points if point.dynamic and (ratio := point.dynamic.over_own_build)]

    @property
    def called_costs(self) -> list[float]:
        """Return the costs that are established: the build for the size alone is called faster."""
        ratios = [point.dynamic.over_own_build for point in self.points if point.dynamic]
        return [ratio.value for ratio in ratios if ratio and relation(ratio) is Relation.FASTER]


@dataclass(frozen=True)
class DynamicRange:
    """The contests that one build of each configuration serves."""

    ranges: dict[str, Range]
    contests: tuple[ContestJudgement, ...]

    @property
    def names(self) -> list[str]:
        return [
            ", ".join(f"{name} {contest.cell.dimensions[name]}" for name in self.ranges) for contest in self.contests
        ]

    @cached_property
    def builds(self) -> list[DynamicBuild]:
        names = dict.fromkeys(cell.cell.own_build_label for contest in self.contests for cell in contest.cells)
        return [DynamicBuild(name, tuple(_point(contest, name) for contest in self.contests)) for name in names]


def dynamic_ranges_of(contests: Sequence[ContestJudgement]) -> list[DynamicRange]:
    """Return the ranges that dynamic builds were made for, each with its contests from the smallest size on."""
    cells = [
        (cell, contest)
        for contest in contests
        if (cell := next((judged.cell for judged in contest.cells if judged.cell.dynamic), None))
    ]
    dynamic_ranges = []
    for members in grouped(cells, lambda pair: (pair[0].range_id, pair[1].run_id)).values():
        ranges = members[0][0].dynamic
        in_order = sorted((contest for _, contest in members), key=lambda contest: _sizes(contest, ranges))
        dynamic_ranges.append(DynamicRange(ranges, tuple(in_order)))
    return dynamic_ranges


def _sizes(contest: ContestJudgement, names: Iterable[str]) -> list[float]:
    """Return the sizes of a contest. A stream of several sizes comes after them."""
    sizes = [contest.cell.dimensions[name] for name in names]
    return [size if isinstance(size, int) else math.inf for size in sizes]


def _point(contest: ContestJudgement, configuration: str) -> DynamicPoint:
    cells = [cell for cell in contest.cells if cell.cell.own_build_label == configuration]
    dynamic = next((cell for cell in cells if cell.cell.dynamic), None)
    return DynamicPoint(contest, dynamic, next((cell for cell in cells if not cell.cell.dynamic), None))
