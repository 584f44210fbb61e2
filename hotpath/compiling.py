"""Compiling a call in another process, beside the calls. Imports torch.

Not in a thread: tracing and lowering are Python and would hold the interpreter's lock for seconds while eager wants it
between any two operators; Dynamo saves and restores the global random state, which a training loop beside it uses; and
a compiler that crashes would take the program with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from hotpath import handover, packages
from hotpath.child import RESULT, SCRIPT, TASK

LOG = "compiler.log"
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Call:
    """What is to be compiled: one call of a module's forward."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_training: bool


@dataclass(frozen=True)
class Outcome:
    """How a compilation ended; `reason` says why it failed, and is empty where it did not. Seconds as `Learned`'s."""

    reason: str
    is_for_good: bool = field(default=True, kw_only=True)
    """Whether it would end so again: not where a process was killed, or memory or the disk was full."""
    compile_s: float | None = None
    load_s: float | None = None
    eager_s: float | None = None
    compiled_s: float | None = None


class Job(Protocol):
    """A compilation under way."""

    def poll(self) -> Outcome | None:
        """How it ended; None while it has not."""

    def cancel(self) -> None:
        """Stop it, and whatever it started. Does nothing once it has ended."""


class Compiler(Protocol):
    """What compiles. Tests have one that compiles nothing."""

    def start(self, call: Call, folder: Path) -> Job:
        """Begin to compile `call` into `folder`, which comes to be when all is done.

        Returns at once. Raises `handover.CannotHandOver`.
        """

    def is_free(self) -> bool:
        """Whether one more compilation may start."""

    def load(self, folder: Path, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        """What was compiled into `folder`, as a function of flat tensors (`hotpath.flattening`).

        Raises OSError, ValueError or KeyError for a folder that does not hold all of it, else RuntimeError.
        """


class InductorBeside:
    """Inductor, in a process of its own with a low priority; one compilation at a time."""

    def __init__(self) -> None:
        self._latest: Compilation | None = None

    def is_free(self) -> bool:
        return self._latest is None or self._latest.has_ended

    def start(self, call: Call, folder: Path) -> Job:
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            script = handover.main_script(call.module)
            handover.write(making / TASK, call.module, call.args, call.kwargs, call.is_training)
            (making / SCRIPT).write_text(json.dumps(script))
            self._latest = Compilation(making, folder)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return self._latest

    def load(self, folder: Path, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        account = json.loads((folder / RESULT).read_text())["account"]
        return packages.load(folder, account, tensors)


class Compilation:
    """A process that compiles into `making`, which is renamed to `folder` when it is done."""

    def __init__(self, making: Path, folder: Path) -> None:
        self._making = making
        self._folder = folder
        self._outcome: Outcome | None = None
        self._owner = os.getpid()
        # as this process finds its modules: a user's own "models" stays the user's
        paths = [*(path or os.getcwd() for path in sys.path), str(ROOT)]
        with (making / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hotpath.child", str(making)],
                # it ends when this pipe is closed, however this process comes to its end
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
                start_new_session=True,
            )
        self._stop = weakref.finalize(self, _stop, self._process, making, self._owner)

    @property
    def has_ended(self) -> bool:
        """Also where nobody has asked how: the calls that it was for may never come again."""
        return self._outcome is not None or not self._is_ours or self._process.poll() is not None

    @property
    def _is_ours(self) -> bool:
        """Not in a fork of the process that started it, which is nobody's parent."""
        return os.getpid() == self._owner

    def poll(self) -> Outcome | None:
        if not self._is_ours:
            return Outcome("it is compiled for the process that this one is a fork of", is_for_good=False)
        if self._outcome is None and self._process.poll() is not None:
            self._outcome = self._conclude()
            self._stop()
        return self._outcome

    def cancel(self) -> None:
        if self._outcome is None:
            self._outcome = Outcome("it was called off")
        self._stop()

    def _conclude(self) -> Outcome:
        try:
            result = json.loads((self._making / RESULT).read_text())
        except (OSError, ValueError):
            reason = f"the compiler died with status {self._process.returncode}: {self._last_line()}"
            return Outcome(reason, is_for_good=False)
        if not result["ok"]:
            return Outcome(result["reason"], is_for_good=result["is_for_good"])
        # another program may have been quicker with the same path: its version is as good
        with contextlib.suppress(OSError):
            self._making.rename(self._folder)
        # by its own clock: it may have ended long before it was asked
        return Outcome("", result["seconds"], result["load_s"], result["eager_s"], result["compiled_s"])

    def _last_line(self) -> str:
        try:
            lines = (self._making / LOG).read_text(errors="replace").strip().splitlines()
        except OSError as error:  # somebody removed the folder meanwhile
            return f"{error.strerror}: {LOG}"
        return lines[-1][:300] if lines else "it said nothing"


def _stop(process: subprocess.Popen[bytes], making: Path, owner: int) -> None:
    """End the process with all it started, and remove what it has left unfinished: in the process that started it."""
    if os.getpid() != owner:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(making, ignore_errors=True)
