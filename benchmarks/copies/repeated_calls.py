"""Eager that runs the model several times in a call, as plug-in backends: pairs of builds whose ratio is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bakeoff.backends.base import DEFAULT, BuildContext, Compiled, Mode, Wrapped
from bakeoff.backends.eager import Eager

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Inputs

TIMES = (1, 2, 3, 4, 5, 20, 21)


class Repeated(Eager):
    name = "repeated"
    description = "eager that runs the model several times in a call, for checks of the harness"
    modes: ClassVar[tuple[Mode, ...]] = (Eager.modes[0], *(Mode(f"x{times}", {"times": times}) for times in TIMES))

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        times = self.mode(context.cell.mode).options.get("times", 1)
        plain = replace(context, cell=context.cell.model_copy(update={"mode": DEFAULT}))
        assert isinstance(times, int)
        return Times(super().build(module, inputs, plain), times)


class RepeatedAgain(Repeated):
    name = "repeated-again"


class Times(Wrapped):
    """Runs what it wraps several times in each call."""

    def __init__(self, inner: Compiled, times: int) -> None:
        super().__init__(inner)
        self._times = times

    def instance(self) -> Compiled:
        return Times(self._inner.instance(), self._times)

    def run(self) -> None:
        for _ in range(self._times):
            self._inner.run()
