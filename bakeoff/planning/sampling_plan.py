"""How much of each cell is sampled: what the controller decides and the worker carries out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bakeoff.records.schema import MAX_PROCESSES

MIN_PROCESSES = 3
"""Default number of processes of each cell: no interval over fewer can be trusted."""

MIN_ROUNDS_PER_EPOCH = 12
MAX_ROUNDS_PER_EPOCH = 48
"""Imprecise rounds are repeated up to this number, unless more were planned."""

MAX_FURTHER_ROUNDS_S = 10.0
"""Rounds beyond the planned ones take no longer than this."""

MAX_BURST_S = 0.1
MIN_CALLS_PER_CELL = 100
"""In as many processes as there are by default. A single process takes its share of them, because slow models fill a
suite's time with calls."""

ENOUGH_CALLS = 100
"""A burst with so many calls ends after half of its time. Rounds differ by more than the error of its median."""

MAX_WARM_UP_S = 0.5

WARM_UP_LIMIT_S, WARM_UP_SHARE = 30.0, 0.05
"""A warm-up ends after so many seconds, and after this share of a budget, although latencies are not steady."""


@dataclass(frozen=True)
class SamplingPlan:
    """How much is sampled. In each of its processes a cell gets `rounds` bursts of at least `burst_s` seconds and
    `burst_calls` calls. A burst goes on to `wanted_calls` calls where these take little time, and takes half of its
    seconds where they hold `ENOUGH_CALLS`.

    A warm-up of at least `warm_up_s` and about `warm_up_limit_s` at most precedes them. In further processes a quarter
    of `warm_up_s` is enough. With `latency_only`, throughput, device time, energy and stages are not measured. In a
    plan that `races`, a cell that is surely beaten gets no further process. Processes take turns among `builds` builds.
    With `energy_of_all`, the energy of cells that cannot win is measured, too, and with `throughput_of_all` their
    throughput is as well as that of the others.
    """

    processes: int
    most_processes: int
    rounds: int
    burst_s: float
    burst_calls: int
    warm_up_s: float
    warm_up_limit_s: float = WARM_UP_LIMIT_S
    latency_only: bool = False
    wanted_calls: int = 0
    races: bool = False
    builds: int = 1
    energy_of_all: bool = False
    throughput_of_all: bool = False

    @property
    def rounds_may_end_early(self) -> bool:
        """True where a cell whose gap to the fastest is clear needs only half of the rounds: not where a single gap
        does not decide, where builds are compared, and for required percentiles."""
        return self.races and self.builds == 1 and not self.wanted_calls

    @classmethod
    def lasting(
        cls,
        seconds: float,
        processes: int | None = None,
        wanted_calls: int = 0,
        max_processes: int = MAX_PROCESSES,
        builds: int = 1,
        budget_s: float = math.inf,
    ) -> SamplingPlan:
        """Return a plan that samples each cell for `seconds` over all its processes, and for 100 calls over three. With
        `processes`, that number applies to every cell; without it, clear losers stop early."""
        # two processes of each build, so that builds can be told from processes
        usual_processes = max(MIN_PROCESSES, 2 * builds if builds > 1 else 1)
        races, processes = processes is None, processes or usual_processes
        seconds_of_process = seconds / max(processes, MIN_PROCESSES)
        # more time is spent on more rounds: a round is one piece of evidence, however long it is
        rounds = max(MIN_ROUNDS_PER_EPOCH, math.ceil(seconds_of_process / MAX_BURST_S))
        return cls(
            processes=processes,
            # who asks for fewer than an interval needs has asked not to be sure
            most_processes=max(processes, max_processes) if processes >= MIN_PROCESSES else processes,
            rounds=rounds,
            burst_s=seconds_of_process / rounds,
            burst_calls=math.ceil(MIN_CALLS_PER_CELL / max(processes, MIN_PROCESSES) / rounds),
            wanted_calls=math.ceil(wanted_calls / processes / rounds),
            warm_up_s=min(MAX_WARM_UP_S, seconds / 2),
            warm_up_limit_s=min(WARM_UP_LIMIT_S, WARM_UP_SHARE * budget_s),
            races=races,
            builds=builds,
        )
