"""Streams: inputs of several sizes of one dimension, which take turns within a call, such as `seq=stream:16:512`.

Every model has them. Its inputs are made at eight sizes from the lowest to the highest, and its weights at the highest.
"""

from collections.abc import Iterable
from dataclasses import replace

from bakeoff.models.base import Inputs, LoadedModel, Sizes, ends_of_stream, of_each_shape
from bakeoff.records.errors import UsageError

SIZES = 8
"""Number of sizes in a stream."""


def each_size(dimensions: Sizes) -> list[dict[str, int | str]]:
    """Return the dimensions of each call of a stream, or those given where none of them is a stream. Several streams go
    through their sizes together."""
    spans = {name: ends for name, value in dimensions.items() if (ends := ends_of_stream(value))}
    if not spans:
        return [dict(dimensions)]
    return [
        {**dimensions, **dict(zip(spans, sizes, strict=True))}
        for sizes in zip(*(sizes_between(*span) for span in spans.values()), strict=True)
    ]


def sizes_between(low: int, high: int) -> list[int]:
    """Return eight sizes from `low` to `high`. They are unordered, and few are multiples of a power of two."""
    between = [low + (high - low) * place // (SIZES - 1) - (place * 5) % 3 for place in range(1, SIZES - 1)]
    rising = [low, *(max(low, size) for size in between), high]
    return [rising[(3 * place) % SIZES] for place in range(SIZES)]


def join_streams(models: Iterable[LoadedModel], name: str) -> LoadedModel:
    """Return the model with the largest inputs, and an input set of each model; only the largest one is kept in memory.
    Raise UsageError if the weights change with the size, or no input does."""
    largest: LoadedModel | None = None
    inputs: list[Inputs] = []
    works: list[tuple[int, int]] = []
    shapes, spared_bytes = None, 0
    for model in models:
        own = {key: tuple(weight.shape) for key, weight in model.module.state_dict().items()}
        shapes = own if shapes is None else shapes
        if own != shapes:
            raise UsageError(f"the weights of {name} change with the size of a stream, and a model has one set of them")
        inputs.append(model.inputs[0])
        works += [model.work] if model.work else []
        spared_bytes += model.spared_bytes
        largest = model if largest is None or _elements(model) > _elements(largest) else largest
    if largest is None or len(of_each_shape(inputs)) < 2:
        raise UsageError(f"no input of {name} changes its shape with the size of a stream")
    work = (sum(flops for flops, _ in works), sum(moved for _, moved in works)) if works else None
    return replace(largest, inputs=tuple(inputs), spared_bytes=spared_bytes, work=work, bolder_inputs=None)


def _elements(model: LoadedModel) -> int:
    return sum(tensor.numel() for tensor in model.inputs[0].tensors())
