"""Watches a program from outside: which modules it calls, from where, with which inputs, and for how long."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.models.calls_file import LIMIT_BYTES, Calls
from bakeoff.models.pipeline_parts import synchronise
from bakeoff.models.recording import computes_nothing
from bakeoff.models.unwrapping import without_wrappers

if TYPE_CHECKING:
    from torch import nn

TRAINING = "training"  # in training mode, with gradients
INFERENCE = "inference"


@dataclass
class WatchedModule:
    """Calls of a module that came from outside of any other module, in one mode. Modules of one class that are first
    called in one line count together."""

    name: str  # its class, and from the second one on a number: `Linear#2`
    called_at: str  # "serve.py:41"
    mode: str
    calls: Calls
    instances: int = 0
    seconds: float = 0.0
    module: nn.Module | None = None  # the first instance, where it is kept


class Watch:
    """The modules that were called, in the order of their first calls. Inputs are kept within `LIMIT_BYTES` altogether:
    all of it for the `wanted` module, and else half of what is left for each next one."""

    def __init__(self, keeps_modules: bool = False, wanted: str = "") -> None:
        # modules are kept if they are to be recorded, with their weights
        self.keeps_modules, self.wanted = keeps_modules, wanted
        self.rows: dict[tuple[str, str, str], WatchedModule] = {}
        self._places: weakref.WeakKeyDictionary[nn.Module, dict[str, WatchedModule]] = weakref.WeakKeyDictionary()
        self._left_bytes = LIMIT_BYTES
        self._lock = threading.RLock()

    def row_of(self, module: nn.Module, is_training: bool) -> WatchedModule:
        """Return the row in which the calls of a module count, which is called now."""
        mode = TRAINING if is_training else INFERENCE
        inner = without_wrappers(module)
        known = self._places.setdefault(inner, {})
        if mode not in known:
            kind = type(inner).__name__
            called_at = next(iter(known.values())).called_at if known else _caller()
            key = kind, called_at, mode
            if (row := self.rows.get(key)) is None:
                number = 1 + sum(row.name.partition("#")[0] == kind for row in self.rows.values())
                name = kind if number == 1 else f"{kind}#{number}"
                limit_bytes = LIMIT_BYTES
                if not self.wanted or self.wanted != name:
                    self._left_bytes = limit_bytes = max(1, self._left_bytes // 2)
                row = self.rows[key] = WatchedModule(name, called_at, mode, Calls(kind, limit_bytes=limit_bytes))
            row.instances += 1
            if self.keeps_modules and row.module is None and self.wanted in ("", row.name):
                row.module = inner
            known[mode] = row
        return known[mode]

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WatchedModule:
        """Count a call with its inputs, which the module may change."""
        import torch

        with self._lock:
            row = self.row_of(module, module.training and torch.is_grad_enabled())
            row.calls.add(args, kwargs)
            row.calls.under_autocast += torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            return row


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch all calls of modules in the block, from any thread. What `torch.compile` has compiled runs eagerly. A
    device is synchronised around each call, so that its time is known."""
    import torch
    from torch import nn

    # torch's hooks for all modules get no keyword arguments before a call
    original = nn.Module.__call__
    of_thread = threading.local()

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if getattr(of_thread, "is_inside", False) or computes_nothing(args, kwargs):
            return original(module, *args, **kwargs)
        row = watch.begin(module, args, kwargs)
        of_thread.is_inside = True
        synchronise()
        begun_s = time.perf_counter()
        try:
            return original(module, *args, **kwargs)
        finally:
            synchronise()
            row.seconds += time.perf_counter() - begun_s
            of_thread.is_inside = False

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def _caller() -> str:
    """Return the innermost line of the program that made the call: one of a library only where there is no other."""
    brought = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    stack = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
    calling = [(file, line) for file, line in stack if file != __file__]
    own = [(file, line) for file, line in calling if not file.startswith((*brought, "<"))]
    file, line = (own or calling)[0]
    return f"{Path(file).name}:{line}"
