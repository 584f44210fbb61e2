"""Tells whether the builds of a cell differ by more than its processes do.

An autotuner may choose differently each time, so that a latency holds for one build only. Kalibera and Jones (Rigorous
benchmarking in reasonable time, ISMM 2013) repeat a measurement at the level where the variance arises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bakeoff.judging.intervals import analysis_of_variance
from bakeoff.records.schema import Record

MIN_SPREAD = 0.05
"""A smaller difference is none: some processes come in two kinds, 4 % apart, and chance may sort a few by build."""

MAX_CHANCE = 0.01
"""Builds differ if processes alone would spread them so far with at most this probability."""


def spread_of_builds(record: Record) -> float | None:
    """Return slowest over fastest build - 1 if that is more than processes of one build explain, else None.

    A build is the geometric mean of its processes. At least one needs two of them, as each has by default.
    """
    logs: dict[int, list[float]] = {}
    for process in record.processes:
        if process.median_ms is not None:
            logs.setdefault(process.build, []).append(math.log(process.median_ms))
    means = [float(np.mean(each)) for each in logs.values()]
    spread = math.exp(max(means) - min(means)) - 1 if means else 0.0
    return spread if spread >= MIN_SPREAD and _chance(list(logs.values())) <= MAX_CHANCE else None


def _chance(builds: Sequence[Sequence[float]]) -> float:
    return analysis_of_variance(builds) if len(builds) > 1 and any(len(each) > 1 for each in builds) else 1.0
