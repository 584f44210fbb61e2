"""A process of a cell while it lives, with what it has told so far."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import fit
from bakeoff.measuring.controller.build_folder import phases_alone
from bakeoff.measuring.controller.worker_process import Worker
from bakeoff.measuring.messages import FurtherMeasured, Ready
from bakeoff.records.schema import AroundCall, Burst, Cell, Memory, Phase, Process
from bakeoff.records.store import FirstBuild


@dataclass
class LiveProcess:
    """One epoch of a cell while it lasts."""

    cell: Cell
    epoch: int
    build: int
    is_warm: bool  # it starts from what another process has left
    worker: Worker
    start_method: str  # of its first worker
    first_build: FirstBuild | None = None  # that it starts from, if no process of the cell has been measured with it
    is_of_earlier_run: bool = False  # the first build
    built_s: float = 0.0  # it took so long to build and check
    phase: str = "start"
    phases: list[Phase] = field(default_factory=list)
    ready: Ready | None = None
    bursts: list[Burst] = field(default_factory=list)
    has_all_bursts: bool = False  # its rounds are over
    further: FurtherMeasured = field(default_factory=FurtherMeasured)
    waited_s: float = 0.0

    @property
    def warm(self) -> Ready:
        """Return what it told when it was warm."""
        assert self.ready is not None, "the process is warm"
        return self.ready

    @property
    def around(self) -> list[AroundCall]:
        return [call.model_copy(update={"process": self.epoch}) for call in self.further.around]

    @property
    def all_phases(self) -> list[Phase]:
        """Return the phases that the cell takes alone, whichever process did them."""
        first = self.first_build
        return phases_alone(self.phases, first, self.cell, self.is_of_earlier_run) if first else self.phases

    def summary(self) -> Process:
        median_ms = fit({"": series_of(self.bursts)}).latency_ms.get("")
        return Process(
            index=self.epoch,
            warm=self.is_warm and not self.first_build,
            build=self.build,
            phases=self.all_phases,
            calls=sum(len(burst.samples_ns) for burst in self.bursts),
            median_ms=median_ms,
        )

    def as_build(self, folder: Path, before: FirstBuild | None) -> FirstBuild:
        """Return what is to be known of the build that the process has made in `folder`, and told of `before`."""
        return FirstBuild(
            folder=str(folder),
            phases=list(self.phases),
            memory=self.ready.memory if self.ready else Memory(),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            label=self.cell.configuration,
            placement=self.ready.placement if self.ready else None,
            warm_ups=before.warm_ups if before else {},
        )
