"""Ranges of sizes that one build serves, as `--dynamic seq=16:512` asks for them. This is pure."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bakeoff.models.base import Family, ends_of_stream
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Range


class Span(NamedTuple):
    low: int
    built_at: int | None  # the size to build with, if it was named
    high: int

    def __str__(self) -> str:
        return ":".join(str(size) for size in self if size is not None)


FORM = "write --dynamic NAME=LOW:HIGH or NAME=LOW:BUILT_AT:HIGH"


def parse(entries: Sequence[str]) -> dict[str, Span]:
    """Return the range of each dimension in `seq=16:512` or `seq=16:128:512`. Raises UsageError for another form."""
    spans: dict[str, Span] = {}
    for entry in entries:
        form = re.fullmatch(r"([^=]+)=(\d+):(?:(\d+):)?(\d+)", entry.replace(" ", ""), re.ASCII)
        if form is None:
            raise UsageError(f"--dynamic {entry}: {FORM}")
        name, low, high = form[1], int(form[2]), int(form[4])
        built_at = int(form[3]) if form[3] else None
        if not low < high or not low <= (built_at or low) <= high:
            raise UsageError(f"--dynamic {entry}: the sizes must rise, from the lowest to the highest")
        spans[name] = Span(low, built_at, high)
    return spans


def spell(ranges: Mapping[str, Range]) -> str:
    return ",".join(f"{name}={span.low}:{span.built_at}:{span.high}" for name, span in ranges.items())


def with_ends(asked: Mapping[str, tuple[str, ...]], spans: Mapping[str, Span]) -> dict[str, tuple[str, ...]]:
    """Return the sizes to measure. A range that --set names no size of is measured at its ends."""
    ends = {name: (str(low), str(high)) for name, (low, _, high) in spans.items() if name not in asked}
    return {**asked, **ends}


def ranges_of(asked: Mapping[str, tuple[str, ...]], spans: Mapping[str, Span]) -> dict[str, Range]:
    """Return the ranges with the size that each is built at: the one that was named, or the middle one of those asked.
    Raise UsageError for a size outside of its range."""
    ranges: dict[str, Range] = {}
    for name, (low, built_at, high) in spans.items():
        sizes = sorted(size for value in asked[name] for size in _sizes_of(name, value))
        if outside := [size for size in sizes if not low <= size <= high]:
            raise UsageError(f"--dynamic {name}={low}:{high}: --set {name}={outside[0]} is outside of this range")
        # torch takes 0 and 1 for constants, and two axes of one size for the same
        others_built_at = {other.built_at for other in ranges.values()}
        usual = [sizes[len(sizes) // 2], *reversed(sizes), *range(high, max(low, 2) - 1, -1)]
        best = next((size for size in usual if size > 1 and size not in others_built_at), high)
        ranges[name] = Range(low=low, built_at=built_at or best, high=high)
    return ranges


def _sizes_of(name: str, value: str) -> tuple[int, ...]:
    if ends := ends_of_stream(value):
        return ends
    try:
        return (int(value),)
    except ValueError:
        raise UsageError(f"--set {name}={value}: --dynamic {name} is a range of sizes: write a number") from None


def require_served(family: Family, asked: Mapping[str, tuple[str, ...]], ranges: Mapping[str, Range]) -> None:
    """Raise UsageError if the model does not take one of the ranges."""
    written = f"--dynamic {','.join(f'{name}={span.low}:{span.high}' for name, span in ranges.items())}"
    for name, span in ranges.items():
        for size in (span.low, span.high):
            try:
                parsed = family.resolve({**{key: values[0] for key, values in asked.items()}, name: str(size)})
            except UsageError as error:
                raise UsageError(f"{written}: {error}") from None
            if not isinstance(parsed[name], int):
                raise UsageError(f"{written}: {family.name}'s {name} is no size")
