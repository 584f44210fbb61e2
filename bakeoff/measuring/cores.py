"""The cores that this process may use. No other library is imported here."""

import os

SPARE_CORES = 8
"""With so many cores, some may prepare what comes later, and builds for a GPU go on side by side."""


def usable_cores() -> list[int]:
    """Return the cores that this process may run on, or none where a thread cannot be put on a core."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
