"""Scripted backends to test the harness. A mode sets a latency, a crash, a hang, a wrong answer or a lack of memory.

Outputs are the model's own, and are computed only when they are asked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from bakeoff.backends import base
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Extent, Placement


def _modes(scripts: Mapping[str, Mapping[str, object]]) -> tuple[base.Mode, ...]:
    return tuple(
        base.Mode(name, script, base.ANYWHERE if name == base.DEFAULT else None) for name, script in scripts.items()
    )


class Null(base.Backend):
    name = "null"
    description = "scripted behaviour, for tests of the harness"
    colour = "#b0b0b0"
    takes_ranges = True
    modes = _modes(
        {
            "default": {"latency_ms": 1.0},
            "again": {"latency_ms": 1.0},
            "slow": {"latency_ms": 1.2},
            "double": {"latency_ms": 2.0},
            "unsupported": {"refuse": "found out while building"},
            "error": {"fail_in": "compile"},
            "oom": {"out_of_memory_in": "compile"},
            "crash-in-compile": {"crash_in": "compile"},
            "crash-in-load": {"crash_in": "load"},
            "crash-in-run": {"crash_at_call": 40},
            "slow-start": {"sleep_s": 1.5},
            "hang": {"hang_in": "compile"},
            "hang-in-run": {"hang_at_call": 40},
            "wrong": {"add": 1.0},
            "nan": {"add": float("nan")},
            "flips": {"latency_ms": 0.5, "swaps": True},
            "missing-output": {"drop_outputs": True},
            "wrong-later": {"add": 1.0, "add_after_call": 60},
            "grandchildren": {"grandchildren": True},
            "noisy-output": {"print": "x" * 100_000 + "\n"},
            "partial": {
                "placement": Placement(
                    extent=Extent.PARTIAL,
                    engines={"scripted": 10, "torch": 3},
                    fallbacks=["gelu", "sort", "topk"],
                    time_share={"scripted": 0.97, "torch": 0.03},
                    evidence=["the mode's name"],
                )
            },
            "fallback": {"placement": Placement(extent=Extent.FALLBACK, engines={"torch": 13})},
            "fails-under-load": {"fail_every": 20},
        }
    )
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="sleeping thread")

    def available(self, device: Device) -> base.Availability:
        return base.AVAILABLE

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        script: Mapping[str, Any] = self.mode(context.cell.mode).options
        if "refuse" in script:
            raise Unsupported(script["refuse"])
        if "print" in script:
            os.write(1, script["print"].encode())
        for phase in ("export", "compile", "load"):
            with context.phase(phase):
                _misbehave(script, phase)
        (context.workspace / "null.bin").write_bytes(b"0" * 1000)
        if "grandchildren" in script:
            _leave_grandchildren()
        return Scripted(module, script)


class NullPackaged(base.AheadOfTime):
    """The scripted backend ahead of time. Its settings name the process that built and the one that loaded."""

    name = "null-packaged"
    description = "scripted behaviour, ahead of time, for tests of the harness"
    takes_ranges = True
    modes = _modes(
        {
            "default": {"latency_ms": 1.0},
            "crash-in-compile": {"crash_in": "compile"},
            "crash-in-load": {"crash_in": "load"},
        }
    )

    def available(self, device: Device) -> base.Availability:
        return base.AVAILABLE

    def package(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> None:
        script: Mapping[str, Any] = self.mode(context.cell.mode).options
        with context.phase("compile"):
            _misbehave(script, "compile")
        torch.save(module, context.workspace / "module.pt")
        (context.workspace / "built_by").write_text(str(os.getpid()))

    def load(self, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        script: Mapping[str, Any] = self.mode(context.cell.mode).options
        with context.phase("load"):
            _misbehave(script, "load")
            module = torch.load(context.workspace / "module.pt", weights_only=False)
        return Packaged(module, script, built_by=int((context.workspace / "built_by").read_text()))


class Scripted(base.Compiled):
    """Spins for the scripted latency in each call."""

    def __init__(self, module: torch.nn.Module, script: Mapping[str, Any]) -> None:
        self._module = module
        self._script = script
        self._latency_ns = int(script.get("latency_ms", 1.0) * 1e6)
        self._calls = 0
        self._bound: Inputs | None = None
        self._called_with: Inputs | None = None

    def bind(self, inputs: Inputs) -> None:
        self._bound = inputs

    def run(self) -> None:
        end_ns = time.perf_counter_ns() + self._latency_ns
        self._calls += 1
        self._called_with = self._bound
        if self._calls == self._script.get("crash_at_call"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._calls == self._script.get("hang_at_call"):
            time.sleep(3600)
        while time.perf_counter_ns() < end_ns:
            pass  # a sleep would end late by a tick of the scheduler

    def outputs(self) -> tuple[torch.Tensor, ...]:
        from bakeoff.backends.calling import flatten_outputs

        assert self._called_with is not None
        tensors = flatten_outputs(self._module(*self._called_with.args, **self._called_with.kwargs))
        if self._script.get("drop_outputs"):
            return tensors[1:]
        if self._script.get("swaps"):
            return (swapped(tensors[0]), *tensors[1:])
        if "add" not in self._script or self._calls < self._script.get("add_after_call", 0):
            return tensors
        return tuple(tensor + self._script["add"] for tensor in tensors)

    def instance(self) -> base.Compiled:
        return Instance(self._module, self._script)

    def placement(self) -> Placement | None:
        return self._script.get("placement")


def swapped(logits: torch.Tensor) -> torch.Tensor:
    """Exchange the two largest values of each row. Where they nearly equal, the error is tiny and the label wrong."""
    values, places = logits.topk(2, dim=-1)
    return logits.scatter(-1, places, values.flip(-1))


class Instance(Scripted):
    """Sleeps for the scripted latency, so that it leaves the interpreter to other instances."""

    def run(self) -> None:
        self._calls += 1
        self._called_with = self._bound
        if self._calls % self._script.get("fail_every", sys.maxsize) == 0:
            raise RuntimeError("scripted failure of a request")
        time.sleep(self._latency_ns / 1e9)


class Packaged(Scripted):
    """A scripted model that was loaded from its artefact."""

    def __init__(self, module: torch.nn.Module, script: Mapping[str, Any], built_by: int) -> None:
        super().__init__(module, script)
        self._built_by = built_by

    def settings(self) -> base.Settings:
        return {"built_by": self._built_by, "loaded_by": os.getpid()}


def _misbehave(script: Mapping[str, Any], phase: str) -> None:
    if phase == "compile":
        time.sleep(script.get("sleep_s", 0.0))
    if script.get("fail_in") == phase:
        raise RuntimeError("scripted failure\nwith a second line")
    if script.get("out_of_memory_in") == phase:
        raise MemoryError("scripted: no memory left")
    if script.get("crash_in") == phase:
        # a real segmentation fault: a write to address zero
        import ctypes

        ctypes.memset(0, 0, 1)
    if script.get("hang_in") == phase:
        time.sleep(3600)


def _leave_grandchildren() -> None:
    """Start children that outlive this process: in its group, in their own session, and orphaned in their own
    session."""
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    orphan = f"import subprocess, sys; subprocess.Popen({sleep!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
