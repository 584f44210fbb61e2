"""Decides the number of rounds and processes of a contest, and the order in which cells take turns. It is pure.

It asks judging whether rounds were disturbed, whether they are precise, and which pairs are undecided.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bakeoff.judging.decision import ENOUGH_PROCESSES, fewest_processes
from bakeoff.judging.estimate import fastest, undisturbed_rounds
from bakeoff.judging.gaps import MIN_CALM_SHARE, imprecise, unclear
from bakeoff.planning.sampling_plan import MAX_FURTHER_ROUNDS_S, MAX_ROUNDS_PER_EPOCH, SamplingPlan
from bakeoff.planning.time_plan import USUAL_FURTHER_PROCESSES
from bakeoff.records.schema import Burst, LeftEarly, Ratio
from bakeoff.records.text import counted

Pairs = Sequence[tuple[str, str]]

Cell = TypeVar("Cell")

MAX_ERROR_AT_HALF = 0.025
"""A cell that ends after half of the planned rounds has a gap to the fastest whose standard error is at most this."""


@dataclass(frozen=True)
class RoundsSoFar:
    done: int
    bursts: Sequence[Sequence[Burst]]  # of these rounds, cell by cell
    further_s: float = 0.0  # seconds since the planned rounds were done
    most_further_s: float = math.inf  # seconds that further rounds may take
    has_time_to_spare: bool = True  # every cell has half of its time limit left
    bridge: int | None = None  # place of the cell that ratios between groups go through


class RoundRule(Protocol):
    def takers(self, seen: RoundsSoFar) -> set[int]:
        """Return the places of the cells for which one more round is worth its time."""


@dataclass
class PlannedRounds:
    """All cells take half of the rounds; the other half is for those whose gap to the fastest is not clear by then. An
    object is for one group of cells in one epoch."""

    rounds: int
    calls: int = 0  # of a burst, at least
    may_end_early: bool = False  # not in groups: ratios between two groups have the errors of both
    _goes_on: dict[int, set[int]] = field(default_factory=dict)  # by the number of cells alive

    def takers(self, seen: RoundsSoFar) -> set[int]:
        everyone = set(range(len(seen.bursts)))
        half = self.rounds // 2
        if seen.done >= self.rounds:
            return set()
        if not self.may_end_early or seen.done < half or seen.bridge is not None:
            return everyone
        if len(everyone) not in self._goes_on:
            first_half = [_before(half, bursts) for bursts in seen.bursts]
            least = self.calls * self.rounds  # so many calls a cell needs
            short = {
                place
                for place, bursts in enumerate(first_half)
                if sum(len(burst.samples_ns) for burst in bursts) < least
            }
            self._goes_on[len(everyone)] = short | unclear(first_half, MAX_ERROR_AT_HALF)
        return self._goes_on[len(everyone)]


@dataclass(frozen=True)
class RepeatDisturbedRounds:
    """Disturbed rounds are repeated for cells that lack undisturbed ones and whose gap to the fastest is not clear."""

    planned: int

    def takers(self, seen: RoundsSoFar) -> set[int]:
        if not self.planned <= seen.done < 2 * self.planned or not any(seen.bursts):
            return set()
        enough = MIN_CALM_SHARE * self.planned
        # A cell without any undisturbed round gets none: beside the same load, more would be like these.
        lacking = {place for place, bursts in enumerate(seen.bursts) if 0 < undisturbed_rounds(bursts) < enough}
        if lacking and seen.bridge is None:
            lacking &= unclear(seen.bursts)
        return lacking | {fastest(seen.bursts) if seen.bridge is None else seen.bridge} if lacking else set()


@dataclass
class RefineImpreciseRounds:
    """Imprecise cells get more rounds, which save further processes. An object is for one group in one epoch."""

    planned: int
    _imprecise: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # by rounds done and cells alive

    def takers(self, seen: RoundsSoFar) -> set[int]:
        most_s = min(MAX_FURTHER_ROUNDS_S, seen.most_further_s)
        if seen.done >= MAX_ROUNDS_PER_EPOCH or seen.further_s >= most_s or not seen.has_time_to_spare:
            return set()
        # Asked after every round, it would stop where some rounds agree by chance.
        asked_after = seen.done - seen.done % self.planned
        key = (asked_after, len(seen.bursts))
        if key not in self._imprecise:
            so_far = [_before(asked_after, bursts) for bursts in seen.bursts]
            may_help = any(map(undisturbed_rounds, so_far))  # else a busy machine is why they are imprecise
            self._imprecise[key] = imprecise(so_far, seen.bridge) if may_help else set()
        return self._imprecise[key]


def _before(round_number: int, bursts: Sequence[Burst]) -> list[Burst]:
    return [burst for burst in bursts if burst.round < round_number]


def round_rules(plan: SamplingPlan) -> tuple[RoundRule, ...]:
    """Return the rules of an epoch. It goes on while one of them finds a cell that another round is for."""
    planned = PlannedRounds(plan.rounds, plan.burst_calls, plan.rounds_may_end_early)
    rules = (planned, RepeatDisturbedRounds(plan.rounds))
    may_save_processes = plan.most_processes > plan.processes
    return (*rules, RefineImpreciseRounds(plan.rounds)) if may_save_processes else rules


@dataclass(frozen=True)
class NextEpoch:
    is_wanted: bool
    note: str = ""


def next_epoch(plan: SamplingPlan, done: int, open_pairs: Pairs, has_time: bool, has_budget: bool = True) -> NextEpoch:
    """Decide whether each cell gets another process, when `done` of them leave `open_pairs` undecided. `has_time` is
    about the time limits of the cells, and `has_budget` about that of the run."""
    if done < plan.processes:
        why = f"--budget left time for {done} of {plan.processes} processes of each cell"
        return NextEpoch(True) if has_budget else NextEpoch(False, why)
    if not open_pairs or done >= plan.most_processes:
        return NextEpoch(False)
    if not has_time:
        return NextEpoch(False, "--time-limit left no room for more processes per cell")
    pairs = ", ".join(f"{fast} against {slow}" for fast, slow in open_pairs)
    if not has_budget:
        return NextEpoch(False, f"--budget left no time for more processes per cell, which might decide {pairs}")
    of_each = f"{counted(done, 'process')} of each cell {'does' if done == 1 else 'do'}"
    return NextEpoch(True, f"{of_each} not decide {pairs}: more of each")


def expected_epochs(plan: SamplingPlan, done: int, leads: Sequence[Ratio]) -> int:
    """Return how many epochs are likely to come in all, when `done` of them show these leads of the best cell."""
    expected = max(plan.processes, *map(fewest_processes, leads), 0)
    if done >= expected:
        # A contest that needs one more process of each cell than expected mostly needs a second one.
        expected = done + 2 - (done - expected) % 2
    return min(expected, plan.most_processes)


def most_further(plan: SamplingPlan, done: int) -> int:
    """Return how many epochs may follow `done` ones: those planned and two more, or else until it is looked again."""
    last = ENOUGH_PROCESSES if done < ENOUGH_PROCESSES else plan.most_processes
    return min(plan.processes + USUAL_FURTHER_PROCESSES if done < plan.processes else last, plan.most_processes) - done


def racing(beaten: Mapping[str, LeftEarly], open_pairs: Pairs) -> dict[str, LeftEarly]:
    """Return the beaten cells that sit out the next epoch: those that the verdict does not depend on."""
    named = {label for pair in open_pairs for label in pair}
    return {label: reason for label, reason in beaten.items() if label not in named}


def order_of_round(group: int, number: int, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells in a seeded random order. Over as many rounds as there are cells, each comes first once."""
    cycle, turn = divmod(number, len(cells))
    # The first cell of a round finds a core that nobody has woken, and is slower for it.
    first = random.Random(f"{group}/{cycle}").sample(cells, len(cells))[turn]
    others = [cell for cell in cells if cell is not first]
    return [first, *random.Random(f"{group}/{cycle}/{turn}").sample(others, len(others))]


def core_of_round(group: int, number: int, cores: Sequence[int]) -> int | None:
    """Return the core on which the calling threads of a round begin. The rounds use all cores in turn."""
    return random.Random(group).sample(cores, len(cores))[number % len(cores)] if cores else None
