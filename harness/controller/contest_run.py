"""Measuring one contest: in each epoch every cell in a process of its own, in rounds of bursts; then a record each."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

import backends
from harness import nvml
from harness.controller import groundwork
from harness.controller.cell_run import Live, Over, Setting, common_fields
from harness.controller.environment import available_bytes, calibrate_ms, usable_cores
from harness.controller.launcher import CAN_PAUSE, Launchers
from harness.controller.progress import Progress
from harness.plan import Contest, PlannedCell, unsupported_precision
from harness.sampling_plan import MAX_FURTHER_ROUNDS_S, MAX_ROUNDS_PER_EPOCH, SamplingPlan
from judging.estimate import are_precise, undisturbed_rounds
from judging.verdict import BASELINE, undecided
from records.errors import BakeoffError
from records.schema import Burst, Conditions, Record, Status
from records.store import Store

CALM_ENOUGH = 0.75
"""Of the rounds planned must have been undisturbed for a cell; what is missing is made up for."""

MEMORY_RESERVE = 1.3
"""A further cell is started beside those alive only if this many times the largest one's peak is still free."""


class Measurement:
    """Measures the contests of one run. `group` counts the sets of cells that were alive together."""

    def __init__(
        self,
        launchers: Launchers,
        store: Store,
        progress: Progress,
        sampling: SamplingPlan,
        time_limit_s: float,
        interleaved: bool,
        undecided: Callable[[Sequence[Record]], Sequence[tuple[str, str]]] = undecided,
    ) -> None:
        """`undecided` tells, from records, the pairs of labels for whose sake more processes are worth their time."""
        self._launchers = launchers
        self._store = store
        self._progress = progress
        self._sampling = sampling
        self._time_limit_s = time_limit_s
        self._interleaved = interleaved and CAN_PAUSE
        self._undecided = undecided
        self._group = store.next_group()
        self._begun = time.monotonic()
        self._gpu = nvml.GpuWatch(None)
        self._holds_all = False
        """Whether memory held all cells of the latest epoch at once."""
        self._displaced: list[Live] = []
        """Those that ran out of memory while others were alive: each is started again alone, at the epoch's end."""

    def measure(self, contest: Contest, pending: Sequence[PlannedCell]) -> None:
        """Bring every pending cell of the contest to its record in the store."""
        sensible = self._refuse_senseless(pending)
        if not sensible:
            return
        needed = (self._launchers.first, self._store, self._progress, self._time_limit_s)
        try:
            golden = groundwork.golden(contest, *needed)
            if not self._launchers.are_serving:
                self._progress.note("importing torch in the fork servers of further processes")
            self._launchers.await_serving()  # from here on something is measured, and nothing is imported beside it
            groundwork.measure_ceilings(sensible[0].cell, *needed)
        except groundwork.NoGolden as error:
            for planned in sensible:
                self._end(Record(cell=planned.cell, status=error.status, reason=str(error), **common_fields(planned)))
            return
        folder = self._launchers.first.temporary / contest.id
        setting = Setting(self._store, self._progress, self._sampling, self._time_limit_s, golden, folder)
        cells = [Live(planned, setting) for planned in sensible]
        # every group of an epoch holds the baseline, so it is built first
        cells.sort(key=lambda live: live.cell.label != BASELINE)
        self._gpu = nvml.GpuWatch(sensible[0].cell.device.cuda_index)
        epoch = 0
        while cells and not self._is_decided(epoch, cells):
            cells = self._run_epoch(epoch, cells)
            epoch += 1
        for live in cells:
            self._conclude(live, live.record())

    def _refuse_senseless(self, pending: Sequence[PlannedCell]) -> list[PlannedCell]:
        """Those of `pending` that make sense; the others end here, without a process."""
        sensible = []
        for planned in pending:
            try:
                backend = backends.create(planned.cell.backend)
                reason = unsupported_precision(planned.cell) or backend.supports(planned.cell).reason
                status = Status.UNSUPPORTED
            except BakeoffError as error:
                reason, status = str(error), Status.UNAVAILABLE
            if reason:
                self._end(Record(cell=planned.cell, status=status, reason=reason, **common_fields(planned)))
            else:
                sensible.append(planned)
        return sensible

    def _is_decided(self, epochs: int, cells: Sequence[Live]) -> bool:
        """Whether so many epochs decide the verdict, or as much of it as the limits allow."""
        if epochs < self._sampling.processes:
            return False
        open_pairs = self._undecided([live.record() for live in cells])
        if not open_pairs or epochs >= self._sampling.most_processes:
            return True
        if not all(live.has_time_for_another for live in cells):
            self._store.note(f"{cells[0].cell.contest_id}: --time-limit left no room for more processes per cell")
            return True
        try:
            self._launchers.of_epoch(epochs)
        except BakeoffError as error:  # as many as there are say more than none
            self._store.note(f"{cells[0].cell.contest_id}: no fork server for a further process of each cell: {error}")
            return True
        pairs = ", ".join(f"{one} against {other}" for one, other in open_pairs)
        self._progress.note(f"{epochs} processes of each cell do not decide {pairs}: one more of each")
        return False

    def _run_epoch(self, epoch: int, cells: Sequence[Live]) -> list[Live]:
        """One process of each cell: built, measured in rounds, gone. Returns the cells that further epochs are for.

        Where memory does not hold all of them, they come in groups, and the first cell, which the contest's ratios are
        taken to, stays alive for all groups. Where it does not hold two, they come one by one. Where it held all in the
        epoch before, they start in the reverse order in every other one: to have been there first is no merit of a
        backend's. (If it no longer does then, another cell than the first one stays alive for all groups.)
        """
        waiting = deque(cells if epoch % 2 == 0 or not self._holds_all else reversed(cells))
        going_on: list[Live] = []
        kept: list[Live] = []  # the first cell, while there are groups to come
        self._holds_all = True
        while waiting or self._displaced:
            if not waiting:  # and so nobody is kept: each of these is alone
                waiting.append(self._displaced.pop(0))
            group = self._start_group(epoch, waiting, kept)
            self._holds_all &= not waiting
            survivors = self._run_rounds([*kept, *group]) if group else kept
            self._group += 1
            stays = cells[0] if cells[0] in survivors else next(iter(survivors), None)
            kept = [stays] if stays and waiting and len(survivors) > 1 else []
            leaving = deque(live for live in survivors if live not in kept)
            while leaving:
                live = leaving.popleft()
                going_on += [live] if self._finish(live, [*kept, *leaving]) else []
            self._holds_all &= not self._displaced
            if (waiting or self._displaced) and self._interleaved:
                self._note_groups(cells[0].cell.contest_id, kept)
        for live in going_on:
            self._store.keep(live.record())
        order = {live.cell.id: place for place, live in enumerate(cells)}
        return sorted(going_on, key=lambda live: order[live.cell.id])

    def _start_group(self, epoch: int, waiting: deque[Live], kept: Sequence[Live]) -> list[Live]:
        """Start cells until there are none left, or memory for no more beside those that are alive, `kept` among them.

        Nothing where the next one needs the memory of those kept.
        """
        group: list[Live] = []
        launcher = self._launchers.of_epoch(epoch)
        while waiting and (not (kept or group) or (self._interleaved and self._fits([*kept, *group], waiting[0]))):
            live = waiting.popleft()
            try:
                live.start(launcher, epoch)
            except Over as over:
                if self._makes_room(live, over, [*kept, *group]):
                    waiting.appendleft(live)
                    break
                continue
            self._pause(live)
            group.append(live)
        return group

    def _note_groups(self, contest_id: str, kept: Sequence[Live]) -> None:
        if kept:
            how = f"in groups, and ratios between two groups go through {kept[0].cell.label}, which all of them hold"
        else:
            how = "some of them alone, so that the machine's drift is in their ratios"
        self._store.note(f"memory did not hold all cells of {contest_id} at once: they were measured {how}")

    def _makes_room(self, live: Live, over: Over, others: Sequence[Live]) -> bool:
        """Whether a cell that came to its end is to be tried once more alone, since `others` held the memory that it
        lacked. Else it has its record now."""
        if over.record.status is not Status.OOM or not others:
            self._conclude(live, over.record)
            return False
        self._store.note(f"{live.cell.id} ran out of memory beside others and was tried again alone")
        live.leave()
        return True

    def _fits(self, alive: Sequence[Live], following: Live) -> bool:
        """Whether one more cell has room: as large as it was itself, or as the largest alive where nobody knows."""
        seen = [live.ready.memory for live in ([following] if following.ready else alive) if live.ready]
        host = max(peaks.peak_resident_bytes or 0 for peaks in seen)
        device = max(peaks.peak_device_bytes or 0 for peaks in seen)
        index = alive[0].cell.device.cuda_index
        free = nvml.device_free_bytes(index) if index is not None else None
        return available_bytes() > MEMORY_RESERVE * host and (free is None or free > MEMORY_RESERVE * device)

    def _run_rounds(self, group: Sequence[Live]) -> list[Live]:
        """Bursts of all cells in changing order, every other one stopped. Returns those that lived through it.

        Rounds that were visibly disturbed are made up for, by as many again at most. Where rounds differ by so much
        that their median tells little, there are more, up to `MAX_ROUNDS_PER_EPOCH`, for `MAX_FURTHER_ROUNDS_S` and
        as long as half of every cell's time limit is left: it is further processes that they save.
        """
        alive = list(group)
        number = 0
        planned_done = math.inf  # when, by the monotonic clock
        while alive and (
            number < self._sampling.rounds
            or self._repeats(alive, number)
            or (time.monotonic() - planned_done < MAX_FURTHER_ROUNDS_S and self._refines(alive, number))
        ):
            around = Conditions(
                calibration_ms=calibrate_ms(), core=self._core(number), foreign_gpu_processes=self._foreign(alive)
            )
            for live in self._order(number, alive):
                try:
                    self._resume(live)
                    live.take_burst(self._group, number, time.monotonic() - self._begun, around)
                    self._pause(live)
                except Over as over:
                    alive.remove(live)
                    if self._makes_room(live, over, alive):
                        self._displaced.append(live)
            number += 1
            if number == self._sampling.rounds:
                planned_done = time.monotonic()
        return alive

    def _order(self, number: int, alive: Sequence[Live]) -> list[Live]:
        """A random order, in which over as many rounds as there are cells each comes first once.

        Whoever comes first finds a core that nobody has woken, and is slower by it. Seeded, so that a run can be
        repeated.
        """
        cycle, turn = divmod(number, len(alive))
        first = random.Random(f"{self._group}/{cycle}").sample(alive, len(alive))[turn]
        others = [live for live in alive if live is not first]
        return [first, *random.Random(f"{self._group}/{cycle}/{turn}").sample(others, len(others))]

    def _repeats(self, alive: Sequence[Live], number: int) -> bool:
        """Whether one more round makes up for those, of `number` so far, that were visibly disturbed."""
        planned = self._sampling.rounds
        return number < 2 * planned and undisturbed_rounds(self._bursts_of(alive)) < CALM_ENOUGH * planned

    def _refines(self, alive: Sequence[Live], number: int) -> bool:
        """Whether more rounds than `number` are wanted for what they tell.

        Asked after each dozen (what was planned) only: who asks after every round stops where some agree by chance.
        """
        plan = self._sampling
        may_save_processes = plan.most_processes > plan.processes
        has_time = all(live.has_time_to_spare for live in alive)
        if number >= MAX_ROUNDS_PER_EPOCH or not may_save_processes or not has_time:
            return False
        # in groups all ratios go through the cell that every group holds
        labels = [live.cell.label for live in alive]
        bridge = labels.index(BASELINE) if BASELINE in labels and not self._holds_all else None
        return number % plan.rounds != 0 or not are_precise(self._bursts_of(alive), bridge)

    def _bursts_of(self, alive: Sequence[Live]) -> list[list[Burst]]:
        """Of each cell, in the rounds that are under way."""
        return [[burst for burst in live.bursts if burst.group == self._group] for live in alive]

    def _core(self, number: int) -> int | None:
        """Where calling threads begin this round: cells of a round alike, and rounds over all cores in turn."""
        cores = usable_cores()
        return random.Random(self._group).sample(cores, len(cores))[number % len(cores)] if cores else None

    def _foreign(self, alive: Sequence[Live]) -> int | None:
        """How many processes that are not ours use the GPU."""
        found = self._gpu.processes()
        return None if found is None else max(0, found - len(alive))

    def _finish(self, live: Live, others: Sequence[Live]) -> bool:
        """Let the cell's process go, beside `others`. Returns whether further processes of it make sense."""
        self._resume(live)
        try:
            live.finish()
        except Over as over:
            if self._makes_room(live, over, others):
                self._displaced.append(live)
            return False
        record = live.record()
        if record.status is not Status.OK:
            self._conclude(live, record)  # it will not be ranked, however often it is measured
            return False
        return True

    def _conclude(self, live: Live, record: Record) -> None:
        live.clear()
        self._end(record)

    def _end(self, record: Record) -> None:
        self._store.save(record)
        self._progress.ended(record)

    def _pause(self, live: Live) -> None:
        if self._interleaved:
            live.pause()

    def _resume(self, live: Live) -> None:
        if self._interleaved:
            live.resume()
