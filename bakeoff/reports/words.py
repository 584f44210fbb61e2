"""Lists and shares as parts of a sentence."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_SHOWN = 3
"""Number of names that a list of models, backends or winners begins with; further ones are counted."""


def percent(share: float) -> str:
    """Return `12 %`."""
    return f"{100 * share:.0f} %"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def first(names: Sequence[str]) -> list[str]:
    """Return at most `NAMES_SHOWN` names, the last of which may count the rest."""
    if len(names) <= NAMES_SHOWN + 1:
        return list(names)
    return [*names[:NAMES_SHOWN], f"{len(names) - NAMES_SHOWN} others"]
