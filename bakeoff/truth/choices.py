"""Recognises indices that choose: of equal values, a top-k, a sort or an argmax may take any.

While eager computes the reference, `ChoiceWatch` notes which of the outputs are indices, and what they chose from.
Where the indices of a build differ, the values that they choose are compared in their place (`accuracy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bakeoff.backends.calling import Returned, returned_by_call
from bakeoff.backends.plain_dispatch import OperatorWatch
from bakeoff.models.base import Inputs
from bakeoff.truth.moved_clock import begin_call

aten = torch.ops.aten

MAX_SOURCE_ELEMENTS = 2**22
"""Indices into more values are compared as they are, since all of these values would have to be kept."""


@dataclass(frozen=True)
class Choice:
    """What indices chose from: rows of values, and for each index the row that it is for."""

    source: torch.Tensor  # (rows, length)
    rows: torch.Tensor  # of the shape of the indices

    def values(self, indices: torch.Tensor, reference: torch.Tensor) -> torch.Tensor | None:
        """Return the values that the indices choose, or None if they choose none, or one of them twice."""
        length = self.source.shape[1]
        indices = indices.to(self.source.device, torch.int64)
        if indices.numel() and not bool(((indices >= 0) & (indices < length)).all()):
            return None
        places, expected = (self.rows * length + chosen.to(self.rows.device) for chosen in (indices, reference))
        # The reference's are distinct in each row if the model's operator is one that gives such indices.
        if len(torch.unique(places)) < len(torch.unique(expected)) == expected.numel():
            return None
        return self.source.flatten()[places.flatten()]


class ChoiceWatch(OperatorWatch):
    """Inside this block, operators that choose are noted with what they chose from."""

    def __init__(self) -> None:
        super().__init__()
        # by the address of the indices' memory; the indices are kept, so that nothing else gets this address
        self._noted: dict[int, tuple[torch.Tensor, Choice]] = {}

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        operator = func.overloadpacket
        if operator in CHOOSING:
            self._note(operator, func, args, kwargs, found)
        elif operator in MOVING and isinstance(found, torch.Tensor) and (choice := self._choice_of(args[0])):
            rows = choice.rows if operator in COPYING else func(choice.rows, *args[1:], **kwargs)
            self._keep(found, Choice(choice.source, rows))
        return found

    def of(self, outputs: Returned) -> dict[str, Choice]:
        pairs = zip(outputs.places, outputs, strict=True)
        return {place: choice for place, tensor in pairs if (choice := self._choice_of(tensor)) is not None}

    def _note(self, operator: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        given = {argument.name: argument.default_value for argument in func._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        if isinstance(found, torch.Tensor) and operator not in ONLY_INDICES:
            return  # the largest of all values, or of two tensors
        source, indices = given["self"], found if isinstance(found, torch.Tensor) else found[1]
        if given.get("stable") or not source.dim() or not source.numel() or source.numel() > MAX_SOURCE_ELEMENTS:
            return
        if operator in POOLING:  # over all positions of an image
            source = source.flatten(-2 if operator in POOLING_IN_2D else -3)
        dimension = given.get("dim", -1)
        if dimension is None:
            source, dimension = source.flatten(), 0
        moved = source.movedim(dimension, -1)
        rows = torch.arange(moved[..., 0].numel(), device=source.device).view(moved.shape[:-1])
        if operator in POOLING:
            rows = rows.view(*rows.shape, *[1] * (indices.dim() - rows.dim()))
        elif indices.dim() > rows.dim():
            rows = rows.unsqueeze(dimension)
        if rows.dim() != indices.dim():
            return
        self._keep(indices, Choice(moved.reshape(-1, moved.shape[-1]).clone(), rows.expand(indices.shape)))

    def _keep(self, indices: torch.Tensor, choice: Choice) -> None:
        if indices.shape == choice.rows.shape and not indices.is_floating_point():
            self._noted[indices.untyped_storage().data_ptr()] = indices, choice

    def _choice_of(self, tensor: Any) -> Choice | None:
        """Return what a tensor chose from, if it is or views indices that were noted."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        indices, choice = self._noted.get(tensor.untyped_storage().data_ptr(), (None, None))
        if indices is None or choice is None or tensor.dtype != indices.dtype:
            return None
        rows = torch.empty_strided(indices.shape, indices.stride(), dtype=torch.int64, device=indices.device)
        rows.copy_(choice.rows)
        begin = tensor.storage_offset() - indices.storage_offset()
        return Choice(choice.source, rows.as_strided(tensor.shape, tensor.stride(), begin))


POOLING_IN_2D = frozenset({aten.max_pool2d_with_indices, aten.adaptive_max_pool2d})
POOLING = POOLING_IN_2D | {aten.max_pool3d_with_indices, aten.adaptive_max_pool3d}
ONLY_INDICES = frozenset({aten.argsort, aten.argmax, aten.argmin})
CHOOSING = (POOLING | ONLY_INDICES) | {
    aten.topk,
    aten.sort,
    aten.max,
    aten.min,
    aten.median,
    aten.nanmedian,
    aten.kthvalue,
    aten.mode,
}
COPYING = frozenset({aten.to, aten._to_copy, aten.clone, aten.contiguous})
MOVING = COPYING | {aten.flip, aten.roll, aten.index_select, aten.gather, aten.index, aten.reshape, aten.repeat}
"""Operators that copy indices without changing them."""


def watched_call(module: Any, inputs: Inputs) -> Returned:
    begin_call()
    with ChoiceWatch() as watch:
        outputs = returned_by_call(inputs.call(module))
    outputs.choices = watch.of(outputs)
    return outputs


def returns_whole_numbers(outputs: Sequence[torch.Tensor]) -> bool:
    """Return True if there are indices among the outputs, perhaps."""
    return any(not (one.is_floating_point() or one.is_complex()) and one.dtype is not torch.bool for one in outputs)
