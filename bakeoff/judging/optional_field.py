"""Reads fields that a record may lack, such as its latency or its memory."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
P = TypeVar("P")
V = TypeVar("V")


class OptionalField(Generic[T, P]):
    """A field that may be None. `LATENCY(lambda it: it.mean_ms)` reads a mean, or None where there is no latency."""

    def __init__(self, field_of: Callable[[T], P | None]) -> None:
        self._field_of = field_of

    def __call__(self, read: Callable[[P], V]) -> Callable[[T], V | None]:
        """Return a function that reads a value of this field. It returns None where the field is None."""

        def value_of(whole: T) -> V | None:
            field = self._field_of(whole)
            return None if field is None else read(field)

        return value_of
