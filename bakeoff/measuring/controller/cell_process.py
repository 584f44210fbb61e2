"""A process of a cell while it lives: how far it has come, and what it has reported so far.

A process of a later epoch may load beside the present one. It stops before its warm-up until its epoch comes, and is
held while anything is timed.
"""

import math
import statistics
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from bakeoff.judging.estimate import series_of
from bakeoff.measuring.controller.build_folder import phases_alone
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.progress import Progress, Silent
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Worker, WorkerEnded
from bakeoff.measuring.messages import Event, Failed, Finish, FurtherMeasured, PhaseBegun, PhaseEnded, Ready
from bakeoff.records.schema import AroundCall, Burst, Cell, Memory, Phase, Process
from bakeoff.records.store import FirstBuild


class ProcessStage(Enum):
    """How far a process has come on its way to its first burst."""

    LOADING = "loading"
    LOADED = "loaded"  # waits for its turn to build
    BUILDING = "building"
    EXPORTED = "exported"  # waits for its turn to try out kernels
    TUNING = "tuning"
    BUILT = "built"  # stopped, and waits for its turn to warm up
    WARMING_UP = "warming up"
    WARM = "warm"
    GIVEN_UP = "given up"  # of a later epoch, which starts another process instead

    @property
    def goes_on(self) -> bool:
        return self in (ProcessStage.LOADING, *BUILDING, ProcessStage.WARMING_UP)


BUILDING = (ProcessStage.BUILDING, ProcessStage.TUNING)
TO_TUNE = (ProcessStage.EXPORTED, ProcessStage.TUNING)

AFTER_ITS_TURN = {
    ProcessStage.LOADED: ProcessStage.BUILDING,
    ProcessStage.EXPORTED: ProcessStage.TUNING,
    ProcessStage.BUILT: ProcessStage.WARMING_UP,
}

Awaited = type[Event] | tuple[type[Event], ...]
Life = Generator[Awaited | ProcessStage, Any, Any]
"""All that a process does until it is warm, from top to bottom. It yields the kind of event that it waits for, and is
sent that event, or it yields a stage in which it waits for its turn."""


class ProcessFailed(Exception):
    """The process has said that it will not go on."""

    def __init__(self, said: Failed) -> None:
        super().__init__(said.failure.sentence)
        self.said = said


@dataclass
class CellProcess:
    """One process of a cell. `limit_s` is how long it may be waited for, and `ends_s` is when it must be warm."""

    cell: Cell
    epoch: int
    build: int
    is_warm: bool  # it starts from what another process has left
    launcher: Launcher
    limit_s: float
    ends_s: float = math.inf
    is_ahead: bool = False  # it was launched before its epoch
    progress: Progress = field(default_factory=Silent)
    worker: Worker = field(init=False)  # a cell that is built ahead of time has two, one after the other
    stage: ProcessStage = ProcessStage.LOADING
    stage_begun_s: dict[ProcessStage, float] = field(default_factory=dict)
    first_build: FirstBuild | None = None  # that it starts from, if no process of the cell has been measured with it
    is_of_earlier_run: bool = False  # the first build
    built_s: float = 0.0  # it took so long to build and check
    phase: str = "start"
    phases: list[Phase] = field(default_factory=list)
    ready: Ready | None = None
    bursts: list[Burst] = field(default_factory=list)
    has_all_bursts: bool = False  # its rounds are over
    further: FurtherMeasured = field(default_factory=FurtherMeasured)
    further_s: float = 0.0  # that took so long
    has_energy: bool = False  # that was to contain energy
    last: Finish = field(default_factory=Finish)  # what it does last, once that has begun
    waited_s: float = 0.0  # it was waited for so long, without the time for which it was held or waited for its turn
    may_be_held: bool = False  # it has reported something, and so leads a process group of its own
    _life: Life = field(init=False)
    _awaits: Awaited | None = None
    _seen_s: float | None = None  # waiting is accounted for up to here; None: it is held, or waits for its turn

    # --- on its way to its first burst

    def begin(self, life: Life, now_s: float) -> None:
        self._life, self._seen_s, self.stage_begun_s[ProcessStage.LOADING] = life, now_s, now_s
        self._go_on_with(None, now_s)

    def take_turn(self, now_s: float) -> None:
        self._enter(AFTER_ITS_TURN[self.stage], now_s)
        self._seen_s = now_s
        self._go_on_with(None, now_s)

    def poll(self, now_s: float) -> None:
        """Take what it has said, and do not wait. Raises WorkerEnded, DeadlinePassed or ProcessFailed."""
        self._account(now_s)
        try:
            event = self.worker.receive(now_s)
        except DeadlinePassed:
            if now_s >= self.deadline_s:
                raise
            return
        assert self._awaits is not None, "it does not wait for its turn"
        if self.is_awaited(event, self._awaits):
            self._go_on_with(event, now_s)

    def is_awaited(self, event: Event, kind: Awaited) -> bool:
        """Return True for the event that is waited for, and note any other. Raises ProcessFailed for a failure."""
        self.may_be_held = True
        if isinstance(event, PhaseBegun):
            self.phase = event.name
            self.progress.phase(self.cell, event.name)
        elif isinstance(event, PhaseEnded):
            self.phases.append(Phase(name=event.name, seconds=event.seconds))
        elif isinstance(event, Failed):
            raise ProcessFailed(event)
        return isinstance(event, kind)

    @property
    def deadline_s(self) -> float:
        assert self._seen_s is not None, "it goes on"
        return min(self._seen_s + self.limit_s - self.waited_s, self.ends_s)

    def _go_on_with(self, event: Event | None, now_s: float) -> None:
        try:
            following = self._life.send(event)
        except StopIteration:
            following = ProcessStage.WARM
        if isinstance(following, ProcessStage):
            self._enter(following, now_s)
            self._seen_s = None
        else:
            self._awaits = following

    def _enter(self, stage: ProcessStage, now_s: float) -> None:
        self.stage = stage
        self.stage_begun_s[stage] = now_s

    def _account(self, now_s: float) -> None:
        if self._seen_s is not None:
            self.waited_s += now_s - self._seen_s
            self._seen_s = now_s

    # --- before its epoch

    @property
    def is_ready(self) -> bool:
        return self.stage in AFTER_ITS_TURN

    @property
    def goes_on(self) -> bool:
        return self.stage.goes_on and self._seen_s is not None

    def poll_ahead(self, now_s: float) -> None:
        """Take what it has said, and do not wait. The process that its epoch starts instead reports a failure."""
        try:
            self.poll(now_s)
        except (WorkerEnded, DeadlinePassed, ProcessFailed):
            self.stage = ProcessStage.GIVEN_UP
            self.worker.end()
        if self.is_ready:
            self.worker.pause()

    def hold(self, now_s: float) -> None:
        """Stop it wherever it is, because something is timed now."""
        if self.goes_on:
            self._account(now_s)
            self._seen_s = None
            self.worker.pause()

    def go_on(self, now_s: float) -> None:
        """Let it load what is left, after it was held."""
        if self.stage.goes_on and not self.goes_on:
            self._seen_s = now_s
            self.worker.resume()

    # --- what it has reported

    @property
    def warm(self) -> Ready:
        assert self.ready is not None, "the process is warm"
        return self.ready

    @property
    def call_s(self) -> float:
        return self.warm.warm_up.seconds / max(1, self.warm.warm_up.calls)

    @property
    def seconds_of_start(self) -> float:
        """How long the start took in its epoch, without waiting for turns. It was warm a moment ago."""
        begun_s = self.stage_begun_s
        loading_s = 0.0 if self.is_ahead else begun_s[ProcessStage.LOADED] - begun_s[ProcessStage.LOADING]
        return loading_s + self.built_s + begun_s[ProcessStage.WARM] - begun_s[ProcessStage.WARMING_UP]

    @property
    def around(self) -> list[AroundCall]:
        return [call.but(process=self.epoch) for call in self.further.around]

    def summary(self) -> Process:
        first = self.first_build
        turns = [turn for of_process in series_of(self.bursts).values() for turn in of_process.values()]
        return Process(
            index=self.epoch,
            warm=self.is_warm and not self.first_build,
            build=self.build,
            phases=phases_alone(self.phases, first, self.cell, self.is_of_earlier_run) if first else self.phases,
            calls=sum(len(burst.samples_ns) for burst in self.bursts),
            median_ms=statistics.median(turn.ms for turn in turns) if turns else None,
        )

    def as_build(self, folder: Path, before: FirstBuild | None) -> FirstBuild:
        """Return what is to be known of the build that the process has made in `folder`. `before` is what was known."""
        return FirstBuild(
            folder=str(folder),
            phases=list(self.phases),
            memory=self.ready.memory if self.ready else Memory(),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            label=self.cell.configuration,
            placement=self.ready.placement if self.ready else None,
            warm_ups=before.warm_ups if before else {},
        )
