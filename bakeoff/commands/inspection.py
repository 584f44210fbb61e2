"""What the parts of a pipeline are, which a user's factory returns with an example call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bakeoff import models
from bakeoff.models.pipeline_parts import Parts, inspect_parts
from bakeoff.models.user import UserModel
from bakeoff.records.errors import UsageError


def pipeline_of(model: str, sizes: Mapping[str, str], seed: int = 0) -> tuple[Any, Any, str]:
    """Return the pipeline and the example call that a user's factory returns, in this process.

    The third is the name of the file's `evaluate(predict)`, or empty.
    """
    family = models.find(model)
    if not isinstance(family, UserModel):
        raise UsageError(f"{model} is one model: parts are of a pipeline, which FILE.py:FACTORY returns with its call")
    returned = family.made(family.resolve(sizes), seed)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        kind = type(returned).__name__
        raise UsageError(f"{model} returned a value of type {kind}: expected (pipeline, example call)")
    return returned[0], returned[1], family.evaluated_by


def inspect_model(model: str, sizes: Mapping[str, str], parts: Sequence[str]) -> Parts:
    pipeline, example, _ = pipeline_of(model, sizes)
    return inspect_parts(pipeline, example, parts)
