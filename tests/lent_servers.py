"""Fork servers that the tests of a process share: each imports torch, which takes longer than most runs."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from bakeoff.measuring.controller import launcher
from bakeoff.measuring.controller.launcher import ForkLauncher, Launcher
from bakeoff.planning.request import StartMethod

COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx", "torch.onnx._internal.exporter._core")
"""What most builds import of torch. The first server imports it once for all of its workers.

The others serve only runs of several processes per cell, which seldom compile. With a GPU none does: these modules ask
CUDA's runtime for devices, and workers that are forked afterwards cannot use it.
"""


class LentServer(ForkLauncher):
    """A fork server that waits for the next run when a run leaves it, unless the run had it import something."""

    def __init__(self, waiting: list[LentServer], imports: list[Sequence[str]]) -> None:
        super().__init__()
        self._waiting, self._imports = waiting, imports
        self._own = imports.pop() if imports else ()
        super().preload((*self._own, "warm_caches"))
        self._is_plain = True

    def preload(self, modules: Sequence[str], for_cuda: bool = False) -> None:
        self._is_plain &= not modules
        super().preload(modules, for_cuda)

    def begin_close(self) -> None:
        if not self._is_plain:
            super().begin_close()

    def __exit__(self, *_: object) -> None:
        if not self._is_plain:
            self._imports.extend([self._own] if self._own else [])
            self.end()
            return
        for worker in self._workers:
            if not worker.is_over:
                worker.end()
        self._workers.clear()
        for path in self.temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._waiting.append(self)

    def end(self) -> None:
        super().__exit__()


@contextlib.contextmanager
def lent_servers() -> Iterator[Callable[..., Launcher]]:
    """Have every run borrow its fork servers. Yield the function that would have started them."""
    waiting: list[LentServer] = []
    imports: list[Sequence[str]] = [] if shutil.which("nvidia-smi") else [COMPILERS]
    start_new = launcher.create_launcher

    def borrow(start_method: StartMethod, python: str = sys.executable) -> Launcher:
        if start_method == "spawn" or python != sys.executable or not launcher.CAN_FORK:
            return start_new(start_method, python)
        return waiting.pop() if waiting else LentServer(waiting, imports)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "create_launcher", borrow)
        yield start_new
    for server in waiting:
        server.end()
