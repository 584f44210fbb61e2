"""What must be known before cells are measured: the golden they are checked against, and the machine's ceilings."""

from __future__ import annotations

import time
from pathlib import Path

from harness.controller.cell_run import cause_of_death, products_of
from harness.controller.launcher import ChildEnded, DeadlinePassed, Launcher
from harness.controller.progress import Progress
from harness.messages import CeilingsMeasured, ComputeReference, Failed, MeasureCeilings, ReferenceComputed
from harness.plan import Contest
from records.schema import Cell, Status
from records.store import Store


class NoGolden(Exception):
    """There is nothing to check a contest's cells against; they end as its computation did."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def golden(contest: Contest, launcher: Launcher, store: Store, progress: Progress, limit_s: float) -> Path:
    """File with the contest's golden, computed if it is not there yet. Raises NoGolden if it cannot be had."""
    path = store.golden(contest.id)
    if path.exists():
        return path
    cell = contest.cells[0].cell
    log = store.log(f"golden-{contest.id}")
    progress.note(f"computing the float64 golden of {contest.id}")
    child = launcher.start(ComputeReference(cell=cell, reference=path.resolve()), log)
    try:
        event = child.receive(time.monotonic() + limit_s)
    except ChildEnded as ended:
        status, reason = cause_of_death(ended.status, "float64", store.kernel_killed())
        raise NoGolden(status, f"no golden: its process {reason} ({log})") from None
    except DeadlinePassed:
        raise NoGolden(Status.TIMEOUT, f"no golden within {limit_s:g} s: raise --time-limit") from None
    finally:
        child.end()
    if isinstance(event, Failed):
        raise NoGolden(event.status, f"no golden: {event.reason} ({log})")
    assert isinstance(event, ReferenceComputed)
    if event.work is None:
        store.note(f"no roofline for {contest.id}: counting its work failed: {event.uncounted}")
    else:
        store.save_work(contest.id, event.work)
    return path


def measure_ceilings(cell: Cell, launcher: Launcher, store: Store, progress: Progress, limit_s: float) -> None:
    """Measure what the machine can do on the cell's device in its products' precision, unless this run has done so."""
    precision = products_of(cell)
    if store.ceilings(cell.device, precision):
        return
    where = f"on {cell.device} in {precision}"
    progress.note(f"measuring the machine's ceilings {where}")
    log = store.log(f"ceilings-{cell.device.slug}-{precision}")
    child = launcher.start(MeasureCeilings(device=cell.device, precision=precision), log)
    try:
        event = child.receive(time.monotonic() + limit_s)
    except (ChildEnded, DeadlinePassed) as error:
        store.note(f"no roofline {where}: measuring the machine's ceilings failed: {error} ({log})")
        return
    finally:
        child.end()
    if isinstance(event, Failed):
        store.note(f"no roofline {where}: measuring the machine's ceilings failed: {event.reason}")
        return
    assert isinstance(event, CeilingsMeasured)
    store.save_ceilings(cell.device, precision, event.ceilings)
