"""Finds which modules must stay in float32, so that a cell in a narrower precision holds a tolerance.

The search calls eager. Modules are tried in the order of the error that each causes alone, as in HAWQ (Dong et al.,
2019), until the tolerance holds, and each is left out again if it holds without. The cell's backend decides.
"""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import JsonValue
from torch.utils import _pytree as pytree

from bakeoff.backends.base import Compiled
from bakeoff.backends.calling import plain_tensors
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import fit
from bakeoff.measuring.turns import turns
from bakeoff.measuring.worker import evaluating, precision, sampling
from bakeoff.measuring.worker.simulation import emulate_quantisation
from bakeoff.measuring.worker.worker_context import WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Burst, Record
from bakeoff.records.text import counted
from bakeoff.truth.calls import copied
from bakeoff.why import worker_parts as of_model
from bakeoff.why.records import Kept, KeptSet, Variant
from bakeoff.why.worker_blame import Builder, relative_error, searched_model, sortable, worst
from bakeoff.why.worker_parts import ModelPart, floats

STEPWISE_S = 180.0
"""After so long modules are added to what the backend builds by twos, fours and so on."""

MIN_ROUNDS, MAX_ROUNDS = 6, 20
CONTEST_S = 20.0
BURST_S = 0.05
MIN_BURST_CALLS = 3
WARM_UP_S = 0.3
"""The contest of the variants: in each round every one is called for a burst, in random order. After `CONTEST_S` it has
as few rounds as the interval of a median needs."""

AS_IT_IS, WITH_SET, ALL = "as it is", "with the set in fp32", "all in fp32"


def find_kept(
    worker: WorkerContext, requirement: str, tolerance: float | None, record: dict[str, JsonValue]
) -> KeptSet:
    """Return the smallest set that greedy search finds, as the worker's backend builds and runs it. `tolerance` is of
    the error relative to the output; without it, the metrics in `requirement` decide. `record` is the cell's."""
    with searched_model(worker) as (builder, whole, exact_sets):
        return Keeping(builder, whole, exact_sets, requirement, tolerance, Record.model_validate(record)).result()


class Keeping:
    """The search in one cell's model."""

    def __init__(
        self,
        builder: Builder,
        whole: ModelPart,
        exact_sets: tuple[Inputs, ...],  # in float64
        requirement: str,
        tolerance: float | None,
        record: Record,
    ) -> None:
        self._builder, self._whole = builder, whole
        self._requirement, self._tolerance, self._record = requirement, tolerance, record
        self._worker, self._sets = builder.worker, builder.sets
        self._module, self._exact = whole.module, whole.exact
        self._float32_sets = tuple(inputs.map(to_float32) for inputs in exact_sets)
        self._answers = [floats(of_model.run_exactly(self._exact, inputs)) for inputs in exact_sets]
        self._quantised = self._worker.cell.precision.is_quantised
        self._dtype = precision.dtype_of(self._worker.cell.precision)
        self._tried: dict[str, Kept] = {}
        self._alone: dict[str, float | None] = {}  # error with this module alone in the cell's precision
        self._begun_s = time.monotonic()

    def result(self) -> KeptSet:
        """Search, build what was found, and measure it beside the model as it is and all of it in float32."""
        kept: list[str] = []
        with contextlib.ExitStack() as alive:
            built = {}
            built[AS_IT_IS], as_it_is = self._variant(alive, AS_IT_IS, [])
            built[ALL], everything = self._variant(alive, ALL, [""])
            variants = [as_it_is, everything]
            if everything.holds and not as_it_is.holds:
                kept, count = self._search(), 1
                alive_with_set = alive.enter_context(contextlib.ExitStack())
                built[WITH_SET], chosen = self._variant(alive_with_set, WITH_SET, kept)
                while not chosen.holds and (more := self._with_more(kept, count)) != kept:
                    is_cheap = time.monotonic() - self._begun_s < STEPWISE_S
                    kept, count = more, 1 if is_cheap else 2 * count
                    alive_with_set.close()
                    built[WITH_SET], chosen = self._variant(alive_with_set, WITH_SET, kept)
                variants.insert(1, chosen)
            bursts = self._contest({name: build for name, build in built.items() if build is not None})
        variants = with_latencies(variants, bursts)
        holds = any(variant.holds for variant in variants[:-1])
        kept = kept if holds else []
        cell = self._worker.cell
        sizes = {id(weight): weight.numel() for weight in self._module.parameters()}
        inside = {id(weight) for path in kept for weight in self._module.get_submodule(path).parameters()}
        share_of_weights = sum(sizes[inner] for inner in inside) / max(1, sum(sizes.values()))
        return KeptSet(
            label=cell.label,
            cell_id=cell.id,
            precision=cell.precision,
            requirement=self._requirement,
            kept=kept,
            share_of_weights=share_of_weights,
            holds=holds,
            tried=[tried.but(is_kept=path in kept) for path, tried in self._tried.items()],
            variants=variants,
            searched_in="eager with rounded operands" if self._quantised else "eager",
            builds=self._builder.builds,
            seconds=time.monotonic() - self._begun_s,
        )

    # --- the search, in eager

    def _search(self) -> list[str]:
        """Return paths of modules with which eager holds the tolerance: none can be left out, and the modules inside
        of one are not enough in its place. A module's own code is kept with it: in the end that of the whole model."""
        kept, place = [""], 0
        while place < len(kept):
            path = kept[place]
            if smaller := self._enough(self._children(path), kept[:place] + kept[place + 1 :]):
                if path:
                    self._note(path, note="its parts are enough")
                kept[place : place + 1] = smaller
            else:
                place += 1
        return kept

    def _enough(self, among: list[str], others: list[str]) -> list[str]:
        """Return which of these modules are enough beside the others, or nothing if all of them are not. They are taken
        in the order of the error that each causes alone, and each that is not needed is left out again."""
        if not among or not self._holds_in_eager([*others, *among]):
            return []
        alone = {path: self._error([*others, *(other for other in among if other != path)]) for path in among}
        self._alone |= alone
        chosen: list[str] = []
        for path in sorted(among, key=lambda path: -sortable(alone[path])):
            chosen.append(path)
            error = self._error([*others, *chosen])
            self._note(
                path, left=error, note="" if alone[path] is not None else "the model fails with the others in fp32"
            )
            self._worker.phases.announce(f"keep {path}: {counted(len(self._tried), 'module')} tried in eager")
            if self._holds_in_eager([*others, *chosen], error):
                break
        for path in list(reversed(chosen)):
            fewer = [other for other in chosen if other != path]
            if fewer and self._holds_in_eager([*others, *fewer]):
                chosen = fewer
                self._note(path, note="left out again: it holds without")
        return chosen

    def _children(self, path: str) -> list[str]:
        calls = of_model.calls_in(self._whole, keeps=lambda _: False)
        below = [child.path for call in [calls, *calls.within()] if call.path == path for child in call.children]
        return list(dict.fromkeys(below))

    def _with_more(self, kept: Sequence[str], count: int) -> list[str]:
        """Return the modules with further ones of which each causes most error alone, where the backend's build does
        not hold what eager does. Nothing more is the same list again."""
        inside = tuple(f"{path}." for path in kept)
        rest = [path for path in self._alone if path not in kept and not path.startswith(inside)]
        rest = sorted(rest, key=lambda path: -sortable(self._alone[path]))[:count]
        for path in rest:
            self._note(path, note="added: the build does not hold without")
        larger = [*kept, *rest]
        return [path for path in larger if not any(path.startswith(f"{other}.") for other in larger)]

    def _error(self, kept: Sequence[str]) -> float | None:
        """Return the error of eager over all input sets with these modules in float32, or None if that fails."""
        try:
            with self._kept_in_eager(kept):
                return worst(
                    relative_error(self._eager(inputs), exact)
                    for inputs, exact in zip(self._sets, self._answers, strict=True)
                )
        except Exception:  # the model's own code may not take other types
            return None

    def _eager(self, inputs: Inputs) -> list[torch.Tensor]:
        own = copied(inputs)
        with torch.no_grad():
            return floats(self._module(*own.args, **own.kwargs))

    @contextlib.contextmanager
    def _kept_in_eager(self, kept: Sequence[str]) -> Iterator[None]:
        if not self._quantised:
            with in_float32(self._module, self._exact, kept, self._dtype):
                yield
            return
        weights = {
            id(weight) for path in kept for weight in self._module.get_submodule(path).parameters()
        }  # the others are rounded
        calibration = self._worker.context(self._sets).calibration
        with torch.no_grad(), emulate_quantisation(self._worker.cell.precision, self._module, calibration, weights):
            yield

    def _holds_in_eager(self, kept: Sequence[str], error: float | None = None) -> bool:
        """Return True if eager holds the requirement with these modules in float32. `error` is that of it, if known."""
        if self._tolerance is not None:
            error = self._error(kept) if error is None else error
            return error is not None and error <= self._tolerance
        with self._kept_in_eager(kept):
            return self._meets(self._eager, self._sets)

    def _meets(self, call: Callable[[Inputs], list[torch.Tensor]], sets: tuple[Inputs, ...]) -> bool:
        """Return True if the user's own metrics meet what the run requires. Raises BakeoffError where they fail."""
        worker, evaluation = self._worker, self._worker.job.evaluation
        assert evaluation is not None
        with contextlib.chdir(worker.started_in):
            metrics: Metrics = evaluating.evaluated(
                worker.cell, evaluation.function, lambda: evaluating.Predict(evaluation.sample, call, sets)
            )
        if metrics.failure:
            raise BakeoffError(f"evaluate failed: {metrics.failure.sentence}")
        return not Requirements.parse(self._requirement).unmet(self._record.but(metrics=metrics))

    def _note(self, path: str, **noted: object) -> None:
        kind = type(self._module.get_submodule(path)).__name__
        kept = self._tried.get(path) or Kept(name=path, kind=kind, alone=self._alone.get(path))
        self._tried[path] = kept.but(**noted)

    # --- what the backend builds

    def _variant(
        self, alive: contextlib.ExitStack, name: str, kept: Sequence[str]
    ) -> tuple[tuple[Compiled, tuple[Inputs, ...]] | None, Variant]:
        """Build the model with these modules in float32, and compare it. The build lives as long as `alive`."""
        self._worker.phases.announce(f"build {self._builder.builds + 1}: the model {name}")
        try:
            compiled = alive.enter_context(self._build(kept))
            sets = self._float32_sets if kept == [""] else self._sets
            call = partial(self._builder.answer, compiled)
            call(sets[0])  # some builds are final with the second call only
            pairs = zip(sets, self._answers, strict=True)
            error = worst(relative_error(call(inputs), exact) for inputs, exact in pairs)
            within = self._tolerance is not None and error is not None and error <= self._tolerance
            holds = self._meets(call, sets) if self._tolerance is None else within
        except Exception as failed:
            return None, Variant(name=name, failure=explain(failed)[1].sentence)
        return (compiled, sets), Variant(name=name, error=error, holds=holds)

    @contextlib.contextmanager
    def _build(self, kept: Sequence[str]) -> Iterator[Compiled]:
        calibration = self._worker.context(self._sets).calibration
        if kept == [""]:
            cell = self._worker.cell.but(precision=Precision.FP32)
            with plain_tensors():
                model = copy.deepcopy(self._exact).float()
            with self._builder.built(model, self._float32_sets[0], calibration, cell=cell) as compiled:
                yield compiled
            return
        model, around = self._module, contextlib.ExitStack()
        if kept and not self._quantised:
            with plain_tensors():  # the model as it is, which may run as it stands, is measured beside it
                model = copy.deepcopy(self._module)
            around.enter_context(in_float32(model, self._exact, kept, self._dtype))
        changes = {"kept_in_float32": tuple(kept)}
        with around, self._builder.built(model, self._sets[0], calibration, **changes) as compiled:
            yield compiled

    def _contest(self, built: dict[str, tuple[Compiled, tuple[Inputs, ...]]]) -> dict[str, list[Burst]]:
        clock = self._worker.clock
        bursts: dict[str, list[Burst]] = {name: [] for name in built}
        self._worker.phases.announce(
            f"build {self._builder.builds} was the last: {len(built)} variants are measured in turns"
        )
        for compiled, sets in built.values():
            sampling.burst(compiled, sets, clock, WARM_UP_S, MIN_BURST_CALLS)
        for number, name in turns(list(built), CONTEST_S, MIN_ROUNDS, MAX_ROUNDS):
            started_s = time.monotonic() - self._begun_s
            calls_ns = sampling.burst(*built[name], clock, BURST_S, MIN_BURST_CALLS)
            bursts[name].append(Burst(group=0, round=number, started_s=started_s, samples_ns=calls_ns))
        return bursts


@contextlib.contextmanager
def in_float32(
    module: torch.nn.Module, exact: torch.nn.Module, paths: Sequence[str], dtype: torch.dtype
) -> Iterator[None]:
    """Have some modules of a model in 16 bits compute in float32 in the block, with their own weights, which `exact`
    has. `dtype` is the type of what is not kept. The module tree stays as it is."""

    def cast_inputs(_: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, to_float32, (args, kwargs))

    def cast_back(_: torch.nn.Module, args: Any, outputs: Any) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.dtype is torch.float32 else tensor, outputs
        )

    with contextlib.ExitStack() as undo:
        for path in paths:
            kept, own = module.get_submodule(path), exact.get_submodule(path)
            with plain_tensors():
                for name, child in kept.named_modules():
                    widen(child, own.get_submodule(name), undo)
            undo.callback(kept.register_forward_pre_hook(cast_inputs, with_kwargs=True).remove)
            undo.callback(kept.register_forward_hook(cast_back).remove)
        yield


def widen(child: torch.nn.Module, exact: torch.nn.Module, undo: contextlib.ExitStack) -> None:
    """Give a module its own weights in float32, until `undo` ends."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (child._parameters, exact._parameters),
        (child._buffers, exact._buffers),
    ]
    for tensors, own in pairs:
        for key, tensor in list(tensors.items()):
            value = own.get(key)
            if tensor is not None and value is not None and tensor.is_floating_point():
                wide = to_float32(value.detach())
                undo.callback(tensors.__setitem__, key, tensor)
                is_weight = isinstance(tensor, torch.nn.Parameter)
                tensors[key] = torch.nn.Parameter(wide, requires_grad=False) if is_weight else wide


def to_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16, torch.float64) else tensor


def with_latencies(variants: Sequence[Variant], bursts: Mapping[str, Sequence[Burst]]) -> list[Variant]:
    fitted = fit({name: series_of(of_variant) for name, of_variant in bursts.items()})

    def judged(variant: Variant) -> Variant:
        if variant.name not in fitted.latency_ms:
            return variant
        update: dict[str, object] = {"latency_ms": fitted.latency_ms[variant.name], "rounds": len(bursts[variant.name])}
        if AS_IT_IS in fitted.latency_ms and variant.name != AS_IT_IS:
            ratio = fitted.ratio(AS_IT_IS, variant.name)
            update |= {"ratio": ratio.value, "ratio_ci95": ratio.ci95 and (ratio.ci95.low, ratio.ci95.high)}
        return variant.but(**update)

    return list(map(judged, variants))
