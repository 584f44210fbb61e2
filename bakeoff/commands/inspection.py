"""What the parts of a pipeline are, which a user's factory returns with an example call."""

from collections.abc import Mapping, Sequence
from typing import Any

from bakeoff import models
from bakeoff.models.base import Call, Pipeline
from bakeoff.models.example_inputs import answer_request
from bakeoff.models.pipeline_parts import Parts, inspect_parts
from bakeoff.models.user import UserModel
from bakeoff.records.errors import UsageError


def pipeline_of(model: str, sizes: Mapping[str, str], seed: int = 0) -> tuple[Any, Any, str]:
    """Return the pipeline, the example call that a user's factory returns, and the name of the file's own
    `evaluate(predict)`, or "". Of a model with stages around it, a call is a whole request."""
    from torch import nn

    family = models.find(model)
    if not isinstance(family, UserModel):
        raise UsageError(f"{model} is one model: parts are of a pipeline, which FILE.py:FACTORY returns with its call")
    dimensions = family.resolve(sizes)
    returned = family.made(dimensions, seed)
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    model_alone = returned[0] if is_pair else returned
    if isinstance(model_alone, Pipeline) or (family.around and isinstance(model_alone, nn.Module)):
        loaded = family.load(dimensions, seed)
        if around := loaded.around:
            raw = Call(loaded.inputs[0].args, loaded.inputs[0].kwargs) if around.before is None else around.raw
            return loaded.module, lambda module: answer_request(around, module, raw), family.evaluated_by
    if not is_pair:
        kind = type(returned).__name__
        raise UsageError(f"{model} returned a value of type {kind}: expected (pipeline, example call)")
    return returned[0], returned[1], family.evaluated_by


def inspect_model(model: str, sizes: Mapping[str, str], parts: Sequence[str]) -> Parts:
    pipeline, example, _ = pipeline_of(model, sizes)
    return inspect_parts(pipeline, example, parts)
