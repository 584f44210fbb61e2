"""Measuring one contest: in each epoch every cell in a process of its own, in rounds of bursts; then a record each."""

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from bakeoff.judging.estimate import FEWEST_ROUNDS, steadiest
from bakeoff.judging.ranking import Ranking, baseline_of, beaten, contenders
from bakeoff.measuring.controller import rounds
from bakeoff.measuring.controller.cell_record import INTERRUPTED_BEFORE, not_reached
from bakeoff.measuring.controller.cell_run import CellEnded, CellRun
from bakeoff.measuring.controller.contest_cells import ContestCells, Epoch
from bakeoff.measuring.controller.load_rounds import LoadRounds
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.server_start import signals_answered_by
from bakeoff.measuring.controller.starting import GroupStart
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.time_plan import PlanStep
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Burst, Conditions, Memory, Record, Status
from bakeoff.records.store import UnfinishedContest
from bakeoff.records.text import counted

CORES_OF_CHECK = 2
"""Checks of a GPU's cells that go on together have so many cores each."""

STAYS_UP_TO = 1.1
"""A cell stays for other groups instead of the baseline only if it takes at most so many times as much memory."""

SO_FAR_EVERY_S = 2.0
"""What was measured so far is written after the first round, and then no more often than this."""

SO_FAR_MAX_SHARE = 0.02
"""Writing it takes no larger share of the time than this."""

LAST_WARM_UPS_S, LAST_ROUNDS_S = 4.0, 8.0
"""An interrupted run that has measured nothing warms up what is built, and measures it, within so many seconds."""


class ContestRun:
    def __init__(
        self,
        measurement: RunContext,
        cells: Sequence[CellRun],
        kept: UnfinishedContest | None,
        known_size: Memory | None,
        stand_ins: Sequence[tuple[CellRun, str]],
    ) -> None:
        """Go on with the epochs that an interrupted run has `kept`, if there are any. `known_size` is the memory of the
        reference if it was computed now. Each of the `stand_ins` takes part if the cell of its label fails."""
        self._known_size = known_size
        self._run = measurement
        self._machine = measurement.machine
        self._launchers = measurement.launchers
        self._contest_id = cells[0].cell.contest_id
        self._device = cells[0].cell.device
        self._epochs_done = kept.epochs if kept else 0
        self._held_all = kept.held_all if kept else False
        # one cell of the first group stays for all others, and that is the baseline if it is steady
        self._baseline = baseline_of([cell_run.cell for cell_run in cells])
        in_order = sorted(cells, key=lambda cell_run: cell_run.label != self._baseline)
        self._next_so_far_s = 0.0
        self._had_numbers = measurement.store.cells_with_numbers(self._contest_id)  # of an interrupted run
        self._time_plan = measurement.time_plan
        # with a budget, what takes long to build waits for what does not; side by side, it begins first
        if self._time_plan.has_budget or self._device.is_cuda:
            steps = {cell_run: PlanStep.START if cell_run.cached_at else PlanStep.BUILD for cell_run in in_order}
            in_order[1:] = sorted(
                in_order[1:],
                key=lambda cell_run: self._seconds_of(steps[cell_run], [cell_run]),
                reverse=not self._time_plan.has_budget,
            )
        self._cells = ContestCells(measurement, self._contest_id, in_order, list(stand_ins))

    def run(self) -> None:
        """Run epochs until the verdict is decided, or limits allow no more, and save the records. What was measured so
        far is kept on disk, however the run ends."""
        try:
            while cells := self._for_another_epoch(self._epochs_done):
                self._run_epoch(cells)
        except KeyboardInterrupt:  # Ctrl-C, or SIGTERM
            self._keep_so_far(with_artifacts=True)
            raise
        except BaseException:  # a fault of this process
            self._keep_so_far()
            raise
        self._cells.await_ends()
        for cell_run, record in self._cells.with_artifacts(
            {cell_run: cell_run.record() for cell_run in self._cells.going_on}
        ).items():
            self._cells.save(cell_run, record)

    def _keep_so_far(self, with_artifacts: bool = False) -> None:
        begun_s = self._machine.now_s()
        records = {
            cell_run: record
            for cell_run in self._cells.going_on
            if (record := cell_run.so_far() or _built_only(cell_run))
        }
        # What an interrupted run has measured stays until this one has numbers of as many cells.
        if records and sum(bool(record.bursts) for record in records.values()) + self._cells.ended >= self._had_numbers:
            self._write_so_far(records)
            if with_artifacts:
                with contextlib.suppress(OSError):  # a full disk takes no numbers, and export says to resume
                    self._write_so_far(self._cells.with_artifacts(records))
        ended_s = self._machine.now_s()
        self._next_so_far_s = ended_s + max(SO_FAR_EVERY_S, (ended_s - begun_s) / SO_FAR_MAX_SHARE)

    def _write_so_far(self, records: Mapping[CellRun, Record]) -> None:
        self._run.store.keep_so_far(self._contest_id, [self._run.at_place(record) for record in records.values()])

    def _keep_so_far_if_due(self) -> None:
        if self._machine.now_s() >= self._next_so_far_s:
            self._keep_so_far()

    def _for_another_epoch(self, done: int) -> list[CellRun]:
        """Return the cells that get another process, or none of them, and say why or why not."""
        plan = self._run.sampling
        if done == 0 or not self._cells.going_on:
            return self._cells.going_on
        records = (
            [cell_run.record() for cell_run in self._cells.going_on] if plan.races or done >= plan.processes else []
        )
        open_pairs = self._run.undecided_pairs(records) if done >= plan.processes else ()
        # another build of a cell may be faster than those that it was measured with
        may_sit_out = plan.races and done >= plan.builds
        # In a race, a surely beaten cell sits out. It comes back if the verdict is found to depend on it.
        sitting_out = rounds.racing(beaten(records, self._run.requirements), open_pairs) if may_sit_out else {}
        cells = [cell_run for cell_run in self._cells.going_on if cell_run.label not in sitting_out]
        if not self._is_wanted(done, cells, open_pairs):
            return []
        for cell_run in self._cells.going_on:
            cell_run.left = sitting_out.get(cell_run.label)
            if cell_run.left:
                cell_run.drop_ahead()
        return cells

    def _is_wanted(self, done: int, cells: Sequence[CellRun], open_pairs: rounds.Pairs) -> bool:
        """Return True when these cells get another process, and say why or why not."""
        plan = self._run.sampling
        labels = [cell_run.label for cell_run in cells]
        decision = self._decision(done, cells, open_pairs)
        following = max(1, plan.processes - done) if decision.is_wanted else 0
        self._time_plan.expect_further(labels, following, rounds.most_further(plan, done) if following else 0)
        is_late = following and done >= plan.processes
        self._run.report_time_left(f"{counted(done, 'process')} of each cell did not decide it" if is_late else "")
        if decision.is_wanted and done >= plan.processes:
            try:
                for name in {cell_run.cell.environment for cell_run in cells}:
                    self._launchers.of_environment(name).of_epoch(done)
            except BakeoffError as error:  # as many as there are say more than none
                self._run.store.note(f"{self._contest_id}: no fork server for a further process of each cell: {error}")
                return False
            if done == plan.processes:  # once for a contest, however many follow
                self._run.progress.note(decision.note)
        elif decision.note:
            self._run.store.note(f"{self._contest_id}: {decision.note}")
        return decision.is_wanted

    def _decision(self, done: int, cells: Sequence[CellRun], open_pairs: rounds.Pairs) -> rounds.NextEpoch:
        labels = [cell_run.label for cell_run in cells]
        are_warm = all(cell_run.starts_warm for cell_run in cells)
        return rounds.next_epoch(
            self._run.sampling,
            done,
            open_pairs,
            has_time=all(cell_run.has_time_for_another for cell_run in cells),
            has_budget=self._time_plan.leaves_room_for_epoch(labels, self._machine.now_s(), are_warm),
        )

    def _run_epoch(self, cells: Sequence[CellRun]) -> None:
        """Measure a process of each cell, in groups where memory does not hold all, and keep what was measured."""
        # alternate the order, so that no backend profits from starting first
        in_reverse = self._epochs_done % 2 == 1 and self._held_all
        records = [cell_run.record() for cell_run in self._cells.going_on if cell_run.was_measured]
        leads = Ranking(records, self._run.requirements).leads.values() if records else ()
        expected = rounds.expected_epochs(self._run.sampling, self._epochs_done, list(leads))
        epoch = Epoch(self._epochs_done, deque(reversed(cells) if in_reverse else cells), expected=expected)
        self._cells.epoch = epoch
        while epoch.has_more_groups:
            if not epoch.waiting:  # and so no cell stays: each of these is alone
                epoch.waiting.append(epoch.displaced.popleft())
            self._run_group(epoch)
            if self._run.interleaved and (epoch.displaced or (epoch.waiting and epoch.is_full)):
                how = "some of them alone, so that the machine's drift is in their ratios"
                if epoch.staying:
                    label = epoch.staying[0].label
                    how = f"in groups, and ratios between two groups go through {label}, which all of them hold"
                self._run.store.note(
                    f"memory did not hold all cells of {self._contest_id} at once: they were measured {how}"
                )
        self._cells.going_on = [
            cell_run for cell_run in self._cells.going_on if cell_run in epoch.finished or cell_run not in cells
        ]
        for stand_in, _ in self._cells.stand_ins:
            stand_in.clear()
        self._cells.stand_ins = []
        self._epochs_done, self._held_all = self._epochs_done + 1, epoch.holds_all
        self._run.store.keep(
            UnfinishedContest(
                contest_id=self._contest_id,
                epochs=self._epochs_done,
                held_all=self._held_all,
                cells=[cell_run.unfinished() for cell_run in self._cells.going_on],
                place=self._run.place,
            )
        )

    def _run_group(self, epoch: Epoch) -> None:
        """Measure as many waiting cells as memory holds, beside the one that stays."""
        if not all(epoch.number in cell_run.ahead for cell_run in epoch.waiting):
            self._cells.await_ends()  # what starts now needs their memory
        epoch.group = next(self._run.group_numbers)
        epoch.alive = list(epoch.staying)
        launched_s = self._machine.now_s()
        self._start_group(epoch)
        start_s = self._machine.now_s() - launched_s if epoch.number else 0.0  # the first one also builds
        epoch.holds_all &= not epoch.waiting
        if len(epoch.alive) > len(epoch.staying):
            self._await_quiet()
            self._run_rounds(epoch, start_s)
            if self._run.load is not None:
                self._run_load(epoch, self._run.load)
        stays = epoch.waiting and len(epoch.alive) > 1
        epoch.staying = (self._bridge(epoch),) if stays else ()
        self._let_go(epoch)
        epoch.holds_all &= not epoch.has_more_groups

    def _await_quiet(self) -> None:
        """Wait until what ran beside the start of cells has ended, because nothing may run beside what is measured."""
        self._cells.await_ends()
        self._run.await_serving()
        self._run.headers.await_all()
        if self._run.quiet is not None:
            left_s = self._time_plan.contest_ends_s - self._machine.now_s()
            self._run.quiet.wait(self._run.progress.tick, at_most_s=left_s / 2)  # a budget must leave time to measure

    def _start_group(self, epoch: Epoch) -> None:
        start = GroupStart(self._cells, epoch, self._known_size)
        try:
            start.start()
        except KeyboardInterrupt:
            if epoch.number or epoch.staying or len(start.built) < 2:
                raise
            # a build of minutes, such as TensorRT's, must not take the answer about the others
            text = f"interrupted: what is built is measured for up to {LAST_ROUNDS_S:.0f} s; Ctrl-C again ends that"
            self._run.progress.note(text)
            now_s = self._machine.now_s()
            self._time_plan.contest_ends_s = min(self._time_plan.contest_ends_s, now_s + LAST_ROUNDS_S)
            with signals_answered_by(signal.default_int_handler):
                start.start_built(now_s + LAST_WARM_UPS_S)
                epoch.holds_all &= not epoch.waiting
                self._run_rounds(epoch, start_s=0.0)
            raise

    def _seconds_of(self, step: PlanStep, cells: Sequence[CellRun]) -> float:
        return self._time_plan.seconds_of(step, [cell_run.label for cell_run in cells])

    def _run_rounds(self, epoch: Epoch, start_s: float) -> None:
        """Take bursts of all living cells in changing order while every other one is stopped. Their processes took
        `start_s` seconds to start."""
        alive, done = epoch.alive, 0
        begun_s = planned_done_s = self._machine.now_s()
        rules = rounds.round_rules(self._run.sampling)
        while alive and self._has_time_for_round(done, alive):
            seen = rounds.RoundsSoFar(
                done=done,
                bursts=_bursts_of(epoch.group, alive),
                further_s=self._machine.now_s() - planned_done_s,
                # Further processes show more in the same time, because they also show what processes differ by.
                most_further_s=max(start_s, planned_done_s - begun_s),
                has_time_to_spare=all(cell_run.has_time_to_spare for cell_run in alive),
                # in groups all ratios go through the cell that every group holds
                bridge=None if epoch.holds_all else alive.index(self._bridge(epoch)),
            )
            takers = [alive[place] for place in sorted(set().union(*(rule.takers(seen) for rule in rules)))]
            if not takers:
                break
            on_gpu = self._machine.gpu_processes(self._device)
            ours = len(alive) + sum(len(cell_run.ahead) for cell_run in self._cells.going_on)
            around = Conditions(
                calibration_ms=self._machine.calibrate_ms(),
                core=rounds.core_of_round(epoch.group, done, self._machine.usable_cores()),
                foreign_gpu_processes=None if on_gpu is None else max(0, on_gpu - ours),
            )
            for cell_run in rounds.order_of_round(epoch.group, done, takers):
                started_s = self._machine.now_s() - self._run.begun_s
                with self._cells.turn_of(epoch, cell_run):
                    cell_run.take_burst(epoch.group, done, started_s, around)
            done += 1
            self._keep_so_far_if_due()
            if done <= self._run.sampling.rounds:
                planned_done_s = self._machine.now_s()
        for cell_run in alive:
            self._run.step_done(PlanStep.ROUNDS, cell_run.label, (self._machine.now_s() - begun_s) / len(alive))

    def _has_time_for_round(self, done: int, alive: Sequence[CellRun]) -> bool:
        """Return True where the contest's share of a budget has time left, or the budget for as many as are needed."""
        now_s, labels = self._machine.now_s(), [cell_run.label for cell_run in alive]
        in_share = now_s + self._seconds_of(PlanStep.FINISH, alive) < self._time_plan.rounds_end_s(labels)
        return done == 0 or in_share or (done < FEWEST_ROUNDS and now_s < self._time_plan.budget_ends_s)

    def _run_load(self, epoch: Epoch, plan: LoadPlan) -> None:
        """Put one cell after the other under load while every other one is stopped."""

        def visit(cell_run: CellRun, step: Callable[[], None]) -> None:
            with self._cells.turn_of(epoch, cell_run):
                step()
            self._keep_so_far_if_due()

        LoadRounds(self._run, plan, epoch.number, epoch.group, epoch.alive).take(visit)

    def _bridge(self, epoch: Epoch) -> CellRun:
        """Return the cell that stays for all groups of an epoch, or would stay by the rounds so far."""
        alive = epoch.alive
        if epoch.staying and epoch.staying[0] in alive:
            return epoch.staying[0]
        baseline = next((cell_run for cell_run in alive if cell_run.label == self._baseline), alive[0])
        # It is the baseline if it is steady, or else the steadiest cell that leaves as much room for others.
        small = [cell_run for cell_run in alive if _is_as_small(cell_run, baseline)]
        return small[steadiest(_bursts_of(epoch.group, small), preferred=small.index(baseline))]

    def _let_go(self, epoch: Epoch) -> None:
        """Measure the processes that do not stay further, one alone after the other, and then end them."""
        # This comes first, so that nothing is timed beside a last check or a process that dies.
        self._measure_further(epoch)
        cells = [cell_run for cell_run in epoch.alive if cell_run not in epoch.staying]
        if any(cell_run.is_evaluated for cell_run in cells):
            # the fastest first: where a budget ends meanwhile, what may win has its metric
            cells = sorted(cells, key=lambda cell_run: cell_run.median_ms)

        leaving = deque(sorted(cells, key=lambda cell_run: cell_run.last_step().only_checks))
        at_once = len(self._machine.usable_cores()) // CORES_OF_CHECK if self._device.is_cuda else 1
        while leaving:
            going = [leaving.popleft()]
            if going[0].last_step().only_checks:
                while leaving and len(going) < at_once and leaving[0].last_step().only_checks:
                    going.append(leaving.popleft())
                for ahead in [process for cell_run in self._cells.going_on for process in cell_run.ahead.values()]:
                    ahead.go_on(self._machine.now_s())
            for cell_run in going:
                cell_run.resume()
                cell_run.begin_finish()
            for cell_run in going:
                self._finish(epoch, cell_run)

    def _measure_further(self, epoch: Epoch) -> None:
        """Measure what bursts do not show. What takes long is measured only for cells that somebody may choose."""
        cells = [cell_run for cell_run in epoch.alive if cell_run not in epoch.staying]
        records = [record for cell_run in self._cells.going_on if (record := cell_run.so_far())]
        if self._run.sampling.energy_of_all:
            chosen: Collection[str] = {cell_run.label for cell_run in cells}
            with_energy = epoch.number == min(1, self._run.sampling.processes - 1)  # later, some may sit out
        else:
            chosen = contenders(records, self._run.requirements)
            done = epoch.number + 1
            open_pairs = self._run.undecided_pairs(records) if done >= self._run.sampling.processes else ()
            going_on = [cell_run for cell_run in self._cells.going_on if not cell_run.left]
            with_energy = not self._decision(done, going_on, open_pairs).is_wanted  # in the last epoch, by the records
        for place, cell_run in enumerate(cells):
            begun_s = self._machine.now_s()
            needed_s = self._seconds_of(PlanStep.FINISH, [*epoch.staying, *cells[place:]])
            has_time = begun_s + needed_s <= self._time_plan.rounds_end_s([cell_run.label for cell_run in cells])
            wanted = cell_run.further_wanted(has_time, cell_run.label in chosen, with_energy)
            if not wanted.is_empty:
                with self._cells.turn_of(epoch, cell_run):
                    cell_run.measure_further(wanted)
            if cell_run in epoch.alive:
                cell_run.process.further_s = self._machine.now_s() - begun_s

    def _finish(self, epoch: Epoch, cell_run: CellRun) -> None:
        begun_s = self._machine.now_s() - cell_run.process.further_s
        try:
            cell_run.finish()
        except CellEnded as ended:
            self._cells.take_away(epoch, cell_run, ended)
            return
        epoch.alive.remove(cell_run)
        record = cell_run.record()
        if epoch.number == 0:
            evaluate_s = record.metrics.seconds if record.metrics else 0.0
            self._run.step_done(PlanStep.FINISH, cell_run.label, self._machine.now_s() - begun_s - evaluate_s)
            if cell_run.is_evaluated:
                self._run.step_done(PlanStep.EVALUATE, cell_run.label, evaluate_s)
        if record.status is Status.OK:
            epoch.finished.append(cell_run)
            return
        cell_run.await_end()  # the folder of its build is to go
        if not self._cells.is_built_anew(cell_run, record):
            self._cells.conclude(cell_run, record)


def _bursts_of(group: int, cells: Sequence[CellRun]) -> list[list[Burst]]:
    return [[burst for burst in cell_run.bursts if burst.group == group] for cell_run in cells]


def _is_as_small(cell_run: CellRun, baseline: CellRun) -> bool:
    ours, theirs = cell_run.peak_memory, baseline.peak_memory
    if ours is None or theirs is None:
        return cell_run is baseline
    pairs = ((ours.peak_resident_bytes, theirs.peak_resident_bytes), (ours.peak_device_bytes, theirs.peak_device_bytes))
    return all((mine or 0) <= STAYS_UP_TO * (its or 0) for mine, its in pairs)


def _built_only(cell_run: CellRun) -> Record | None:
    if not cell_run.built_so_far_s:
        return None
    takes_time = cell_run.built_so_far_s >= 0.05  # eager has nothing to build
    after = f" after {cell_run.built_so_far_s:.1f} s" if takes_time else ""
    return not_reached(cell_run.planned, f"{INTERRUPTED_BEFORE}: it was ready to be measured{after}")
