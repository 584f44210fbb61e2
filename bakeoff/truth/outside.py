"""Watches what the user's own code reads from outside in a call, such as a file, and what it does there.

A compiler that traces a model keeps the values that were read meanwhile, and drops what else the code does.
"""

import collections.abc
import contextlib
import io
import logging
import mmap
import os
import posixpath
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bakeoff.records.package import PACKAGE
from bakeoff.records.traits import Access, AccessKind
from bakeoff.truth.module_state import LENGTH, ModuleState
from bakeoff.truth.moved_clock import hearing_clock
from bakeoff.truth.user_code import LIBRARIES, hearing, is_user_call, is_users_file, may_be_users_data, opened

_OF_CODE: dict[int, tuple[AccessKind, str]] = {
    id(type(os.environ).__getitem__.__code__): (AccessKind.VARIABLE, "key"),
    id(logging.Logger.handle.__code__): (AccessKind.LOG, "self"),
    id(torch.save.__code__): (AccessKind.WRITTEN_FILE, "f"),
    id(save_file.__code__): (AccessKind.WRITTEN_FILE, "filename"),
    id(load_file.__code__): (AccessKind.READ_FILE, "filename"),
}
"""Functions that tell of an access, and the argument that names it. What is written in C++ or Rust gives no event.
They go by their code's number, since code that Dynamo makes can hold a slice and has no hash then."""

_REPLACED = {
    "stat": AccessKind.READ_FILE,
    "lstat": AccessKind.READ_FILE,
    "access": AccessKind.READ_FILE,
    "write": AccessKind.WRITTEN_FILE,
}
"""Functions of `os` without an event, which tell of an access to their first argument."""

_OF_EVENT = {
    "os.listdir": (AccessKind.READ_FILE, 0),
    "os.scandir": (AccessKind.READ_FILE, 0),
    "os.remove": (AccessKind.WRITTEN_FILE, 0),
    "os.rename": (AccessKind.WRITTEN_FILE, 1),
    "os.mkdir": (AccessKind.MADE_FOLDER, 0),
    "os.putenv": (AccessKind.SET_VARIABLE, 0),
    "os.unsetenv": (AccessKind.SET_VARIABLE, 0),
    "mmap.__new__": (AccessKind.READ_FILE, 0),
    "subprocess.Popen": (AccessKind.PROGRAM, 0),
    "os.system": (AccessKind.PROGRAM, 0),
    "socket.connect": (AccessKind.NETWORK, 1),
    "socket.sendto": (AccessKind.NETWORK, 1),
}
"""Audit events (PEP 578) that tell of an access, and the place of the argument that names it."""


_OF_ENVIRON = (os.__file__, os.path.__file__, collections.abc.Mapping.get.__code__.co_filename)
"""Where `os.environ` and `os.getenv` are written."""

CLOCK = Access(kind=AccessKind.CLOCK)


class OutsideWatch:
    """Notes what calls inside the block access, where code of the user's own asks for it."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        """Note the attributes of these modules, too, if a call changes them."""
        self._noted: dict[Access, None] = {}
        self._states = [ModuleState(module) for module in modules]
        self._autocasts: dict[str, None] = {}
        self._held = contextlib.ExitStack()
        self._streams = (sys.stdout, sys.stderr)
        self._is_looking_up = False
        self.ran_users_code = False
        self.enables_gradients = False

    @property
    def accesses(self) -> tuple[Access, ...]:
        """What was noted. Who makes a folder may look first whether it is there."""
        made = {access.name for access in self._noted if access.kind is AccessKind.MADE_FOLDER}
        return tuple(
            access for access in self._noted if not (access.kind is AccessKind.READ_FOLDER and access.name in made)
        )

    @property
    def autocasts(self) -> tuple[str, ...]:
        """Return the types of the autocasts that were entered, such as `bfloat16`."""
        return tuple(self._autocasts)

    def __enter__(self) -> Self:
        self._held.enter_context(hearing_clock(lambda: self._add(AccessKind.CLOCK)))
        self._held.enter_context(hearing(self._on_event))
        for name, kind in _REPLACED.items():
            self._held.enter_context(_heard(name, partial(self._note, kind)))
        for name in ("stdout", "stderr"):
            if (own := getattr(sys, name)) is not None:  # as in a process without a terminal
                self._held.callback(setattr, sys, name, own)
                setattr(sys, name, _HeardStream(own, self._on_print))
        self._held.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(self._on_call)
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()
        for state in self._states:
            self._noted.update(dict.fromkeys(of_attributes(state.changed())))

    def _on_call(self, frame: FrameType, event: str, builtin: Any) -> None:
        self.ran_users_code = self.ran_users_code or is_users_file(frame.f_code.co_filename)
        if event == "c_call":
            self._on_builtin(builtin, getattr(builtin, "__name__", ""), getattr(builtin, "__self__", None), frame)
        elif event == "call" and frame.f_code is torch.autocast.__enter__.__code__:
            if (autocast := frame.f_locals["self"])._enabled:
                self._autocasts[str(autocast.fast_dtype).removeprefix("torch.")] = None
        elif event == "call" and frame.f_code is torch.enable_grad.__enter__.__code__:
            self.enables_gradients = True
        elif event == "call" and id(frame.f_code) in _OF_CODE:
            kind, argument = _OF_CODE[id(frame.f_code)]
            named = frame.f_locals[argument]
            self._note(kind, named.name if kind is AccessKind.LOG else named, frame.f_back)

    def _on_builtin(self, builtin: Any, name: str, owner: object, frame: FrameType) -> None:
        writes = name.startswith("write")
        file_kind = AccessKind.WRITTEN_FILE if writes else AccessKind.READ_FILE
        if builtin is time.sleep:
            self._note(AccessKind.SLEEP, "", frame)
        elif builtin is warnings.warn and is_users_file(frame.f_code.co_filename):
            self._note(AccessKind.LOG, "warnings", frame)
        elif isinstance(owner, io.IOBase) and name.startswith(("read", "write")):
            if writes and owner in self._streams:
                if frame.f_code is not _HeardStream.write.__code__:
                    self._on_print(frame)
            else:
                self._note(file_kind, getattr(owner, "name", os.devnull), frame)
        elif isinstance(owner, mmap.mmap) and name.startswith(("read", "write", "find")):
            self._note(file_kind, None, frame)
        elif isinstance(owner, _Socket) and name.startswith(("send", "recv")):
            with contextlib.suppress(OSError):  # it is connected to nothing, and what it sends to gives an event
                self._note(AccessKind.NETWORK, owner.getpeername() or "a socket", frame)
        elif name.startswith(("execute", "fetch")) and "sqlite3" in [kind.__module__ for kind in type(owner).__mro__]:
            self._note(AccessKind.DATABASE, "", frame)

    def _on_print(self, frame: FrameType) -> None:
        if frame.f_code.co_filename.startswith(_CALLING):
            self._add(AccessKind.PRINT)
        elif frame.f_code.co_filename != warnings.__file__:  # who warns is noted where it warns
            self._note(AccessKind.PRINT, "", frame)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and (path := opened(arguments)):
            self._note(AccessKind.WRITTEN_FILE if path[1] else AccessKind.READ_FILE, path[0], sys._getframe(2))
        elif event in _OF_EVENT:
            kind, place = _OF_EVENT[event]
            self._note(kind, arguments[place], sys._getframe(2))

    def _note(self, kind: AccessKind, named: Any, frame: FrameType | None) -> None:
        """Note an access that this frame asks for. Whether it is the user's own code is looked up in files."""
        if self._is_looking_up:
            return
        self._is_looking_up = True
        try:
            # libraries have variables of their own, the standard ones, too
            is_variable = kind in (AccessKind.VARIABLE, AccessKind.SET_VARIABLE)
            if is_user_call(frame, through=_OF_ENVIRON if is_variable else LIBRARIES):
                self._note_users(kind, named)
        finally:
            self._is_looking_up = False

    def _note_users(self, kind: AccessKind, named: Any) -> None:
        """Note an access of the user's own code. A file may be named by its descriptor, or lie in a map of memory."""
        if not kind.is_path:
            self._add(kind, os.fsdecode(named) if isinstance(named, bytes) else str(named))
            return
        if named in (1, 2, "<stdout>", "<stderr>"):
            self._add(AccessKind.PRINT)
            return
        if isinstance(named, int):
            named = _path_of(named)
        if named is None:
            self._add(kind)
        elif isinstance(named, str | bytes | os.PathLike) and may_be_users_data(
            path := Path(os.fsdecode(named)).absolute()
        ):
            here = Path.cwd()  # each process stands in a folder of its own
            is_folder = kind is AccessKind.READ_FILE and path.is_dir()
            name = str(path.relative_to(here) if path.is_relative_to(here) else path)
            self._add(AccessKind.READ_FOLDER if is_folder else kind, name)

    def _add(self, kind: AccessKind, name: str = "") -> None:
        self._noted[Access(kind=kind, name=name)] = None


_CALLING = (str(Path(torch.__file__).parent), str(PACKAGE))  # they print nothing, but call TorchScript, which may


class _HeardStream:
    """A stream that reports each write into it, also by `print` and by TorchScript, which give no event."""

    def __init__(self, own: Any, note: Callable[[FrameType], None]) -> None:
        self._own, self._heard = own, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def write(self, text: str) -> Any:
        self._heard(sys._getframe(1))
        return self._own.write(text)


_Socket: Any = socket.socket.__base__


_LOOKING_UP = {function.__code__ for function in (os.makedirs, os.path.realpath)}
_LOOKING_UP |= {getattr(posixpath, "_joinrealpath", os.makedirs).__code__}
"""Functions that look at each folder of a path, and read none."""


@contextlib.contextmanager
def _heard(name: str, note: Callable[[Any, FrameType], None]) -> Iterator[None]:
    """Have a function of `os` note its first argument in the block. Names that a file has imported do not follow."""
    own = getattr(os, name)

    @wraps(own)
    def heard(named: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if not _LOOKING_UP.intersection((frame.f_code, frame.f_back and frame.f_back.f_code)):
            note(named, frame)
        return own(named, *args, **kwargs)

    setattr(os, name, heard)
    try:
        yield
    finally:
        setattr(os, name, own)


def _path_of(descriptor: int) -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        path = ""
    return path if path.startswith("/") else os.devnull


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
