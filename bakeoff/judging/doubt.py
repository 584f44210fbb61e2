"""What every doubt about a contest has: a reason to believe its ranking less.

A kind of doubt is one class, which finds itself in a contest, knows what it does to the answer, and says itself in
words. Its row in `bakeoff.judging.doubts` is its place in the order of weight.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, dataclass_transform

from bakeoff.records.doubts import AnyDoubt, Effect, RecordDoubt
from bakeoff.records.schema import Ratio


class Stop(StrEnum):
    """Why a contest gets no further process. Where its answer is open, the reader learns how to go on."""

    INTERRUPTED = "interrupted"  # `resume` goes on
    PROCESSES = "processes"  # all that may be measured were measured
    BUDGET = "budget"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class FirstPlace:
    """Who is first in a contest where something is ranked, and by how much."""

    labels: tuple[str, ...]  # that share the place, the best first
    leads: Mapping[str, Ratio]  # of the best cell to every other ranked one, by label
    baseline: str | None  # if it was measured

    def is_shared_by(self, labels: Collection[str]) -> bool:
        return not set(labels).isdisjoint(self.labels)


@dataclass_transform(frozen_default=True)
class Doubt(AnyDoubt):
    """A reason to believe the ranking of a contest less. Each kind of doubt is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @property
    def cells(self) -> tuple[str, ...]:
        """The labels of the cells whose numbers it doubts. It is empty if it is about the whole contest."""
        return ()

    def effect(self, first: FirstPlace) -> Effect:
        if not self.cells or first.is_shared_by(self.cells):
            return self.worst
        return max(self.worst, Effect.NUMBER) if first.baseline in self.cells else Effect.NONE


class OfCell(Doubt):
    label: str

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.label,)


class OfCells(Doubt):
    labels: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        return self.labels


class OfCandidates(OfCells):
    """A doubt about several cells that matters only if one of them may win."""

    def effect(self, first: FirstPlace) -> Effect:
        return Effect.WINNER if first.is_shared_by(self.labels) else Effect.NONE


class OfValues(Doubt):
    """A doubt about several cells, with a value of each."""

    values: Mapping[str, float]  # by label

    @classmethod
    def of(cls, values: Mapping[str, float]) -> list[Self]:
        return [cls(values)] if values else []

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(self.values)


class OfRecords(OfCells):
    """A doubt that the records of these cells carry."""

    doubt: RecordDoubt

    @property
    def worst(self) -> Effect:
        return self.doubt.worst

    @property
    def brief(self) -> str:
        return self.doubt.brief

    def say(self) -> str:
        return f"{', '.join(self.labels)}: {self.doubt.say()}"
