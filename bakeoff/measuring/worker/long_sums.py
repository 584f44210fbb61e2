"""Finds the longest sum that a call makes, since the rounding of a sum grows with the root of its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.measuring.worker.plain_dispatch import keep_compiler_out

aten = torch.ops.aten

SUMS = frozenset(
    {aten.sum, aten.mean, aten.var, aten.var_mean, aten.std, aten.std_mean, aten.linalg_vector_norm, aten.logsumexp}
    | {aten.nll_loss_forward, aten.mse_loss}
)
"""Operators that add values up. Products of matrices are left out: libraries add their terms up in blocks."""

RUNNING = frozenset({aten.cumsum, aten.cumprod, aten.logcumsumexp})


class LongestSum(TorchDispatchMode):
    """Notes how many values the longest sum of the calls inside this block adds up."""

    def __init__(self) -> None:
        super().__init__()
        keep_compiler_out(LongestSum)
        self.length = 1

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in SUMS:
            result = found[0] if isinstance(found, tuple) else found
            self.length = max(self.length, args[0].numel() // max(1, result.numel()))
        elif func.overloadpacket in RUNNING and args[0].dim():
            self.length = max(self.length, args[0].shape[args[1]])
        return found
