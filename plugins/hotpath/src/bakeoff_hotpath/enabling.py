"""Hot path detection for a model: one call, and the loop that uses the model stays as it is. Imports torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from bakeoff_hotpath import deciding, stages
from bakeoff_hotpath.compiling import Compiler, InductorBeside
from bakeoff_hotpath.detector import HotPathDetector, Shapes
from bakeoff_hotpath.knowledge import Knowledge, Measured, default_folder
from bakeoff_hotpath.stages import Policy, Settled
from bakeoff_hotpath.switch import Switch


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
    """Compile `model` where it is hot, while it is used as before, for inference or in a training loop.

    `modules` names parts of the model by patterns (`"layers.*"`). Each part is then followed and compiled on its own,
    and equal ones share what was compiled. By default the whole model is one part. At least `hot_threshold` iterations
    are made before anything is compiled; measured times decide whether it pays. `watch_share` bounds the cost of
    recording, as a share of the time of the calls. What is learned is kept in `cache`, by default in the user's cache
    folder. `compiler` compiles; by default that is Inductor, in a process of its own.

    Raises ValueError where no part of the model has a name that matches.
    """
    policy = Policy(
        HotPathDetector(hot_threshold, shapes),
        compiler or InductorBeside(),
        Knowledge(cache or default_folder()),
        watch_share,
        functools.partial(_has_spare_core, model),
    )
    return HotPaths([Switch(part, name, policy) for name, part in _parts(model, modules)])


@dataclass(frozen=True, kw_only=True)
class PathReport(Measured):
    """The state of one kind of call of one module, with what was measured of it."""

    module: str
    stage: str
    runs: str  # "eager", "compiled", or "eager and compiled" in a trial
    reason: str
    calls: int  # up to the last look
    is_training: bool
    signature: str | None
    watched_calls: int
    watching_s: float
    switched_at_call: int | None
    has_failed: bool  # it could not be compiled; False where eager is faster

    def __str__(self) -> str:
        return f"{self.module or 'the model'}{' (training)' if self.is_training else ''}: {self.runs}; {self.reason}"


class HotPaths:
    """The result of `enable_hot_path_detection`. As a context manager it restores the model at the end."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self._switches = switches

    @property
    def is_settled(self) -> bool:
        """True if every kind of call met so far has its final version."""
        return all(switch.is_settled for switch in self._switches)

    @property
    def compilations(self) -> int:
        """The compilations so far, with those taken over from an earlier run."""
        return sum(switch.compilations for switch in self._switches)

    def settle(self) -> None:
        """Stay with what runs now, and cancel what is being compiled."""
        for switch in self._switches:
            switch.settle()

    def report(self) -> list[PathReport]:
        """Return where each kind of call stands, and why."""
        # a copy, since another thread may begin a path meanwhile
        return [_report(switch.name, path) for switch in self._switches for path in list(switch.paths.values())]

    def close(self) -> None:
        for switch in self._switches:
            switch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(module: str, path: stages.Path) -> PathReport:
    stage = path.stage
    known = stage if isinstance(stage, Settled) else stage.settled(stage.reason)
    return PathReport(
        **dataclasses.asdict(known.measured),
        module=module,
        stage=stage.name,
        runs=stage.runs,
        reason=known.reason,
        calls=path.calls,
        is_training=path.is_training,
        signature=known.signature,
        watched_calls=path.budget.watched,
        watching_s=path.budget.extra_s,
        switched_at_call=known.switched_at_call,
        has_failed=known.has_failed,
    )


def _has_spare_core(model: torch.nn.Module) -> bool:
    """Return True if a compiler has a core of its own beside the model and all else that the machine does."""
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    is_on_gpu = any(tensor.is_cuda for tensor in model.parameters())
    return deciding.has_spare_core(usable, cores, load, wanted=1 if is_on_gpu else torch.get_num_threads())


def _parts(model: torch.nn.Module, patterns: Sequence[str] | None) -> list[tuple[str, torch.nn.Module]]:
    """Return the parts that `patterns` name, without those inside another one."""
    if patterns is None:
        return [("", model)]
    parts: dict[str, torch.nn.Module] = {}
    for name, part in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in parts)
        if name and not is_inside and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parts[name] = part
    if not parts:
        raise ValueError(f"no part of {type(model).__name__} has a name that matches {', '.join(patterns)}")
    return list(parts.items())
