"""Eager under another name, as fast as eager or slower by a known share. It checks the harness.

Two copies that are equally fast must tie, and a slower copy must be found out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bakeoff.backends.base import BuildContext, Compiled, Mode, Wrapped
from bakeoff.backends.eager import GRAPH, PLAIN, Eager

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Inputs


class EagerAgain(Eager):
    name = "eager-again"
    description = "eager under another name, for checks of the harness"
    modes = (
        PLAIN,
        GRAPH,
        Mode("3-percent-slower", {"slower_by": 0.03}, fast_path=True),
        Mode("5-percent-slower", {"slower_by": 0.05}, fast_path=True),
    )

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        compiled = super().build(module, inputs, context)
        share = self.mode(context.cell.mode).options.get("slower_by")
        return Slowed(compiled, share) if isinstance(share, float) else compiled


class Slowed(Wrapped):
    """Makes each call longer by a share of the host's time, in which it spins. Reading the clock takes another 0.2 µs.

    On a GPU the device's own time stays the same. If the host waits for the device, the call does not get longer.
    """

    def __init__(self, inner: Compiled, share: float) -> None:
        super().__init__(inner)
        self._share = share

    def instance(self) -> Compiled:
        return Slowed(self._inner.instance(), self._share)

    def run(self) -> None:
        begun_ns = time.perf_counter_ns()
        self._inner.run()
        called_ns = time.perf_counter_ns()
        end_ns = called_ns + self._share * (called_ns - begun_ns)
        while time.perf_counter_ns() < end_ns:
            pass
