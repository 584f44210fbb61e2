"""The cells of a contest while it lasts: its present epoch, and how a cell comes to its record."""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bakeoff.measuring.controller.cell_record import no_time_for
from bakeoff.measuring.controller.cell_run import CellEnded, CellRun
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.records.artifacts import ArtifactTooLarge
from bakeoff.records.schema import Record, Status


@dataclass
class Epoch:
    """One epoch while it lasts: each cell in one process, in groups where memory does not hold all at once. One cell
    stays for all groups: the baseline, or the steadiest cell if the baseline's rounds differ much."""

    number: int
    waiting: deque[CellRun]  # not started yet
    group: int = 0  # number of the group that is alive, in the run
    alive: list[CellRun] = field(default_factory=list)  # the cells of this group that are warm
    staying: tuple[CellRun, ...] = ()  # the cell that stays for the next group; at most one
    displaced: deque[CellRun] = field(default_factory=deque)  # ran out of memory beside others; each starts again alone
    finished: list[CellRun] = field(default_factory=list)  # further epochs are for these
    is_full: bool = False  # memory holds no more cells beside those that are alive
    holds_all: bool = True  # memory has held all cells at once so far
    expected: int = 1  # so many epochs are to come in all, by what is known

    @property
    def has_more_groups(self) -> bool:
        return bool(self.waiting or self.displaced)


@dataclass
class ContestCells:
    """The cells that go on, and what becomes of those that end."""

    run: RunContext
    contest_id: str
    going_on: list[CellRun]
    stand_ins: list[tuple[CellRun, str]]  # each takes part if the cell of its label fails
    epoch: Epoch | None = None
    ended: int = 0  # so many cells have their records
    lack: str = ""  # how much longer the budget must be, where it left no time for any cell

    def end_if_late(self, cell_run: CellRun, alive: Sequence[CellRun]) -> bool:
        """End the cell with its record and return True if the run's time budget leaves no time for it."""
        label, labels = cell_run.label, [other.label for other in alive]
        if cell_run.was_measured or self.run.time_plan.leaves_room_for_build(label, labels, self.run.machine.now_s()):
            return False
        if not alive and not self.lack:
            self.lack = self.run.time_plan.lack(
                [cell_run.label for cell_run in self.going_on], self.run.machine.now_s()
            )
        self.conclude(cell_run, no_time_for(cell_run.planned, self.lack))
        return True

    @contextlib.contextmanager
    def turn_of(self, epoch: Epoch, cell_run: CellRun) -> Iterator[None]:
        """Let a cell that was stopped go on in the block. If it ends there, it is not among the living any more."""
        try:
            cell_run.resume()
            yield
            cell_run.pause()
        except CellEnded as ended:
            self.take_away(epoch, cell_run, ended)

    def take_away(self, epoch: Epoch, cell_run: CellRun, ended: CellEnded) -> None:
        epoch.alive.remove(cell_run)
        if self.conclude_or_retry(cell_run, ended, epoch.alive):
            epoch.displaced.append(cell_run)

    def conclude_or_retry(self, cell_run: CellRun, ended: CellEnded, others: Sequence[CellRun]) -> bool:
        """Return True if the cell is tried again alone, because `others` held memory that it lacked, or conclude it."""
        if self.is_built_anew(cell_run, ended.record):
            return False
        if ended.record.status is not Status.OOM or not others:
            self.conclude(cell_run, ended.by_rounds or ended.record)
            return False
        self.run.store.note(f"{cell_run.cell.id} ran out of memory beside others and was tried again alone")
        for other in self.going_on:
            other.drop_ahead()
        cell_run.leave()
        self.await_ends()
        return True

    def is_built_anew(self, cell_run: CellRun, record: Record) -> bool:
        """Return True if the cell waits in this epoch again, because what lies in the cache may have failed it."""
        if self.epoch is None or not (why := cell_run.builds_anew_after(record)):
            return False
        self.run.store.note(f"{cell_run.cell.id} {why}")
        self.epoch.waiting.appendleft(cell_run)
        return True

    def conclude(self, cell_run: CellRun, record: Record) -> None:
        """Save the record of a cell that ends before the others, with its artefact if it came to a good end."""
        self.save(cell_run, self.with_artifacts({cell_run: record})[cell_run])

    def save(self, cell_run: CellRun, record: Record) -> None:
        label = cell_run.label
        self.ended += 1
        self.run.time_plan.dropped(label)
        self.run.end(record)
        if record.status is not Status.OK:
            wanted = [cell_run for cell_run, instead_of in self.stand_ins if instead_of == label]
            self.stand_ins = [stand_in for stand_in in self.stand_ins if stand_in[0] not in wanted]
            self.going_on += wanted
            if self.epoch is not None:
                self.epoch.waiting += wanted
        cell_run.clear(keeps_build=record.status is Status.OK)

    def with_artifacts(self, records: Mapping[CellRun, Record]) -> dict[CellRun, Record]:
        """Keep the artefacts of cells that came to a good end, the fastest first. Return all records, with these."""
        if self.run.artifacts is None:
            return dict(records)
        for record in records.values():
            self.run.artifacts.remove(record.cell.id)  # of an interrupted run
        kept, too_large = dict(records), []
        right = [cell_run for cell_run, record in records.items() if record.status is Status.OK]
        for cell_run in sorted(right, key=lambda cell_run: cell_run.median_ms):
            record = records[cell_run]
            try:
                name = self.run.artifacts.keep(record.cell.id, cell_run.artifact)
                kept[cell_run] = record.but(artifact=name)
            except ArtifactTooLarge as error:
                too_large.append(f"{record.cell.label} ({error.size_bytes / 1e6:.3g} MB)")
        if too_large:
            self.run.store.note(
                f"artefacts of {self.contest_id} over --artifact-limit were not kept: {', '.join(too_large)}"
            )
        return kept

    def await_ends(self) -> None:
        for cell_run in self.going_on:
            cell_run.await_end()
