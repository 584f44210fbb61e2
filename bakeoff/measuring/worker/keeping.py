"""Finds which modules must stay in float32, so that a cell in a narrower precision holds a tolerance.

The search calls eager, in which a trial costs one call of the model. Modules are ordered by the error that each causes
if it alone is in the cell's precision, as in HAWQ (Dong et al., 2019) and in sensitivity analyses of quantisation. They
are taken in that order until the tolerance holds. Then each is left out again if it holds without, and replaced by the
modules inside of it as far as these are enough. The cell's backend builds what was found, and tells whether it holds.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.backends.base import Compiled
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import fit
from bakeoff.measuring.messages import KeepModules
from bakeoff.measuring.turns import turns
from bakeoff.measuring.worker import evaluating, precision, sampling
from bakeoff.measuring.worker import parts as of_model
from bakeoff.measuring.worker.blaming import Builder, relative_error, searched_model
from bakeoff.measuring.worker.parts import Part, floats
from bakeoff.measuring.worker.simulation import emulate_quantisation
from bakeoff.measuring.worker.understanding import copied
from bakeoff.measuring.worker.worker_context import WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.records.blame import Kept, KeptSet, Variant
from bakeoff.records.errors import BakeoffError
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Burst
from bakeoff.records.text import counted

MIN_CANDIDATES, MAX_CANDIDATES = 2, 64
"""The search begins with so many modules, as large as can be, and looks inside of those that it keeps."""

STEPWISE_S = 180.0
"""After so long modules are added to what the backend builds by twos, fours and so on."""

MAX_ROUNDS, MIN_ROUNDS = 20, 6
CONTEST_S = 20.0
BURST_S = 0.05
MIN_BURST_CALLS = 3
WARM_UP_S = 0.3
"""The contest of the variants: in each round every one is called for a burst, in random order. After `CONTEST_S` it has
as few rounds as the interval of a median needs."""

AS_IT_IS, WITH_SET, ALL = "as it is", "with the set in fp32", "all in fp32"


def find_kept(worker: WorkerContext, job: KeepModules) -> KeptSet:
    """Return the smallest set that greedy search finds, as the worker's backend builds and runs it."""
    with searched_model(worker) as (builder, whole, exact_sets):
        return Keeping(builder, job, whole, exact_sets).result()


class Keeping:
    """The search in one cell's model."""

    def __init__(self, builder: Builder, job: KeepModules, whole: Part, exact_sets: tuple[Inputs, ...]) -> None:
        """`exact_sets` are the input sets in float64."""
        self._builder, self._job, self._whole = builder, job, whole
        self._worker, self._sets = builder.worker, builder.sets
        self._module, self._exact = whole.module, whole.exact
        self._float32_sets = tuple(inputs.map(to_float32) for inputs in exact_sets)
        self._answers = [floats(of_model.run_exactly(self._exact, inputs)) for inputs in exact_sets]
        self._quantised = self._worker.cell.precision.is_quantised
        self._dtype = precision.dtype_of(self._worker.cell.precision)
        self._tried: dict[str, Kept] = {}
        self._alone: dict[str, float | None] = {}  # errors of what the search begins with, the worst module first
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
            bursts = self._contest({name: each for name, each in built.items() if each is not None})
        variants = with_latencies(variants, bursts)
        holds = any(each.holds for each in variants[:-1])
        kept = kept if holds else []
        cell = self._worker.cell
        return KeptSet(
            label=cell.label,
            cell_id=cell.id,
            precision=cell.precision,
            requirement=self._job.requirement,
            kept=kept,
            share_of_weights=self._share_of(kept),
            holds=holds,
            tried=[each.model_copy(update={"is_kept": path in kept}) for path, each in self._tried.items()],
            variants=variants,
            searched_in="eager with rounded operands" if self._quantised else "eager",
            builds=self._builder.builds,
            seconds=time.monotonic() - self._begun_s,
        )

    # --- the search, in eager

    def _search(self) -> list[str]:
        """Return paths of modules with which eager holds the tolerance: none can be left out, and none is larger than
        what was tried inside of it."""
        calls = of_model.along_depth(self._whole, MIN_CANDIDATES, MAX_CANDIDATES)
        candidates = list(dict.fromkeys(call.path for call in calls)) or [""]
        alone = {path: self._error([other for other in candidates if other != path]) for path in candidates}
        self._alone = dict(sorted(alone.items(), key=lambda each: -sortable(each[1])))
        kept: list[str] = []
        for path in self._alone:
            kept.append(path)
            left = self._error(kept)
            self._note(path, alone[path], left)
            if self._holds_in_eager(kept, left):
                break
        else:
            return self._with_own_code(kept)
        kept = self._without_needless(kept)
        place = 0
        while place < len(kept):
            smaller = self._inside(kept[place], kept[:place] + kept[place + 1 :])
            if smaller:
                self._remark(kept[place], "its parts are enough")
                kept[place : place + 1] = smaller
            else:
                place += 1
        return kept

    def _with_own_code(self, kept: list[str]) -> list[str]:
        """Return larger modules, whose own code is kept, too: in the end the whole model."""
        parents = list(dict.fromkeys(path.rpartition(".")[0] for path in kept))
        while parents != [""]:
            if self._holds_in_eager(parents, self._error(parents)):
                return self._without_needless(parents)
            parents = list(dict.fromkeys(path.rpartition(".")[0] for path in parents))
        return [""]

    def _without_needless(self, kept: list[str]) -> list[str]:
        """Leave out again what the tolerance holds without, beginning with what was taken last."""
        for path in list(reversed(kept)):
            fewer = [each for each in kept if each != path]
            if fewer and self._holds_in_eager(fewer, self._error(fewer)):
                kept = fewer
                self._remark(path, "left out again: it holds without")
        return kept

    def _inside(self, path: str, others: list[str]) -> list[str]:
        """Return modules inside of a kept one that are enough in its place, or nothing."""
        inside = self._children(path)
        if not inside or not self._holds_in_eager([*others, *inside], self._error([*others, *inside])):
            return []
        alone = {each: self._error([*others, *(other for other in inside if other != each)]) for each in inside}
        inside.sort(key=lambda each: -sortable(alone[each]))
        for each in inside:
            self._note(each, alone[each], None)
        whole = self._without_needless([*others, *inside])
        return [each for each in whole if each in inside]

    def _children(self, path: str) -> list[str]:
        """Return the paths of the modules that calls of a module call."""
        calls = of_model.calls_in(self._whole, keeps=lambda _: False)
        below = [child.path for call in [calls, *calls.within()] if call.path == path for child in call.children]
        return list(dict.fromkeys(below))

    def _with_more(self, kept: Sequence[str], count: int) -> list[str]:
        """Return the modules with further ones of which each causes most error alone, where the backend's build does
        not hold what eager does. Nothing more is the same list again."""
        inside = tuple(f"{path}." for path in kept)
        rest = [path for path in self._alone if path not in kept and not path.startswith(inside)]
        for path in rest[:count]:
            self._remark(path, "added: the build does not hold without")
        larger = [*kept, *rest[:count]]
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
            with InFloat32(self._module, self._exact, kept, self._dtype):
                yield
            return
        weights = {
            id(weight) for path in kept for weight in self._module.get_submodule(path).parameters()
        }  # the others are rounded
        calibration = self._worker.context(self._sets).calibration
        with (
            torch.no_grad(),
            emulate_quantisation(self._worker.cell.precision, self._module, calibration, weights),
        ):
            yield

    def _holds_in_eager(self, kept: Sequence[str], error: float | None) -> bool:
        """Return True if eager holds the requirement with these modules in float32."""
        if self._job.tolerance is not None:
            return error is not None and error <= self._job.tolerance
        with self._kept_in_eager(kept):
            return self._meets(self._eager, self._sets)

    def _meets(self, call: Callable[[Inputs], list[torch.Tensor]], sets: tuple[Inputs, ...]) -> bool:
        """Return True if the user's own metrics meet what the run requires. Raises BakeoffError where they fail."""
        job, worker = self._job, self._worker
        assert job.evaluation is not None and job.record is not None
        evaluation = job.evaluation
        with contextlib.chdir(worker.started_in):
            metrics: Metrics = evaluating.evaluated(
                worker.cell, evaluation.function, lambda: evaluating.Predict(evaluation.sample, call, sets)
            )
        if metrics.failure:
            raise BakeoffError(f"evaluate failed: {metrics.failure.sentence}")
        return not Requirements.parse(job.requirement).unmet(job.record.model_copy(update={"metrics": metrics}))

    def _note(self, path: str, alone: float | None, left: float | None) -> None:
        note = "" if alone is not None else "the model fails with the others in fp32"
        self._tried[path] = self._kept(path).model_copy(update={"alone": alone, "left": left, "note": note})
        with self._worker.phases.announced(f"keep {path}: {counted(len(self._tried), 'module')} tried in eager"):
            pass

    def _remark(self, path: str, note: str) -> None:
        """Say something else of a module, whether it was tried in eager or not."""
        known = self._tried.get(path) or self._kept(path)
        self._tried[path] = known.model_copy(update={"note": note})

    def _kept(self, path: str) -> Kept:
        kind = type(self._module.get_submodule(path)).__name__
        return Kept(name=path, kind=kind, alone=self._alone.get(path))

    def _share_of(self, kept: Sequence[str]) -> float:
        """Return the share of the model's weights that is in these modules."""
        sizes = {id(weight): weight.numel() for weight in self._module.parameters()}
        inside = {id(weight) for path in kept for weight in self._module.get_submodule(path).parameters()}
        return sum(sizes[each] for each in inside) / max(1, sum(sizes.values()))

    # --- what the backend builds

    def _variant(
        self, alive: contextlib.ExitStack, name: str, kept: Sequence[str]
    ) -> tuple[tuple[Compiled, tuple[Inputs, ...]] | None, Variant]:
        """Build the model with these modules in float32, and compare it. The build lives as long as `alive`."""
        with self._worker.phases.announced(f"build {self._builder.builds + 1}: the model {name}"):
            pass
        try:
            compiled = alive.enter_context(self._build(kept))
            sets = self._float32_sets if kept == [""] else self._sets

            def call(inputs: Inputs) -> list[torch.Tensor]:
                compiled.bind(copied(inputs))
                compiled.run()
                self._worker.clock.synchronise()
                return [tensor for tensor in compiled.outputs() if tensor.is_floating_point()]

            call(sets[0])  # some builds are final with the second call only
            pairs = zip(sets, self._answers, strict=True)
            error = worst(relative_error(call(inputs), exact) for inputs, exact in pairs)
            tolerance = self._job.tolerance
            holds = error is not None and error <= tolerance if tolerance is not None else self._meets(call, sets)
        except Exception as failed:
            return None, Variant(name=name, failure=explain(failed)[1].sentence)
        return (compiled, sets), Variant(name=name, error=error, holds=holds)

    @contextlib.contextmanager
    def _build(self, kept: Sequence[str]) -> Iterator[Compiled]:
        calibration = self._worker.context(self._sets).calibration
        if kept == [""]:
            cell = self._worker.cell.model_copy(update={"precision": Precision.FP32})
            with outside_inference_mode():
                model = copy.deepcopy(self._exact).float()
            with self._builder.built(model, self._float32_sets[0], calibration, cell=cell) as compiled:
                yield compiled
            return
        model, around = self._module, contextlib.ExitStack()
        if kept and not self._quantised:
            with outside_inference_mode():  # the model as it is, which may run as it stands, is measured beside it
                model = copy.deepcopy(self._module)
            around.enter_context(InFloat32(model, self._exact, kept, self._dtype))
        changes = {"kept_in_float32": tuple(kept)}
        with around, self._builder.built(model, self._sets[0], calibration, **changes) as compiled:
            yield compiled

    def _contest(self, built: dict[str, tuple[Compiled, tuple[Inputs, ...]]]) -> dict[str, list[Burst]]:
        """Return the bursts of each variant, one in each round."""
        clock = self._worker.clock
        bursts: dict[str, list[Burst]] = {name: [] for name in built}
        with self._worker.phases.announced(
            f"build {self._builder.builds} was the last: {len(built)} variants are measured in turns"
        ):
            for compiled, sets in built.values():
                sampling.burst(compiled, sets, clock, WARM_UP_S, MIN_BURST_CALLS)
            for number, name in turns(list(built), CONTEST_S, MIN_ROUNDS, MAX_ROUNDS):
                started_s = time.monotonic() - self._begun_s
                calls_ns = sampling.burst(*built[name], clock, BURST_S, MIN_BURST_CALLS)
                bursts[name].append(Burst(group=0, round=number, started_s=started_s, samples_ns=calls_ns))
        return bursts


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Make tensors that torch.export takes, also while another build is alive in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class InFloat32(contextlib.AbstractContextManager["InFloat32"]):
    """Inside this block some modules of a model in 16 bits compute in float32, with their own weights.

    Their inputs are cast before each call, and their outputs after it. The module tree stays as it is.
    """

    def __init__(
        self, module: torch.nn.Module, exact: torch.nn.Module, paths: Sequence[str], dtype: torch.dtype
    ) -> None:
        """`exact` is the same model with its own weights, and `dtype` the type of what is not kept."""
        self._module, self._exact, self._paths, self._dtype = module, exact, paths, dtype
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> InFloat32:
        for path in self._paths:
            kept = self._module.get_submodule(path)
            with outside_inference_mode():
                for name, child in kept.named_modules():
                    self._widen(child, self._exact.get_submodule(f"{path}.{name}".strip(".")))
            before = kept.register_forward_pre_hook(cast_inputs, with_kwargs=True)
            after = kept.register_forward_hook(self._cast_back)
            self._undo.callback(before.remove)
            self._undo.callback(after.remove)
        return self

    def _cast_back(self, module: torch.nn.Module, args: Any, outputs: Any) -> Any:
        """Cast what a module in float32 returns to the type of its surroundings."""
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(self._dtype) if tensor.dtype is torch.float32 else tensor, outputs
        )

    def _widen(self, child: torch.nn.Module, exact: torch.nn.Module) -> None:
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (child._parameters, exact._parameters),
            (child._buffers, exact._buffers),
        ]
        for tensors, own in pairs:
            for key, tensor in list(tensors.items()):
                value = own.get(key)
                if tensor is not None and value is not None and tensor.is_floating_point():
                    wide = to_float32(value.detach())
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    self._undo.callback(tensors.__setitem__, key, tensor)
                    tensors[key] = torch.nn.Parameter(wide, requires_grad=False) if is_weight else wide

    def __exit__(self, *_: object) -> None:
        self._undo.close()


def cast_inputs(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """Cast what a module in float32 gets."""
    return pytree.tree_map_only(torch.Tensor, to_float32, (args, kwargs))


def is_narrow(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def to_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if is_narrow(tensor) or tensor.dtype is torch.float64 else tensor


def sortable(error: float | None) -> float:
    """Return an error as a number to sort by. One that is not finite is the largest, and none at all the smallest."""
    if error is None:
        return -1.0
    return error if error == error else float("inf")


def worst(errors: Iterator[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return max(known, key=sortable, default=None)


def with_latencies(variants: Sequence[Variant], bursts: Mapping[str, Sequence[Burst]]) -> list[Variant]:
    """Return the variants with their fitted latencies, and the ratios to the model as it is."""
    fitted = fit({name: series_of(of_variant) for name, of_variant in bursts.items()})

    def judged(variant: Variant) -> Variant:
        if variant.name not in fitted.latency_ms:
            return variant
        update: dict[str, object] = {
            "latency_ms": fitted.latency_ms[variant.name],
            "rounds": len(bursts[variant.name]),
        }
        if AS_IT_IS in fitted.latency_ms and variant.name != AS_IT_IS:
            ratio = fitted.ratio(AS_IT_IS, variant.name)
            update |= {"ratio": ratio.value, "ratio_ci95": ratio.ci95 and (ratio.ci95.low, ratio.ci95.high)}
        return variant.model_copy(update=update)

    return list(map(judged, variants))
