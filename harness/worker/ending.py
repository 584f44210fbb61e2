"""How a cell that raised an exception ends."""

from __future__ import annotations

from records.errors import BakeoffError, Unavailable, Unsupported
from records.schema import Status


def explain(error: BaseException) -> tuple[Status, str]:
    """How a cell that raised `error` ends, and the reason in one line."""
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, first_line
    if isinstance(error, Unavailable):
        return Status.UNAVAILABLE, first_line
    if isinstance(error, BakeoffError):
        return Status.ERROR, first_line
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    # every library words it its own way, and not all have a type for it
    out_of_memory = isinstance(error, MemoryError) or any(
        words in str(error).lower()
        for words in ("out of memory", "failed to allocate memory", "bad_alloc", "can't allocate memory")
    )
    return (Status.OOM if out_of_memory else Status.ERROR), reason[:400]
