"""Moves the result of each operator by up to one rounding, at random: Monte Carlo arithmetic (Parker, 1997).

Where an answer is lost to rounding, as in a difference of two large sums, eager may be right by luck. Then its error
says little about that of another order of the same sums. Runs with noise show how far rounding can move the answer.
Stronger noise also finds choices that are close to another one, which a few runs with that of one rounding may miss.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.measuring.worker.plain_dispatch import keep_compiler_out


class RoundingNoise(TorchDispatchMode):
    """Inside this block, new floating-point results are rounded at random. Views and in-place results stay."""

    def __init__(self, seed: int, roundings: float = 1) -> None:
        super().__init__()
        keep_compiler_out(RoundingNoise)
        self._seed, self._roundings = seed, roundings
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(each.alias_info is not None for each in (*func._schema.returns, *func._schema.arguments)):
            return found
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # what is made of no tensor, such as zeros, is exact
        return pytree.tree_map_only(torch.Tensor, self._moved, found) if given else found

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.element_size() < 2:
            return tensor
        if (generator := self._generators.get(tensor.device)) is None:
            generator = torch.Generator(tensor.device).manual_seed(self._seed)
            self._generators[tensor.device] = generator
        by = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
        return torch.addcmul(tensor, tensor, by, value=self._roundings * torch.finfo(tensor.dtype).eps)
