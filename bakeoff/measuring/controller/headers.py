"""Torch's C++ headers, precompiled once for a machine."""

import time
from collections.abc import Sequence

from bakeoff.measuring import isolation
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Worker, WorkerEnded
from bakeoff.measuring.messages import Event, Failed, HeadersMade, PhaseBegun, PrecompileHeaders
from bakeoff.records.errors import os_reason
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Cell, Status
from bakeoff.records.store import Store

NOTEWORTHY_S = 5.0
NOTEWORTHY_CHECKS_S = 2.0
HEADERS_LIMIT_S = 300.0


class Headers:
    """Torch's C++ headers and its compiler checks, which one worker for each backend makes before timed builds."""

    def __init__(self, store: Store, progress: Progress, limit_s: float = HEADERS_LIMIT_S) -> None:
        self._store, self._progress, self._limit_s = store, progress, limit_s
        self._workers: dict[str, Worker] = {}
        self._answers: dict[str, Event] = {}

    def begin(self, cells: Sequence[tuple[Cell, Launcher]], may_make: bool = True) -> None:
        """Begin to precompile the headers that builds of `cells` include. With may_make=False, none is made."""
        try:
            if may_make:
                isolation.headers_of_torch().mkdir(parents=True, exist_ok=True)  # workspaces are linked to it
        except OSError as error:
            self._store.note(
                f"torch's precompiled C++ headers cannot be kept, so that each build makes them: {os_reason(error)}"
            )
            return
        for cell, launcher in cells:
            if (name := _builds_of(cell)) not in self._workers:
                log = self._store.log(f"headers-{cell.backend}-{cell.device.kind}")
                job = PrecompileHeaders(backend=cell.backend, device=cell.device, may_make=may_make)
                self._workers[name] = launcher.start(job, log)

    def await_all(self) -> None:
        self._await(list(self._workers))

    def await_for(self, cell: Cell) -> None:
        self._await([name for name in self._workers if name == _builds_of(cell)])

    def are_made_for(self, cell: Cell) -> bool:
        """Return True when what the builds of this cell include is there, or has failed. This does not wait."""
        worker = self._workers.get(name := _builds_of(cell))
        while worker is not None and name not in self._answers:
            try:
                event = worker.receive(time.monotonic())
            except DeadlinePassed:
                return False
            except WorkerEnded as error:
                event = Failed(status=Status.ERROR, failure=Failure(kind=type(error).__name__, text=str(error)))
            if not isinstance(event, PhaseBegun):
                self._answers[name] = event
        return True

    def _await(self, names: Sequence[str]) -> None:
        begun_s, phases = time.monotonic(), list[str]()

        def on_phase(name: str) -> None:
            if not phases:
                self._progress.note(f"precompiling torch's C++ headers for {', '.join(names)}, once for this machine")
            phases.append(name)

        for name in names:
            worker, received = self._workers.pop(name), self._answers.get(name)
            try:
                event = received or worker.answer(self._limit_s, on_phase)
            except (WorkerEnded, DeadlinePassed) as error:
                event = Failed(status=Status.ERROR, failure=Failure(kind=type(error).__name__, text=str(error)))
            if received:
                worker.end()
            if isinstance(event, Failed) and not event.status.is_absence:
                note = f"torch's C++ headers for {name} were not precompiled, so its first build does it"
                self._store.note(f"{note}: {event.failure.sentence}")
            elif isinstance(event, HeadersMade) and event.checks_s > NOTEWORTHY_CHECKS_S:
                self._store.note(
                    f"torch checks the C++ compiler in every process that builds, which once took {event.checks_s:.0f} "
                    f"s on this machine: builds for {name} were given the answers, and no build time contains that"
                )
        if (seconds := time.monotonic() - begun_s) > NOTEWORTHY_S:
            self._store.note(f"{seconds:.0f} s went into precompiling torch's C++ headers: no build time contains that")


def _builds_of(cell: Cell) -> str:
    environment = f"@{cell.environment}" if cell.environment else ""
    return f"{cell.backend}{environment} on {cell.device.kind}"
