"""Eager that is slower by a known share of each call, as plug-in backends. Checks of the harness must find them out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from bakeoff.backends.base import BuildContext, Compiled, Wrapped
from bakeoff.backends.eager import Eager

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Inputs


class EagerSlowedBy3Percent(Eager):
    name = "eager-3-percent-slower"
    description = "eager whose calls are 3 % longer, for checks of the harness"
    colour = "#b0b0b0"
    slower_by: ClassVar[float] = 0.03

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        return Slowed(super().build(module, inputs, context), self.slower_by)


class EagerSlowedBy5Percent(EagerSlowedBy3Percent):
    name = "eager-5-percent-slower"
    description = "eager whose calls are 5 % longer, for checks of the harness"
    slower_by = 0.05


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
