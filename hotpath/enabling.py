"""Hot path detection for a model: one call, and the loop that uses the model stays as it is. Imports torch."""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from hotpath.compiling import Compiler, InductorBeside
from hotpath.detector import HotPathDetector, Shapes
from hotpath.knowledge import Knowledge, default_folder
from hotpath.switch import Policy, Stage, Switch


def enable_hot_path_detection(
    model: torch.nn.Module,
    hot_threshold: int = 10,
    *,
    modules: Sequence[str] | None = None,
    shapes: Shapes = "exact",
    watch_share: float = 0.03,
    cache: Path | None = None,
    compiler: Compiler | None = None,
) -> HotPaths:
    """Have `model` compiled where it is hot, while it is used as before, for inference or in a training loop.

    `modules` names parts of the model by patterns (`"layers.*"`): each is then followed and compiled on its own, and
    equal ones share what was compiled. By default the whole model is one. `hot_threshold` iterations at least are made
    before anything is compiled; whether it pays is decided by measured times. `watch_share` bounds what recording may
    cost, as a share of the time of the calls. What is learned is kept in `cache`, by default the user's folder for
    caches. `compiler` compiles; by default Inductor, in a process of its own.

    Raises ValueError where no part of the model has a name that matches.
    """
    policy = Policy(
        HotPathDetector(hot_threshold, shapes),
        compiler or InductorBeside(),
        Knowledge(cache or default_folder()),
        watch_share,
        functools.partial(has_spare_cores, model),
    )
    return HotPaths([Switch(part, name, policy) for name, part in _parts(model, modules)])


@dataclass(frozen=True)
class PathReport:
    """Where one kind of call of one module stands. Times in seconds, of one call; None is what is not known."""

    module: str
    stage: str
    runs: str  # "eager" or "compiled"
    reason: str
    is_training: bool
    signature: str | None
    eager_s: float | None
    compiled_s: float | None
    compile_s: float | None
    load_s: float | None
    burden: float | None  # share of compile_s by which it delayed the calls beside it
    watched_calls: int
    watching_s: float
    switched_at_call: int | None
    has_failed: bool  # eager because it could not be compiled, and not because that is faster

    def __str__(self) -> str:
        return f"{self.module or 'the model'}{' (training)' if self.is_training else ''}: {self.runs}; {self.reason}"


class HotPaths:
    """What `enable_hot_path_detection` has set up. A context manager: leaving it restores the model."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self._switches = switches

    @property
    def is_settled(self) -> bool:
        """Whether every kind of call met so far has its final version."""
        return all(switch.is_settled for switch in self._switches)

    @property
    def compilations(self) -> int:
        """Started so far, or taken over from an earlier run."""
        return sum(switch.compilations for switch in self._switches)

    def settle(self) -> None:
        """Stay with what runs now, and call off what is being compiled."""
        for switch in self._switches:
            switch.settle()

    def report(self) -> list[PathReport]:
        """Where each kind of call stands, and why."""
        return [
            PathReport(
                module=switch.name,
                stage=str(path.stage),
                runs="compiled"
                if path.runs_compiled
                else "eager and compiled"
                if path.stage is Stage.TRIAL
                else "eager",
                reason=path.reason,
                is_training=path.is_training,
                signature=path.signature,
                eager_s=path.eager_s,
                compiled_s=path.compiled.median_s or (path.outcome.compiled_s if path.outcome else None),
                compile_s=path.outcome.compile_s if path.outcome else None,
                load_s=path.load_s,
                burden=path.burden,
                watched_calls=path.budget.watched,
                watching_s=path.budget.extra_s,
                switched_at_call=path.switched_at_call,
                has_failed=path.has_failed,
            )
            for switch in self._switches
            for path in list(switch.paths.values())
        ]

    def close(self) -> None:
        for switch in self._switches:
            switch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def has_spare_cores(model: torch.nn.Module) -> bool:
    """Whether a compiler can run beside the model, and what else the machine does, without taking a core from it.

    What others do is told by the load of the last minute, which is that of all cores and not only of those we may use.
    """
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    busy_share = min(1.0, os.getloadavg()[0] / cores) if hasattr(os, "getloadavg") else 0.0
    on_device = any(tensor.is_cuda for tensor in model.parameters())
    wanted = 1 + (1 if on_device else torch.get_num_threads())
    # the calls themselves are part of the load
    return usable >= wanted and usable * (1 - busy_share) >= 1


def _parts(model: torch.nn.Module, patterns: Sequence[str] | None) -> list[tuple[str, torch.nn.Module]]:
    """The parts that `patterns` name, without those inside of another one that they name."""
    if patterns is None:
        return [("", model)]
    found: dict[str, torch.nn.Module] = {}
    for name, part in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and not is_inside and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            found[name] = part
    if not found:
        raise ValueError(f"no part of {type(model).__name__} has a name that matches {', '.join(patterns)}")
    return list(found.items())
