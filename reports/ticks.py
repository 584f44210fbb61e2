"""Where an axis has its numbers: pure functions."""

from __future__ import annotations

import math


def log_ticks(low: float, high: float, most: float) -> list[float]:
    """Round numbers from `low` > 0 to `high` for a logarithmic axis, about `most` at most: as fine a set as fits."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks: list[float] = []
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(marks) <= most:
            return marks
    return marks[:: math.ceil(len(marks) / most)]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten from `low` to `high`, `most` of them at most."""
    span = high - low
    if span <= 0:
        return [low]
    smallest = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * smallest for step in (1, 2, 2.5, 5, 10, 20) if span / (step * smallest) <= most - 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
