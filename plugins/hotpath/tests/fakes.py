"""A compiler that compiles nothing: it ends when a test says so, and makes what a test gives it. And small modules."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from bakeoff_hotpath.compiling import Call, Outcome
from bakeoff_hotpath.enabling import HotPaths
from bakeoff_hotpath.flattening import Flat, Weights
from bakeoff_hotpath.knowledge import Knowledge, Learned, Measured

Tensors = list[torch.Tensor]
EAGER_S, SLOW_S = 0.002, 0.02
SETTLE_LIMIT_S = 240
OTHER_PATH = "another path"
DONE = Outcome("", Measured(compile_s=0.05, load_s=0.0))


class Slowly(torch.nn.Module):
    """Doubles its input and adds its weight, in two milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        # beside the module: a module is not compiled if its forward changes its own attributes
        self._count = SimpleNamespace(calls=0)

    @property
    def calls(self) -> int:
        calls: int = self._count.calls
        return calls

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self._count.calls += 1
        time.sleep(EAGER_S)
        return 2 * rows + self.weight


class Pointwise(torch.nn.Module):
    """Many small operators, which Inductor fuses: compiled code is several times as fast on any machine."""

    def __init__(self, features: int = 256) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, features))
        self.shift = torch.nn.Parameter(torch.linspace(-0.5, 0.5, features))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            rows = (torch.tanh(rows * self.scale + self.shift) + rows) / 2  # keeps rounding errors small
        return rows


class FakeJob:
    def __init__(self, folder: Path) -> None:
        self.outcome: Outcome | None = None
        self.was_cancelled = False
        self._folder = folder

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if not outcome.reason:
            self._folder.mkdir(exist_ok=True)

    @property
    def has_ended(self) -> bool:
        return self.outcome is not None or self.was_cancelled

    def poll(self) -> Outcome | None:
        return self.outcome

    def cancel(self) -> None:
        self.was_cancelled = True


class FakeCompiler:
    """`made` stands for its compiled version, with latencies that take turns. The errors are raised where they say."""

    def __init__(
        self,
        *latencies_s: float,
        made: Callable[[Tensors], Tensors] | None = None,
        start_error: Exception | None = None,
        load_error: Exception | None = None,
        own_error: Exception | None = None,
    ) -> None:
        self.started: list[Call] = []
        self.jobs: list[FakeJob] = []
        self.loaded: list[Path] = []
        self.compiled_calls = 0
        self._latencies_s = latencies_s or (0.0,)
        self._made = made or (lambda given: [2 * given[1] + given[0]])
        self._start_error, self._load_error, self._own_error = start_error, load_error, own_error

    @property
    def is_running(self) -> bool:
        return bool(self.jobs) and not self.jobs[-1].has_ended

    def is_free(self) -> bool:
        if self._own_error:
            raise self._own_error
        return not self.is_running

    def start(self, call: Call, folder: Path) -> FakeJob:
        if self._start_error:
            raise self._start_error
        self.started.append(call)
        self.jobs.append(FakeJob(folder))
        return self.jobs[-1]

    def end(self, outcome: Outcome = DONE) -> None:
        """End the latest compilation."""
        self.jobs[-1].end(outcome)

    def load(self, folder: Path, tensors: Tensors) -> Callable[[Tensors], Tensors]:
        self.loaded.append(folder)
        if self._load_error:
            raise self._load_error

        def run(given: Tensors) -> Tensors:
            latency_s = self._latencies_s[self.compiled_calls % len(self._latencies_s)]
            self.compiled_calls += 1
            if latency_s:  # even a sleep of no time gives the core away, on a busy machine for long
                time.sleep(latency_s)
            return self._made(given)

        return run


def make_compiling_cheap(folder: Path) -> Path:
    """Write into `folder` that compiling takes 50 ms here, so that it pays after a few calls. Return `folder`."""
    Knowledge(folder).learn(OTHER_PATH, Learned("eager", "slower", Measured(compile_s=0.05)))
    return folder


def until_compiled(hot: HotPaths, step: Callable[[], object]) -> None:
    """Call `step` until everything is settled, and all of it runs compiled code."""
    end = time.monotonic() + SETTLE_LIMIT_S
    while not hot.is_settled:
        assert time.monotonic() < end, hot.report()
        step()
    assert [report.runs for report in hot.report()] == ["compiled"], hot.report()


def flat_of(module: torch.nn.Module, *args: torch.Tensor) -> tuple[Flat, Tensors]:
    """Return `module` as a function of flat tensors, and those of a call."""
    weights = Weights(module)
    current = weights.current()
    assert current is not None
    return Flat(module, weights.names, args, {}), [*current, *args]
