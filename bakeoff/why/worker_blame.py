"""Finds the smallest part of a model in which a cell loses precision, or that fails. docs/blame.md says how.

All modules that a part calls are built beside each other as one model, so that one build shows the error of each.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from bakeoff.backends.base import Compiled
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.measuring.worker.worker_context import WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.models.user import loaded
from bakeoff.records.errors import BakeoffError
from bakeoff.records.text import counted
from bakeoff.truth import rounding_limits
from bakeoff.truth.calls import copied
from bakeoff.why import worker_parts as of_model
from bakeoff.why.records import Blame, Found, GrowthPoint, PartTrial, excess, is_below
from bakeoff.why.worker_parts import Beside, Form, ModelPart, Watched, floats, source_of
from bakeoff.why.worker_profile import announcing

SEARCH_LIMIT_S = 900.0
"""After so long nothing smaller is looked for."""

MAX_OPERATORS = 256
"""No more operators of one module are tried than these."""

MAX_PLACES = 4
"""So many parts are named at most."""

MIN_FURTHER_BUILDS = 16
"""After the first part that is named, further ones are looked for in as many builds as it took, or in so many."""

ENOUGH_POINTS, MAX_POINTS = 8, 24
"""The figure has so many modules, if the model can be divided like that."""


class EagerFails(Exception):
    """A part has nothing to compare with."""


@dataclass(frozen=True)
class Judged:
    """What a part is given, and what it then returns in eager and in float64."""

    part: ModelPart
    given: Inputs
    eager: list[torch.Tensor]
    exact: list[torch.Tensor]


Answer = list[torch.Tensor] | Exception
"""What a part returns in the backend, or why it was not built or did not run."""


def find_blame(worker: WorkerContext, looks_for_failure: bool) -> Blame:
    """Return the smallest part of the worker's cell that is beyond its limit, or that fails alone."""
    with searched_model(worker) as (builder, whole, _):
        return Search(builder, whole, looks_for_failure).result()


@contextlib.contextmanager
def searched_model(worker: WorkerContext) -> Iterator[tuple[Builder, ModelPart, tuple[Inputs, ...]]]:
    """Load the worker's model to search in it, in the cell's precision and with its own weights in float64. Yields what
    builds its parts, the whole model as a part, and its input sets in float64."""
    worker = announcing(worker)
    module, sets = worker.model()
    if loaded_part := loaded(worker.cell.model):
        loaded_part.keep_apart()
    worker.phases.announce("reference")
    with contextlib.chdir(worker.started_in):
        model = load(worker.cell.as_built, weights_at=worker.job.weights_at).understood(worker.traits)
        precision.apply(worker.cell.precision)
        exact, exact_sets = move_to_device(model, worker.cell, torch.float64)
    with worker.clock.on_stream(), torch.no_grad():
        yield Builder(worker, sets), ModelPart("", type(module).__name__, module, exact, exact_sets[0]), exact_sets


class Builder:
    """Builds parts of a model with the cell's backend, one after the other in this process."""

    def __init__(self, worker: WorkerContext, sets: tuple[Inputs, ...]) -> None:
        self.worker, self.sets = worker, sets
        self.calibration = tuple(Inputs(inputs.tensors()) for inputs in worker.context(sets).calibration)
        self.builds = 0

    @contextlib.contextmanager
    def built(
        self, module: torch.nn.Module, given: Inputs, calibration: tuple[Inputs, ...], **changes: object
    ) -> Iterator[Compiled]:
        """Build a module in a folder of its own. `changes` are those to the context of the build."""
        worker = self.worker
        folder = worker.workspace / f"build-{self.builds}"
        folder.mkdir()
        self.builds += 1
        with torch.inference_mode(False), torch.no_grad():
            own = copied(given)
        context = replace(worker.context((own,)), workspace=folder, calibration=calibration, **changes)  # type: ignore[arg-type]
        with worker.running(), worker.backend.build(module, own, context) as compiled:
            yield compiled

    def answer(self, compiled: Compiled, inputs: Inputs) -> list[torch.Tensor]:
        compiled.bind(copied(inputs))
        compiled.run()
        self.worker.clock.synchronise()
        return [tensor for tensor in compiled.outputs() if tensor.is_floating_point()]

    def outputs_of(self, module: torch.nn.Module, given: Inputs, calibration: tuple[Inputs, ...]) -> list[torch.Tensor]:
        """Build a module, and return the answer of its second call: some builds are final only then."""
        with self.built(module, given, calibration) as compiled:
            self.answer(compiled, given)
            outputs = self.answer(compiled, given)
        if "torch._dynamo" in sys.modules:  # after some models it would leave the next one to eager
            torch._dynamo.reset()
        return outputs


class Search:
    """The search in one cell's model."""

    def __init__(self, builder: Builder, whole: ModelPart, looks_for_failure: bool) -> None:
        self._builder, self._worker = builder, builder.worker
        self._whole, self._looks_for_failure = whole, looks_for_failure
        self._dtype = precision.dtype_of(self._worker.cell.precision)
        self._trials: list[PartTrial] = []
        self._places: list[tuple[ModelPart, PartTrial]] = []
        self._same_failures = 0
        self._most_builds = math.inf
        self._is_cut = False
        self._begun_s = time.monotonic()
        self._smallest = whole

    def result(self) -> Blame:
        _, trial = next(iter(self._try([self._whole])))
        if trial.failure and not self._looks_for_failure:
            raise BakeoffError(f"the whole model fails now: {trial.failure}")
        if self._is_bad(trial):
            self._search(self._whole, trial)
        self._most_builds = math.inf  # of the growth, too
        found = Found.NOTHING
        if self._places:
            found = Found.SPREAD if self._is_spread(*self._places[0]) else Found.PLACE
        part, place = self._places[0] if self._places else (self._whole, None)
        growth = [] if self._looks_for_failure else self._growth()
        cell = self._worker.cell
        return Blame(
            label=cell.label,
            cell_id=cell.id,
            precision=cell.precision,
            looks_for_failure=self._looks_for_failure,
            found=found,
            place=place,
            line=part.line,
            others=[trial for _, trial in self._places[1:]],
            same_failures=self._same_failures,
            is_complete=not self._is_cut,
            trials=self._trials,
            growth=growth,
            builds=self._builder.builds,
            seconds=time.monotonic() - self._begun_s,
            source=source_of(part, self._dtype) if found is Found.PLACE and self._looks_for_failure else "",
        )

    def _search(self, part: ModelPart, trial: PartTrial) -> None:
        """Note the smallest bad parts inside of a bad one, or the part itself if nothing smaller in it is bad. Modules
        come before the operators of the part's own code."""
        self._smallest = self._smallest if self._places else part
        inside = 0
        for smaller in (of_model.children_of, self._operators):
            for smaller_part, its_trial in self._bad_of(smaller(part) if self._goes_on() else []):
                inside += 1
                if any(its_trial.fails and its_trial.failure == named.failure for _, named in self._places):
                    self._same_failures += 1
                elif not any(is_same_code(smaller_part, named) for named, _ in self._places):
                    self._search(smaller_part, its_trial)
        if inside:
            return
        if len(self._places) < MAX_PLACES:
            self._places.append((part, trial))
        else:
            self._is_cut = True
        if len(self._places) == 1:
            self._most_builds = self._builder.builds + max(self._builder.builds, MIN_FURTHER_BUILDS)

    def _goes_on(self) -> bool:
        is_over = self._builder.builds >= self._most_builds or time.monotonic() - self._begun_s > SEARCH_LIMIT_S
        is_over |= len(self._places) == MAX_PLACES
        self._is_cut |= is_over
        return not is_over

    def _is_bad(self, trial: PartTrial) -> bool:
        return trial.fails if self._looks_for_failure else trial.excess > 1.0

    def _is_spread(self, part: ModelPart, worst: PartTrial) -> bool:
        """Return True if the errors inside of a module explain most of its own, though none is beyond its limit."""
        if self._looks_for_failure or worst.error is None:
            return False
        inside = [trial.error for trial in self._trials if trial.error is not None and is_below(trial.name, part.name)]
        return sum(inside) >= worst.error / 2

    def _operators(self, part: ModelPart) -> list[ModelPart]:
        if part.operator or self._worker.cell.precision.is_quantised:  # layers are quantised, and no operators
            return []
        try:
            return of_model.operators_of(part, self._dtype)[:MAX_OPERATORS]
        except Exception:  # what cannot be exported has no list of operators, and the module is named
            return []

    def _bad_of(self, parts: Sequence[ModelPart]) -> Iterable[tuple[ModelPart, PartTrial]]:
        """Try parts, and return the bad ones, the worst first, or those that fail one by one."""
        bad = (pair for pair in self._try(parts) if self._is_bad(pair[1]))
        return bad if self._looks_for_failure else sorted(bad, key=lambda pair: -pair[1].excess)

    def _try(self, parts: Sequence[ModelPart]) -> Iterator[tuple[ModelPart, PartTrial]]:
        """Build parts beside each other, and yield the error or the failure of each as soon as it is known."""
        judged = []
        for part in parts:
            try:
                judged.append(self._judge_eager(part))
            except EagerFails as error:
                yield self._noted(part, trial_of(part).but(failure=str(error), eager_fails=True))
        for judged_part, answer in self._built_beside(judged):
            yield self._noted(judged_part.part, self._trial(judged_part, answer))

    def _noted(self, part: ModelPart, trial: PartTrial) -> tuple[ModelPart, PartTrial]:
        self._trials.append(trial)
        return part, trial

    def _judge_eager(self, part: ModelPart) -> Judged:
        """Return what a part returns in eager and in float64. Raises EagerFails where there is nothing to compare."""
        given = part.given(self._dtype)
        if not are_finite(given) and are_finite(part.inputs):
            raise EagerFails(f"it gets values beyond the range of {self._worker.cell.precision}")
        try:
            with torch.no_grad():
                own = copied(given)
                eager = floats(part.module(*own.args, **own.kwargs))
            exact = floats(of_model.run_exactly(part.exact, given.map(of_model.in_float64)))
        except Exception as error:
            raise EagerFails(f"eager: {explain(error)[1].sentence}") from None
        return Judged(part, given, eager, exact)

    def _built_beside(self, judged: Sequence[Judged]) -> Iterator[tuple[Judged, Answer]]:
        """Build parts beside each other, and in halves if that fails. Yield each answer before the next build."""
        if not judged:
            return
        if self._builder.builds >= self._most_builds:
            self._is_cut = True
            return
        parts = [judged_part.part for judged_part in judged]
        more = f" and {len(parts) - 1} more beside it" if len(parts) > 1 else ""
        so_far = f" (smallest part so far: {self._smallest.name or 'the whole model'})" if self._trials else ""
        if self._places:
            so_far = f" (named so far: {', '.join(part.name or 'the whole model' for part, _ in self._places)})"
        what = f"{parts[0].name or 'the whole model'}{more}{so_far}"
        self._worker.phases.announce(f"build {self._builder.builds + 1}: {what}")
        flat = Inputs(tuple(tensor for judged_part in judged for tensor in judged_part.given.tensors()))
        calibration = self._builder.calibration if parts == [self._whole] else (flat,)
        try:
            outputs = iter(self._builder.outputs_of(Beside(parts), flat, calibration))
        except Exception as error:
            if len(judged) == 1:
                yield judged[0], error
                return
        else:
            yield from ((judged_part, [next(outputs) for _ in judged_part.eager]) for judged_part in judged)
            return
        middle = len(judged) // 2
        for half in (judged[:middle], judged[middle:]):
            yield from self._built_beside(half)

    def _trial(self, judged: Judged, answer: Answer) -> PartTrial:
        trial = trial_of(judged.part)
        if isinstance(answer, Exception):
            return trial.but(failure=explain(answer)[1].sentence)
        if self._looks_for_failure:
            return trial
        return trial.but(**errors_of(answer, judged.eager, judged.exact, self._worker))

    def _growth(self) -> list[GrowthPoint]:
        chosen = of_model.along_depth(self._whole, ENOUGH_POINTS, MAX_POINTS)
        paths = {call.path for call in chosen}
        if not paths:
            return []
        calls = [
            call for call in of_model.calls_in(self._whole, keeps=paths.__contains__).within() if call.path in paths
        ]
        parts = [of_model.part_of_call(self._whole, call) for call in calls]
        local = {trial.name: trial.error for trial in self._trials}
        new = [part for part, call in zip(parts, calls, strict=True) if part.name not in local and not call.passes_on]
        local |= {trial.name: trial.error for _, trial in self._try(new)}
        accumulated = self._accumulated(paths, parts)
        return [
            GrowthPoint(name=part.name, kind=part.kind, local=local.get(part.name), accumulated=error)
            for part, error, call in zip(parts, accumulated, calls, strict=True)
            if not call.passes_on
        ]

    def _accumulated(self, paths: set[str], parts: Sequence[ModelPart]) -> list[float | None]:
        """Return the errors of modules' outputs in a call of the whole model, from one build that returns them all."""
        form = Form.of(self._whole.inputs.args, self._whole.inputs.kwargs)
        flat = Inputs(self._whole.given(self._dtype).tensors())
        self._worker.phases.announce(
            f"build {self._builder.builds + 1}: the whole model, with the outputs of {counted(len(parts), 'module')}"
        )
        try:
            with Watched(self._whole.module, form, sorted(paths)) as watched:
                outputs = iter(self._builder.outputs_of(watched, flat, self._builder.calibration))
        except Exception:  # a library may not take so many outputs, and the figure then has local errors only
            return [None] * len(parts)
        return [relative_error([next(outputs) for _ in part.outputs], part.outputs) for part in parts]


def is_same_code(part: ModelPart, other: ModelPart) -> bool:
    return (part.path, part.operator, part.line) == (other.path, other.operator, other.line)


def trial_of(part: ModelPart) -> PartTrial:
    return PartTrial(name=part.name, kind=part.kind, line=part.line)


def errors_of(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], worker: WorkerContext
) -> dict[str, float]:
    """Return the errors of the output that is furthest beyond its limit, relative to its size."""
    found: list[dict[str, float]] = []
    for mine, theirs, right in zip(outputs, eager, exact, strict=False):
        size, (error, eager_error) = relative_errors(right, mine, theirs)
        if error is not None and eager_error is not None:
            limit = rounding_limits.blame_limit(worker.cell.precision, eager_error * size, size) / size
            found.append({"error": error, "eager_error": eager_error, "limit": limit})
    return max(found, key=lambda errors: excess(errors["error"], errors["limit"]), default={})


def relative_error(outputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float | None:
    """Return the largest error of outputs, relative to the root mean square of each."""
    return worst(relative_errors(right, mine)[1][0] for mine, right in zip(outputs, exact, strict=True))


def sortable(error: float | None) -> float:
    """Return an error as a number to sort by. One that is not finite is the largest, and none at all the smallest."""
    if error is None:
        return -1.0
    return error if error == error else math.inf


def worst(errors: Iterable[float | None]) -> float | None:
    return max((error for error in errors if error is not None), key=sortable, default=None)


def relative_errors(right: torch.Tensor, *outputs: torch.Tensor) -> tuple[float, list[float | None]]:
    """Return the root mean square of a tensor, and of the error of each output relative to it. An error is None for
    another shape, and where the tensor holds nothing to compare with."""
    usual = right.isfinite() & (right.abs() < of_model.MASK)
    size = root_mean_square(right[usual])
    return size, [
        root_mean_square((output.to(right.device, torch.float64) - right)[usual]) / size
        if size and output.shape == right.shape
        else None
        for output in outputs
    ]


def root_mean_square(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def are_finite(inputs: Inputs) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in inputs.tensors() if tensor.is_floating_point())
