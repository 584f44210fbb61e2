"""What the contests of one run have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.ranking import NOTHING, beaten, contenders, may_win, undecided
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.cell_record import common_fields
from bakeoff.measuring.controller.environment import Machine
from bakeoff.measuring.controller.groundwork import Headers
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.rounds import Beaten, Contenders, MayWin, Undecided
from bakeoff.measuring.controller.worker_process import CAN_PAUSE
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.plan import PlannedCell
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import Step, TimePlan
from bakeoff.records.artifacts import Artifacts
from bakeoff.records.schema import Record, Status
from bakeoff.records.store import Store

NO_TIME = "--budget left no time to build it"


class RunContext:
    """What the contests of one run have in common: where workers start, where records go, how long it may take."""

    def __init__(
        self,
        launchers: Launchers,
        store: Store,
        progress: Progress,
        sampling: SamplingPlan,
        time_limit_s: float,
        interleaved: bool,
        undecided: Undecided = undecided,
        machine: Machine | None = None,
        time_plan: TimePlan | None = None,
        beaten: Beaten = beaten,
        contenders: Contenders = contenders,
        artifacts: Artifacts | None = None,
        load: LoadPlan | None = None,
        place: str = "",
        headers: Headers | None = None,
        build_cache: BuildCache | None = None,
        evaluate: str = "",
        evaluate_timeout_s: float = 600.0,
        may_win: MayWin = may_win,
        requirements: Requirements = NOTHING,
    ) -> None:
        """Without a `build_cache`, everything is built anew and nothing is kept for later runs.

        `evaluate` names the user's function that stands in for those of models' files.
        `artifacts` keeps what cells have built; without it nothing is kept. `place` is the one of a pool. A build that
        includes torch's C++ `headers` waits for them.
        """
        self.launchers = launchers
        self.store = store
        self.progress = progress
        self.sampling = sampling
        self.time_limit_s = time_limit_s
        self.interleaved = interleaved and CAN_PAUSE
        self.undecided = undecided
        self.beaten = beaten
        self.contenders = contenders
        self.may_win = may_win
        self.requirements = requirements
        self.machine = machine or Machine()
        self.time_plan = time_plan or TimePlan(sampling)
        self.begun_s = self.machine.now_s() - store.elapsed_s
        self.artifacts = artifacts
        self.load = load
        self.place = place
        self.build_cache = build_cache
        self.evaluate, self.evaluate_timeout_s = evaluate, evaluate_timeout_s
        self.headers = headers or Headers(store, progress)
        self.group_numbers: Iterator[int] = itertools.count(store.next_group())

    def step_done(self, contest_id: str, step: Step, label: str, seconds: float) -> None:
        """Learn what a step has taken, and tell how much time is left."""
        self.time_plan.done(contest_id, step, label, seconds)
        self.tell_time_left()

    def tell_time_left(self) -> None:
        self.progress.time_left(self.time_plan.left_s())

    def end(self, record: Record) -> None:
        """Keep the record of a cell that has come to its end."""
        record = self.at_place(record)
        self.store.save(record)
        self.progress.ended(record)

    def at_place(self, record: Record) -> Record:
        """Return the record with the place of a pool that it was measured at.

        The CPU's counter of energy counts what is measured at other places, too, so that it says nothing of this one.
        """
        if not self.place:
            return record
        is_own = record.cell.device.is_cuda
        return record.model_copy(update={"place": self.place, "energy": record.energy if is_own else None})


def not_reached(planned: PlannedCell) -> Record:
    """Return the record of a cell that the run's time budget did not reach."""
    return Record(cell=planned.cell, status=Status.NOT_REACHED, reason=NO_TIME, **common_fields(planned))
