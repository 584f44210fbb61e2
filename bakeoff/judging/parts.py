"""Readers of the parts that a record may lack, such as its latency or its memory."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
P = TypeVar("P")
V = TypeVar("V")


class Part(Generic[T, P]):
    """A part of something. `LATENCY(lambda it: it.mean_ms)` reads the mean of a record, or None without a latency."""

    def __init__(self, part_of: Callable[[T], P | None]) -> None:
        self._part_of = part_of

    def __call__(self, read: Callable[[P], V]) -> Callable[[T], V | None]:
        """Return a function that reads a value of this part. It returns None where there is no such part."""

        def value_of(whole: T) -> V | None:
            part = self._part_of(whole)
            return None if part is None else read(part)

        return value_of
