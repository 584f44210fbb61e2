"""Puts things into groups by what they have in common."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

One = TypeVar("One")
Key = TypeVar("Key", bound=Hashable)


def grouped(ones: Iterable[One], key: Callable[[One], Key]) -> dict[Key, list[One]]:
    """Return the groups by their keys, in the order in which these first appear. Nothing need be sorted."""
    groups: dict[Key, list[One]] = {}
    for one in ones:
        groups.setdefault(key(one), []).append(one)
    return groups
