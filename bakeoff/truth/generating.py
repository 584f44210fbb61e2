"""Whole generations: a decode step is called for each token in turn, and its tokens are compared with eager's."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from bakeoff.backends.base import Compiled, Settings, Wrapped
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, Cell, Generated

Call = Callable[[Inputs], Sequence["torch.Tensor"]]


@dataclass(frozen=True)
class Greedy:
    """The tokens that were the most likely ones, for each sequence, and the distance of each to the next likely."""

    tokens: list[list[int]]
    margins: list[list[float]]
    precision: Precision


class WithCaches(Wrapped):
    """A decode step whose outputs are always the logits and all caches, also where it writes into its inputs. Caches
    that all sets share have one empty row, at the first set's position, which `restore` empties again."""

    def __init__(self, inner: Compiled, sets: Sequence[Inputs]) -> None:
        super().__init__(inner)
        self._rows = _empty_rows(sets)
        self._caches: Sequence[torch.Tensor] = ()
        self._writes_in_place = False

    def bind(self, inputs: Inputs) -> None:
        self._caches = inputs.args[2:]
        self._inner.bind(inputs)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        logits, *caches = self._inner.outputs()
        self._writes_in_place = not caches
        return (logits, *caches) if caches else (logits, *(cache.clone() for cache in self._caches))

    def restore(self) -> None:
        super().restore()
        for row in self._rows:
            row.zero_()

    def settings(self) -> Settings:
        return {"caches": "in place" if self._writes_in_place else "copied", **super().settings()}


def _empty_rows(sets: Sequence[Inputs]) -> list[torch.Tensor]:
    """Return the row at the first set's position of each cache that all sets share: it is empty at the start."""
    first, second = sets[0].args, sets[1].args
    is_shared = first[2].data_ptr() == second[2].data_ptr()
    return [cache[:, :, int(first[1])] for cache in first[2:]] if is_shared else []


def steps_in_place(call: Call, sets: Sequence[Inputs]) -> Iterator[Sequence[torch.Tensor]]:
    """Yield the outputs of a decode step for each set, with caches in which steps have written at all positions. The
    caches are copies, shared by the sets as those given are."""
    sets = copy.deepcopy(tuple(sets))
    empty = _empty_rows(sets)
    # A build that writes in place leaves its own rows there, which the other sets then show.
    for is_shown in (False, True):
        for inputs in sets:
            for row in empty:
                row.zero_()
            outputs = call(inputs)
            for cache, new in zip(inputs.args[2:], outputs[1:], strict=True):
                cache.copy_(new)
            if is_shown:
                yield outputs


def generate(call: Call, sets: Sequence[Inputs], cell: Cell) -> Greedy | None:
    """Return the tokens of `call`, or None for another task. A prefill gives the first token of each prompt. A decode
    step goes on greedily from the last set, whose tensors are restored afterwards."""
    if cell.task == PREFILL:
        return _greedy([call(one)[0] for one in sets], cell.precision, is_first=True)
    if cell.task != DECODE:
        return None
    start, logits = sets[-1], []
    kept = [tensor.clone() for tensor in start.args]
    try:
        token, position, *caches = start.args
        for _ in range(int(cell.dimensions["new_tokens"]) - 1):
            found, *updated = call(start)
            logits.append(found)
            token.copy_(found.argmax(-1, keepdim=True))
            position.add_(1)
            for cache, new in zip(caches, updated, strict=True):
                cache.copy_(new)
    finally:
        for tensor, before in zip(start.args, kept, strict=True):
            tensor.copy_(before)
    return _greedy(logits, cell.precision)


def _greedy(logits: Sequence[torch.Tensor], precision: Precision, is_first: bool = False) -> Greedy:
    """Return the tokens of (sequences, vocabulary) at each step, or of sets of sequences if `is_first`."""
    stacked = torch.cat([logit[None] for logit in logits], dim=0)  # (steps, sequences, vocabulary)
    stacked = stacked.flatten(0, 1)[:, None] if is_first else stacked.transpose(0, 1)
    best = stacked.float().topk(2)
    margins = (best.values[..., 0] - best.values[..., 1]).tolist()
    return Greedy(best.indices[..., 0].tolist(), margins, precision)


def compare(ours: Greedy, eager: Greedy, first: Greedy | None = None) -> Generated:
    """Return how many tokens of every sequence agree with eager's, and how near eager was to another one then. `first`
    has eager's tokens in the first precision of a contest across several."""
    agreed, margin = len(eager.tokens[0]), None
    for mine, theirs, margins in zip(ours.tokens, eager.tokens, eager.margins, strict=True):
        place = next((place for place, pair in enumerate(zip(mine, theirs, strict=True)) if len(set(pair)) > 1), None)
        if place is not None and (place < agreed or margin is None):
            agreed, margin = place, margins[place]
    return Generated(
        tokens=len(eager.tokens[0]),
        sequences=len(eager.tokens),
        agreed=agreed,
        margin=margin,
        usual_margin=statistics.median(margin for margins in eager.margins for margin in margins),
        first=first.precision if first else None,
        agreed_with_first=compare(ours, first).agreed if first else None,
    )
