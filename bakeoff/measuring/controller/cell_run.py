"""A cell on its way to its record, through the processes it is measured in."""

import bisect
import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from bakeoff import backends
from bakeoff.backends.base import AheadOfTime
from bakeoff.judging.estimate import burst_medians_ms, burst_ms
from bakeoff.measuring import messages
from bakeoff.measuring.controller.build_folder import BuildFolder, placement_of_both
from bakeoff.measuring.controller.cell_process import TO_TUNE, CellProcess, Life, ProcessFailed, ProcessStage
from bakeoff.measuring.controller.cell_record import GrowingRecord, MetricsSetup, cause_of_death, wrong_outputs
from bakeoff.measuring.controller.groundwork import evaluates_too_long
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.load_run import CellUnderLoad
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Worker, WorkerEnded
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.plan import PlannedCell
from bakeoff.records.failure import NO_BUDGET_LEFT, Failure
from bakeoff.records.metrics import Metrics
from bakeoff.records.schema import Burst, Conditions, Record, Status, WarmUp
from bakeoff.records.store import UnfinishedCell

TICK_S = 0.5

UNDER_LOAD = "under load"
"""The phase in which requests are served."""

LOAD_LIMIT_S = 180.0
"""Extra seconds that a window of load may take, which may include a build for its settings."""

TRACE_LIMIT_S = 60.0
"""The trace of a few calls takes no longer than this, or is given up."""

OVERTIME_S = 3.0
"""What goes on when the time budget of the run is over is ended after so many seconds."""

AHEAD_LIMIT_S = 60.0
"""A process of a later epoch that takes so much longer than the last one is given up. Its epoch starts another one."""

Awaited = TypeVar("Awaited", bound=messages.Event)


class CellEnded(Exception):
    """A cell came to its end early: with `record`, or with `by_rounds` if its rounds count and it gets no other try."""

    def __init__(self, record: Record, by_rounds: Record | None = None) -> None:
        super().__init__(record.reason)
        self.record = record
        self.by_rounds = by_rounds


class CellRun:
    """One cell. Each epoch calls `launch`, `poll` until its first burst, bursts, `measure_further`, `begin_finish` and
    `finish`; `record` comes last. Each of these raises CellEnded where the cell comes to its end instead."""

    def __init__(
        self,
        planned: PlannedCell,
        run: RunContext,
        builds: BuildFolder | None = None,
        metrics: MetricsSetup | None = None,
        kept: UnfinishedCell | None = None,
    ) -> None:
        """Go on with the processes that an interrupted run has `kept`, if there are any. `builds` is a kept or shared
        folder. Without `metrics` nothing is evaluated."""
        self.planned, self.cell, self.label = planned, planned.cell, planned.cell.label
        self.peak_memory = kept.peak_memory if kept else None  # of its latest process that was ready
        self.load = kept.record.load if kept else None
        self.left = kept.record.left if kept else None  # why it takes no part in the epoch that goes on
        self.ahead: dict[int, CellProcess] = {}  # of later epochs
        self._run, self._metrics = run, metrics
        self._now_s = run.machine.now_s
        self._builds = builds or self._own_folder()
        self._backend = backends.create(planned.cell.backend)
        self._is_ahead_of_time = isinstance(self._backend, AheadOfTime)
        self._growing = GrowingRecord(planned, run, metrics, kept.record if kept else None)  # without the live process
        self._live: CellProcess | None = None
        self._leaving: list[Worker] = []  # were killed, and may not be gone yet
        self._burst_medians_ms = sorted(burst_medians_ms(self.bursts))
        self._left_s = kept.time_left_s if kept else run.request.time_limit_s  # before the living process
        self._last_process_s = kept.last_process_s if kept else 0.0
        is_here = kept is not None and kept.builds == str(self._builds.path)
        made = {process.build for process in kept.record.processes} if kept and is_here else ()
        self._built = {build for build in made if self._builds.of(build).exists()}  # that a process was measured with
        self._builds.enter(self.label, bool(self._built))
        if kept is None and self._builds.from_before:
            self.peak_memory = self._builds.from_before.memory

    @property
    def process(self) -> CellProcess:
        assert self._live is not None, "the cell has been started"
        return self._live

    @property
    def bursts(self) -> list[Burst]:
        return [*self._growing.bursts, *(self._live.bursts if self._live else [])]

    @property
    def median_ms(self) -> float:
        return self._burst_medians_ms[len(self._burst_medians_ms) // 2]

    @property
    def was_measured(self) -> bool:
        return self._growing.known is not None

    @property
    def starts_warm(self) -> bool:
        """True when the next process starts from what an earlier one has left, or one of the cell's family."""
        return self._next_build in self._built or self._next_build in self._builds.made

    @property
    def waits_for_another(self) -> bool:
        return self._builds.is_made_by_another(self._next_build, self.label)

    @property
    def may_launch(self) -> bool:
        """True unless the process would have to know whether it builds or loads, and that is open yet."""
        return not (self._is_ahead_of_time and self.waits_for_another)

    @property
    def was_built_before(self) -> bool:
        """True when an interrupted run has built the cell, and has measured no process of it."""
        return self._builds.from_before is not None and not self.was_measured and not self.cell.dynamic

    @property
    def cached_at(self) -> str:
        """When an earlier run built the cell, whose build is used again. Otherwise an empty string."""
        before = self._builds.from_before if self._builds.is_cached and not self.was_measured else None
        return before.built_at if before else ""

    @property
    def builds_alone(self) -> bool:
        """True for every build on a CPU, and for builds for a GPU that try out kernels and find no choices."""
        if not self.cell.device.is_cuda:
            return True
        if self._backend.tunes_late and not (self._live and self._live.stage in TO_TUNE):
            return False
        built = self._builds.of(self._next_build) / "artifact"
        finds_choices = self.starts_warm and self._backend.keeps_choices(self.cell, built)
        return self._backend.times_kernels(self.cell) and not finds_choices

    @property
    def tunes_beside_builds(self) -> bool:
        """True if it tries out kernels while cells build beside it that try out none."""
        return self.builds_alone and self.cell.device.is_cuda and self._backend.tunes_beside_builds

    @property
    def built_so_far_s(self) -> float:
        return self._live.built_s if self._live else 0.0

    @property
    def has_lost_builds(self) -> bool:
        return not {process.build for process in self._growing.processes if process.build_s} <= self._built

    @property
    def has_time_for_another(self) -> bool:
        return self._time_left_s > 2 * self._last_process_s

    @property
    def has_time_to_spare(self) -> bool:
        return self._time_left_s > self._run.request.time_limit_s / 2

    # --- the way of a process to its first burst

    def start(self) -> None:
        """Bring a process to its first burst, where nothing else goes on, and wait for it."""
        self.launch(self._run.launchers.of_environment(self.cell.environment).first, epoch=0)
        while self.process.stage is not ProcessStage.WARM:
            if not self.process.stage.goes_on:
                self.process.take_turn(self._now_s())
            self._run.machine.wait([self.process.worker], TICK_S)
            self.poll()
            self._run.progress.tick()

    def launch(self, launcher: Launcher, epoch: int, ends_s: float = math.inf) -> None:
        """Start a process that loads the model, or the first process' build. The run's budget ends at `ends_s`."""
        live = CellProcess(self.cell, epoch, self._next_build, self.starts_warm, launcher, self._left_s, ends_s)
        live.progress = self._run.progress
        live.begin(self._life(live), self._now_s())
        self._live = live

    def launch_ahead(self, launcher: Launcher, epoch: int) -> None:
        """Start the process of a later epoch, which loads what is built: `ahead`."""
        limit_s = self._last_process_s + AHEAD_LIMIT_S
        process = CellProcess(self.cell, epoch, self._next_build, True, launcher, limit_s, is_ahead=True)
        process.begin(self._life(process), self._now_s())
        self.ahead[epoch] = process

    def take_ahead(self, epoch: int) -> bool:
        """Go on with the process that was launched ahead for this epoch. Return False if there is none."""
        process = self.ahead.pop(epoch, None)
        if process is None or process.stage is ProcessStage.GIVEN_UP:
            return False
        assert process.is_ready, "what loads is waited for"
        process.limit_s, process.ends_s = self._left_s, self._run.time_plan.budget_ends_s + OVERTIME_S
        process.progress = self._run.progress
        self._live = process
        return True

    def drop_ahead(self) -> None:
        """Let the processes of later epochs go: these will not come, or lack memory. `await_end` comes after it."""
        for process in self.ahead.values():
            if not process.worker.is_over:
                process.worker.kill()
                self._leaving.append(process.worker)
        self.ahead.clear()

    def _life(self, live: CellProcess) -> Life:
        """Load, build and check, and warm up. The process waits for its turn before it builds and warms up."""
        is_packaged = self._is_ahead_of_time and not live.is_warm
        measuring = messages.MeasurePackagedCell if self._is_ahead_of_time else messages.MeasureCell
        # A process of a later epoch starts from what is built, so it need not wait for its turn to build.
        may_build = live.is_ahead and not self.builds_alone
        if not live.is_warm:
            self._builds.clear_once(live.build)
        if is_packaged:
            self._builds.begin(live.build, self.label)
        self._start_worker(live, messages.PackageCell if is_packaged else measuring)
        if may_build:
            live.worker.send(messages.Build())  # which it takes once it has loaded
        yield messages.ReadyToBuild
        if not may_build:
            yield ProcessStage.LOADED
            if not self._is_ahead_of_time:
                live.is_warm = self.starts_warm  # another cell of its family may have built meanwhile
                if not live.is_warm:
                    self._builds.begin(live.build, self.label)
            if live.is_warm and live.build not in self._built:
                live.first_build = self._builds.made[live.build]
                live.is_of_earlier_run = self._builds.is_cached and live.first_build is self._builds.from_before
            live.worker.send(messages.Build())

        if is_packaged:
            packaged = yield from self._built_to(live, messages.Packaged)
            live.built_s += packaged.seconds
            begun_s = self._now_s()
            live.worker.end()
            self._start_worker(live, messages.MeasurePackagedCell)
            yield messages.ReadyToBuild
            live.built_s += self._now_s() - begun_s
            live.worker.send(messages.Build())
        built = yield from self._built_to(live, messages.Built)
        live.built_s += built.seconds
        self._share_build(live)

        yield ProcessStage.BUILT
        live.worker.send(messages.BeginWarmUp(is_repeated=self.was_measured or self._known_warm_up is not None))
        ready = yield messages.Ready
        live.ends_s = self._run.time_plan.budget_ends_s + OVERTIME_S
        self.peak_memory = ready.memory
        if ready.settle:
            live.phases.append(ready.settle)
        placement = placement_of_both(ready.placement, live.first_build)
        warm_up = self._known_warm_up or ready.warm_up
        live.ready = ready.but(placement=placement, warm_up=warm_up)
        self._share_build(live)
        made = self._builds.made.get(live.build)
        if made and made.has_artefact and not (self.was_measured or self._known_warm_up):
            made = made.but(warm_ups={**made.warm_ups, self.cell.configuration: warm_up})
            self._builds.done(live.build, made)
            self._run.store.keep_build(made)
        if self.cached_at and not self.is_right:
            raise self._ended(live, Status.INCORRECT, wrong_outputs(ready.accuracy, placement=ready.placement))

    def _built_to(self, live: CellProcess, end: type[messages.Event]) -> Life:
        """Build on, and wait for quiet where the build asks for it. Return the event that ends the build."""
        event = yield messages.ReadyToTune, end
        if isinstance(event, messages.ReadyToTune):
            yield ProcessStage.EXPORTED
            live.worker.send(messages.Build())
            event = yield end
        return event

    def _share_build(self, live: CellProcess) -> None:
        """Give other cells of its family what the process has built, if it has not loaded it."""
        if not live.is_warm:
            self._builds.done(live.build, live.as_build(self._builds.of(live.build), self._builds.made.get(live.build)))

    @property
    def _known_warm_up(self) -> WarmUp | None:
        """The warm-up of an earlier run's first process, which started from the build that this one starts from."""
        before = self._builds.from_before
        if before is None or self.was_measured or self.cell.dynamic:  # which may have served another size
            return None
        warm_up = before.warm_ups.get(self.cell.configuration)
        return warm_up if warm_up and warm_up.seconds >= self._run.sampling.warm_up_s else None

    def poll(self) -> None:
        with self._ending_as_record(self.process):
            self.process.poll(self._now_s())

    @property
    def _time_left_s(self) -> float:
        return self._left_s - (self._live.waited_s if self._live else 0.0)

    def builds_anew_after(self, record: Record) -> str:
        """Return why the cell builds anew in the run's folder, or nothing. What its kept build measured is left out."""
        is_of_earlier_run = self._builds.from_before is not None
        is_wrong = is_of_earlier_run and record.status in (Status.INCORRECT, Status.ERROR, Status.CRASH)
        if not (self._builds.is_cached and (record.failed_on_full_disk or is_wrong)):
            return ""
        self._growing.begin_anew("" if record.failed_on_full_disk else record.reason)
        self.load = None
        self.leave()
        self.drop_ahead()
        self.await_end()  # the folder of its build is to go
        if not record.failed_on_full_disk:
            self._builds.spoil()
        self._builds.leave(self.label, keeps_build=is_of_earlier_run)
        self._builds = self._own_folder()
        self._builds.enter(self.label, has_built=False)
        self._built = set()
        if record.failed_on_full_disk:
            return "was built anew in the run's own folder, because the disk of the cache is full"
        return f"failed with a build of an earlier run, and was built anew: {record.reason}"

    def _own_folder(self) -> BuildFolder:
        """Return a folder that the cell shares with no other one of the contest."""
        return BuildFolder(self._run.store.builds(self.cell.build_id), is_dynamic=bool(self.cell.dynamic))

    def pause(self) -> None:
        if self._live is not None and self._run.interleaved:
            self._live.worker.pause()

    def resume(self) -> None:
        if self._live is not None and self._run.interleaved:
            self._live.worker.resume()

    def take_burst(self, group: int, round_number: int, started_s: float, around: Conditions) -> None:
        """Take one burst. `around` holds the conditions of its round, which the worker does not read itself."""
        live = self.process
        if live.phase != "measure":
            live.phase = "measure"
            self._run.progress.phase(self.cell, live.phase)
        live.worker.send(messages.TakeBurst(core=around.core))
        reply = self._await(live, messages.BurstMeasured)
        conditions = {name: value for name, value in around.model_dump().items() if value not in (None, [])}
        burst = Burst(
            group=group,
            round=round_number,
            started_s=started_s,
            samples_ns=reply.samples_ns,
            process=live.epoch,
            conditions=reply.conditions.but(**conditions),
        )
        live.bursts.append(burst)
        bisect.insort(self._burst_medians_ms, burst_ms(burst))
        self._run.progress.measured(self.cell, self.median_ms)

    def under_load(self, plan: LoadPlan) -> CellUnderLoad:
        threads = self.process.warm.settings.get("threads")
        latency_ms = self.median_ms
        return CellUnderLoad(plan, self.cell, self._take_load, latency_ms, threads if isinstance(threads, int) else 1)

    @property
    def is_right(self) -> bool:
        """True when its process has answered rightly so far, or so that its errors may be accepted."""
        return self.process.warm.accuracy.passed or self.may_be_accepted

    @property
    def may_be_accepted(self) -> bool:
        """True if what the check of its answers rejects is accepted, or may be when it has been evaluated."""
        accuracy = self.process.warm.accuracy
        return self._run.acceptance.may_accept(accuracy, self.cell.precision, self.is_evaluated)

    def _take_load(self, order: messages.TakeLoad) -> messages.TrafficWindow:
        live = self.process
        if live.phase != UNDER_LOAD:
            live.phase = UNDER_LOAD
            self._run.progress.phase(self.cell, live.phase)
        live.worker.send(order)
        live.waited_s -= order.seconds if order.is_soak else 0.0
        expected_s = max(order.seconds, order.min_requests / order.rate)
        return self._await(live, messages.TrafficWindow, LOAD_LIMIT_S + 3 * expected_s)

    def further_wanted(self, has_time: bool, may_be_chosen: bool, with_energy: bool) -> messages.MeasureFurther:
        """Return what its process measures after its bursts. Only cells that may be chosen get what takes long."""
        # One process can report for all, and the caches of a warm start hide what was compiled.
        known = self._growing.known
        wants_more = has_time and not self._run.sampling.latency_only
        throughput_counts = may_be_chosen or self._run.sampling.throughput_of_all
        # Throughput and energy are of calls back to back, whose caches are hot.
        may_be_hot = wants_more and not self.cell.cold_cache
        # Throughput that the cell's latency contradicts is measured again.
        wants_throughput = may_be_hot and (known is None or (throughput_counts and known.is_throughput_doubtful))
        blocks = messages.THROUGHPUT_BLOCKS if throughput_counts else 1
        return messages.MeasureFurther(
            with_device_time=wants_more and known is None,
            throughput_blocks=blocks if wants_throughput else 0,
            with_energy=with_energy and may_be_hot and may_be_chosen and (known is None or known.energy is None),
            with_around=has_time and may_be_chosen and self.process.warm.has_around,
        )

    def measure_further(self, wanted: messages.MeasureFurther) -> None:
        live = self.process
        live.has_all_bursts = True
        live.has_energy = wanted.with_energy
        live.worker.send(wanted)
        live.further = self._await(live, messages.FurtherMeasured)

    def last_step(self) -> messages.Finish:
        """Return what its process does last. It always checks its answers once more."""
        is_first, left_s = not self._growing.processes, self._run.time_plan.contest_ends_s - self._now_s()
        has_time = min(left_s, self._time_left_s) > messages.ENGINE_MEMORY_LIMIT_S
        return messages.Finish(
            with_trace=self.process.has_energy and self.cell.device.is_cuda,
            with_metrics=is_first and self.is_evaluated and left_s > 0,
            # On a GPU, a second copy of the build may leave others no memory.
            with_engine_memory=is_first and not self.cell.device.is_cuda and has_time,
        )

    def begin_finish(self) -> None:
        live = self.process
        live.has_all_bursts, live.last = True, self.last_step()
        live.worker.send(live.last)

    def finish(self) -> None:
        """Wait until the process has taken its last step, and let it go."""
        live = self.process
        finished = self._await(live, messages.Finished)
        evaluates = not self.was_measured and self.is_evaluated
        with self._ending_as_record(live):
            metrics = self._evaluated(live) if evaluates else None
        kernel_times = None
        if live.last.with_trace and not live.worker.is_over:
            # a process that fails in the trace has reported everything else
            with contextlib.suppress(WorkerEnded, DeadlinePassed):
                event = live.worker.receive(min(self._now_s() + TRACE_LIMIT_S, live.ends_s))
                kernel_times = event.times if isinstance(event, messages.KernelsTraced) else None
        if live.last.only_checks:
            # A GPU's driver takes a while to let it die. Others check meanwhile, and `await_end` waits for it.
            live.worker.kill()
            self._leaving.append(live.worker)
        else:
            self._end_worker()
        self._growing.add(live, finished, self._builds.made.get(live.build), metrics, kernel_times)
        self._last_process_s = live.waited_s
        self._built.add(live.build)
        self._forget_live()

    def await_end(self) -> None:
        """Wait until the processes are gone that `finish` and `drop_ahead` have let go."""
        while self._leaving:
            self._leaving.pop().end()

    @property
    def is_evaluated(self) -> bool:
        return self._metrics is not None and self._metrics.reference.failure is None

    def _evaluated(self, live: CellProcess) -> Metrics:
        """Return what the user's `evaluate` says of the build, or why it says nothing, outside of the time limit."""
        limit_s, begun_s = self._run.request.evaluate_timeout_s, self._now_s()
        assert self._metrics is not None, "the build is evaluated"
        left_s = self._run.time_plan.contest_ends_s - begun_s
        if not live.last.with_metrics:
            return Metrics(failure=evaluates_too_long(limit_s, min(left_s, 0.0)))
        try:
            deadline_s = begun_s + min(limit_s, left_s)
            while not isinstance(event := self._receive(live.worker, deadline_s), messages.Evaluated):
                live.is_awaited(event, messages.Evaluated)
            metrics = event.metrics
            if metrics.failure:  # its traceback is there
                log = f"{self._growing.log.parent.name}/{self._growing.log.name}"
                metrics = metrics.but(failure=metrics.failure.but(log=log))
            return metrics.beside(self._metrics.reference)
        except WorkerEnded as ended:
            _, failure = cause_of_death(ended.status, "evaluate", self._run.store.kernel_killed())
            failure = failure.but(text=f"its process {failure.text}")
        except DeadlinePassed:
            self._end_worker()
            failure = evaluates_too_long(limit_s, left_s)
        return Metrics(failure=failure, seconds=self._now_s() - begun_s)

    def leave(self) -> None:
        """Take the process away and forget it: the cell will be started again in this epoch."""
        self._end_worker()
        self._forget_live()

    def record(self) -> Record:
        assert self._growing.known is not None, "a process of the cell has ended well"
        return self._as_it_stands(self._growing.known)

    def so_far(self) -> Record | None:
        """Return the record as it would stand if the run ended now, or None where nothing has been measured."""
        record = self._growing.with_live(self._live)
        return None if record is None else self._as_it_stands(record)

    def _as_it_stands(self, record: Record) -> Record:
        plan = self._run.load if record.status is Status.OK else None
        load = self.load or (plan.load([]) if plan else None)  # of a cell that had no turn yet
        return record.but(elapsed_s=self._growing.elapsed_s, left=self.left, load=load)

    def _ended(
        self, live: CellProcess, status: Status, failure: Failure | None, rounds_count: bool = False, **fields: Any
    ) -> CellEnded:
        """Return the end of a cell whose process failed. With `rounds_count`, its rounds count wherever it failed."""
        record = self._growing.ended(live, status, failure, load=self.load, **fields)
        # Rounds count if it failed in a later step, or after another process of the cell has ended well.
        is_one_of_several = self.was_measured and live.ready is not None
        costs_process = status.is_failure and (live.has_all_bursts or is_one_of_several)
        if failure is None or not (rounds_count or (costs_process and not record.failed_on_full_disk)):
            return CellEnded(record)
        where = f" in {live.phase}"
        reason = failure.sentence if where in failure.sentence else f"{failure.sentence}{where}"
        by_rounds = self._growing.with_lost(live, reason)
        return CellEnded(record, self._as_it_stands(by_rounds) if by_rounds else None)

    def unfinished(self) -> UnfinishedCell:
        return UnfinishedCell(
            record=self.record(),
            time_left_s=self._time_left_s,
            last_process_s=self._last_process_s,
            peak_memory=self.peak_memory,
            builds=str(self._builds.path),
        )

    @property
    def artifact(self) -> Path:
        """The folder of what the backend has built, first of several times: phases and memory are of this build."""
        return self._builds.of(0) / "artifact"

    def give_up(self) -> None:
        self._end_worker()
        self.drop_ahead()

    def clear(self, keeps_build: bool = False) -> None:
        """Give up the folder of its builds, once the cell has its record. `keeps_build` leaves a cached one."""
        self.give_up()
        self.await_end()
        self._builds.leave(self.label, keeps_build)

    @property
    def _next_build(self) -> int:
        """The build of the next process. They take turns, so that a drift of the machine hits all of them."""
        return len(self._growing.processes) % self._run.sampling.builds

    def _forget_live(self) -> None:
        self._left_s, self._live = self._time_left_s, None
        self._burst_medians_ms = sorted(burst_medians_ms(self.bursts))

    def _start_worker(
        self,
        process: CellProcess,
        kind: type[messages.MeasureCell | messages.PackageCell | messages.MeasurePackagedCell],
    ) -> None:
        job = kind(
            cell=self.cell,
            reference=self._run.store.reference(self.cell.reference_id).resolve(),
            sampling=self._run.sampling,
            shared_folder=self._builds.of(process.build),
            is_first=not (self.was_measured or process.is_ahead),
            surgical=self.planned.surgical,
            open_axes=self.planned.open_axes,
            weights_at=self.planned.weights_at,
            inputs=self._run.store.inputs(self.cell.reference_id).resolve() if self.cell.dynamic else None,
            evaluation=self._metrics.evaluation if self._metrics else None,
            is_machine_busy=self._run.is_machine_busy,
        )
        # what loads a package imports no compiler
        imports = () if kind is messages.MeasurePackagedCell else self._backend.imports
        # what packages has caches of its own, because a deployment has the artefact only
        workspace = None if kind is messages.PackageCell else job.shared_folder
        process.worker = process.launcher.start(job, self._growing.log, workspace, imports)

    def _end_worker(self) -> None:
        if self._live is not None and not self._live.worker.is_over:
            self._live.worker.end()
            self._builds.give_up(self._live.build, self.label)

    def _await(self, live: CellProcess, kind: type[Awaited], limit_s: float = math.inf) -> Awaited:
        begun_s = self._now_s()
        deadline_s = min(begun_s + min(limit_s, self._time_left_s), live.ends_s)
        try:
            with self._ending_as_record(live, limit_s):
                while True:
                    event = live.worker.receive(deadline_s)
                    if live.is_awaited(event, kind):
                        assert isinstance(event, kind)
                        return event
        finally:
            live.waited_s += self._now_s() - begun_s

    @contextlib.contextmanager
    def _ending_as_record(self, live: CellProcess, limit_s: float = math.inf) -> Iterator[None]:
        """Raise CellEnded where the process ends or fails inside of the block, or does not answer in time."""
        try:
            yield
        except ProcessFailed as failed:
            self._end_worker()
            status, failure = failed.said.status, failed.said.failure
            died_in = live.phase if status.is_failure else None  # and not for what cannot be had here
            raise self._ended(live, status, failure, died_in=died_in) from None
        except WorkerEnded as ended:
            status, failure = cause_of_death(ended.status, live.phase, self._run.store.kernel_killed())
            if status is Status.CRASH and self._run.machine.has_full_disk(live.worker.workspace):
                failure = failure.on_full_disk
            self._end_worker()
            number = -ended.status if ended.status < 0 else None
            raise self._ended(live, status, failure, died_in=live.phase, signal=number) from None
        except DeadlinePassed:
            self._end_worker()
            raise self._out_of_time(live, limit_s) from None

    def _out_of_time(self, live: CellProcess, limit_s: float) -> CellEnded:
        status = Status.TIMEOUT
        if self._now_s() >= live.ends_s:
            status, kind = Status.NOT_REACHED, NO_BUDGET_LEFT
            text = f"not done when the time that --budget left it was over, in {live.phase}"
            text = "; ".join(filter(None, (text, self._run.time_plan.what_took_time)))
        elif limit_s < self._time_left_s:
            kind, text = "request timed out", f"a request was not answered within {limit_s:.0f} s, {UNDER_LOAD}"
        else:
            kind = "time limit"
            text = f"not done within {self._run.request.time_limit_s:g} s, in {live.phase}: raise --time-limit"
        rounds_count = self.was_measured or kind != "request timed out"
        return self._ended(live, status, Failure(kind=kind, text=text), rounds_count, died_in=live.phase)

    def _receive(self, worker: Worker, deadline_s: float) -> messages.Event:
        """Return the next event. Elapsed times on the screen move on meanwhile."""
        while True:
            try:
                return worker.receive(min(deadline_s, self._now_s() + TICK_S))
            except DeadlinePassed:
                if self._now_s() >= deadline_s:
                    raise
                self._run.progress.tick()
