"""Finds masks among inputs, such as attention_mask, and takes the values that they hide out of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bakeoff.models.base import Inputs
from bakeoff.truth.calls import Outputs, named_inputs
from bakeoff.truth.matching import combined


def without_hidden(
    answers: Sequence[Outputs], reference: Sequence[Outputs], sets: Sequence[Inputs]
) -> Iterator[tuple[str, list[Outputs]]]:
    """Yield for each mask and each of its values what hides, such as `attention_mask is 0`, and the answers with the
    reference's values there. A mask has a value for each row and place, and logits and caches have these sizes."""
    for name, masks in _masks_of(sets).items():
        for value in (0, 1):
            hidden = [mask == value for mask in masks]
            pairs = list(zip(answers, reference, hidden, strict=True))
            if any(mask.any() for mask in hidden) and all(len(ours) == len(exact) for ours, exact, _ in pairs):
                yield f"{name} is {value}", [_with_reference(*pair) for pair in pairs]


def _masks_of(sets: Sequence[Inputs]) -> dict[str, list[torch.Tensor]]:
    """Return the inputs of two dimensions that hold nothing but 0 and 1, and both of them, by their names."""
    by_name: dict[str, list[torch.Tensor]] = {}
    for inputs in sets:
        keywords = {id(value): name for name, value in inputs.kwargs.items()}
        for name, tensor in named_inputs(inputs).items():
            by_name.setdefault(keywords.get(id(tensor), name), []).append(tensor)
    return {name: masks for name, masks in by_name.items() if len(masks) == len(sets) and _are_masks(masks)}


def _are_masks(tensors: Sequence[torch.Tensor]) -> bool:
    if any(tensor.dim() != 2 or tensor.layout is not torch.strided or tensor.is_complex() for tensor in tensors):
        return False
    zeros, ones = (sum(int((tensor == value).sum()) for tensor in tensors) for value in (0, 1))
    return zeros > 0 < ones and zeros + ones == sum(tensor.numel() for tensor in tensors)


def _with_reference(ours: Outputs, exact: Outputs, hidden: torch.Tensor) -> Outputs:
    def shown(_: str, own: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        rows, places = hidden.shape
        if own.shape != right.shape or own.shape[:1] != (rows,) or places not in own.shape[1:]:
            return own
        sizes = [1] * own.dim()
        sizes[0], sizes[own.shape[1:].index(places) + 1] = rows, places
        return torch.where(hidden.view(sizes).to(own.device), right.to(own), own)

    return combined(ours, exact, shown)
