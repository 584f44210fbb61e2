"""What a request does before and after the model, in the process of a cell: timed alone, and served under load."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from bakeoff.backends.calling import returned_by_call
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.sampling import no_garbage_collection
from bakeoff.models.base import Around, Inputs
from bakeoff.models.example_inputs import as_inputs
from bakeoff.records.call_form import HasNoForm, Make, maker
from bakeoff.records.errors import Unsupported, UsageError, first_line
from bakeoff.records.schema import AroundCall
from bakeoff.truth.matching import without_numbers

SECONDS = 0.2
MIN_CALLS = 3
BLOCKS = 12
"""The calls are divided into so many parts, as bursts into rounds, to show how much they vary in one process."""


@dataclass(frozen=True)
class AroundModel:
    stages: Around
    module: Callable[..., Any]
    inputs: Inputs
    folder: Path  # that the user stood in, which the stages may read from

    def measure(self, clock: Clock) -> list[AroundCall]:
        """Time each stage alone, for 0.2 s and three calls. A stage that raises is reported with its reason."""
        found = []
        with contextlib.chdir(self.folder):
            if (before := self.stages.before) is not None:
                found.append(_timed("before", before, lambda: self.stages.raw, clock))
            # It takes what the model itself returns here, on the cell's device and in its precision.
            if (after := self.stages.after) is not None:
                found.append(_timed("after", after, self._answer, clock))
        return found

    def of_requests(self) -> RequestStages:
        """Return the stages as requests of a server need them. Call this before a build may change the module. Raises
        Unsupported where `after` needs an answer that cannot be made from a build's tensors."""
        answer: Make | None = None
        if self.stages.after is not None:
            form = returned_by_call(self._answer()).form
            unknown = form.get("unknown", "")
            try:
                answer = None if unknown else maker(dict(form))
            except HasNoForm as error:
                unknown = str(error)
            if answer is None:
                raise Unsupported(f"after() cannot be called under load: {unknown}")
        return RequestStages(self.stages, self.inputs, answer)

    def _answer(self) -> Any:
        return self.module(*self.inputs.args, **self.inputs.kwargs)


@dataclass(frozen=True)
class RequestStages:
    """The stages of one request under load. Every instance calls them in its own thread."""

    stages: Around
    like: Inputs  # of the build: requests have their sizes and types, and lie on their device
    answer: Make | None  # makes what `after` takes from a build's tensors

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in ("before", "after") if getattr(self.stages, name) is not None)

    def inputs(self) -> Inputs | None:
        """Return what `before` makes of the raw example, where the build reads it, or None without such a stage. Raises
        UsageError for other sizes than the build's."""
        if self.stages.before is None:
            return None
        made = as_inputs("before()", self.stages.before(self.stages.raw))
        wanted, given = self.like.tensors(), made.tensors()
        if [tensor.shape for tensor in given] != [tensor.shape for tensor in wanted]:
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
            raise UsageError(f"before() returned other sizes than at first: {sizes}")
        placed = iter([tensor.to(like.device, like.dtype) for tensor, like in zip(given, wanted, strict=True)])
        return made.map(lambda _: next(placed))

    def finish(self, outputs: Sequence[torch.Tensor]) -> None:
        if self.stages.after is not None and self.answer is not None:
            self.stages.after(self.answer(without_numbers(tuple(outputs))))


def _timed(
    name: Literal["before", "after"], stage: Callable[[Any], Any], value_of: Callable[[], Any], clock: Clock
) -> AroundCall:
    """Time one stage with the value that it takes. Its first call is not timed."""
    times_ms: list[float] = []
    try:
        value = value_of()
        stage(value)
        with no_garbage_collection():
            end_ns = clock.now_ns() + int(SECONDS * 1e9)
            while len(times_ms) < MIN_CALLS or clock.now_ns() < end_ns:
                with clock.timed() as seconds:
                    stage(value)
                times_ms.append(1e3 * seconds[0])
    except Exception as error:  # it is the user's own code, which may raise anything
        return AroundCall(name=name, failure=f"{type(error).__name__}: {first_line(error)}")
    blocks = numpy.array_split(numpy.array(times_ms), min(BLOCKS, len(times_ms)))
    return AroundCall(
        name=name,
        calls=len(times_ms),
        median_ms=statistics.median(times_ms),
        block_medians_ms=[float(numpy.median(block)) for block in blocks],
    )
