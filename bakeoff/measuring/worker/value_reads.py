"""Where Python reads the value of a tensor while a model is called, and which choices a trace froze by that."""

from __future__ import annotations

import hashlib
import linecache
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.jit._trace import TracerWarning
from torch.overrides import TorchFunctionMode

from bakeoff.records.package import PACKAGE
from bakeoff.records.traits import Decision

READS = frozenset(
    {
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__contains__",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "is_nonzero",
        "equal",
        "allclose",
    }
)
"""Functions of torch and of its tensors that give Python a value to decide by."""

_TORCH = Path(torch.__file__).parent
_NOT_THE_MODELS = (str(_TORCH), str(PACKAGE / "measuring"), str(PACKAGE / "backends"), "<")

Line = tuple[str, int]


@dataclass
class _Read:
    function: str
    values: list[str] = field(default_factory=list)


class ReadingWatch(TorchFunctionMode):
    """Notes the lines of the model that read values in calls inside the block, and the way that the calls take."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: dict[Line, _Read] = {}
        self._way = hashlib.sha256()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        self._way.update(name.encode() + b"\n")
        result = function(*args, **(kwargs or {}))
        if name in READS and (frame := _models_frame(sys._getframe(1))):
            read = self._reads.setdefault((frame.f_code.co_filename, frame.f_lineno), _Read(frame.f_code.co_name))
            read.values.append(str(result) if isinstance(result, bool | int | float) else "")
        return result

    @property
    def way(self) -> str:
        """Return a hash of the functions that were called, in order. Another one is another way through the model."""
        return self._way.hexdigest()

    @property
    def values(self) -> dict[Line, tuple[str, ...]]:
        return {line: tuple(read.values) for line, read in self._reads.items()}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(file=file, line=line, function=read.function, code=linecache.getline(file, line).strip())
            for (file, line), read in self._reads.items()
        )


class FrozenChoices:
    """The lines at which torch.jit.trace made a constant of a value, by its warnings."""

    def __init__(self) -> None:
        self.lines: set[Line] = set()

    def among(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """Return those of the model's decisions that the trace froze.

        The trace also warns where a size is read. Sizes do not change in a contest, and no decision stands there.
        """
        return tuple(decision for decision in decisions if (decision.file, decision.line) in self.lines)


@contextmanager
def noting_frozen_choices() -> Iterator[FrozenChoices]:
    """Note what torch.jit.trace warns of inside the block. Other warnings are shown as before."""
    frozen = FrozenChoices()
    with warnings.catch_warnings():
        warnings.simplefilter("always", TracerWarning)
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, TracerWarning):
                show(message, category, *where, **more)
            elif frame := _models_frame(sys._getframe(1)):
                frozen.lines.add((frame.f_code.co_filename, frame.f_lineno))

        warnings.showwarning = note
        yield frozen


def _models_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is neither torch's nor of what measures: a line of the model's own code."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_NOT_THE_MODELS) or frame.f_code.co_filename == warnings.__file__
    ):
        frame = frame.f_back
    return frame
