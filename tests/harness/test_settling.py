"""What goes on choosing while it answers calls: how long it is called for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from backends.base import Compiled, Wrapped
from harness.worker import sampling
from harness.worker.clock import Clock
from models.base import Inputs
from records.device import CPU
from records.schema import Phase

MS = 1_000_000
SETS = [Inputs((index,)) for index in range(4)]
CLOCK = Clock(CPU)


@dataclass
class Choosing(Compiled):
    """Two milliseconds a call until it has chosen, then one; under a clock that only its calls move."""

    chooses_at_call: int
    now_ns: int = 0
    calls: int = 0
    restored: int = 0
    was_told: bool = False

    def bind(self, inputs: Inputs) -> None: ...

    def run(self) -> None:
        self.now_ns += (1 if self.is_final() else 2) * MS
        self.calls += 1

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return ()

    def restore(self) -> None:
        self.restored += 1

    def is_final(self) -> bool:
        return self.was_told or self.calls >= self.chooses_at_call

    def finalise(self) -> None:
        self.was_told = True


def settle(compiled: Choosing, monkeypatch: pytest.MonkeyPatch, limit_s: float = 180.0) -> Phase | None:
    monkeypatch.setattr(CLOCK, "now_ns", lambda: compiled.now_ns)
    return sampling.call_until_final(compiled, SETS, CLOCK, limit_s)


def test_it_is_called_until_it_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Choosing(chooses_at_call=1000)
    found = settle(compiled, monkeypatch)
    assert found is not None and found.calls == compiled.calls
    # in windows of half a second, of which the last one may go on after its choice
    assert 1000 <= found.calls < 1500
    assert found.seconds == pytest.approx(2.0 + (found.calls - 1000) / 1e3)
    assert not compiled.was_told and compiled.restored >= 4, "training begins anew with each window"


def test_it_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Choosing(chooses_at_call=10**9)
    found = settle(compiled, monkeypatch, limit_s=3.0)
    assert found is not None and found.seconds == pytest.approx(3.0)
    assert compiled.was_told


def test_what_has_nothing_to_choose_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Choosing(chooses_at_call=0)
    assert settle(compiled, monkeypatch) is None and compiled.calls == 0


def test_a_wrapper_answers_for_what_it_wraps() -> None:
    inner = Choosing(chooses_at_call=10)
    wrapper = Wrapped(inner)
    assert not wrapper.is_final()
    wrapper.finalise()
    assert wrapper.is_final() and inner.was_told
