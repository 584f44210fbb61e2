"""Estimates how long a run takes, from usual times and then from those that it has seen, and divides a time budget."""

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from statistics import fmean

from bakeoff import backends
from bakeoff.backends.base import Backend
from bakeoff.judging.estimate import FEWEST_ROUNDS
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.plan import Contest
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.schema import Cell

USUAL_CEILINGS_S, MAX_CEILINGS_S = 6.0, 60.0
USUAL_EVALUATE_S = 2.0
BETWEEN_BURSTS_S = 0.02
"""Seconds that a burst takes beyond its calls: the process goes on, calls a few times untimed, and stops again."""

USUAL_SHARE_THAT_STAYS = 0.5
"""In a race about half of the further processes are not needed, because their cells are beaten."""

USUAL_WARM_UP_S = 2.0
"""Seconds for which a built cell is called until its latency is steady, while it has not been called yet."""

USUAL_FRESH_START_S = 3.0
"""Seconds from the start of a process to its tenth answer, and its end. Most of it is torch's import."""

FACTOR_IF_SEEN, FACTOR_IF_NOT = 1.25, 2.0
"""A step takes no more than so many times its estimate, mostly: when it was seen in this run, and when it was not."""

USUAL_FURTHER_PROCESSES = 2
"""So many processes beyond the planned ones are often needed, of the two best cells."""

RESERVED_SHARE, MAX_RESERVED_S = 0.1, 8.0
"""This share of a budget, and at most so many seconds, are kept for the verdict and the report."""


ROUNDS_SHARE = 0.25
"""So much of a contest's time is kept from the third and later builds for the rounds of those that are built, where
these need it all. The first two leave time only for the fewest rounds that rank."""


class PlanStep(StrEnum):
    GROUNDWORK = "groundwork"  # the reference
    BUILD = "build"  # a cell's first process, until it is warm
    START = "start"  # a further process, until it is warm
    ROUNDS = "rounds"  # all bursts of one process
    SETTINGS = "settings"  # the search for the settings that a cell serves best with, and its soak
    LOAD = "load"  # all turns under load in one process
    FINISH = "finish"  # what the first process measures after its bursts
    EVALUATE = "evaluate"  # the user's own `evaluate`, for the reference (without a label) and for each build


USUAL_S = {PlanStep.GROUNDWORK: 2.0, PlanStep.START: 2.0, PlanStep.FINISH: 0.5, PlanStep.EVALUATE: USUAL_EVALUATE_S}
"""The usual seconds of steps that take as long for each backend."""


class TimePlan:
    """Knows which steps lie ahead of each contest, estimates their seconds from its own run or from what backends
    usually take, and shares a budget among contests. Cells are told apart by their label."""

    def __init__(self, sampling: SamplingPlan, budget_ends_s: float = math.inf, load: LoadPlan | None = None) -> None:
        self.budget_ends_s = budget_ends_s
        self.contest_ends_s = budget_ends_s
        """The contest that was begun last must not go beyond this. It is infinite without a budget."""
        self._contest_id, self._contest_begun_s = "", 0.0
        self._share_that_stays = USUAL_SHARE_THAT_STAYS if sampling.races else 1.0
        self._usual_s = USUAL_S | {PlanStep.SETTINGS: load.once_s if load else 0.0}
        self._sampling, self._load = sampling, load
        self.warm_up_s = min(USUAL_WARM_UP_S, sampling.warm_up_limit_s)
        self._call_s: dict[str, float] = {}
        self._check_s: dict[str, float] = {}
        self._ahead: dict[str, Counter[tuple[PlanStep, str]]] = {}
        self._may_follow: dict[str, tuple[Sequence[str], int]] = {}  # cells and processes beyond the steps ahead
        self._seen: dict[tuple[PlanStep, str], list[float]] = {}

    def expect(self, contest_id: str, labels: Sequence[str], processes: int, evaluates: bool = False) -> None:
        """Expect a contest of these cells, each of which is built and then measured in so many processes. With
        `evaluates`, the user's own metric is computed for the reference and for each build."""
        steps = Counter({(PlanStep.GROUNDWORK, ""): 1} if labels else {})
        if labels and evaluates:
            steps |= Counter((PlanStep.EVALUATE, label) for label in ("", *labels))
        further = round(self._share_that_stays * (processes - 1))
        for label in labels:
            steps[PlanStep.BUILD, label] = steps[PlanStep.FINISH, label] = steps[PlanStep.SETTINGS, label] = 1
            steps[PlanStep.START, label] = further
            steps[PlanStep.ROUNDS, label] = steps[PlanStep.LOAD, label] = 1 + further
        self._ahead[contest_id] = steps
        may_go_on = self._sampling.most_processes > processes
        self._may_follow[contest_id] = labels[:2], USUAL_FURTHER_PROCESSES if may_go_on else 0

    def begin(self, contest_id: str, now_s: float) -> None:
        """Give the contest its share of the time that the budget has left, by what each contest is expected to take.
        The cells that come from here on are its own."""
        self._contest_id, self._contest_begun_s = contest_id, now_s
        total_s = self.left_s()
        share = self._left_of(contest_id) / total_s if total_s else 1.0
        self.contest_ends_s = now_s + (self.budget_ends_s - now_s) * share if self.has_budget else math.inf

    @property
    def _of_contest(self) -> Counter[tuple[PlanStep, str]]:
        return self._ahead[self._contest_id]

    def expect_built(self, label: str) -> None:
        """Expect that the first process of a cell starts from what an earlier run has built."""
        self._of_contest[PlanStep.START, label] += self._of_contest[PlanStep.BUILD, label]
        self._of_contest[PlanStep.BUILD, label] = 0

    def expect_further(self, labels: Sequence[str], processes: int, at_most: int = 0) -> None:
        """Expect so many further processes of these cells, and nothing else of their contest. `at_most` may come."""
        self._may_follow[self._contest_id] = labels, max(0, at_most - processes)
        self._ahead[self._contest_id] = Counter(
            {(step, label): processes for label in labels for step in (PlanStep.START, PlanStep.ROUNDS, PlanStep.LOAD)}
        )

    def done(self, step: PlanStep, label: str, seconds: float) -> None:
        self._seen.setdefault((step, label), []).append(seconds)
        self._of_contest[step, label] = max(0, self._of_contest[step, label] - 1)

    def evaluates_nothing(self) -> None:
        """Expect no evaluation of builds, because that of the reference has failed."""
        for step, label in list(self._of_contest):
            if step is PlanStep.EVALUATE:
                del self._of_contest[step, label]

    def dropped(self, label: str) -> None:
        for step in PlanStep:
            del self._of_contest[step, label]

    def ended(self, contest_id: str) -> None:
        self._ahead.pop(contest_id, None)
        self._may_follow.pop(contest_id, None)

    @property
    def has_budget(self) -> bool:
        return self.budget_ends_s < math.inf

    def called(self, label: str, call_s: float, check_s: float = 0.0) -> None:
        """Learn how long a call of a built cell takes, and the check of its outputs, which is repeated at its end."""
        self._call_s[label], self._check_s[label] = call_s, check_s

    def left_s(self) -> float:
        return sum(map(self._left_of, self._ahead))

    def left_at_most_s(self) -> float:
        """Return the seconds that all steps ahead and those that may follow take at most, as far as is known."""
        steps = sum((self._ahead[contest_id] for contest_id in self._ahead), Counter[tuple[PlanStep, str]]())
        ahead_s = sum(number * self._at_most(*key) for key, number in steps.items())
        return ahead_s + FACTOR_IF_NOT * sum(
            processes * self.seconds_of(step, labels)
            for labels, processes in self._may_follow.values()
            for step in (PlanStep.START, PlanStep.ROUNDS)
        )

    def seconds_of(self, step: PlanStep, labels: Sequence[str]) -> float:
        return sum(self._estimate(step, label) for label in labels)

    def lack(self, labels: Sequence[str], now_s: float) -> str:
        """Say how much longer a budget must be for one process each of the two cells that take the least time, one of
        them eager if it is there. A reference that is not done after an unusual time says that nothing is known. Say
        only what took the time where other contests lie ahead, which share it."""
        took_time = self.what_took_time
        if len(self._ahead) > 1:
            return took_time
        quickest = sorted(labels, key=lambda label: (label != "eager", self.seconds_of(PlanStep.BUILD, [label])))[:2]
        steps = (PlanStep.BUILD, PlanStep.ROUNDS, PlanStep.FINISH)
        steps_s = sum(self._at_most(step, label) for step in steps for label in quickest)
        if self._of_contest[PlanStep.GROUNDWORK, ""]:
            most_s, taken_s = self._at_most(PlanStep.GROUNDWORK, ""), now_s - self._contest_begun_s
            if taken_s > most_s:
                return f"the reference was not computed within {taken_s:.0f} s, and resume begins it anew"
            steps_s += most_s
        more_s = math.ceil(now_s + steps_s - self.contest_ends_s)
        more = f"about {more_s} s more would do for {' and '.join(quickest)}"
        return f"{took_time}; {more}" if took_time else more

    @property
    def what_took_time(self) -> str:
        """Say that the contest's reference took most of its time, or nothing."""
        reference_s = self._seen.get((PlanStep.GROUNDWORK, ""), [0.0])[-1]
        given_s = self.contest_ends_s - self._contest_begun_s
        return f"the reference took {reference_s:.0f} of {given_s:.0f} s" if reference_s > given_s / 2 > 0 else ""

    def leaves_room_for_epoch(self, labels: Sequence[str], now_s: float, are_built: bool = True) -> bool:
        """Return True when one more process of each of these cells would end within the contest's share."""
        steps = (PlanStep.START if are_built else PlanStep.BUILD, PlanStep.ROUNDS, PlanStep.LOAD)
        steps_s = sum(self.seconds_of(step, labels) for step in steps)
        return now_s + steps_s <= self.contest_ends_s

    def reference_evaluation_ends_s(self, now_s: float) -> float:
        """Return when the reference must be evaluated: builds and rounds keep half of the time that is left."""
        return now_s + (self.contest_ends_s - now_s) / 2

    def rounds_end_s(self, labels: Sequence[str]) -> float:
        """Return when rounds must end so that the metrics of these cells can still be computed, if they are not yet."""
        evaluated = [label for label in labels if self._of_contest[PlanStep.EVALUATE, label]]
        return self.contest_ends_s - self.seconds_of(PlanStep.EVALUATE, evaluated)

    def build_ends_s(self, label: str, alive: Sequence[str]) -> float:
        """Return when this cell must be built: it and those `alive` still warm up, take rounds, and have metrics."""
        if not self.has_budget:
            return math.inf
        labels = [*alive, label]
        rounds_s, given_s = self.seconds_of(PlanStep.ROUNDS, labels), self.contest_ends_s - self._contest_begun_s
        fewest_s = rounds_s * min(1.0, FEWEST_ROUNDS / self._sampling.rounds)
        warm_ups_s = self.warm_up_s * sum(self._of_contest[PlanStep.BUILD, other] for other in labels)
        wanted_s = min(rounds_s, ROUNDS_SHARE * given_s) if len(alive) > 1 else 0.0  # one alone ranks nothing
        return self.rounds_end_s(labels) - warm_ups_s - max(fewest_s, wanted_s)

    def leaves_room_for_build(self, label: str, alive: Sequence[str], now_s: float) -> bool:
        """Return True when this cell may be built in time, or if it is one of the first two of a contest, because one
        alone ranks nothing, or if it is expected to take no time. A build that takes longer ends at `build_ends_s`."""
        takes_time = len(alive) > 1 and self._of_contest[PlanStep.BUILD, label]
        return now_s + (self._at_least(PlanStep.BUILD, label) if takes_time else 0.0) <= self.build_ends_s(label, alive)

    def _left_of(self, contest_id: str) -> float:
        return sum(number * self._estimate(*step) for step, number in self._ahead[contest_id].items())

    def _at_most(self, step: PlanStep, label: str) -> float:
        return self._estimate(step, label) * (FACTOR_IF_SEEN if (step, label) in self._seen else FACTOR_IF_NOT)

    def _at_least(self, step: PlanStep, label: str) -> float:
        return self._estimate(step, label) / (FACTOR_IF_SEEN if (step, label) in self._seen else FACTOR_IF_NOT)

    def _estimate(self, step: PlanStep, label: str) -> float:
        seen = self._seen.get((step, label))
        if seen:
            return fmean(seen)
        usual_s = self._usual(step, label)
        if not usual_s:
            return 0.0
        others = [(fmean(seen_s), self._usual(step, other)) for (of, other), seen_s in self._seen.items() if of is step]
        if step is PlanStep.EVALUATE and others:
            return fmean(taken_s for taken_s, _ in others)  # the user's code takes most of it, whatever the build
        # the usual time itself counts as seen once, because short steps say little about a long one
        taken_s = usual_s + sum(other_s for other_s, _ in others)
        return usual_s * taken_s / (usual_s + sum(usual for _, usual in others))

    def _usual(self, step: PlanStep, label: str) -> float:
        if step is PlanStep.BUILD:
            return usual_build_s(label)
        call_s = self._call_s.get(label, max(self._call_s.values(), default=0.0))
        if step is PlanStep.LOAD:
            return self._load.turns_s(self._sampling.processes, call_s) if self._load else 0.0
        if step is PlanStep.ROUNDS:
            burst_s = max(self._sampling.burst_s, self._sampling.burst_calls * call_s)
            return self._sampling.rounds * (burst_s + BETWEEN_BURSTS_S)
        check_s = self._check_s.get(label, 0.0) if step is PlanStep.FINISH else 0.0
        return max(self._usual_s[step], check_s)


@cache
def usual_build_s(label: str) -> float:
    return (backends.if_it_loads(re.split(r"[/@[ ]", label)[0]) or Backend).usual_build_s


def likely_to_run(cells: Iterable[Cell]) -> list[str]:
    return [cell.label for cell in cells if not why_unlikely_to_run(cell)]


def why_unlikely_to_run(cell: Cell) -> str:
    """Say that the backend cannot run on the device, or that this interpreter lacks its module, or say nothing. Another
    environment is not looked into."""
    backend = backends.create(cell.backend)
    if cell.device.kind not in backend.devices:
        return f"{backend.name} does not run on {cell.device}"
    if not cell.environment and importlib.util.find_spec(backend.module) is None:
        return f"{backend.name} is not installed (No module named '{backend.module}'): bakeoff doctor says what to do"
    return ""


def starts_s(labels: Sequence[str], starts: int, are_all_started: bool) -> float:
    """Return about how long it takes to start the contenders of a contest of these cells so often: two and eager."""
    return (len(labels) if are_all_started else min(3, len(labels))) * starts * USUAL_FRESH_START_S


def reserved_for_starts_s(request: Request, contests: Sequence[Contest]) -> float:
    """Return how much of a budget is kept for starts: at most half of it."""
    if not request.starts or not request.budget:
        return 0.0
    of_contests = [
        likely_to_run(planned.cell for planned in contest.cells if not planned.refusal[1]) for contest in contests
    ]
    usual_s = sum(starts_s(labels, LEAST_STARTS, request.require.judge_starts) for labels in of_contests)
    return min(usual_s, request.budget.seconds / 2)


def end_of_budget(begun_s: float, budget_s: float | None) -> float:
    """Return when measuring must end so that a report can be written within the budget."""
    return begun_s + budget_s - min(RESERVED_SHARE * budget_s, MAX_RESERVED_S) if budget_s else math.inf
