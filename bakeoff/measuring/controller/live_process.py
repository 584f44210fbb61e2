"""A process of a cell while it lives, with what it has told so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from bakeoff.judging.fit import summarise
from bakeoff.measuring.controller.worker_process import Worker
from bakeoff.measuring.messages import Ready
from bakeoff.records.schema import FIRST_CALL, SETTLE, Burst, Phase, Process
from bakeoff.records.store import FirstBuild


@dataclass
class LiveProcess:
    """One epoch of a cell while it lasts."""

    epoch: int
    build: int
    is_warm: bool  # it starts from what another process of the cell has left
    worker: Worker
    first_build: FirstBuild | None = None  # that it starts from, if nothing was measured of the process that made it
    is_shared: bool = False  # the build is dynamic, and may be another cell's
    built_s: float = 0.0  # it took so long to build and check
    phase: str = "start"
    phases: list[Phase] = field(default_factory=list)
    ready: Ready | None = None
    bursts: list[Burst] = field(default_factory=list)
    waited_s: float = 0.0

    @property
    def all_phases(self) -> list[Phase]:
        """Return the phases of the build, and then of the calls. Another cell may have made a shared build."""
        if self.first_build is None:
            return self.phases
        if not self.is_shared:
            return self.first_build.phases
        of_calls = (FIRST_CALL, SETTLE)
        built = [phase for phase in self.first_build.phases if phase.name not in of_calls]
        return [*built, *(phase for phase in self.phases if phase.name in of_calls)]

    def summary(self) -> Process:
        latency = summarise(self.bursts)
        return Process(
            index=self.epoch,
            warm=self.is_warm and not self.first_build,
            build=self.build,
            phases=self.all_phases,
            calls=latency.calls if latency else 0,
            median_ms=latency.median_ms if latency else None,
        )
