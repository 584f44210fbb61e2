"""Compiling a call in another process, beside the calls. Imports torch.

A thread would not do. Tracing and lowering hold the interpreter's lock for seconds. Dynamo saves and restores the
global random state, which a training loop uses. And a compiler that crashes would take the program with it.
"""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from bakeoff_hotpath import handover, packages
from bakeoff_hotpath.child import MAX_REASON_CHARACTERS, RESULT, SCRIPT, TASK
from bakeoff_hotpath.knowledge import NOTHING_MEASURED, Measured

LOG = "compiler.log"
SOURCES = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Call:
    """One call of a module's forward, to be compiled."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_training: bool


@dataclass(frozen=True)
class Outcome:
    """The end of a compilation. The reason says why it failed, and is empty if it succeeded."""

    reason: str
    measured: Measured = NOTHING_MEASURED
    is_for_good: bool = True
    """False for a failure that another run may not have: a process was killed, or memory or the disk was full."""


class Job(Protocol):
    """A compilation under way."""

    def poll(self) -> Outcome | None:
        """Return how it ended, or None while it has not."""

    def cancel(self) -> None:
        """Stop it with everything it started. This does nothing once it has ended."""


class Compiler(Protocol):
    """The compiler that a switch uses. Tests have one that compiles nothing."""

    def start(self, call: Call, folder: Path) -> Job:
        """Begin to compile `call`, and return at once. `folder` appears when all is done.

        Raises OSError, and `handover.CannotHandOver` for a module that does not get into another process.
        """

    def is_free(self) -> bool:
        """Return True if one more compilation may start."""

    def load(self, folder: Path, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        """Return what was compiled into `folder` as a function of flat tensors.

        Raises OSError, ValueError or KeyError for an incomplete folder, and RuntimeError for any other failure.
        """


class InductorBeside:
    """Inductor in a process of its own, with a low priority. It runs one compilation at a time."""

    def __init__(self) -> None:
        self._latest: Compilation | None = None

    def is_free(self) -> bool:
        # polled here too: the calls that the latest one was for may never come again
        return self._latest is None or self._latest.poll() is not None

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
    """A process that compiles into `making`, a folder that is renamed to `folder` at the end."""

    def __init__(self, making: Path, folder: Path) -> None:
        self._making = making
        self._folder = folder
        self._outcome: Outcome | None = None
        self._owner = os.getpid()
        with (making / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bakeoff_hotpath.child", str(making)],
                # the child ends when this pipe is closed, however this process ends
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,
            )
        self._stop = weakref.finalize(self, _stop, self._process, making, self._owner)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Outcome | None:
        if os.getpid() != self._owner:
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
        # another program may have compiled the same path first; its version is as good
        with contextlib.suppress(OSError):
            self._making.rename(self._folder)
        # by the child's own clock, since it may have ended long before this poll
        return Outcome("", Measured(result["seconds"], result["load_s"], result["eager_s"], result["compiled_s"]))

    def _last_line(self) -> str:
        try:
            lines = (self._making / LOG).read_text(errors="replace").strip().splitlines()
        except OSError as error:  # somebody has removed the folder
            return f"{error.strerror}: {LOG}"
        return lines[-1][:MAX_REASON_CHARACTERS] if lines else "it said nothing"


def child_environment() -> dict[str, str]:
    """Return the variables of the compiling process, which finds all modules that this process finds.

    The order is that of this process, so that a user's own module named as one of ours stays the user's.
    """
    paths = [*(path or os.getcwd() for path in sys.path), str(SOURCES)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _stop(process: subprocess.Popen[bytes], making: Path, owner: int) -> None:
    """End the process with everything it started, and remove its unfinished folder. A fork leaves both alone."""
    if os.getpid() != owner:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(making, ignore_errors=True)
