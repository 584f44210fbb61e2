"""A model that starts eager, is compiled beside its calls, and switches when compiled code is ready and faster.

Bakeoff finds this file through the entry point in pyproject.toml. It imports no other module of Bakeoff than `bakeoff`.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from bakeoff import (
    ANYWHERE,
    TASKS,
    Availability,
    Backend,
    BuildContext,
    Callables,
    Compiled,
    Device,
    Extent,
    Mode,
    Placement,
    Settings,
    Steps,
    Wrapped,
    torch_available,
)

if TYPE_CHECKING:
    import torch

    from bakeoff import Inputs
    from bakeoff_hotpath.enabling import HotPaths

COMPILERS = ("c++", "g++", "clang++")


class HotPath(Backend):
    name = "hotpath"
    takes_sparse = True
    description = "starts eager, compiles what is hot in another process, switches when that is ready and faster"
    colour = "#882255"
    writes_cxx = True
    modes = (Mode(options={"hot_threshold": 10}, worth_trying=ANYWHERE),)
    tasks = TASKS

    def available(self, device: Device) -> Availability:
        # other backends import the compiler to ask; this process must stay without it
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS)):
            return Availability("hotpath compiles with a C++ compiler, and none was found: install g++ or set CXX")
        return torch_available(device)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        from bakeoff_hotpath.enabling import enable_hot_path_detection

        threshold = self.mode(context.cell.mode).options["hot_threshold"]
        assert isinstance(threshold, int)
        hot = enable_hot_path_detection(module, threshold, cache=context.workspace / "hotpath")
        eager = Callables(module) if context.training is None else Steps(context.training)
        return HotModule(eager, hot, threshold)


class HotModule(Wrapped):
    """A model that hot path detection follows."""

    def __init__(self, inner: Compiled, hot: HotPaths, threshold: int) -> None:
        super().__init__(inner)
        self._hot = hot
        self._threshold = threshold

    def compilations(self) -> int:
        return self._hot.compilations

    def is_final(self) -> bool:
        return self._hot.is_settled

    def finalise(self) -> None:
        self._hot.settle()

    def placement(self) -> Placement:
        """Return what runs now, and why. Eager is a fallback only if compiling failed."""
        reports = self._hot.report()
        failures = [str(report) for report in reports if report.has_failed]
        compiled = sum(report.runs == "compiled" for report in reports)
        extent = Extent.FULL if not failures else Extent.PARTIAL if compiled else Extent.FALLBACK
        eager = len(reports) - compiled if reports else 1
        engines = {"inductor graphs": compiled, "eager modules": eager}
        return Placement(
            extent=extent,
            engines={name: count for name, count in engines.items() if count},
            fallbacks=failures,
            evidence=[str(report) for report in reports] or ["the model: eager; no call has been looked at yet"],
        )

    def settings(self) -> Settings:
        """Return what was tried so far, and the first call that was compiled."""
        settings = {**super().settings(), "hot_threshold": self._threshold, "watched_calls": 0}
        for report in self._hot.report():
            settings["watched_calls"] = report.watched_calls
            settings["watching_s"] = round(report.watching_s, 6)
            settings["switched_at_call"] = report.switched_at_call
            settings["compile_s"] = report.compile_s
            settings["load_s"] = report.load_s
            settings["burden"] = report.burden
        return settings

    def close(self) -> None:
        self._hot.close()
        super().close()
