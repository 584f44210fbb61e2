"""Starting cells: each of them loads, builds and warms up as soon as cores, memory and quiet are there for it.

What tries out kernels, and all builds on a CPU, need the machine to themselves, or their times would mean nothing.
Other builds go on side by side on a GPU's machine with cores to spare, also beside TensorRT's, which takes minutes.
Under a budget TensorRT tries out kernels last, since nothing warms up beside that. Under a budget on a busy machine,
the first two cells on a CPU build and warm up side by side, too. Otherwise nothing builds while a cell warms up, until
its latencies are steady. Only what starts from an earlier build, and processes of the next epochs, may load beside it.
They are held when all cells are warm.
"""

from collections.abc import Callable, Sequence

from bakeoff.measuring.controller.cell_process import BUILDING, CellProcess, ProcessStage
from bakeoff.measuring.controller.cell_run import TICK_S, CellEnded, CellRun
from bakeoff.measuring.controller.contest_cells import ContestCells, Epoch
from bakeoff.measuring.controller.launcher import MOST_AHEAD
from bakeoff.measuring.cores import SPARE_CORES
from bakeoff.planning.time_plan import PlanStep
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Memory

MEMORY_RESERVE = 1.3
"""A cell starts beside others only if memory is free for so many times what it and all that are starting need."""

UNKNOWN_MEMORY = 3
"""Where several cells of unknown size load at once, each counts as so many times the largest known one. The reference
counts as what it would have taken in the type of the cells."""

BUSY_SHARE = 0.5
"""Processes of several epochs load beside those of the present one while no larger share of the cores is busy."""

QUICK_START_S = 6.0
"""Beside first builds, processes are loaded ahead only of cells that take no longer to start. Others may be beaten."""

BYTES_OF_REFERENCE = 8
"""A number of the reference in float64 takes so many bytes."""


TO_BUILD = (ProcessStage.LOADING, ProcessStage.LOADED)
BEFORE_WARM_UP = (*TO_BUILD, ProcessStage.EXPORTED, *BUILDING)


class GroupStart:
    """Starts waiting cells of an epoch until none is left, or memory holds no more beside those that are alive."""

    def __init__(self, cells: ContestCells, epoch: Epoch, known_size: Memory | None) -> None:
        """`known_size` is the reference's memory."""
        self._cells, self._run, self._epoch = cells, cells.run, epoch
        run = cells.run
        self._machine = run.machine
        self._known_size = known_size
        self._starting: list[CellRun] = []
        self._side_by_side: set[str] = set()
        # what serves requests may need all memory, and a budget may leave the next epoch no time
        may_load_ahead = run.load is None and not run.time_plan.has_budget and run.sampling.builds == 1
        following = epoch.number + 1
        last = min(following + MOST_AHEAD, epoch.expected, run.sampling.most_processes)
        self._ahead = range(following, last) if may_load_ahead else range(0)  # epochs that may load beside this one
        # what remains is mostly loading, where an earlier epoch or an earlier run has built the cells
        self._mostly_loads = epoch.number > 0 or any(cell_run.cached_at for cell_run in epoch.waiting)

    def start(self) -> None:
        """Start cells until those of the group are warm and alive. The others have ended, or wait for memory."""
        self._epoch.is_full = False
        if not self._shares_cores:
            self._run.await_serving()  # nothing is imported beside what is timed
        while self._starting or self._newly_forked or (self._epoch.waiting and not self._epoch.is_full):
            self._go_on_ahead()
            self._launch_waiting()
            self._begin_builds()
            self._begin_warm_up()
            launched = self._launch_ahead()
            if self._going_on or self._loading_ahead:
                self._await_event(0.0 if launched else TICK_S)
            elif waiting := self._at(ProcessStage.LOADED):  # for nothing but torch's headers
                self._run.headers.await_for(waiting[0].cell)
        self._hold_ahead()
        built = [cell_run.label for cell_run in self._epoch.alive if cell_run.label in self._side_by_side]
        if len(built) > 1:
            self._run.store.note(
                f"{', '.join(built)} were started side by side: alone, each of them may build a little faster"
            )

    @property
    def built(self) -> list[CellRun]:
        return [*self._epoch.alive, *self._at(ProcessStage.BUILT, ProcessStage.WARMING_UP)]

    def start_built(self, ends_s: float) -> None:
        """Give up what is not built yet, and what is not warm at `ends_s`."""
        for cell_run in self._at(*BEFORE_WARM_UP):
            cell_run.give_up()
            self._starting.remove(cell_run)
        self._epoch.waiting.clear()
        while self._starting and self._machine.now_s() < ends_s:
            self._begin_warm_up()
            self._await_event(max(0.0, ends_s - self._machine.now_s()))
        for cell_run in self._starting:
            cell_run.give_up()

    @property
    def _are_warm(self) -> bool:
        """True where nothing is left to be built that no earlier process has built."""
        return all(cell_run.starts_warm for cell_run in (*self._epoch.waiting, *self._starting))

    @property
    def _loads_beside(self) -> bool:
        """True where what starts from an earlier build loads beside warm-ups, and beside other builds."""
        return self._are_warm and self._shares_cores

    def _at(self, *stages: ProcessStage) -> list[CellRun]:
        return [cell_run for cell_run in self._starting if cell_run.process.stage in stages]

    @property
    def _going_on(self) -> list[CellRun]:
        return [cell_run for cell_run in self._starting if cell_run.process.stage.goes_on]

    def _alive(self, besides: CellRun | None = None) -> list[CellRun]:
        alive = [*self._epoch.alive, *self._starting]
        return [cell_run for cell_run in alive if cell_run is not besides]

    # --- loading

    def _launch_waiting(self) -> None:
        """Launch waiting cells while a core and memory are there for them."""
        # Where cells build alone, many load together, and then nothing loads beside a build that is timed.
        goes_on_beside = self._are_warm or (self._shares_cores and not self._builds_alone_now)
        if self._starting and (not goes_on_beside or self._is_quiet_for_warm_up):
            return
        while self._epoch.waiting and not self._epoch.is_full and self._has_core():
            alive, following = self._alive(), next(filter(self._may_launch, self._epoch.waiting), None)
            if following is None:
                return  # all that wait start from what is being built, or are still loading
            if alive and not (self._run.interleaved and self._fits(alive, following)):
                self._epoch.is_full = not self._starting  # what is starting may turn out to leave room
                return
            self._epoch.waiting.remove(following)
            if self._cells.end_if_late(following, alive):
                continue
            number = self._epoch.number
            if not following.take_ahead(number):
                launcher = self._run.launchers.of_environment(following.cell.environment).of_epoch(number)
                labels = [other.label for other in alive]
                following.launch(launcher, number, self._run.time_plan.build_ends_s(following.label, labels))
            self._starting.append(following)

    def _may_launch(self, cell_run: CellRun) -> bool:
        ahead = cell_run.ahead.get(self._epoch.number)
        return cell_run.may_launch and not (ahead and ahead.stage.goes_on)

    def _launch_ahead(self) -> bool:
        """Launch a process of the next epochs, if a core and memory allow it. Return True if one was launched."""
        if not (self._ahead and self._epoch.holds_all and self._loads_beside) or self._builds_alone_now:
            return False
        if any(map(self._may_launch, self._epoch.waiting)):
            return False  # what this epoch waits for comes first
        loading = [cell_run for cell_run in self._at(*BEFORE_WARM_UP) if not cell_run.builds_alone]
        if (loading or self._epoch.waiting) and not self._mostly_loads:
            return False  # nothing is known yet of who is slow to start
        cores, going_on = len(self._machine.usable_cores()), self._busy + len(self._loading_ahead)
        # where few cores are left, more than the next epoch would delay this one
        is_early = (loading or self._epoch.waiting) and going_on >= cores * BUSY_SHARE
        ahead = self._ahead[:1] if is_early else self._ahead
        alive = self._alive()
        # what they load is complete, as it is for those whose process of this epoch loads ahead, too
        ready = [cell_run for cell_run in alive if cell_run in self._epoch.alive or cell_run.process.is_warm]
        ready += self._epoch.waiting
        ready = [cell_run for cell_run in ready if self._mostly_loads or cell_run.process.waited_s <= QUICK_START_S]
        for epoch, cell_run in [(epoch, cell_run) for epoch in ahead for cell_run in ready]:
            if epoch in cell_run.ahead:
                continue
            if going_on >= cores or not self._fits(alive, cell_run):
                return False
            try:
                launcher = self._run.launchers.of_environment(cell_run.cell.environment).of_epoch(epoch)
            except BakeoffError:  # that epoch says so, if it comes
                self._ahead = range(0)
                return False
            cell_run.launch_ahead(launcher, epoch)
            return True
        return False

    def _hold_ahead(self) -> None:
        for process in self._loading_ahead:
            process.hold(self._machine.now_s())

    def _go_on_ahead(self) -> None:
        """Let those go on that are held. Processes of later epochs stay held where something is built anew."""
        if self._builds_alone_now:
            return
        for cell_run in (*self._alive(), *self._epoch.waiting):
            for epoch, process in cell_run.ahead.items():
                if epoch == self._epoch.number or self._loads_beside:
                    process.go_on(self._machine.now_s())

    @property
    def _loading_ahead(self) -> list[CellProcess]:
        processes = [
            process for cell_run in (*self._alive(), *self._epoch.waiting) for process in cell_run.ahead.values()
        ]
        return [process for process in processes if process.goes_on]

    @property
    def _newly_forked(self) -> bool:
        return not all(process.may_be_held for process in self._loading_ahead)

    @property
    def _busy(self) -> int:
        return len(self._at(*BEFORE_WARM_UP, ProcessStage.WARMING_UP))

    def _has_core(self) -> bool:
        """Return True where one more process may load. Without a known size, the first cell comes alone."""
        busy = self._busy + (0 if self._shares_cores else len(self._at(ProcessStage.BUILT)))
        knows_size = self._are_warm or self._epoch.alive or self._known_size
        cores = len(self._machine.usable_cores())
        most = cores if self._loads_beside else max(2, cores // 2)
        at_once = max(1, min(cores, most)) if self._run.interleaved and knows_size else 1
        return busy < at_once

    def _fits(self, alive: Sequence[CellRun], following: CellRun) -> bool:
        """Return True when memory has room for one more cell, and for those that are still starting."""
        peaks = [cell_run.peak_memory for cell_run in alive if cell_run.peak_memory]
        bytes_of_number = 2 if following.cell.precision.is_16_bit else 4

        def needed_bytes(kind: Callable[[Memory], int | None]) -> float:
            coming = [following.peak_memory, *(cell_run.peak_memory for cell_run in self._starting)]
            coming += [following.peak_memory] * len(self._loading_ahead)  # one by one they were as large at most
            unknown_bytes: float = max((kind(peak) or 0 for peak in peaks), default=0)
            reference_bytes: float = (kind(self._known_size) or 0) if self._known_size else 0
            if coming.count(None) > 1:
                unknown_bytes *= UNKNOWN_MEMORY
                reference_bytes *= UNKNOWN_MEMORY * bytes_of_number / BYTES_OF_REFERENCE
            # A cell that has not been ready yet counts as the largest known one.
            return sum((kind(peak) or 0) if peak else max(unknown_bytes, reference_bytes) for peak in coming)

        host_bytes = needed_bytes(lambda peak: peak.peak_resident_bytes)
        device_bytes = needed_bytes(lambda peak: peak.peak_device_bytes)
        free_bytes = self._machine.device_free_bytes(following.cell.device)
        return self._machine.available_bytes() > MEMORY_RESERVE * host_bytes and (
            free_bytes is None or free_bytes > MEMORY_RESERVE * device_bytes
        )

    # --- building

    @property
    def _shares_cores(self) -> bool:
        """True where builds and others' hardly disturb each other, and the driver reports the memory of each."""
        sizes = [self._known_size, *(cell_run.peak_memory for cell_run in (*self._alive(), *self._epoch.waiting))]
        has_room = self._run.interleaved and len(self._machine.usable_cores()) >= SPARE_CORES
        return has_room and any(size.is_own_account for size in sizes if size)

    @property
    def _builds_alone_now(self) -> bool:
        return any(map(self._builds_alone, self._at(*BUILDING)))

    def _builds_alone(self, cell_run: CellRun) -> bool:
        return cell_run.builds_alone and not (self._shares_cores and cell_run.tunes_beside_builds)

    @property
    def _is_quiet_for_warm_up(self) -> bool:
        return bool(self._at(ProcessStage.WARMING_UP)) and not self._loads_beside

    @property
    def _is_short_of_time(self) -> bool:
        return self._run.is_machine_busy and self._run.time_plan.has_budget

    def _may_build(self, cell_run: CellRun) -> bool:
        building = self._at(*BUILDING)
        if self._is_quiet_for_warm_up:
            return False
        if self._shares_cores and not cell_run.builds_alone:
            return not self._builds_alone_now and len(building) < len(self._machine.usable_cores())
        if self._shares_cores and cell_run.tunes_beside_builds:
            if self._run.time_plan.has_budget:  # nothing warms up beside it, and it may take all that is left
                return all(other.tunes_beside_builds for other in self._starting) and not building
            tuning = any(other.builds_alone for other in building)
            return not (tuning or self._at(ProcessStage.WARMING_UP))
        if self._is_short_of_time and len(self._epoch.alive) + self._busy <= 2:
            return True  # nothing is ranked before two are built
        is_quiet = not (building or self._newly_forked or self._at(ProcessStage.BUILT, ProcessStage.WARMING_UP))
        return is_quiet and (cell_run.starts_warm or not self._at(ProcessStage.LOADING))

    def _begin_builds(self) -> None:
        for cell_run in self._at(ProcessStage.LOADED, ProcessStage.EXPORTED):
            if cell_run.waits_for_another or not self._may_build(cell_run):
                continue
            if not (cell_run.starts_warm or self._run.headers.are_made_for(cell_run.cell)):
                continue  # other builds need not wait for the headers
            later = self._starting[self._starting.index(cell_run) :]  # these get what it leaves
            before = [other for other in self._alive() if other not in later or other.process.stage not in TO_BUILD]
            if self._cells.end_if_late(cell_run, before):
                self._starting.remove(cell_run)  # what was built before it has taken the time
                continue
            if not cell_run.starts_warm:  # more is known than when it was launched
                labels = [other.label for other in before]
                cell_run.process.ends_s = self._run.time_plan.build_ends_s(cell_run.label, labels)
            cell_run.resume()  # one that was launched ahead is stopped
            if self._builds_alone(cell_run):
                self._hold_ahead()
            cell_run.process.take_turn(self._machine.now_s())
            if not cell_run.starts_warm and len(building := self._at(*BUILDING)) > 1:
                self._side_by_side |= {other.label for other in building}

    def _await_event(self, seconds: float) -> None:
        going_on, ahead = self._going_on, self._loading_ahead
        now_s = self._machine.now_s()
        left_s = min((cell_run.process.deadline_s - now_s for cell_run in going_on), default=seconds)
        workers = [*(cell_run.process.worker for cell_run in going_on), *(process.worker for process in ahead)]
        spoke = self._machine.wait(workers, max(0.0, min(seconds, left_s)))
        for process in ahead:
            if not spoke or process.worker in spoke:
                process.poll_ahead(self._machine.now_s())
        for cell_run in going_on:
            # where nobody spoke, a process may have ended without a word, or has run out of time
            if not spoke or cell_run.process.worker in spoke:
                self._poll(cell_run)
        self._run.progress.tick()

    def _poll(self, cell_run: CellRun) -> None:
        """Take what the process has said. If the cell ends by that, it has its record, or waits for memory."""
        try:
            cell_run.poll()
        except CellEnded as ended:
            self._starting.remove(cell_run)
            if self._cells.conclude_or_retry(cell_run, ended, self._alive(besides=cell_run)):
                self._epoch.waiting.appendleft(cell_run)
                self._epoch.is_full = True
            return
        cell, process = cell_run.cell, cell_run.process
        if process.stage in (ProcessStage.BUILT, ProcessStage.WARM):
            cell_run.pause()
        if process.stage is ProcessStage.WARM:
            self._starting.remove(cell_run)
            self._epoch.alive.append(cell_run)
            step = PlanStep.START if process.is_warm else PlanStep.BUILD
            self._run.time_plan.called(cell.label, process.call_s, process.warm.check_s)
            self._run.step_done(step, cell.label, process.seconds_of_start)
            if self._epoch.number == 0 or not process.is_warm:
                self._run.progress.built(cell, process.seconds_of_start, bool(cell_run.cached_at))

    # --- warming up

    def _begin_warm_up(self) -> None:
        """Have one cell warm up, after what may not go on beside it."""
        built = self._at(ProcessStage.BUILT)
        if not built or self._at(ProcessStage.WARMING_UP):
            return
        tuning = any(cell_run.builds_alone for cell_run in self._at(*BUILDING))
        if tuning if self._loads_beside else self._at(*BUILDING) and not self._is_short_of_time:
            return
        if self._at(ProcessStage.LOADING) and not self._are_warm:
            return
        built[0].process.ends_s += self._run.time_plan.warm_up_s  # which the deadline of its build has kept
        built[0].resume()
        built[0].process.take_turn(self._machine.now_s())
