"""The record of a cell, from what its processes have reported: numbers, doubts, missing placement, causes of death."""

import itertools
import math
import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bakeoff import backends, models
from bakeoff.judging import roofline
from bakeoff.judging.fit import summarise
from bakeoff.measuring.controller.build_folder import placement_of_both
from bakeoff.measuring.controller.cell_process import CellProcess
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.messages import Evaluation, Finished, Ready
from bakeoff.measuring.variables import with_variables
from bakeoff.planning.plan import PlannedCell, command_for
from bakeoff.planning.time_plan import why_unlikely_to_run
from bakeoff.records import doubts
from bakeoff.records.failure import LATER, NO_BUDGET_LEFT, Failure
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import (
    Accuracy,
    Burst,
    Cell,
    Extent,
    KernelTimes,
    Memory,
    Placement,
    Process,
    Record,
    Status,
    WarmUp,
    Work,
)
from bakeoff.records.store import FirstBuild, Store
from bakeoff.records.text import first, listed
from bakeoff.records.traits import NO_TRAITS, ModelTraits

LOG_TAIL_LINES = 30
LOG_TAIL_CHARACTERS = 4000
NAMED_FALLBACKS = 2

FIRST_TELLS = ("accuracy", "generated", "warm_up", "placement", "memory", "precision_in_force", "settings", "versions")
"""Fields of a record that its first process reports when it is ready."""


NO_TIME = "--budget left no time"
INTERRUPTED_BEFORE = "the run was interrupted before there were numbers"


@dataclass(frozen=True)
class MetricsSetup:
    evaluation: Evaluation
    reference: Metrics


class GrowingRecord:
    """The record of a cell, to which each of its processes adds what it has reported."""

    def __init__(
        self, planned: PlannedCell, run: RunContext, metrics: MetricsSetup | None, kept: Record | None
    ) -> None:
        """Begin with nothing, or with the record of the processes that an interrupted run has `kept`."""
        self.known = kept  # of processes that ended well
        self.log = run.store.log(planned.cell.id)
        self._planned = planned
        self._cell = planned.cell
        self._run, self._metrics = run, metrics
        self._failed_build: doubts.BuiltAnew | None = None  # of an earlier run, which is not used any more
        self._started_s = run.machine.now_s() - (kept.elapsed_s if kept else 0.0)
        self._started_at = kept.started_at if kept else datetime.now(UTC).isoformat(timespec="seconds")
        if kept is None:
            self.log.unlink(missing_ok=True)

    @property
    def processes(self) -> list[Process]:
        return self.known.processes if self.known else []

    @property
    def bursts(self) -> list[Burst]:
        return self.known.bursts if self.known else []

    @property
    def elapsed_s(self) -> float:
        return self._run.machine.now_s() - self._started_s

    def begin_anew(self, reason: str) -> None:
        """Leave out all that was measured so far, with the build of an earlier run if that failed for a `reason`."""
        self.known = None
        self._failed_build = doubts.BuiltAnew(reason=reason) if reason else None

    def add(
        self,
        live: CellProcess,
        finished: Finished,
        made: FirstBuild | None,
        metrics: Metrics | None,
        kernel_times: KernelTimes | None,
    ) -> None:
        """Add a process that has ended well. `made` is the build that it has started from, or has made."""
        record = self._further(self.known, live, finished) if self.known else self._first(live, finished, made)
        if metrics is not None:
            record = record.but(metrics=metrics)
        if kernel_times:
            record = record.but(kernel_times=kernel_times)
        self.known = self._summarised(record)

    def with_lost(self, live: CellProcess, reason: str) -> Record | None:
        """Return the record with a process that was lost, or None where nothing has been measured. Its rounds count."""
        record = self.with_live(live)
        if record is None:
            return None
        # What was measured before stays valid, unless this process answered wrongly.
        if live.ready and not live.bursts:
            record = self._summarised(record.but(**self._failed_check(record, live.ready.accuracy)))
        lost = doubts.ProcessLost(reason=reason, rounds=len(live.bursts))
        return record.but(doubts=[*record.doubts, lost])

    def with_live(self, live: CellProcess | None) -> Record | None:
        """Return the record as it would stand if the run ended now, or None where nothing has been measured."""
        known = self.known
        if live is None or live.ready is None or not live.bursts:
            return known
        return self._summarised(self._further(known, live) if known else self._first(live))

    def ended(self, live: CellProcess, status: Status, failure: Failure | None, **fields: Any) -> Record:
        processes = [*self.processes, *([live.summary()] if live.ready else [])]
        first = self.known or live.ready
        first_fields = {name: getattr(first, name) for name in FIRST_TELLS} if first else {}
        settings = {"start_method": live.launcher.start_method, **first_fields.pop("settings", {})}
        return record_of(
            self._planned,
            status,
            failure,
            phases=processes[0].phases if processes else live.phases,
            processes=processes,
            bursts=[*self.bursts, *live.bursts],
            traits=self._traits,
            reference_metrics=self._metrics.reference if self._metrics else None,
            log_tail=tail_of(self.log) if status.is_failure else "",
            started_at=self._started_at,
            elapsed_s=self.elapsed_s,
            settings=settings,
            **{**first_fields, **fields},
        )

    def _first(self, live: CellProcess, finished: Finished | None = None, made: FirstBuild | None = None) -> Record:
        """Return the record after the first process. Without `finished`, outputs were not checked after the rounds."""
        ready = live.warm
        if finished and finished.accuracy_after.unchecked and ready.accuracy.passed:  # perhaps only found by then
            ready = ready.but(accuracy=finished.accuracy_after)
        before, after = ready.accuracy, finished.accuracy_after if finished else None
        placement = placement_of_both(finished.placement, live.first_build) if finished else ready.placement
        status, failure = Status.INCORRECT, None
        if not before.passed:
            failure = wrong_outputs(before, placement=ready.placement)
        elif after and not after.passed:
            failure = wrong_outputs(after, "right at first, wrong after measuring", ready.placement)
        elif self._planned.strict:
            status, failure = Status.FALLBACK, shortfall(placement, self._cell.backend)
        spans: dict[int, dict[int, tuple[int, int]]] = {}
        for axis in self._planned.open_axes:
            spans.setdefault(axis.tensor, {})[axis.axis] = axis.low, axis.high
        worst = after if after and before.passed and not after.passed else before
        if after:
            is_only_inexact = all(check.passed or check.is_only_inexact for check in (before, after))
            worst = worst.but(rmse_after=after.rmse, is_only_inexact=is_only_inexact and not worst.passed)
        return self.ended(
            live,
            status if failure else Status.OK,
            failure,
            accuracy=worst,
            doubts=[
                *doubts_of_ready(ready, self._traits or NO_TRAITS),
                *([self._failed_build] if self._failed_build else []),
                *doubts_of_finished(finished),
            ],
            memory=with_peaks_of(finished.memory if finished else ready.memory, made),
            placement=placement,
            **{name: getattr(live.further, name) for name in ("throughput", "device_time", "energy", "stages")},
            around=live.around,
            recompiled=ready.recompiled,
            open_axes=spans,
        )

    def _further(self, record: Record, live: CellProcess, finished: Finished | None = None) -> Record:
        """Return the record with a further process, which can only add to it, or prove the cell wrong."""
        checks = [live.warm.accuracy, *([finished.accuracy_after] if finished else [])]
        later = [*doubts_of_finished(finished), *itertools.chain.from_iterable(map(doubts_of_check, checks))]
        new = [doubt for doubt in dict.fromkeys(later) if doubt not in record.doubts]
        return record.but(
            processes=[*record.processes, live.summary()],
            bursts=[*record.bursts, *live.bursts],
            throughput=live.further.throughput or record.throughput,
            energy=live.further.energy or record.energy,
            around=[*record.around, *live.around],
            doubts=[*record.doubts, *new],
            **self._failed_check(record, *checks),
        )

    def _failed_check(self, record: Record, *checks: Accuracy) -> dict[str, Any]:
        is_accepted = any(isinstance(doubt, doubts.AcceptedByMetric) for doubt in record.doubts)
        failed = next(
            (check for check in checks if not check.passed and not (is_accepted and check.is_only_inexact)), None
        )
        if failed is None:
            return {}
        when = f"wrong in its process {len(record.processes) + 1}"
        facts = facts_of_process(wrong_outputs(failed, when, record.placement))
        return {"status": Status.INCORRECT, **facts, "accuracy": failed, "log_tail": tail_of(self.log)}

    def _summarised(self, record: Record) -> Record:
        measured = record.but(latency=summarise(record.bursts))
        return with_roofline(self._run.acceptance.applied_to(measured), self._run.store)

    @property
    def _traits(self) -> ModelTraits | None:
        return self._run.store.facts(self._cell.reference_id, ModelTraits)


def with_roofline(record: Record, store: Store, no_ceilings: str = "") -> Record:
    """Return the record with what the machine could do at best, or with why that is not known."""
    cell, latency = record.cell, record.latency
    work, ceilings = store.facts(cell.reference_id, Work), store.ceilings(cell.device, products_of(cell))
    of_roofline = roofline.of(work, ceilings, latency) if work and ceilings and latency else None
    no_floor = no_ceilings if work and latency and not ceilings else ""
    return record.but(roofline=of_roofline, no_floor=no_floor)


def record_of(planned: PlannedCell, status: Status, failure: Failure | None = None, **fields: Any) -> Record:
    """Return a record of these fields and those that every one has, even of a cell that was never started."""
    return Record(
        cell=planned.cell,
        status=status,
        asked_by_name=planned.asked_by_name,
        command=with_variables(command_for(planned.cell, planned.options), os.environ),
        **{**facts_of_backend(planned.cell), **facts_of_process(failure), **fields},
    )


def refused(planned: PlannedCell) -> Record | None:
    """Return the record of a cell that makes no sense, and ends without a process, or None for any other cell."""
    status, reason = planned.refusal
    return record_of(planned, status, reason=reason) if reason else None


def facts_of_backend(cell: Cell) -> dict[str, str]:
    backend = backends.if_it_loads(cell.backend)
    return {"colour": backend.colour, "no_export": backend.no_export(cell)} if backend else {}


def products_of(cell: Cell) -> Precision:
    """Return the precision of the cell's matrix products: its own, unless its model has products of another."""
    return models.find(cell.model).products or cell.precision.products


def shortfall(placement: Placement | None, backend: str) -> Failure | None:
    """Return why a cell fails under --strict, or None if it ran wholly where it was asked to."""
    if placement is None:
        text = f"{backend} does not report where it ran, and --strict asks for full"
        return Failure(kind="placement unknown", text=text)
    if placement.extent is Extent.FULL:
        return None
    kind, text = f"{placement.extent} placement", f"placement is {placement.extent}, and --strict asks for full"
    elsewhere = [*placement.fallbacks, *(f"a choice is frozen at {place}" for place in placement.frozen_choices)]
    if not elsewhere:
        return Failure(kind=kind, text=text)
    operators = listed(first(elsewhere, NAMED_FALLBACKS))
    return Failure(kind=kind, operator=", ".join(elsewhere), text=f"{text}: {operators}")


def wrong_outputs(check: Accuracy, when: str = "", placement: Placement | None = None) -> Failure:
    """Return how outputs failed their check. `when` says that others of the cell passed it."""
    if placement and placement.frozen_choices:
        # A suite reports this apart from errors of rounding.
        kind = "choice frozen by the trace"
    elif math.isnan(check.rmse):
        kind = "outputs of another form"
    elif check.allclose:  # as far as anything could be compared
        kind = "nothing to compare"
    else:
        kind = "outputs not finite" if math.isinf(check.rmse) else "outputs too far off"
    failure = Failure(kind=f"{kind}{LATER}" if when else kind, text=check.rule)
    return failure.within(when) if when else failure


def facts_of_process(failure: Failure | None) -> dict[str, Any]:
    return {"reason": failure.sentence if failure else "", "failure": failure}


def with_peaks_of(memory: Memory, build: FirstBuild | None) -> Memory:
    if build is None:
        return memory
    peaks = {}
    for name in ("peak_resident_bytes", "peak_device_bytes"):
        sizes = [value for value in (getattr(memory, name), getattr(build.memory, name)) if value is not None]
        peaks[name] = max(sizes, default=None)
    return memory.but(**peaks)


def doubts_of_ready(ready: Ready, traits: ModelTraits) -> list[doubts.RecordDoubt]:
    noted: list[doubts.RecordDoubt] = []
    if ready.caveat:
        noted.append(doubts.Caveat(text=ready.caveat))
    noted += doubts_of_check(ready.accuracy)
    if ready.placement and ready.placement.frozen_choices:
        noted.append(doubts.FrozenChoices(places=tuple(ready.placement.frozen_choices)))
    if ready.accuracy.unwritten_inputs:
        converted = ready.settings.get("memory_format") == "channels_last"
        noted.append(doubts.InputsNotWritten(names=tuple(ready.accuracy.unwritten_inputs), are_converted=converted))
    if ready.accuracy.dropped:
        noted.append(doubts.Dropped(accesses=tuple(ready.accuracy.dropped)))
    dropped = {access.name for access in ready.accuracy.dropped}
    if grows := tuple(name for name in traits.grows if name.partition("[")[0] not in dropped):
        noted.append(doubts.Growing(names=grows))
    if traits.recall:
        noted.append(doubts.Recalled(operators=traits.recall.operators, again=traits.recall.again))
    if traits.inputs_without_effect:
        noted.append(doubts.WithoutEffect(inputs=traits.inputs_without_effect))
    if traits.depends_on_rounding and not ready.accuracy.unchecked:
        noted.append(doubts.DecidedByRounding(how=traits.depends_on_rounding, computed_in=ready.reference_type))
    is_narrower = ready.reference_type != "float64" and not (traits.is_random or traits.depends_on_rounding)
    if is_narrower or ready.reference_in_float32:
        noted.append(
            doubts.NarrowReference(
                computed_in=ready.reference_type,
                why=ready.why_reference_is_narrower,
                in_float32=tuple(ready.reference_in_float32),
            )
        )
    if ready.accuracy.other_widths:
        noted.append(doubts.OtherWidths(outputs=tuple(ready.accuracy.other_widths)))
    return [*noted, doubt] if (doubt := doubt_of(ready.warm_up)) else noted


def doubts_of_check(check: Accuracy) -> list[doubts.Unchecked]:
    return [doubts.Unchecked(why=check.unchecked, others_compared=check.others_compared)] if check.unchecked else []


def doubts_of_finished(finished: Finished | None) -> list[doubts.Recompiled]:
    return [doubts.Recompiled(count=finished.recompilations)] if finished and finished.recompilations else []


def doubt_of(warm_up: WarmUp) -> doubts.WarmUpTrend | doubts.WarmUpNoise | None:
    if warm_up.steady:
        return None
    return doubts.WarmUpNoise() if warm_up.trendless else doubts.WarmUpTrend(seconds=warm_up.seconds)


def cause_of_death(status: int, phase: str, kernel_killed: bool) -> tuple[Status, Failure]:
    if -status == signal.SIGKILL and kernel_killed:
        text = f"was killed in {phase} by the kernel, which had no memory left"
        return Status.OOM, Failure(kind="killed by the kernel", text=text).of_memory
    if status >= 0:
        return Status.CRASH, Failure(kind=f"exit status {status}", text=f"left with exit status {status} in {phase}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return Status.CRASH, Failure(kind=name, text=f"died of signal {-status} ({name}) in {phase}")


def tail_of(log: Path) -> str:
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])[-LOG_TAIL_CHARACTERS:]


def not_reached(planned: PlannedCell, reason: str) -> Record:
    """Return the record of a cell that the run did not reach. One that makes no sense or cannot run here is no such
    cell: more time would not measure it."""
    if record := refused(planned):
        return record
    if unlikely := why_unlikely_to_run(planned.cell):
        return record_of(planned, Status.UNAVAILABLE, reason=unlikely)
    return record_of(planned, Status.NOT_REACHED, reason=reason)


def no_time_for(planned: PlannedCell, lack: str) -> Record:
    """Return the record of a cell for which `--budget` left no time. `lack` says what took it and how much would do."""
    record = not_reached(planned, "; ".join(filter(None, (NO_TIME, lack))))
    if record.status is not Status.NOT_REACHED:
        return record
    return record.but(failure=Failure(kind=NO_BUDGET_LEFT, text=record.reason))
