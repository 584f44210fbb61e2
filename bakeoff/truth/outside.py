"""Watches what the user's own code reads from outside in a call, such as a file, and what it does there.

A compiler that traces a model keeps the values that were read meanwhile, and drops what else the code does.
"""

import genericpath
import io
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import nn

from bakeoff.records.traits import Access, AccessKind
from bakeoff.truth.module_state import LENGTH, ModuleState
from bakeoff.truth.moved_clock import is_clock
from bakeoff.truth.user_code import hearing, is_users_file, may_be_users_data, opened

_STANDARD = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")})
_INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (*_STANDARD, *_INSTALLED, str(Path(_TORCH, "serialization.py")))

_OF_CODE: dict[CodeType, tuple[AccessKind, str]] = {
    type(os.environ).__getitem__.__code__: (AccessKind.VARIABLE, "key"),
    logging.Logger.handle.__code__: (AccessKind.LOG, "self"),
    genericpath.exists.__code__: (AccessKind.READ_FILE, "path"),
    torch.save.__code__: (AccessKind.WRITTEN_FILE, "f"),
    save_file.__code__: (AccessKind.WRITTEN_FILE, "filename"),
}
"""Functions that tell of an access, and the argument that names it. What is written in C++ or Rust gives no event."""

_OF_EVENT = {
    "os.listdir": (AccessKind.READ_FILE, 0),
    "os.scandir": (AccessKind.READ_FILE, 0),
    "os.remove": (AccessKind.WRITTEN_FILE, 0),
    "os.rename": (AccessKind.WRITTEN_FILE, 1),
    "os.mkdir": (AccessKind.WRITTEN_FILE, 0),
    "sqlite3.connect": (AccessKind.WRITTEN_FILE, 0),
    "subprocess.Popen": (AccessKind.PROGRAM, 0),
    "os.system": (AccessKind.PROGRAM, 0),
    "socket.connect": (AccessKind.NETWORK, 1),
    "socket.sendto": (AccessKind.NETWORK, 1),
}
"""Audit events (PEP 578) that tell of an access, and the place of the argument that names it."""


CLOCK = Access(kind=AccessKind.CLOCK)


class OutsideWatch:
    """Notes what calls inside the block access, where code of the user's own asks for it."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        """Note the attributes of these modules, too, if a call changes them."""
        self._noted: dict[Access, None] = {}
        self._states = [ModuleState(module) for module in modules]
        self._autocasts: dict[str, None] = {}
        self._hearing = hearing(self._on_event)
        self._profile: Any = None

    @property
    def accesses(self) -> tuple[Access, ...]:
        return tuple(self._noted)

    @property
    def autocasts(self) -> tuple[str, ...]:
        """Return the types of the autocasts that were entered, such as `bfloat16`."""
        return tuple(self._autocasts)

    def __enter__(self) -> Self:
        self._hearing.__enter__()
        self._profile = sys.getprofile()
        sys.setprofile(self._on_call)
        return self

    def __exit__(self, *failure: object) -> None:
        sys.setprofile(self._profile)
        self._hearing.__exit__(None, None, None)
        for state in self._states:
            self._noted.update(dict.fromkeys(of_attributes(state.changed())))

    def _on_call(self, frame: FrameType, event: str, builtin: Any) -> None:
        if event == "call" and frame.f_code is torch.autocast.__enter__.__code__:
            if (autocast := frame.f_locals["self"])._enabled:
                self._autocasts[str(autocast.fast_dtype).removeprefix("torch.")] = None
        elif event == "call" and frame.f_code in _OF_CODE:
            kind, argument = _OF_CODE[frame.f_code]
            named = frame.f_locals[argument]
            if kind in (AccessKind.READ_FILE, AccessKind.WRITTEN_FILE):
                self._note_file(named, frame, writes=kind is AccessKind.WRITTEN_FILE)
            elif kind is AccessKind.LOG:
                self._note(kind, named.name, frame)
            elif _asks(frame.f_back, through=_STANDARD):  # libraries have variables of their own
                self._note(kind, named, frame)
        elif event == "c_call":
            name = getattr(builtin, "__name__", "")
            if builtin is print:
                self._note(AccessKind.PRINT, "", frame)
            elif builtin is warnings.warn and is_users_file(frame.f_code.co_filename):
                self._note(AccessKind.LOG, "warnings", frame)
            elif name.startswith(("read", "write")) and isinstance(file := getattr(builtin, "__self__", 0), io.IOBase):
                self._note_open_file(file, frame, writes=name.startswith("write"))
            elif is_clock(builtin) and is_users_file(frame.f_code.co_filename):
                self._note(AccessKind.CLOCK, "", frame)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and (path := opened(arguments)):
            self._note_file(path[0], sys._getframe(2), writes=path[1])
        elif event in _OF_EVENT:
            kind, place = _OF_EVENT[event]
            if kind in (AccessKind.READ_FILE, AccessKind.WRITTEN_FILE):
                self._note_file(arguments[place], sys._getframe(2), writes=kind is AccessKind.WRITTEN_FILE)
            else:
                self._note(kind, str(arguments[place]), sys._getframe(2))

    def _note_open_file(self, file: io.IOBase, frame: FrameType, writes: bool) -> None:
        if writes and file in (sys.stdout, sys.stderr):
            self._note(AccessKind.PRINT, "", frame)
        elif isinstance(name := getattr(file, "name", None), str | bytes):
            self._note_file(name, frame, writes)

    def _note_file(self, name: Any, frame: FrameType, writes: bool) -> None:
        # who asks comes first: what follows may open files itself
        if isinstance(name, str | bytes | os.PathLike) and _asks(frame, through=_LIBRARIES):
            path = Path(os.fsdecode(name)).absolute()
            if may_be_users_data(path):
                kind = AccessKind.WRITTEN_FILE if writes else AccessKind.READ_FILE
                here = Path.cwd()  # each process stands in a folder of its own
                self._add(kind, str(path.relative_to(here) if path.is_relative_to(here) else path))

    def _note(self, kind: AccessKind, name: str, frame: FrameType) -> None:
        if _asks(frame, through=_LIBRARIES):
            self._add(kind, name)

    def _add(self, kind: AccessKind, name: str) -> None:
        self._noted[Access(kind=kind, name=name)] = None


def of_attributes(changed: Sequence[str]) -> tuple[Access, ...]:
    """Return the attributes and variables among the names of what has changed, each list or dict as a whole."""
    names = [name.partition("[")[0].removesuffix(LENGTH) for name in changed if name.startswith(("attr", "var"))]
    return tuple(Access(kind=AccessKind.ATTRIBUTE, name=name) for name in dict.fromkeys(names))


def dropped(expected: Sequence[Access], found: Sequence[Access]) -> list[Access]:
    """Return the accesses that are expected, but not found. A file may have another name in each call."""
    known = {_place(access) for access in found}
    return [access for access in expected if _place(access) not in known]


def _place(access: Access) -> tuple[AccessKind, str]:
    is_written = access.kind is AccessKind.WRITTEN_FILE
    return access.kind, str(PurePath(access.name).parent) if is_written else access.name


def _asks(frame: FrameType | None, through: tuple[str, ...]) -> bool:
    """Return True if the user's own code is the first that is found below, going through these folders but torch's."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        is_torchs = file.startswith(_TORCH) and file not in through
        if is_torchs or not file.startswith((*through, "<")):
            return False
        frame = frame.f_back
    return frame is not None
