"""Times what a request does before and after the model, in the process of a cell. It does not depend on the backend."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.sampling import no_garbage_collection
from bakeoff.models.base import Around, Inputs
from bakeoff.records.errors import first_line
from bakeoff.records.schema import AroundCall

SECONDS = 0.2
MIN_CALLS = 3


@dataclass(frozen=True)
class AroundModel:
    """The stages around a model that is ready to be called."""

    stages: Around
    module: Callable[..., Any]
    inputs: Inputs
    folder: Path  # that the user stood in, which the stages may read from

    def measure(self, clock: Clock) -> list[AroundCall]:
        """Time each stage alone, for 0.2 s and three calls. A stage that raises is told with its reason.

        `after` takes what the model itself returns in this process, on the cell's device and in its precision.
        """
        found = []
        with contextlib.chdir(self.folder):
            if (before := self.stages.before) is not None:
                found.append(_timed("before", before, lambda: self.stages.raw, clock))
            if (after := self.stages.after) is not None:
                found.append(_timed("after", after, self._answer, clock))
        return found

    def _answer(self) -> Any:
        return self.module(*self.inputs.args, **self.inputs.kwargs)


def _timed(
    name: Literal["before", "after"], stage: Callable[[Any], Any], taken: Callable[[], Any], clock: Clock
) -> AroundCall:
    """Time one stage with the value that it takes. Its first call is not timed."""
    times_ms: list[float] = []
    try:
        value = taken()
        stage(value)
        with no_garbage_collection():
            end_ns = clock.now_ns() + int(SECONDS * 1e9)
            while len(times_ms) < MIN_CALLS or clock.now_ns() < end_ns:
                with clock.timed() as seconds:
                    stage(value)
                times_ms.append(1e3 * seconds[0])
    except Exception as error:  # it is the user's own code, which may raise anything
        return AroundCall(name=name, failure=f"{type(error).__name__}: {first_line(error)}")
    return AroundCall(name=name, calls=len(times_ms), median_ms=statistics.median(times_ms))
