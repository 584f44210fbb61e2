"""Finds out whether a model keeps what it has answered, by the operators of a call with inputs that it has seen.

Calls that are timed get the same few input sets again and again. A model that looks its answers up then seems faster
than it is for new inputs, wherever the answers are kept: in an attribute, in a global variable, or in `lru_cache`.
"""

import traceback
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.measuring.worker.plain_dispatch import keep_compiler_out
from bakeoff.measuring.worker.understanding import AlikeCalls, call, changed_tensor, copied
from bakeoff.models.base import Inputs
from bakeoff.records.traits import Recall

CHANGE = 2**-6
"""New real numbers are larger by this share, so that a model is unlikely to decide otherwise for them."""


class OperatorCount(TorchDispatchMode):
    """Counts the operators of torch that run inside the block."""

    def __init__(self) -> None:
        super().__init__()
        keep_compiler_out(OperatorCount)
        self.operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


def recall_of(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> Recall | None:
    """Return how many operators a call takes for new values, and for these again, if that is fewer.

    The model was called with such sizes before, so that tables for a size are no difference.
    """
    for change_whole in (_flipped, _as_it_is):
        new = copied(inputs.map(partial(changed_tensor, _enlarged, change_whole)))
        try:
            first, again = _operators(module, new, calls), _operators(module, new, calls)
            # a third call shows that it is not only one call in two that does less
            is_kept = again < first and _operators(module, new, calls) < first
        except Exception:  # changed inputs may make no sense to a model
            traceback.print_exc()
        else:
            return Recall(operators=first, again=again) if is_kept else None
    return None


def _operators(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> int:
    if calls.traits.is_random:
        calls.begin()  # with the same numbers
    with OperatorCount() as count:
        call(module, calls.given(inputs))
    operators: int = count.operators
    return operators


def _enlarged(real: torch.Tensor) -> torch.Tensor:
    return real * (1 + CHANGE)


def _flipped(whole: torch.Tensor) -> torch.Tensor:
    return whole.flip(tuple(range(whole.dim())))


def _as_it_is(whole: torch.Tensor) -> torch.Tensor:
    return whole
