"""Measuring one contest: every cell built in its own child, then rounds of bursts, then a record each."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import backends
from backends.base import AheadOfTime
from harness import link, memory, precision, roofline
from harness.launcher import CAN_PAUSE, Child, ChildEnded, DeadlinePassed, Launcher
from harness.placement import shortfall
from harness.plan import Contest, PlannedCell, command_for
from harness.sampling import SamplingPlan
from harness.store import Store
from reports.errors import BakeoffError
from reports.schema import Accuracy, Burst, Cell, Latency, Phase, Placement, Record, Roofline, Status
from reports.statistics import burst_medians_ms, summarise

LOG_TAIL_LINES = 30
TICK_S = 0.5
MEMORY_RESERVE = 1.3
"""A further cell is started beside those alive only if this many times the largest one's peak is still free."""


class Progress(Protocol):
    """Where a run tells how it is going. Called between bursts only, never while a cell is measured."""

    def phase(self, cell: Cell, name: str) -> None: ...
    def measured(self, cell: Cell, median_ms: float) -> None: ...
    def ended(self, record: Record) -> None: ...
    def note(self, text: str) -> None: ...
    def tick(self) -> None: ...


@dataclass
class Live:
    """A cell on its way to a record."""

    planned: PlannedCell
    child: Child
    log: Path
    budget_s: float
    package: Path | None = (
        None  # what was built ahead of time, shared by the process that builds and the one that loads
    )
    started: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    phase: str = "start"
    phases: list[Phase] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    bursts: list[Burst] = field(default_factory=list)

    @property
    def cell(self) -> Cell:
        return self.planned.cell


class _Over(Exception):
    """A cell came to its end before its time."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


class _NoGolden(Exception):
    """There is nothing to check a contest's cells against; they end as its computation did."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Measurement:
    """Measures the contests of one run. `group` counts the sets of cells that were alive together."""

    def __init__(
        self,
        launcher: Launcher,
        store: Store,
        progress: Progress,
        sampling: SamplingPlan,
        time_limit_s: float,
        interleaved: bool,
    ) -> None:
        self._launcher = launcher
        self._store = store
        self._progress = progress
        self._sampling = sampling
        self._time_limit_s = time_limit_s
        self._interleaved = interleaved and CAN_PAUSE
        self._group = store.next_group()
        self._epoch = time.monotonic()

    def measure(self, contest: Contest, pending: Sequence[PlannedCell]) -> None:
        """Bring every pending cell of the contest to its record in the store."""
        candidates = deque(self._refuse_senseless(pending))
        if not candidates:
            return
        try:
            golden = self._golden(contest)
            self._measure_ceilings(contest.cells[0].cell)
        except _NoGolden as error:
            for planned in candidates:
                self._end(Record(cell=planned.cell, status=error.status, reason=str(error), **_common(planned)))
            return
        while candidates:
            group = self._build_group(candidates, golden)
            self._run_rounds(group)
            for live in group:
                self._end(self._finish(live))
            self._group += 1

    def _refuse_senseless(self, pending: Sequence[PlannedCell]) -> list[PlannedCell]:
        """Those of `pending` that make sense; the others end here, without a process."""
        sensible = []
        for planned in pending:
            try:
                backend = backends.create(planned.cell.backend)
                reason = precision.unsupported_reason(planned.cell) or backend.supports(planned.cell).reason
                status = Status.UNSUPPORTED
            except BakeoffError as error:
                reason, status = str(error), Status.UNAVAILABLE
            if reason:
                self._end(Record(cell=planned.cell, status=status, reason=reason, **_common(planned)))
            else:
                sensible.append(planned)
        return sensible

    def _golden(self, contest: Contest) -> Path:
        """File with the contest's golden, computed if it is not there yet. Raises _NoGolden if it cannot be had."""
        path = self._store.golden(contest.id)
        if path.exists():
            return path
        cell = contest.cells[0].cell
        log = self._store.log(f"golden-{contest.id}")
        self._progress.note(f"computing the float64 golden of {contest.id}")
        child = self._launcher.start("golden", log, cell=cell.model_dump(), golden=str(path.resolve()))
        try:
            message = child.receive(time.monotonic() + self._time_limit_s)
        except ChildEnded as ended:
            status, reason = _cause_of_death(ended.status, "float64", self._store.kernel_killed())
            raise _NoGolden(status, f"no golden: its process {reason} ({log})") from None
        except DeadlinePassed:
            reason = f"no golden within {self._time_limit_s:g} s: raise --time-limit"
            raise _NoGolden(Status.TIMEOUT, reason) from None
        finally:
            child.end()
        if message["kind"] != "finished":
            raise _NoGolden(Status(message["status"]), f"no golden: {message['reason']} ({log})")
        if message["work"] is None:
            self._store.note(f"no roofline for {contest.id}: counting its work failed: {message['uncounted']}")
        else:
            self._store.save_work(contest.id, roofline.Work.model_validate(message["work"]))
        return path

    def _measure_ceilings(self, cell: Cell) -> None:
        """Measure what the machine can do on the cell's device in its precision, unless this run has done so."""
        if self._store.ceilings(cell.device, cell.precision):
            return
        where = f"on {cell.device} in {cell.precision}"
        self._progress.note(f"measuring the machine's ceilings {where}")
        log = self._store.log(f"ceilings-{cell.device.replace(':', '')}-{cell.precision}")
        child = self._launcher.start("ceilings", log, device=cell.device, precision=cell.precision)
        try:
            message = child.receive(time.monotonic() + self._time_limit_s)
        except (ChildEnded, DeadlinePassed) as error:
            self._store.note(f"no roofline {where}: measuring the machine's ceilings failed: {error} ({log})")
            return
        finally:
            child.end()
        if message["kind"] != "finished":
            self._store.note(f"no roofline {where}: measuring the machine's ceilings failed: {message['reason']}")
            return
        self._store.save_ceilings(cell.device, cell.precision, roofline.Ceilings.model_validate(message["ceilings"]))

    def _roofline(self, cell: Cell, latency: Latency | None) -> Roofline | None:
        work, ceilings = self._store.work(cell.contest_id), self._store.ceilings(cell.device, cell.precision)
        return roofline.of(work, ceilings, latency) if work and ceilings and latency else None

    def _build_group(self, candidates: deque[PlannedCell], golden: Path) -> list[Live]:
        """Build cells until there are none left, or memory for no more beside those that are alive."""
        group: list[Live] = []
        while candidates and (not group or (self._interleaved and self._fits(group))):
            planned = candidates.popleft()
            live = self._launch(planned, golden)
            try:
                if live.package is not None:
                    self._await(live, "packaged")
                    self._load_package(live, golden)
                live.ready = self._await(live, "ready")
            except _Over as over:
                if over.record.status is Status.OOM and group:
                    self._store.note(f"{planned.cell.id} ran out of memory beside others and was tried again alone")
                    candidates.appendleft(planned)
                    break
                self._end(over.record)
                continue
            self._pause(live)
            group.append(live)
        if candidates and self._interleaved:
            self._store.note(
                f"memory did not hold all cells of {group[0].cell.contest_id if group else golden.stem} at once: "
                "they were measured in groups, and ratios between groups are not paired"
            )
        return group

    def _fits(self, group: Sequence[Live]) -> bool:
        """Whether one more cell, as large as the largest alive, has room."""
        host = max(live.ready["memory"]["peak_resident_bytes"] or 0 for live in group)
        device = max(live.ready["memory"]["peak_device_bytes"] or 0 for live in group)
        index = memory.cuda_index(group[0].cell.device)
        free = memory.device_free_bytes(index) if index is not None else None
        return memory.available_bytes() > MEMORY_RESERVE * host and (free is None or free > MEMORY_RESERVE * device)

    def _launch(self, planned: PlannedCell, golden: Path) -> Live:
        log = self._store.log(planned.cell.id)
        log.unlink(missing_ok=True)
        if not isinstance(backends.create(planned.cell.backend), AheadOfTime):
            return Live(planned, self._start("measure", planned.cell, log, golden), log, self._time_limit_s)
        package = Path(tempfile.mkdtemp(dir=self._launcher.temporary))
        (package / "artifact").mkdir()
        child = self._start("package", planned.cell, log, golden, package)
        return Live(planned, child, log, self._time_limit_s, package)

    def _load_package(self, live: Live, golden: Path) -> None:
        """The process that built ahead of time has done its work; a fresh one loads what it left, as a user's would."""
        live.child.end()
        live.child = self._start("measure_packaged", live.cell, live.log, golden, live.package)

    def _start(self, role: str, cell: Cell, log: Path, golden: Path, package: Path | None = None) -> Child:
        return self._launcher.start(
            role,
            log,
            cell=cell.model_dump(),
            golden=str(golden.resolve()),
            sampling=asdict(self._sampling),
            package=str(package) if package else None,
        )

    def _run_rounds(self, group: list[Live]) -> None:
        """Bursts of all cells in random order, every other one stopped. A cell that dies leaves the group."""
        for round_number in range(self._sampling.bursts):
            # the order is random against drift within a round, and seeded so that a run can be repeated
            order = random.Random(f"{self._group}/{round_number}").sample(group, len(group))
            for live in order:
                try:
                    self._take_burst(live, round_number)
                except _Over as over:
                    group.remove(live)
                    self._end(over.record)

    def _take_burst(self, live: Live, round_number: int) -> None:
        self._resume(live)
        if round_number == 0:
            live.phase = "measure"
            self._progress.phase(live.cell, live.phase)
        started_s = time.monotonic() - self._epoch
        live.child.send("burst")
        message = self._await(live, "burst")
        self._pause(live)
        live.bursts.append(
            Burst(group=self._group, round=round_number, started_s=started_s, samples_ns=message["samples_ns"])
        )
        self._progress.measured(live.cell, sorted(burst_medians_ms(live.bursts))[len(live.bursts) // 2])

    def _finish(self, live: Live) -> Record:
        self._resume(live)
        live.child.send("finish")
        try:
            message = self._await(live, "finished")
        except _Over as over:
            return over.record
        finally:
            live.child.end()
        accuracy = Accuracy.model_validate(live.ready["accuracy"])
        after = Accuracy.model_validate(message["accuracy_after"])
        accuracy = accuracy.model_copy(update={"rmse_after": after.rmse})
        status, reason = Status.OK, ""
        if not accuracy.passed:
            status, reason = Status.INCORRECT, accuracy.rule
        elif not after.passed:
            status, reason = Status.INCORRECT, f"right at first, wrong after measuring: {after.rule}"
        elif live.planned.strict and (missing := shortfall(_placement(message), live.cell.backend)):
            status, reason = Status.FALLBACK, missing
        doubts = [live.ready["caveat"]] if live.ready["caveat"] else []
        if not live.ready["warm_up"]["steady"]:
            doubts.append("its warm-up did not become steady within 2 %")
        if message["recompiled"]:
            doubts.append(f"compiled {message['recompiled']} more time(s) while it was measured")
        latency = summarise(live.bursts)
        return self._record(
            live,
            status,
            reason,
            latency=latency,
            roofline=self._roofline(live.cell, latency),
            throughput=message["throughput"],
            device_time=message["device_time"],
            accuracy=accuracy,
            placement=message["placement"],
            memory=message["memory"],
            doubts=doubts,
        )

    def _await(self, live: Live, kind: str) -> link.Message:
        """The next message of `kind`; phases on the way are noted. Raises _Over when the cell ends instead."""
        begun = time.monotonic()
        deadline = begun + live.budget_s
        try:
            while True:
                message = self._receive(live.child, deadline, may_tick=kind == "ready")
                if message["kind"] == "phase":
                    live.phase = message["name"]
                    self._progress.phase(live.cell, live.phase)
                elif message["kind"] == "phase_ended":
                    live.phases.append(Phase(name=message["name"], seconds=message["seconds"]))
                elif message["kind"] == "ended":
                    live.child.end()
                    raise _Over(self._record(live, Status(message["status"]), message["reason"]))
                elif message["kind"] == kind:
                    return message
        except ChildEnded as ended:
            live.child.end()
            status, reason = _cause_of_death(ended.status, live.phase, self._store.kernel_killed())
            number = -ended.status if ended.status < 0 else None
            raise _Over(self._record(live, status, reason, died_in=live.phase, signal=number)) from None
        except DeadlinePassed:
            live.child.end()
            reason = f"not done within {self._time_limit_s:g} s, in {live.phase}: raise --time-limit"
            raise _Over(self._record(live, Status.TIMEOUT, reason, died_in=live.phase)) from None
        finally:
            live.budget_s -= time.monotonic() - begun

    def _receive(self, child: Child, deadline: float, may_tick: bool) -> link.Message:
        """The child's next message; elapsed times on the screen move on meanwhile, but not while it is measured."""
        while may_tick:
            try:
                return child.receive(min(deadline, time.monotonic() + TICK_S))
            except DeadlinePassed:
                if time.monotonic() >= deadline:
                    raise
                self._progress.tick()
        return child.receive(deadline)

    def _record(self, live: Live, status: Status, reason: str, **fields: Any) -> Record:
        if live.package is not None:
            shutil.rmtree(live.package, ignore_errors=True)
        known = {key: live.ready[key] for key in ("accuracy", "warm_up", "placement", "memory") if live.ready.get(key)}
        return Record(
            cell=live.cell,
            status=status,
            reason=reason,
            phases=live.phases,
            bursts=live.bursts,
            precision_in_force=live.ready.get("precision_in_force", {}),
            settings={"start_method": self._launcher.start_method, **live.ready.get("settings", {})},
            versions=live.ready.get("versions", {}),
            log_tail=_tail(live.log) if status.is_failure else "",
            started_at=live.started_at,
            elapsed_s=time.monotonic() - live.started,
            **_common(live.planned),
            **{**known, **fields},
        )

    def _end(self, record: Record) -> None:
        self._store.save(record)
        self._progress.ended(record)

    def _pause(self, live: Live) -> None:
        if self._interleaved:
            live.child.pause()

    def _resume(self, live: Live) -> None:
        if self._interleaved:
            live.child.resume()


def _placement(message: link.Message) -> Placement | None:
    placement = message["placement"]
    return Placement.model_validate(placement) if placement else None


def _common(planned: PlannedCell) -> dict[str, Any]:
    return {"asked_by_name": planned.asked_by_name, "command": command_for(planned.cell, planned.strict)}


def _cause_of_death(status: int, phase: str, kernel_killed: bool) -> tuple[Status, str]:
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
