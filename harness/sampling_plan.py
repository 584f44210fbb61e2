"""How much of every cell is sampled: processes, rounds and bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_PROCESSES = 3
"""Of each cell, unless a user says otherwise: no interval over fewer can be trusted."""

MAX_PROCESSES = 20
"""So many are started at most where the spread between them leaves the verdict undecided."""

ROUNDS = 12
"""Of each epoch, at least."""

MOST_ROUNDS = 48
"""Where they differ by so much that fewer tell little, and fewer were planned."""

FURTHER_ROUNDS_S = 10.0
"""What those beyond the planned ones may take, which further processes of a few cells would, too."""

LONGEST_BURST_S = 0.1
CALLS = 100
"""Of each cell, at least, over all its processes."""


@dataclass(frozen=True)
class SamplingPlan:
    """How much is sampled. In each of its processes a cell gets `rounds` bursts of at least `burst_s` seconds and
    `burst_calls` calls, and of `wanted_calls` as far as `WANTED_LIMIT_S` holds them; more rounds where some were
    disturbed or differ by much (`MOST_ROUNDS`).

    A warm-up of `warm_up_s` or more precedes them, half of it in further processes. `latency_only`: throughput, device
    time, energy and stages are not asked for.
    """

    processes: int
    most_processes: int
    rounds: int
    burst_s: float
    burst_calls: int
    warm_up_s: float
    latency_only: bool = False
    wanted_calls: int = 0

    @classmethod
    def lasting(cls, seconds: float, processes: int = MIN_PROCESSES, wanted_calls: int = 0) -> SamplingPlan:
        """At least `seconds` and 100 calls of each cell over `processes` processes of twelve rounds or more; where they
        take little time, `wanted_calls`.

        Bursts take 100 ms or less, and the warm-up half a second (half of `seconds`, if that is less).

        Time is spent on further rounds and not on longer ones: a round is one piece of evidence, however long.
        """
        rounds = max(ROUNDS, math.ceil(seconds / processes / LONGEST_BURST_S))
        return cls(
            processes=processes,
            # who asks for fewer than an interval needs has asked not to be sure
            most_processes=max(processes, MAX_PROCESSES) if processes >= MIN_PROCESSES else processes,
            rounds=rounds,
            burst_s=seconds / processes / rounds,
            burst_calls=math.ceil(CALLS / processes / rounds),
            wanted_calls=math.ceil(wanted_calls / processes / rounds),
            warm_up_s=min(0.5, seconds / 2),
        )
