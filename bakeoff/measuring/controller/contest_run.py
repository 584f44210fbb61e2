"""Measuring one contest: in each epoch every cell in a process of its own, in rounds of bursts; then a record each."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bakeoff.judging.estimate import burst_medians_ms, steadiest
from bakeoff.judging.ranking import baseline_of
from bakeoff.measuring.controller.cell_run import CellEnded, CellRun
from bakeoff.measuring.controller.environment import SPARE_CORES
from bakeoff.measuring.controller.load_rounds import LoadRounds
from bakeoff.measuring.controller.measurement import Measurement, not_reached
from bakeoff.measuring.controller.rounds import (
    Pairs,
    RoundsSoFar,
    core_of_round,
    next_epoch,
    order_of_round,
    racing,
    round_rules,
)
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.time_plan import Step
from bakeoff.records.artifacts import Full
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Burst, Conditions, Memory, Record, Status
from bakeoff.records.store import UnfinishedContest

MEMORY_RESERVE = 1.3
"""A cell starts beside others only if memory is free for so many times what it and all that are starting need."""

UNKNOWN_MEMORY = 3
"""Where several cells of unknown size load at once, each counts as so many times the largest known one."""

STAYS_UP_TO = 1.1
"""A cell stays for other groups instead of the baseline only if it takes at most so many times as much memory."""

SO_FAR_EVERY_S = 2.0
"""What was measured so far is written after the first round, and then no more often than this."""

SO_FAR_MAX_SHARE = 0.02
"""Writing it takes no larger share of the time than this."""

MIN_ROUNDS = 4
"""Cells that have been built get so many rounds, even if that takes longer than the time budget."""


@dataclass
class Epoch:
    """One epoch while it lasts: each cell of the contest in one process.

    Where memory does not hold all cells at once, they come in groups. One cell stays alive for all groups: the
    baseline, or the steadiest cell if the baseline's rounds differ much.
    """

    number: int
    waiting: deque[CellRun]  # not started yet
    staying: tuple[CellRun, ...] = ()  # the cell that stays for the next group; at most one
    displaced: deque[CellRun] = field(default_factory=deque)  # ran out of memory beside others; each starts again alone
    finished: list[CellRun] = field(default_factory=list)  # further epochs are for these
    idle_w: float | None = None  # the machine's power while nothing ran, once a cell has measured it
    is_full: bool = False  # memory holds no more cells beside those that are alive
    holds_all: bool = True  # memory has held all cells at once so far

    @property
    def has_more_groups(self) -> bool:
        return bool(self.waiting or self.displaced)


class ContestRun:
    """The cells of one contest on their way to their records."""

    def __init__(
        self, measurement: Measurement, cells: Sequence[CellRun], kept: UnfinishedContest | None = None
    ) -> None:
        """Begin with a contest, or go on with one of which an interrupted run has `kept` some epochs."""
        self._run = measurement
        self._machine = measurement.machine
        self._launchers = measurement.launchers
        self._contest_id = cells[0].cell.contest_id
        self._device = cells[0].cell.device
        self._epochs_done = kept.epochs if kept else 0
        self._held_all = kept.held_all if kept else False
        # one cell of the first group stays for all others, and that is the baseline if it is steady
        self._baseline = baseline_of([cell_run.cell for cell_run in cells])
        self._cells = sorted(cells, key=lambda cell_run: cell_run.cell.label != self._baseline)
        self._next_so_far_s = 0.0
        self._time_plan = measurement.time_plan
        if self._time_plan.has_budget:  # what takes long to build waits for what does not
            self._cells[1:] = sorted(self._cells[1:], key=lambda cell_run: self._seconds_of(Step.BUILD, [cell_run]))

    def run(self) -> None:
        """Run epochs until the verdict is decided, or limits allow no more. Then save the records.

        What was measured so far is kept on disk, however the run ends.
        """
        try:
            self._run_epochs()
        except BaseException:  # Ctrl-C, SIGTERM, or a fault of this process
            self._keep_so_far()
            raise
        self._conclude_all()

    def _run_epochs(self) -> None:
        while cells := self._for_another_epoch(self._epochs_done):
            # to have been there first is no merit of a backend's
            in_reverse = self._epochs_done % 2 == 1 and self._held_all
            epoch = Epoch(self._epochs_done, deque(reversed(cells) if in_reverse else cells))
            self._run_epoch(epoch)
            self._cells = [each for each in self._cells if each in epoch.finished or each not in cells]
            self._epochs_done, self._held_all = self._epochs_done + 1, epoch.holds_all
            self._keep()

    def _conclude_all(self) -> None:
        """Save the records of cells that came to a good end, and keep their artefacts, the fastest cell's first."""
        records = {cell_run: cell_run.record() for cell_run in self._cells}
        too_large = []
        for cell_run in sorted(records, key=lambda one: statistics.median(burst_medians_ms(one.bursts))):
            record = records[cell_run]
            try:
                name = self._run.artifacts.keep(record.cell.id, cell_run.artifact) if self._run.artifacts else ""
            except Full as error:
                name = ""
                too_large.append(f"{record.cell.label} ({error.size_bytes / 1e6:.3g} MB)")
            self._conclude(cell_run, record.model_copy(update={"artifact": name}))
        if too_large:
            self._note(f"artefacts of {self._contest_id} over --artifact-limit were not kept: {', '.join(too_large)}")

    def _keep(self) -> None:
        self._run.store.keep(
            UnfinishedContest(
                contest_id=self._contest_id,
                epochs=self._epochs_done,
                held_all=self._held_all,
                cells=[cell_run.unfinished() for cell_run in self._cells],
                place=self._run.place,
            )
        )

    def _keep_so_far(self) -> None:
        """Write what the cells would end as if the run ended now."""
        begun_s = self._machine.now_s()
        if records := [record for cell_run in self._cells if (record := cell_run.so_far())]:
            self._run.store.keep_so_far(self._contest_id, [self._run.at_place(record) for record in records])
        ended_s = self._machine.now_s()
        self._next_so_far_s = ended_s + max(SO_FAR_EVERY_S, (ended_s - begun_s) / SO_FAR_MAX_SHARE)

    def _for_another_epoch(self, done: int) -> list[CellRun]:
        """Return the cells that get another process, or none of them, and say why or why not.

        In a race, a cell that is surely beaten sits out, and comes back if the verdict is found to depend on it.
        """
        plan = self._run.sampling
        if done == 0 or not self._cells:
            return self._cells
        records = [cell_run.record() for cell_run in self._cells] if plan.races or done >= plan.processes else []
        open_pairs = self._run.undecided(records) if done >= plan.processes else ()
        # another build of a cell may be faster than those that it was measured with
        sitting_out = racing(self._run.beaten(records), open_pairs) if plan.races and done >= plan.builds else {}
        cells = [cell_run for cell_run in self._cells if cell_run.cell.label not in sitting_out]
        if not self._is_wanted(done, cells, open_pairs):
            return []
        for cell_run in self._cells:
            cell_run.left = sitting_out.get(cell_run.cell.label)
        return cells

    def _is_wanted(self, done: int, cells: Sequence[CellRun], open_pairs: Pairs) -> bool:
        """Return True when these cells get another process, and say why or why not."""
        plan = self._run.sampling
        labels = [cell_run.cell.label for cell_run in cells]
        decision = next_epoch(
            plan,
            done,
            open_pairs,
            has_time=all(cell_run.has_time_for_another for cell_run in cells),
            has_budget=self._time_plan.leaves_room_for_epoch(
                labels, self._machine.now_s(), all(cell_run.starts_warm for cell_run in cells)
            ),
        )
        self._time_plan.expect_further(
            self._contest_id, labels, max(1, plan.processes - done) if decision.is_wanted else 0
        )
        self._run.tell_time_left()
        if decision.is_wanted and done >= plan.processes:
            try:
                for name in {cell_run.cell.environment for cell_run in cells}:
                    self._launchers.of_environment(name).of_epoch(done)
            except BakeoffError as error:  # as many as there are say more than none
                self._note(f"{self._contest_id}: no fork server for a further process of each cell: {error}")
                return False
            if done == plan.processes:  # once for a contest, however many follow
                self._run.progress.note(decision.note)
        elif decision.note:
            self._note(f"{self._contest_id}: {decision.note}")
        return decision.is_wanted

    def _run_epoch(self, epoch: Epoch) -> None:
        """Build one process of each cell, measure them in rounds, and let them go."""
        while epoch.has_more_groups:
            if not epoch.waiting:  # and so no cell stays: each of these is alone
                epoch.waiting.append(epoch.displaced.popleft())
            self._run_group(epoch)
            if epoch.has_more_groups and self._run.interleaved:
                self._note_groups(epoch)

    def _run_group(self, epoch: Epoch) -> None:
        """Measure as many waiting cells as memory holds, beside the one that stays."""
        number = next(self._run.group_numbers)
        group = self._start_group(epoch)
        epoch.holds_all &= not epoch.waiting
        survivors = [*epoch.staying, *group]
        if group:
            self._run.headers.await_all()  # nothing goes on beside what is measured
            survivors = self._run_rounds(epoch, number, survivors)
            if self._run.load is not None:
                survivors = self._run_load(epoch, number, survivors, self._run.load)
        stays = epoch.waiting and len(survivors) > 1
        epoch.staying = (self._bridge(epoch, survivors, number),) if stays else ()
        leaving = deque(cell_run for cell_run in survivors if cell_run not in epoch.staying)
        while leaving:
            self._finish(epoch, leaving.popleft(), [*epoch.staying, *leaving])
        epoch.holds_all &= not epoch.displaced

    def _start_group(self, epoch: Epoch) -> list[CellRun]:
        """Start waiting cells until none is left, or memory holds no more beside those that are alive.

        No cell is started where the next one needs the memory of the one that stays. Cells load side by side, and
        nothing loads beside a first build, which is timed. Cells build in turn, or side by side where a GPU's machine
        has cores for that. Where no cell is alive whose size is known, the first one comes alone.
        """
        group: list[CellRun] = []
        loading: deque[CellRun] = deque()  # launched, and not built
        are_warm = all(cell_run.starts_warm for cell_run in epoch.waiting)
        epoch.is_full, loading_s = False, 0.0
        while loading or (epoch.waiting and not epoch.is_full):
            if are_warm or not loading:
                at_once = self._load_at_once() if are_warm or group or epoch.staying else 1
                self._launch_waiting(epoch, group, loading, at_once)
                if loading and not are_warm:
                    begun_s, launched = self._machine.now_s(), len(loading)
                    self._await_loaded(epoch, group, loading)
                    loading_s = (self._machine.now_s() - begun_s) / launched
            if loading:
                alive = [*epoch.staying, *group]
                built = self._build(epoch, self._next_to_build(loading, alive), alive, loading)
                group += self._warm_up(epoch, built, [*alive, *loading], loading_s)
        return group

    def _next_to_build(self, loading: deque[CellRun], alive: Sequence[CellRun]) -> list[CellRun]:
        """Take one cell out of those that have loaded, or all that may build side by side."""
        first = loading.popleft()
        beside = [cell_run for cell_run in (first, *loading) if self._builds_beside_others(cell_run, alive)]
        if first not in beside:
            return [first]
        for cell_run in beside[1:]:
            loading.remove(cell_run)
        return beside

    def _builds_beside_others(self, cell_run: CellRun, alive: Sequence[CellRun]) -> bool:
        """Return True where the cell's build and others' hardly disturb each other."""
        has_room = self._run.interleaved and len(self._machine.usable_cores()) >= SPARE_CORES
        knows_own_memory = any(one.peak_memory and one.peak_memory.is_own_account for one in (cell_run, *alive))
        return has_room and knows_own_memory and not cell_run.builds_alone

    def _load_at_once(self) -> int:
        cores = len(self._machine.usable_cores())
        return max(1, min(cores, max(2, cores // 2))) if self._run.interleaved else 1

    def _launch_waiting(self, epoch: Epoch, group: Sequence[CellRun], loading: deque[CellRun], at_once: int) -> None:
        """Launch waiting cells until so many load at once, or memory holds no more."""
        while epoch.waiting and not epoch.is_full and len(loading) < at_once:
            alive = [*epoch.staying, *group, *loading]
            if alive and not (self._run.interleaved and self._fits(alive, epoch.waiting[0], loading)):
                epoch.is_full = not loading  # what is loading may turn out to leave room
                return
            cell_run = epoch.waiting.popleft()
            if self._launch(epoch, cell_run, alive):
                loading.append(cell_run)

    def _await_loaded(self, epoch: Epoch, group: Sequence[CellRun], loading: deque[CellRun]) -> None:
        """Wait until all of these have loaded. Those that do not are taken out."""
        for cell_run in list(loading):
            others = [*epoch.staying, *group, *(other for other in loading if other is not cell_run)]
            if not self._goes_on(epoch, cell_run, cell_run.await_loaded, others):
                loading.remove(cell_run)

    def _build(
        self, epoch: Epoch, cells: Sequence[CellRun], alive: Sequence[CellRun], loading: Sequence[CellRun]
    ) -> list[CellRun]:
        """Build these cells at the same time, beside those `alive`, while others have loaded.

        Return those that are built. The others have ended or wait for memory.
        """
        building: list[CellRun] = []
        for cell_run in sorted(cells, key=lambda one: one.includes_headers):  # others need not wait for the headers
            others = [*alive, *loading, *(other for other in cells if other is not cell_run)]
            if not self._is_in_time(cell_run, alive):
                continue  # what was built before it has taken the time
            if not cell_run.starts_warm:
                self._run.headers.await_for(cell_run.cell)
            if self._goes_on(epoch, cell_run, cell_run.begin_build, others):
                building.append(cell_run)
        built: list[CellRun] = []
        for place, cell_run in enumerate(building):
            others = [*alive, *loading, *built, *building[place + 1 :]]
            if self._goes_on(epoch, cell_run, cell_run.await_built, others):
                self._pause(cell_run)
                built.append(cell_run)
        side_by_side = [cell_run.cell.label for cell_run in built if not cell_run.starts_warm]
        if len(side_by_side) > 1:
            names = ", ".join(side_by_side)
            self._note(f"{names} were built side by side: alone, each of them may build a little faster")
        return built

    def _warm_up(
        self, epoch: Epoch, built: Sequence[CellRun], others: Sequence[CellRun], loading_s: float
    ) -> list[CellRun]:
        """Warm these cells up in turn, while no other cell builds. It took `loading_s` to load each.

        Return those that are warm. The others have ended or wait for memory.
        """
        warm: list[CellRun] = []
        for place, cell_run in enumerate(built):
            begun_s = self._machine.now_s()
            self._resume(cell_run)
            if self._goes_on(epoch, cell_run, cell_run.warm_up, [*others, *warm, *built[place + 1 :]]):
                self._pause(cell_run)
                self._note_start(cell_run, loading_s + cell_run.built_s + self._machine.now_s() - begun_s)
                warm.append(cell_run)
        return warm

    def _is_in_time(self, cell_run: CellRun, alive: Sequence[CellRun]) -> bool:
        """Return True when the time budget of the run leaves time for the cell. Otherwise it has its record now."""
        label, labels = cell_run.cell.label, [other.cell.label for other in alive]
        if cell_run.was_measured or self._time_plan.leaves_room_for_build(label, labels, self._machine.now_s()):
            return True
        self._conclude(cell_run, not_reached(cell_run.planned))
        return False

    def _launch(self, epoch: Epoch, cell_run: CellRun, alive: Sequence[CellRun]) -> bool:
        """Begin to start the cell's process. Return False when the cell has ended or waits for memory instead."""
        if not self._is_in_time(cell_run, alive):
            return False
        ends_s = self._time_plan.build_ends_s(cell_run.cell.label, [other.cell.label for other in alive])
        launcher = self._launchers.of_environment(cell_run.cell.environment).of_epoch(epoch.number)
        return self._goes_on(epoch, cell_run, lambda: cell_run.launch(launcher, epoch.number, ends_s), alive)

    def _goes_on(self, epoch: Epoch, cell_run: CellRun, step: Callable[[], object], others: Sequence[CellRun]) -> bool:
        """Take a step of starting the cell. Return False when the cell has ended or waits for memory instead."""
        try:
            step()
        except CellEnded as ended:
            if self._makes_room(cell_run, ended, others):
                epoch.waiting.appendleft(cell_run)
                epoch.is_full = True
            return False
        return True

    def _note_start(self, cell_run: CellRun, seconds: float) -> None:
        self._step_done(Step.START if cell_run.starts_warm else Step.BUILD, cell_run, seconds)
        if not cell_run.starts_warm:
            self._run.progress.built(cell_run.cell, seconds)

    def _step_done(self, step: Step, cell_run: CellRun, seconds: float) -> None:
        self._run.step_done(self._contest_id, step, cell_run.cell.label, seconds)

    def _seconds_of(self, step: Step, cells: Sequence[CellRun]) -> float:
        return self._time_plan.seconds_of(step, [cell_run.cell.label for cell_run in cells])

    def _fits(self, alive: Sequence[CellRun], following: CellRun, starting: Sequence[CellRun]) -> bool:
        """Return True when there is room for one more cell, and for those that are still starting.

        Each is taken to be as large as it was itself, or as the largest one alive where it has not been ready yet.
        """
        known = [cell_run.peak_memory for cell_run in alive if cell_run.peak_memory]

        def needed_bytes(kind: Callable[[Memory], int | None]) -> int:
            coming = [cell_run.peak_memory for cell_run in (following, *starting)]
            unknown_bytes = max((kind(peak) or 0 for peak in known), default=0)
            if coming.count(None) > 1:
                unknown_bytes *= UNKNOWN_MEMORY
            return sum((kind(peak) or 0) if peak else unknown_bytes for peak in coming)

        host_bytes = needed_bytes(lambda peak: peak.peak_resident_bytes)
        device_bytes = needed_bytes(lambda peak: peak.peak_device_bytes)
        free_bytes = self._machine.device_free_bytes(self._device)
        return self._machine.available_bytes() > MEMORY_RESERVE * host_bytes and (
            free_bytes is None or free_bytes > MEMORY_RESERVE * device_bytes
        )

    def _run_rounds(self, epoch: Epoch, group: int, cells: Sequence[CellRun]) -> list[CellRun]:
        """Take bursts of all cells in changing order while every other one is stopped. Return the surviving cells."""
        alive = list(cells)
        done = 0
        planned_done_s = self._machine.now_s()
        rules = round_rules(self._run.sampling)
        begun_s = self._machine.now_s()
        while alive and (done < MIN_ROUNDS or self._machine.now_s() < self._time_plan.contest_ends_s):
            seen = self._rounds_so_far(epoch, group, alive, done, planned_done_s)
            takers = [alive[place] for place in sorted(set().union(*(rule.takers(seen) for rule in rules)))]
            if not takers:
                break
            around = self._conditions_of_round(group, done, alive)
            for cell_run in order_of_round(group, done, takers):
                started_s = self._machine.now_s() - self._run.begun_s
                burst = partial(cell_run.take_burst, group, done, started_s, around)
                self._visit(epoch, alive, cell_run, burst)
            done += 1
            if self._machine.now_s() >= self._next_so_far_s:
                self._keep_so_far()
            if done <= self._run.sampling.rounds:
                planned_done_s = self._machine.now_s()
        for cell_run in alive:
            self._step_done(Step.ROUNDS, cell_run, (self._machine.now_s() - begun_s) / len(alive))
        return alive

    def _run_load(self, epoch: Epoch, group: int, cells: Sequence[CellRun], plan: LoadPlan) -> list[CellRun]:
        """Put one cell after the other under load while every other one is stopped. Return the surviving cells."""
        alive = list(cells)
        rounds = LoadRounds(self._run, plan, epoch.number, group, alive)
        rounds.take(lambda cell_run, step: self._visit(epoch, alive, cell_run, step))
        return alive

    def _visit(self, epoch: Epoch, alive: list[CellRun], cell_run: CellRun, step: Callable[[], None]) -> None:
        """Take a step of a cell that was stopped. It is taken out of those `alive` if it ends."""
        try:
            self._resume(cell_run)
            step()
            self._pause(cell_run)
        except CellEnded as ended:
            alive.remove(cell_run)
            if self._makes_room(cell_run, ended, alive):
                epoch.displaced.append(cell_run)

    def _rounds_so_far(
        self, epoch: Epoch, group: int, alive: Sequence[CellRun], done: int, planned_done_s: float
    ) -> RoundsSoFar:
        return RoundsSoFar(
            done=done,
            bursts=_bursts_of(group, alive),
            further_s=self._machine.now_s() - planned_done_s,
            has_time_to_spare=all(cell_run.has_time_to_spare for cell_run in alive),
            # in groups all ratios go through the cell that every group holds
            bridge=None if epoch.holds_all else alive.index(self._bridge(epoch, alive, group)),
        )

    def _bridge(self, epoch: Epoch, alive: Sequence[CellRun], group: int) -> CellRun:
        """Return the cell that stays for all groups of an epoch, or would stay by the rounds so far.

        It is the baseline if it is steady. Otherwise it is the steadiest cell that leaves as much room for others.
        """
        if epoch.staying and epoch.staying[0] in alive:
            return epoch.staying[0]
        baseline = next((cell_run for cell_run in alive if cell_run.cell.label == self._baseline), alive[0])
        small = [cell_run for cell_run in alive if _is_as_small(cell_run, baseline)]
        return small[steadiest(_bursts_of(group, small), preferred=small.index(baseline))]

    def _conditions_of_round(self, group: int, number: int, alive: Sequence[CellRun]) -> Conditions:
        on_gpu = self._machine.gpu_processes(self._device)
        return Conditions(
            calibration_ms=self._machine.calibrate_ms(),
            core=core_of_round(group, number, self._machine.usable_cores()),
            foreign_gpu_processes=None if on_gpu is None else max(0, on_gpu - len(alive)),
        )

    def _finish(self, epoch: Epoch, cell_run: CellRun, others: Sequence[CellRun]) -> None:
        """Let the cell's process go while `others` are alive. It is measured further only if it can be ranked."""
        self._resume(cell_run)
        begun_s = self._machine.now_s()
        last_s = begun_s + self._seconds_of(Step.FINISH, [cell_run, *others])
        try:
            epoch.idle_w = cell_run.finish(last_s <= self._time_plan.contest_ends_s, epoch.idle_w)
        except CellEnded as ended:
            if self._makes_room(cell_run, ended, others):
                epoch.displaced.append(cell_run)
            return
        if epoch.number == 0:
            self._step_done(Step.FINISH, cell_run, self._machine.now_s() - begun_s)
        record = cell_run.record()
        if record.status is Status.OK:
            epoch.finished.append(cell_run)
        else:
            self._conclude(cell_run, record)

    def _makes_room(self, cell_run: CellRun, ended: CellEnded, others: Sequence[CellRun]) -> bool:
        """Return True when a cell is to be tried again alone, because `others` held the memory that it lacked.

        Otherwise it has its record now.
        """
        if ended.record.status is not Status.OOM or not others:
            self._conclude(cell_run, ended.record)
            return False
        self._note(f"{cell_run.cell.id} ran out of memory beside others and was tried again alone")
        cell_run.leave()
        return True

    def _note_groups(self, epoch: Epoch) -> None:
        how = "some of them alone, so that the machine's drift is in their ratios"
        if epoch.staying:
            label = epoch.staying[0].cell.label
            how = f"in groups, and ratios between two groups go through {label}, which all of them hold"
        self._note(f"memory did not hold all cells of {self._contest_id} at once: they were measured {how}")

    def _note(self, text: str) -> None:
        self._run.store.note(text)

    def _conclude(self, cell_run: CellRun, record: Record) -> None:
        self._time_plan.dropped(self._contest_id, cell_run.cell.label)
        self._run.end(record)
        cell_run.clear()

    def _pause(self, cell_run: CellRun) -> None:
        if self._run.interleaved:
            cell_run.pause()

    def _resume(self, cell_run: CellRun) -> None:
        if self._run.interleaved:
            cell_run.resume()


def _bursts_of(group: int, cells: Sequence[CellRun]) -> list[list[Burst]]:
    return [[burst for burst in cell_run.bursts if burst.group == group] for cell_run in cells]


def _is_as_small(cell_run: CellRun, baseline: CellRun) -> bool:
    ours, theirs = cell_run.peak_memory, baseline.peak_memory
    if ours is None or theirs is None:
        return cell_run is baseline
    pairs = ((ours.peak_resident_bytes, theirs.peak_resident_bytes), (ours.peak_device_bytes, theirs.peak_device_bytes))
    return all((mine or 0) <= STAYS_UP_TO * (its or 0) for mine, its in pairs)
