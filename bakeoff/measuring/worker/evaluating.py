"""Calls the user's own `evaluate` with a `predict` that behaves like the model, for a build or for the reference."""

import contextlib
import functools
import inspect
import json
import math
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from bakeoff import models
from bakeoff.backends.base import Compiled
from bakeoff.backends.calling import flatten_outputs
from bakeoff.backends.ranges import OpenAxes, of_tensor
from bakeoff.backends.runtime.contract import TensorSpec
from bakeoff.judging.constraints import QUANTITIES
from bakeoff.measuring.messages import EvaluateReference
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.worker_context import WorkerContext, explain, last_frame_below
from bakeoff.models.base import Around, Inputs, of_each_shape
from bakeoff.models.example_inputs import answer_request
from bakeoff.models.seeding import seeded
from bakeoff.records.call_form import Arguments, maker
from bakeoff.records.errors import BakeoffError, NotServed, UsageError, is_misspelt, unknown
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth.matching import without_numbers
from bakeoff.truth.tensor_content import content

Call = Callable[[Inputs], Sequence["torch.Tensor"]]


class Predict:
    """Calls a build like the model, with tensors of any device and floating-point type. Raises NotServed for inputs
    that it does not serve. Answers lie on the first tensor's device, with float32 in place of narrower types."""

    def __init__(
        self,
        sample: Path,
        call: Call,
        sets: Sequence[Inputs],
        open_axes: OpenAxes = (),
        any_size: bool = False,
        find_stages: Callable[[], Around | None] = lambda: None,
    ) -> None:
        """Take the form of a call from a contest's sample. The `sets` have the sizes and types of the build.
        `find_stages` gives the stages around the model, when they are first needed."""
        self._find_stages = functools.cache(find_stages)
        self._form = form_of(sample)
        self._arguments = Arguments(self._form)
        self._answer = maker(self._form["answer"])
        self._positional = [maker(form) for form in self._form["args"]]
        self._keywords = {name: maker(form) for name, form in self._form["kwargs"].items()}
        self._call = call
        self._any_size = any_size
        self._specs = [specs_of(inputs, self._form["names"], open_axes) for inputs in of_each_shape(sets)]
        self._like = sets[0].tensors()

    @property
    def __signature__(self) -> inspect.Signature:
        return self._arguments.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._arguments.leaves(args, kwargs)
        self._require_served(leaves)
        given = [self._placed(tensor, number) for number, tensor in enumerate(leaves)]
        inputs = Inputs(
            tuple(make(given) for make in self._positional),
            {name: make(given) for name, make in self._keywords.items()},
        )
        return self._answer([like_models(tensor, leaves[0].device) for tensor in self._call(inputs)])

    def end_to_end(self, raw: Any) -> Any:
        """Return what `after` makes of the build's answer to what `before` makes of this raw example. Raise UsageError
        where there are no such stages."""
        stages = self._find_stages()
        if stages is None:
            raise UsageError("predict.end_to_end needs before() or after() around the model: call predict")
        return answer_request(stages, self, raw)

    def _require_served(self, leaves: Sequence[Any]) -> None:
        for name, leaf in zip(self._form["names"], leaves, strict=True):
            if not isinstance(leaf, torch.Tensor):
                raise NotServed(f"evaluate gave predict a {type(leaf).__name__} as '{name}': give a tensor")
        if self._any_size or any(serve(specs, leaves) for specs in self._specs):
            return
        pairs = zip(self._specs[0], leaves, strict=True)
        spec, leaf = next((spec, leaf) for spec, leaf in pairs if not spec.serves(tuple(leaf.shape)))
        raise NotServed(
            f"evaluate gave predict '{spec.name}' as {sizes(leaf.shape)}, and the build serves {spec.served}: "
            "pad it, or build for that size"
        )

    def _placed(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        like = self._like[number]
        if tensor.is_floating_point() != like.is_floating_point() and tensor.dtype is not like.dtype:
            raise NotServed(f"evaluate gave predict {tensor.dtype} for '{self._form['names'][number]}' of {like.dtype}")
        return tensor.detach().to(like.device, like.dtype)


def form_of(sample: Path) -> dict[str, Any]:
    if not sample.exists():
        raise BakeoffError("evaluate is for inference alone, in one size")
    with numpy.load(sample) as arrays:
        form: dict[str, Any] = json.loads(str(arrays["facts"]))["call"]
    if unknown := form.get("unknown") or form["answer"].get("unknown"):
        raise BakeoffError(f"no call like the model's can be made: {unknown}")
    return form


def specs_of(inputs: Inputs, names: Sequence[str], open_axes: OpenAxes) -> tuple[TensorSpec, ...]:
    tensors = inputs.tensors()
    return tuple(
        TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            {axis: (span.low, span.high) for axis, span in of_tensor(open_axes, number).items()},
        )
        for number, (name, tensor) in enumerate(zip(names, tensors, strict=True))
    )


def serve(specs: Sequence[TensorSpec], leaves: Sequence[torch.Tensor]) -> bool:
    return all(spec.serves(tuple(leaf.shape)) for spec, leaf in zip(specs, leaves, strict=True))


def sizes(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def like_models(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    is_narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.to(device, torch.float32) if is_narrow else tensor.to(device)


def of_build(worker: WorkerContext, compiled: Compiled, sets: Sequence[Inputs]) -> Metrics:
    job = worker.job
    assert job.evaluation is not None, "the controller asks only where there is an `evaluate`"

    def call(inputs: Inputs) -> Sequence[torch.Tensor]:
        compiled.restore()
        compiled.bind(worker.calls.given(inputs))
        worker.clock.synchronise()
        compiled.run()
        worker.clock.synchronise()
        return without_numbers(compiled.outputs())

    worker.calls.begin()
    sample, axes = job.evaluation.sample, job.open_axes

    def find_stages() -> Around | None:
        """Return the stages, for which a process that has only loaded a build loads the model."""
        return worker.around.stages if worker.around else load(worker.cell, weights_at=job.weights_at).around

    with contextlib.chdir(worker.started_in):  # where the data of `evaluate` may lie
        return evaluated(
            worker.cell, job.evaluation.function, lambda: Predict(sample, call, sets, axes, find_stages=find_stages)
        )


def of_reference(job: EvaluateReference, cwd: Path) -> Metrics:
    """Return the metrics of eager in float32, on the cells' device, whatever precision they have."""
    cell = job.cell
    with torch.no_grad():
        model = load(cell, cwd, job.weights_at)
        precision.apply(Precision.FP32)
        clock = Clock(cell.device)
        module, sets = move_to_device(model, cell, torch.float32)

        calibrating = {row for inputs in model.calibration for row in rows_of(inputs)}
        judged: set[bytes] = set()

        def call(inputs: Inputs) -> Sequence[torch.Tensor]:
            judged.update(rows_of(inputs) if calibrating else ())
            outputs = flatten_outputs(inputs.call(module))
            clock.synchronise()
            return outputs

        sample = job.evaluation.sample
        metrics = evaluated(
            cell,
            job.evaluation.function,
            lambda: Predict(sample, call, sets, any_size=True, find_stages=lambda: model.around),
        )
        return metrics.but(judged=len(judged), calibrating=len(judged & calibrating))


def rows_of(inputs: Inputs) -> list[bytes]:
    """Return a digest of each sample of a call: of a row of its tensors, or of the whole where their lengths differ."""
    tensors = inputs.tensors()
    lengths = {len(tensor) if tensor.dim() else None for tensor in tensors}
    are_rows = len(lengths) == 1 and None not in lengths
    samples = zip(*(tensor.unbind() for tensor in tensors), strict=True) if are_rows else [tensors]
    return [b"".join(content(part.cpu().contiguous()) for part in sample) for sample in samples]


def evaluated(cell: Cell, name: str, make_predict: Callable[[], Predict]) -> Metrics:
    return metrics_of(lambda: models.find_evaluate(name), make_predict, cell.dimensions, cell.seed)


def metrics_of(
    find_evaluate: Callable[[], Callable[..., object]],
    make_predict: Callable[[], object],
    sizes: Mapping[str, object],
    seed: int,
) -> Metrics:
    """Return what the user's function returns for what is called as `predict`, or why either has failed."""
    begun_s = time.monotonic()
    file = ""
    try:
        predict = make_predict()
        evaluate = find_evaluate()
        file = getattr(getattr(evaluate, "__code__", None), "co_filename", "")
        with all_seeded(seed):
            returned = evaluate(predict, **arguments_of(evaluate, {**sizes, "seed": seed}))
        values = values_of(returned)
        directions = _directions(values, getattr(evaluate, "higher_is_better", {}))
        return Metrics(values=values, higher_is_better=directions, seconds=time.monotonic() - begun_s)
    except Exception as error:  # the user's own code may raise anything
        traceback.print_exc()
        failure = explain(error)[1]
        path = Path(file).resolve() if file else None
        place = last_frame_below(path.parent, error, path) if path and not isinstance(error, BakeoffError) else ""
        return Metrics(failure=failure.but(place=place), seconds=time.monotonic() - begun_s)


@contextlib.contextmanager
def all_seeded(seed: int) -> Iterator[None]:
    """Start the generators of torch, NumPy and Python at `seed` inside the context, and restore them afterwards."""
    before, of_numpy = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(before)
        numpy.random.set_state(of_numpy)


def arguments_of(evaluate: Callable[..., object], available: Mapping[str, object]) -> dict[str, object]:
    """Return what the function takes beside `predict`: sizes of the model, and the seed. Raise UsageError for what it
    needs and the model has not, and for a misspelt size."""
    _, *others = inspect.signature(evaluate).parameters.values()
    needed = [one for one in others if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    unused = available.keys() - {one.name for one in needed}
    for one in needed:
        if one.name not in available and (one.default is one.empty or is_misspelt(one.name, unused)):
            raise unknown("size of the model", one.name, available, "evaluate's other parameters need a default")
    return {parameter.name: available[parameter.name] for parameter in needed if parameter.name in available}


def values_of(returned: object) -> dict[str, Metric]:
    """Return the metrics in what `evaluate` returned: numbers, or a score of each sample. Raise UsageError for anything
    else, and for what is no finite number."""
    if not isinstance(returned, Mapping) or not returned or not all(isinstance(name, str) for name in returned):
        what = "an empty dict" if returned == {} else f"a {type(returned).__name__}"
        raise UsageError(f"evaluate returned {what}: return a dict such as {{'top1': 0.91}}")
    return {name: _metric(name, value) for name, value in returned.items()}


def _directions(values: Mapping[str, Metric], declared: object) -> dict[str, bool]:
    """Return which of the metrics are better if they are higher, as far as `evaluate` declares it."""
    if isinstance(declared, bool):
        return dict.fromkeys(values, declared)
    if not isinstance(declared, Mapping):
        raise UsageError(f"evaluate.higher_is_better is a {type(declared).__name__}: write {{'top1': True}}")
    return {name: bool(declared[name]) for name in values if name in declared}


def _metric(name: str, value: Any) -> Metric:
    if not name.isidentifier():
        raise UsageError(f"evaluate returned a metric '{name}': name it like top1 or f1_macro")
    if name in QUANTITIES:
        raise UsageError(f"evaluate returned '{name}', which Bakeoff measures itself: name it like task_{name}")
    if getattr(value, "ndim", 0) > 1:
        raise UsageError(f"evaluate returned scores of shape {sizes(value.shape)} as {name}: return one axis of them")
    if hasattr(value, "tolist"):  # a tensor, an array, or a number of either
        value = value.detach().cpu().tolist() if hasattr(value, "detach") else value.tolist()
    if isinstance(value, int | float):
        return Metric(value=_finite(name, value))
    scores = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not scores or not all(isinstance(score, int | float) or hasattr(score, "item") for score in scores):
        raise UsageError(f"evaluate returned a {type(value).__name__} as {name}: expected a number or a list of them")
    of = f" for sample {{}} of {len(scores)}"
    numbers = (score.item() if hasattr(score, "item") else score for score in scores)
    return Metric.of_scores([_finite(name, number, of.format(place)) for place, number in enumerate(numbers, 1)])


def _finite(name: str, value: float, place: str = "") -> float:
    if not math.isfinite(value):
        raise UsageError(f"evaluate returned {value} as {name}{place}")
    return float(value)
