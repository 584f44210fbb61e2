"""A compiler that compiles nothing, ends when it is told to, and makes what a test wants it to make."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from hotpath.compiling import Call, Outcome
from hotpath.flattening import Flat, Weights

Tensors = list[torch.Tensor]
FAST_S, SLOW_S = 0.0, 0.02


class Slowly(torch.nn.Module):
    """Doubles its input and adds its weight, in two milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self._count = SimpleNamespace(calls=0)

    @property
    def calls(self) -> int:
        """Counted beside the module: one whose forward changes its own attributes is not compiled."""
        calls: int = self._count.calls
        return calls

    @calls.setter
    def calls(self, calls: int) -> None:
        self._count.calls = calls

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.002)
        return 2 * rows + self.weight


class FakeJob:
    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.was_cancelled = False

    @property
    def has_ended(self) -> bool:
        return self.outcome is not None or self.was_cancelled

    def poll(self) -> Outcome | None:
        return self.outcome

    def cancel(self) -> None:
        self.was_cancelled = True


class FakeCompiler:
    """`made` is what its compiled version does instead of calling the module; `latency_s` is what that takes."""

    def __init__(self, latency_s: float = FAST_S, made: Callable[[Tensors], Tensors] | None = None) -> None:
        self.latency_s = latency_s
        self.started: list[Call] = []
        self.jobs: list[FakeJob] = []
        self.loaded: list[Path] = []
        self.compiled_calls = 0
        self._made = made

    def is_free(self) -> bool:
        return not self.jobs or self.jobs[-1].has_ended

    def start(self, call: Call, folder: Path) -> FakeJob:
        self.started.append(call)
        folder.mkdir(parents=True)
        self.jobs.append(FakeJob())
        return self.jobs[-1]

    def end(self, outcome: Outcome | None = None) -> None:
        """The latest compilation ends, well unless told otherwise."""
        self.jobs[-1].outcome = outcome or Outcome("", compile_s=0.05, load_s=0.0)

    def load(self, folder: Path, tensors: Tensors) -> Callable[[Tensors], Tensors]:
        self.loaded.append(folder)

        def run(given: Tensors) -> Tensors:
            self.compiled_calls += 1
            time.sleep(self.latency_s)
            return self._made(given) if self._made else [2 * given[1] + given[0]]

        return run


def flat_of(module: torch.nn.Module, *args: torch.Tensor) -> tuple[Flat, Tensors]:
    """`module` as a function of flat tensors, and those of a call."""
    weights = Weights(module)
    current = weights.current()
    assert current is not None
    return Flat(module, weights.names, args, {}), [*current, *args]
