"""Buckets: inputs of several sizes are padded with zeros to the next power of two, so that a compiler sees few shapes.

Some models tolerate padding, such as causal ones and those with an attention mask. For others, the check of outputs
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.errors import Unsupported

Axis = tuple[int, int]
"""An axis of a tensor: the tensor's place among the inputs or outputs, and the number of the axis."""


class Buckets:
    """Pads the axes that differ between input sets, and cuts the outputs to the sizes that the inputs had."""

    def __init__(self, module: Callable[..., object], sets: Sequence[Inputs]) -> None:
        """Call `module` with the smallest and the largest of `sets`. Raises Unsupported if all have one size, or if an
        output changes its size as no input does."""
        from bakeoff.backends.calling import flatten_outputs

        by_size = sorted(sets, key=lambda inputs: sum(tensor.numel() for tensor in inputs.tensors()))
        sizes = [_sizes(inputs.tensors()) for inputs in by_size]
        self._largest = {
            axis: max(shape[axis] for shape in sizes) for axis in sizes[0] if len({shape[axis] for shape in sizes}) > 1
        }
        if not self._largest:
            raise Unsupported("buckets are for inputs of several sizes, as of --set seq=stream:16:512: use inductor")
        small, large = (_sizes(flatten_outputs(inputs.call(module))) for inputs in (by_size[0], by_size[-1]))
        self._cuts = {
            axis: self._follows(axis, size, large.get(axis), sizes[0], sizes[-1])
            for axis, size in small.items()
            if size != large.get(axis)
        }

    def _follows(
        self, axis: Axis, small: int, large: int | None, smallest: dict[Axis, int], largest: dict[Axis, int]
    ) -> Axis:
        """Return the padded axis of an input with the same two sizes as this axis of an output."""
        for padded in self._largest:
            if (smallest[padded], largest[padded]) == (small, large):
                return padded
        place, number = axis
        raise Unsupported(f"padding cannot be cut off axis {number} of output {place}, which has no input's size")

    def around(self, function: Callable[..., object]) -> Callable[..., tuple[torch.Tensor, ...]]:
        from bakeoff.backends.calling import flatten_outputs

        def on_padded(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            inputs = Inputs(args, kwargs)
            tensors = inputs.tensors()
            filled = iter([self._filled(place, tensor) for place, tensor in enumerate(tensors)])
            padded = inputs.map(lambda _: next(filled))
            outputs = list(flatten_outputs(function(*padded.args, **padded.kwargs)))
            for (place, axis), (source, along) in self._cuts.items():
                outputs[place] = outputs[place].narrow(axis, 0, tensors[source].shape[along])
            return tuple(outputs)

        return on_padded

    def _filled(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        padding = [0, 0] * tensor.dim()  # two numbers for each axis, the last one first
        for axis, size in enumerate(tensor.shape):
            if (place, axis) in self._largest:
                bucket = min(1 << (size - 1).bit_length(), self._largest[place, axis])
                padding[2 * (tensor.dim() - 1 - axis) + 1] = bucket - size
        return torch.nn.functional.pad(tensor, padding) if any(padding) else tensor


def _sizes(tensors: Sequence[torch.Tensor]) -> dict[Axis, int]:
    return {(place, axis): size for place, tensor in enumerate(tensors) for axis, size in enumerate(tensor.shape)}
