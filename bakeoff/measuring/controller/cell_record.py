"""What the record of a cell says, from what its processes told: doubts, missing placement, causes of death."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

from bakeoff import backends, models
from bakeoff.measuring.messages import Finished, Ready
from bakeoff.planning.plan import PlannedCell, command_for
from bakeoff.records.doubts import (
    Caveat,
    DecidedByRounding,
    FrozenChoices,
    Growing,
    NarrowReference,
    OtherWidths,
    Recompiled,
    RecordDoubt,
    Unchecked,
    WarmUpNoise,
    WarmUpTrend,
)
from bakeoff.records.errors import BakeoffError
from bakeoff.records.failure import Failure
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy, Cell, Extent, Memory, Placement, Status, WarmUp
from bakeoff.records.store import FirstBuild
from bakeoff.records.traits import ModelTraits

LOG_TAIL_LINES = 30
LOG_TAIL_CHARACTERS = 4000
NAMED_FALLBACKS = 2


def common_fields(planned: PlannedCell) -> dict[str, Any]:
    """Return the fields that every record has, even if the cell was never started."""
    return {
        "asked_by_name": planned.asked_by_name,
        "command": command_for(planned.cell, planned.options),
        "colour": colour_of(planned.cell.backend),
    }


def colour_of(backend: str) -> str:
    """Return the colour that a backend says, or nothing for one that does not load."""
    try:
        return backends.create(backend).colour
    except BakeoffError:
        return ""


def products_of(cell: Cell) -> Precision:
    """Return the precision of the cell's matrix products: its own, unless its model has products of another."""
    return models.find(cell.model).products or cell.precision.products


def shortfall(placement: Placement | None, backend: str) -> Failure | None:
    """Return why a cell fails under --strict, or None if it ran wholly where it was asked to."""
    if placement is None:
        text = f"{backend} does not tell where it ran, and --strict asks for full"
        return Failure(kind="placement unknown", text=text)
    if placement.extent is Extent.FULL:
        return None
    kind, text = f"{placement.extent} placement", f"placement is {placement.extent}, and --strict asks for full"
    elsewhere = [*placement.fallbacks, *(f"a choice is frozen at {place}" for place in placement.frozen_choices)]
    if not elsewhere:
        return Failure(kind=kind, text=text)
    named, unnamed = elsewhere[:NAMED_FALLBACKS], elsewhere[NAMED_FALLBACKS:]
    operators = f"{', '.join(named)}{f' and {len(unnamed)} more' if unnamed else ''}"
    return Failure(kind=kind, operator=", ".join(elsewhere), text=f"{text}: {operators}")


def wrong_outputs(check: Accuracy, when: str = "") -> Failure:
    """Return how outputs failed their check. `when` tells that others of the cell passed it."""
    if math.isnan(check.rmse):
        kind = "outputs of another form"
    elif check.allclose:  # as far as anything could be compared
        kind = "nothing to compare"
    else:
        kind = "outputs not finite" if math.isinf(check.rmse) else "outputs too far off"
    failure = Failure(kind=f"{kind}, later" if when else kind, text=check.rule)
    return failure.within(when) if when else failure


def facts_of_process(failure: Failure | None) -> dict[str, Any]:
    """Return the fields of a record that tell why its cell failed, if it did."""
    return {"reason": failure.sentence if failure else "", "failure": failure}


def with_peaks_of(memory: Memory, build: FirstBuild | None) -> Memory:
    """Return the memory with the peaks of an earlier build, where these are higher."""
    if build is None:
        return memory
    peaks = {}
    for name in ("peak_resident_bytes", "peak_device_bytes"):
        known = [value for value in (getattr(memory, name), getattr(build.memory, name)) if value is not None]
        peaks[name] = max(known, default=None)
    return memory.model_copy(update=peaks)


def doubts_of_ready(ready: Ready, traits: ModelTraits) -> list[RecordDoubt]:
    """Return what there is to doubt of a cell that is ready to be measured."""
    doubts: list[RecordDoubt] = []
    if ready.caveat:
        doubts.append(Caveat(text=ready.caveat))
    if ready.accuracy.unchecked:
        doubts.append(Unchecked(why=ready.accuracy.unchecked))
    if ready.placement and ready.placement.frozen_choices:
        doubts.append(FrozenChoices(places=tuple(ready.placement.frozen_choices)))
    if traits.grows:
        doubts.append(Growing(names=traits.grows))
    if traits.depends_on_rounding:
        doubts.append(DecidedByRounding(how=traits.depends_on_rounding, computed_in=ready.reference_type))
    is_narrower = ready.reference_type != "float64" and not (traits.is_random or traits.depends_on_rounding)
    if is_narrower or ready.reference_in_float32:
        doubts.append(
            NarrowReference(
                computed_in=ready.reference_type,
                why=ready.why_reference_is_narrower,
                in_float32=tuple(ready.reference_in_float32),
            )
        )
    if ready.accuracy.other_widths:
        doubts.append(OtherWidths(outputs=tuple(ready.accuracy.other_widths)))
    return [*doubts, doubt] if (doubt := doubt_of(ready.warm_up)) else doubts


def doubts_of_finished(finished: Finished) -> list[Recompiled]:
    """Return what there is to doubt of a cell after its bursts."""
    return [Recompiled(count=finished.recompilations)] if finished.recompilations else []


def doubt_of(warm_up: WarmUp) -> WarmUpTrend | WarmUpNoise | None:
    """Return the doubt about a warm-up that did not become steady."""
    if warm_up.steady:
        return None
    return WarmUpNoise() if warm_up.trendless else WarmUpTrend(seconds=warm_up.seconds)


def cause_of_death(status: int, phase: str, kernel_killed: bool) -> tuple[Status, Failure]:
    """Return what the exit status of a worker that died in `phase` means."""
    if -status == signal.SIGKILL and kernel_killed:
        text = f"killed in {phase} by the kernel, which had no memory left"
        return Status.OOM, Failure(kind="killed by the kernel", text=text)
    if status >= 0:
        return Status.CRASH, Failure(kind=f"exit status {status}", text=f"left with exit status {status} in {phase}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return Status.CRASH, Failure(kind=name, text=f"died of signal {-status} ({name}) in {phase}")


def tail_of(log: Path) -> str:
    """Return the last lines of a log file."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])[-LOG_TAIL_CHARACTERS:]
