"""Eager under another name, so that a contest can hold it twice: as fast as the other, or slower by a known share.

Two copies that are equally fast must tie, and one that is slower must be found out: checks of the harness.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from backends import cuda_graph
from backends.base import BuildContext, Compiled, Wrapped
from backends.eager import Eager

if TYPE_CHECKING:
    import torch

    from models.base import Inputs


class EagerAgain(Eager):
    name = "eager-again"
    description = "eager under another name, for checks of the harness"
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "default": {},
        cuda_graph.MODE: {},
        "3-percent-slower": {"slower_by": 0.03},
        "5-percent-slower": {"slower_by": 0.05},
    }

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        compiled = super().build(module, inputs, context)
        share = self.modes[context.cell.mode].get("slower_by")
        return Slowed(compiled, share) if isinstance(share, float) else compiled


class Slowed(Wrapped):
    """Each call takes longer by a share of its own time, in which it spins.

    Of the host's time: on a GPU, what the device takes is not made longer, and nothing is where it keeps the host
    waiting. Reading the clock takes some 0.2 µs more.
    """

    def __init__(self, inner: Compiled, share: float) -> None:
        super().__init__(inner)
        self._share = share

    def run(self) -> None:
        begun_ns = time.perf_counter_ns()
        self._inner.run()
        called_ns = time.perf_counter_ns()
        end_ns = called_ns + self._share * (called_ns - begun_ns)
        while time.perf_counter_ns() < end_ns:
            pass
