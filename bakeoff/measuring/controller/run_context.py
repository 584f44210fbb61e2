"""What the contests of one run have in common."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bakeoff.judging.acceptance import Acceptance
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.ranking import undecided
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.environment import Machine
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.others import QuietWait
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.rounds import Pairs
from bakeoff.measuring.controller.worker_process import CAN_PAUSE
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import PlanStep, TimePlan
from bakeoff.records.artifacts import Artifacts
from bakeoff.records.schema import Record
from bakeoff.records.store import Store

NOTEWORTHY_DELAY_S = 5.0

SPARE_SHARE = 1.25
"""The end that is announced leaves room for a machine that becomes slower, so that it seldom has to be corrected."""

STEPS = {
    PlanStep.GROUNDWORK: "the reference",
    PlanStep.BUILD: "the first start",
    PlanStep.START: "a further start",
    PlanStep.ROUNDS: "the rounds",
    PlanStep.SETTINGS: "the search for the settings",
    PlanStep.LOAD: "the turns under load",
    PlanStep.FINISH: "the last steps",
    PlanStep.EVALUATE: "the evaluation",
}
"""How steps are called where one has taken longer than expected."""


@dataclass(kw_only=True)
class RunContext:
    """What the contests of one run have in common: where workers start, where records go, how long it may take."""

    launchers: Launchers
    store: Store
    progress: Progress
    request: Request
    sampling: SamplingPlan
    time_plan: TimePlan
    headers: Headers  # of torch, which builds may wait for
    undecided: Callable[[Sequence[Record]], Pairs] | None = None  # what to ask instead of `judging`
    machine: Machine = field(default_factory=Machine)
    artifacts: Artifacts | None = None  # keeps what cells have built; None: nothing is kept
    load: LoadPlan | None = None
    place: str = ""  # of a pool
    build_cache: BuildCache | None = None  # None: everything is built anew, and nothing is kept for later runs
    is_machine_busy: bool = False  # other programs kept cores busy when the run began

    def __post_init__(self) -> None:
        wait = self.request.wait_for_quiet  # before each epoch's rounds
        self.quiet = QuietWait(wait.seconds, self.progress.note) if wait else None
        self.begun_s = self.machine.now_s() - self.store.elapsed_s
        self._ends_by_s = math.inf  # was announced, and the run takes no longer
        self.group_numbers: Iterator[int] = itertools.count(self.store.next_group())

    @property
    def interleaved(self) -> bool:
        return CAN_PAUSE and self.request.schedule == "interleaved"

    @cached_property
    def requirements(self) -> Requirements:
        return self.request.require.without_starts()

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.request.accept, self.requirements)

    def await_serving(self) -> None:
        if not self.launchers.are_serving:
            self.progress.note("importing torch in the fork servers of further processes")
        self.launchers.await_serving()

    def undecided_pairs(self, records: Sequence[Record]) -> Pairs:
        """Return the pairs of labels for which more processes are worth their time, by the records so far."""
        return self.undecided(records) if self.undecided else undecided(records, self.requirements)

    def step_done(self, step: PlanStep, label: str, seconds: float) -> None:
        """Learn how long a step took, and report how much time is left."""
        expected_s = self.time_plan.seconds_of(step, [label])
        self.time_plan.done(step, label, seconds)
        what = f"{STEPS[step]}{label and f' of {label}'}"
        why = f"{what} took {seconds:.0f} s, and about {expected_s:.0f} s were expected"
        self.report_time_left(why if seconds > expected_s + NOTEWORTHY_DELAY_S else "")

    def report_time_left(self, why: str = "") -> None:
        """Report how long the steps ahead take, and how long at most, within the budget. `why` is the reason where the
        end moves beyond what was reported before."""
        now_s, plan = self.machine.now_s(), self.time_plan
        budget_left_s = max(0.0, plan.budget_ends_s - now_s)
        most_s = min(plan.left_at_most_s(), budget_left_s)
        ends_by_s = now_s + min(SPARE_SHARE * most_s, budget_left_s)
        is_later = now_s + most_s > self._ends_by_s + NOTEWORTHY_DELAY_S
        self._ends_by_s = ends_by_s if is_later else min(self._ends_by_s, ends_by_s)
        most_s = max(0.0, self._ends_by_s - now_s)
        self.progress.time_left(min(plan.left_s(), most_s), most_s)
        if is_later:  # after the new time, which stands before each note
            self.progress.note(f"more time is needed: {why or 'steps take longer than they did so far'}")

    def end(self, record: Record) -> None:
        record = self.at_place(record)
        self.store.save(record)
        self.report_time_left()
        self.progress.ended(record)

    def at_place(self, record: Record) -> Record:
        if not self.place:
            return record
        # The CPU's counter of energy also counts what is measured at other places.
        is_own = record.cell.device.is_cuda
        return record.but(place=self.place, energy=record.energy if is_own else None)
