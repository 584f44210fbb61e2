"""A cell on its way to its record, through the processes it is measured in."""

from __future__ import annotations

import bisect
import shutil
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import backends
import models
from backends.base import AheadOfTime
from harness.controller import roofline
from harness.controller.launcher import Child, ChildEnded, DeadlinePassed, Launcher
from harness.controller.placement import shortfall
from harness.controller.progress import Progress
from harness.messages import (
    BurstTaken,
    Event,
    Failed,
    Finish,
    Finished,
    MeasureCell,
    MeasurePackagedCell,
    PackageCell,
    Packaged,
    PhaseBegun,
    PhaseEnded,
    Ready,
    TakeBurst,
)
from harness.plan import PlannedCell, command_for
from harness.sampling_plan import SamplingPlan
from judging.estimate import burst_medians_ms, burst_ms, summarise
from records.precision import Precision
from records.schema import (
    Accuracy,
    Burst,
    Cell,
    Conditions,
    Latency,
    Phase,
    Process,
    Record,
    Roofline,
    Status,
    WarmUp,
)
from records.store import Store

LOG_TAIL_LINES = 30
TICK_S = 0.5


Awaited = TypeVar("Awaited", Packaged, Ready, BurstTaken, Finished)


class Over(Exception):
    """A cell came to its end before its time."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


@dataclass(frozen=True)
class Setting:
    """What the cells of a contest have in common."""

    store: Store
    progress: Progress
    sampling: SamplingPlan
    time_limit_s: float
    golden: Path
    work_folder: Path  # every cell has a folder below it: its caches and its artefact, which its processes share


class Live:
    """One cell. In each epoch: `start`, bursts, `finish`; at last `record`. Each raises Over where the cell ends."""

    def __init__(self, planned: PlannedCell, setting: Setting) -> None:
        self.planned = planned
        self.processes: list[Process] = []
        self.bursts: list[Burst] = []
        self._medians_ms: list[float] = []  # of the bursts, in order of size
        self.ready: Ready | None = None  # what the latest worker said when it was ready
        self.first_ready: Ready | None = None
        self._first_finished: Finished | None = None
        self._setting = setting
        self._folder = setting.work_folder / planned.cell.id
        self._log = setting.store.log(planned.cell.id)
        self._log.unlink(missing_ok=True)
        self._budget_s = setting.time_limit_s
        self._start_method = ""
        self._child: Child | None = None
        self._phase = "start"
        self._phases: list[Phase] = []
        self._checks: list[tuple[int, Accuracy]] = []
        self._doubts: dict[str, None] = {}  # each once, in order
        self._epoch = 0
        self._epoch_cost_s = 0.0
        self._started = time.monotonic()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")

    @property
    def cell(self) -> Cell:
        return self.planned.cell

    @property
    def has_time_for_another(self) -> bool:
        """Whether one more process, taking as long as the last one, fits into the cell's time limit."""
        return self._budget_s > 2 * self._epoch_cost_s

    @property
    def has_time_to_spare(self) -> bool:
        """Whether half of the cell's time limit is left."""
        return self._budget_s > self._setting.time_limit_s / 2

    def start(self, launcher: Launcher, epoch: int) -> None:
        """Build the cell in a fresh process, or start it warm from what the first one left, until it is ready."""
        self._epoch, self._epoch_cost_s = epoch, 0.0
        self._phases = []
        self._start_method = launcher.start_method
        if not isinstance(backends.create(self.cell.backend), AheadOfTime):
            self._child = self._fork(launcher, MeasureCell, self._folder)
        else:
            if not self.processes:
                # it leaves nothing but the artefact: a deployment has none of its caches
                self._child = self._fork(launcher, PackageCell, None)
                self._await(Packaged)
                self._child.end()
            self._child = self._fork(launcher, MeasurePackagedCell, self._folder)
        self.ready = self._await(Ready)
        if not self.processes:
            self.first_ready = self.ready
            if doubt := doubt_of(self.ready.warm_up):
                self._doubts[doubt] = None
        self._checks.append((epoch, self.ready.accuracy))
        self.processes.append(
            Process(index=epoch, warm=bool(self.processes), phases=self._phases, settling=self.ready.settling)
        )

    def pause(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        if self._child is not None:
            self._child.resume()

    def take_burst(self, group: int, round_number: int, started_s: float, around: Conditions) -> None:
        """One burst. `around` is what is known of its round beside what the process itself reads."""
        if self._phase != "measure":
            self._phase = "measure"
            self._setting.progress.phase(self.cell, self._phase)
        self._send(TakeBurst(core=around.core))
        taken = self._await(BurstTaken)
        known = {name: value for name, value in around.model_dump().items() if value not in (None, [])}
        self.bursts.append(
            Burst(
                group=group,
                round=round_number,
                started_s=started_s,
                samples_ns=taken.samples_ns,
                process=self._epoch,
                conditions=taken.conditions.model_copy(update=known),
            )
        )
        bisect.insort(self._medians_ms, burst_ms(self.bursts[-1]))
        self._setting.progress.measured(self.cell, self._medians_ms[len(self._medians_ms) // 2])

    def finish(self) -> None:
        """Check once more, and let the process go.

        Only the first one is asked for throughput, device time and energy, if anybody is, and its memory and placement
        count: one process can tell for all, and a warm start's caches hide what was compiled."""
        is_first = len(self.processes) == 1
        self._send(Finish(in_full=is_first and not self._setting.sampling.latency_only))
        finished = self._await(Finished)
        self._end_child()
        if is_first:
            self._first_finished = finished
        self._checks.append((self._epoch, finished.accuracy_after))
        if finished.recompilations:
            self._doubts[f"compiled {finished.recompilations} more time(s) while it was measured"] = None
        own = [burst for burst in self.bursts if burst.process == self._epoch]
        latency = summarise(own)
        self.processes[-1] = self.processes[-1].model_copy(
            update={"calls": latency.calls if latency else 0, "median_ms": latency.median_ms if latency else None}
        )

    def leave(self) -> None:
        """Take the process away, and forget it: the cell will be started again in this epoch."""
        self._end_child()
        self._forget_process()
        self._checks = [(epoch, check) for epoch, check in self._checks if epoch != self._epoch]
        if not self.processes:
            shutil.rmtree(self._folder, ignore_errors=True)  # what it had begun to write is no artefact

    def record(self) -> Record:
        """The record as it stands: of a cell whose processes so far have all come to their end."""
        assert self.first_ready is not None and self._first_finished is not None
        status, reason, accuracy = self._judged(self._first_finished)
        caveat = [self.first_ready.caveat] if self.first_ready.caveat else []
        if (computed_in := self.first_ready.reference_type) != "float64":
            caveat.append(f"checked against eager in {computed_in}, since there was no memory for float64")
        latency = summarise(self.bursts)
        finished = self._first_finished
        return self._record(
            status,
            reason,
            latency=latency,
            roofline=self._roofline(latency),
            accuracy=accuracy,
            doubts=[*caveat, *self._doubts],
            memory=finished.memory,
            placement=finished.placement,
            throughput=finished.throughput,
            device_time=finished.device_time,
            energy=finished.energy,
            stages=finished.stages,
        )

    def clear(self) -> None:
        """Remove what its processes shared. For a cell that has its record."""
        self._end_child()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forget_process(self) -> None:
        if self.processes and self.processes[-1].index == self._epoch:
            self.processes.pop()
        self.bursts = [burst for burst in self.bursts if burst.process != self._epoch]
        self._medians_ms = sorted(burst_medians_ms(self.bursts))

    def _judged(self, finished: Finished) -> tuple[Status, str, Accuracy]:
        """Status, reason and accuracy by every check of every process; the first one that failed decides."""
        first, after = self._checks[0][1], self._checks[1][1]
        accuracy = first.model_copy(update={"rmse_after": after.rmse})
        failed = next(((epoch, check) for epoch, check in self._checks if not check.passed), None)
        if failed is None:
            missing = shortfall(finished.placement, self.cell.backend) if self.planned.strict else ""
            return (Status.FALLBACK, missing, accuracy) if missing else (Status.OK, "", accuracy)
        epoch, check = failed
        if epoch > 0:
            return Status.INCORRECT, f"wrong in its process {epoch + 1}: {check.rule}", check
        if not first.passed:
            return Status.INCORRECT, first.rule, accuracy
        return Status.INCORRECT, f"right at first, wrong after measuring: {after.rule}", accuracy

    def _fork(
        self, launcher: Launcher, kind: type[MeasureCell | PackageCell | MeasurePackagedCell], workspace: Path | None
    ) -> Child:
        job = kind(
            cell=self.cell,
            reference=self._setting.golden.resolve(),
            sampling=self._setting.sampling,
            shared_folder=self._folder,
            is_first=not self.processes,
            surgical=self.planned.surgical,
        )
        return launcher.start(job, self._log, workspace)

    def _send(self, command: TakeBurst | Finish) -> None:
        assert self._child is not None
        self._child.send(command)

    def _end_child(self) -> None:
        if self._child is not None and not self._child.is_over:
            self._child.end()
        self._child = None

    def _await(self, kind: type[Awaited]) -> Awaited:
        """Wait for an event of `kind`, and note phases on the way. Raises Over when the cell ends instead."""
        begun = time.monotonic()
        deadline = begun + self._budget_s
        try:
            while True:
                event = self._receive(deadline, may_tick=kind in (Ready, Packaged))
                if isinstance(event, kind):
                    return event
                if isinstance(event, PhaseBegun):
                    self._phase = event.name
                    self._setting.progress.phase(self.cell, self._phase)
                elif isinstance(event, PhaseEnded):
                    self._phases.append(Phase(name=event.name, seconds=event.seconds))
                elif isinstance(event, Failed):
                    self._end_child()
                    raise Over(self._record(event.status, event.reason))
        except ChildEnded as ended:
            self._end_child()
            status, reason = cause_of_death(ended.status, self._phase, self._setting.store.kernel_killed())
            number = -ended.status if ended.status < 0 else None
            raise Over(self._record(status, reason, died_in=self._phase, signal=number)) from None
        except DeadlinePassed:
            self._end_child()
            raise Over(self._out_of_time()) from None
        finally:
            spent_s = time.monotonic() - begun
            self._budget_s -= spent_s
            self._epoch_cost_s += spent_s

    def _out_of_time(self) -> Record:
        reason = f"not done within {self._setting.time_limit_s:g} s, in {self._phase}: raise --time-limit"
        if not self._first_finished:
            return self._record(Status.TIMEOUT, reason, died_in=self._phase)
        # that there was no time for a further process spoils nothing of those that have been measured
        self._forget_process()
        self._doubts[f"a further process of it was {reason}"] = None
        return self.record()

    def _receive(self, deadline: float, may_tick: bool) -> Event:
        """The child's next message; elapsed times on the screen move on meanwhile, but not while it is measured."""
        assert self._child is not None
        while may_tick:
            try:
                return self._child.receive(min(deadline, time.monotonic() + TICK_S))
            except DeadlinePassed:
                if time.monotonic() >= deadline:
                    raise
                self._setting.progress.tick()
        return self._child.receive(deadline)

    def _record(self, status: Status, reason: str, **fields: Any) -> Record:
        ready = self.first_ready
        known: dict[str, Any] = {}
        if ready is not None:
            known = {name: getattr(ready, name) for name in ("accuracy", "warm_up", "placement", "memory")}
            known |= {"precision_in_force": ready.precision_in_force, "versions": ready.versions}
        return Record(
            cell=self.cell,
            status=status,
            reason=reason,
            phases=self.processes[0].phases if self.processes else self._phases,
            processes=self.processes,
            bursts=self.bursts,
            settings={"start_method": self._start_method, **(ready.settings if ready else {})},
            log_tail=_tail(self._log) if status.is_failure else "",
            started_at=self._started_at,
            elapsed_s=time.monotonic() - self._started,
            **common_fields(self.planned),
            **{**known, **fields},
        )

    def _roofline(self, latency: Latency | None) -> Roofline | None:
        store, cell = self._setting.store, self.cell
        work, ceilings = store.work(cell.contest_id), store.ceilings(cell.device, products_of(cell))
        return roofline.of(work, ceilings, latency) if work and ceilings and latency else None


def common_fields(planned: PlannedCell) -> dict[str, Any]:
    """Fields that every record has, whether or not the cell was ever started."""
    return {
        "asked_by_name": planned.asked_by_name,
        "command": command_for(planned.cell, planned.strict, planned.surgical, planned.options),
    }


def products_of(cell: Cell) -> Precision:
    """The precision that the cell's matrix products have: its own, unless its model has products of another."""
    return models.find(cell.model).products or cell.precision


def doubt_of(warm_up: WarmUp) -> str:
    """Return what is to be said of the end of a warm-up, or an empty string where it became steady."""
    if warm_up.steady:
        return ""
    if warm_up.trendless:
        return "latencies differed by more than 2 % to the end of the warm-up, getting neither faster nor slower"
    return f"the warm-up did not become steady within 2 % in {warm_up.seconds:.0f} s"


def cause_of_death(status: int, phase: str, kernel_killed: bool) -> tuple[Status, str]:
    """What the exit status of a child that died in `phase` means."""
    if -status == signal.SIGKILL and kernel_killed:
        return Status.OOM, f"killed in {phase} by the kernel, which had no memory left"
    return Status.CRASH, f"{_how_it_died(status)} in {phase}"


def _how_it_died(status: int) -> str:
    if status >= 0:
        return f"left with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"died of signal {-status} ({name})"


def _tail(log: Path) -> str:
    """The last lines of a log file, at most 4,000 characters."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])[-4000:]
