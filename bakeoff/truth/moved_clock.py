"""Shows a model's own code another time than that of the clock, where answers that depend on the time are compared.

The functions of `time` and `datetime` stay the objects that they are, and get another implementation for a while. So
names that a file has imported follow, a compiler sees what users' compilers see, and timed calls have the real clock.
"""

import contextlib
import ctypes
import datetime
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bakeoff.truth.user_code import is_users_file

_Move = Callable[[Callable[[Any], Any], Any, float], Any]
"""Returns what a function returns at a time, by its own implementation and what that is given."""


def _given(place: int, made: Callable[[float], Any]) -> _Move:
    """Return how a function is moved that reads the clock unless its argument at this place is a time."""

    def move(own: Callable[[Any], Any], given: Any, at_s: float) -> Any:
        return own((*given[:place], made(at_s)) if given[place:] in ((), (None,)) else given)

    return move


_MOVED: dict[Any, _Move] = {
    **dict.fromkeys(
        (time.time, time.monotonic, time.perf_counter, time.process_time, time.thread_time),
        lambda own, given, at_s: at_s,
    ),
    **dict.fromkeys(
        (time.time_ns, time.monotonic_ns, time.perf_counter_ns, time.process_time_ns, time.thread_time_ns),
        lambda own, given, at_s: int(1e9 * at_s),
    ),
    time.localtime: _given(0, float),
    time.gmtime: _given(0, float),
    time.ctime: _given(0, float),
    time.asctime: _given(0, time.localtime),
    time.strftime: _given(1, time.localtime),
    datetime.datetime.now: lambda own, given, at_s: datetime.datetime.fromtimestamp(at_s, own(given).tzinfo),
    datetime.datetime.utcnow: lambda own, given, at_s: datetime.datetime.fromtimestamp(at_s, datetime.UTC).replace(
        tzinfo=None
    ),
}

_CLOCKS = {(id(each.__self__), each.__name__) for each in (*_MOVED, datetime.date.today, datetime.datetime.today)}
"""`today` calls `time.time`."""


def is_clock(builtin: Any) -> bool:
    """Return True for a function that reads a clock."""
    return (id(getattr(builtin, "__self__", None)), getattr(builtin, "__name__", "")) in _CLOCKS


class _Definition(ctypes.Structure):
    """CPython's PyMethodDef: how a function that is not written in Python is implemented."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("implementation", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


METH_CLASS = 0x10
_ANY = ctypes.c_void_p
_IMPLEMENTATIONS: dict[int, Any] = {
    0x1: ctypes.PYFUNCTYPE(ctypes.py_object, _ANY, ctypes.py_object),  # METH_VARARGS
    0x4: ctypes.PYFUNCTYPE(ctypes.py_object, _ANY, _ANY),  # METH_NOARGS
    0x82: ctypes.PYFUNCTYPE(ctypes.py_object, _ANY, _ANY, ctypes.c_ssize_t, _ANY),  # METH_FASTCALL | METH_KEYWORDS
}
"""The types of implementations in C, by the flags of their definitions."""

_at_s: float | None = None  # what the user's code sees, or None for the real clock


def is_clock_stopped() -> bool:
    """Return True within `clock_at`."""
    return _at_s is not None


def time_seen() -> float:
    """Return the time that the user's own code sees now, in seconds since 1970."""
    return time.time() if _at_s is None else _at_s


@contextlib.contextmanager
def clock_at(seconds: float | None) -> Iterator[None]:
    """Stop the clock for the user's own code in the block, at a time since 1970. For None, leave it as it is."""
    global _at_s
    before, _at_s = _at_s, _at_s if seconds is None else seconds
    try:
        with contextlib.ExitStack() as replaced:
            if before is None and seconds is not None:
                for function, move in _MOVED.items():
                    replaced.enter_context(_replaced(function, move))
            yield
    finally:
        _at_s = before


@contextlib.contextmanager
def _replaced(function: Any, move: _Move) -> Iterator[None]:
    """Have a function return the time of `clock_at` to the user's own code in the block."""
    address = ctypes.c_void_p.from_address(id(function) + object.__basicsize__).value
    definition = _Definition.from_address(address or 0)
    if definition.name != function.__name__.encode():
        raise RuntimeError(f"{function.__name__} is not implemented as in CPython")
    implemented = _IMPLEMENTATIONS[definition.flags & ~METH_CLASS]
    address_of_own = definition.implementation
    own = implemented(address_of_own)

    def moved(receiver: int, *given: Any) -> Any:
        if _at_s is None or not is_users_file(sys._getframe(1).f_code.co_filename):
            return own(receiver, *given)
        if len(given) == 1:  # a tuple of arguments, or nothing
            return move(lambda arguments: own(receiver, arguments), given[0], _at_s)
        return move(lambda arguments: own(receiver, *arguments), given, _at_s)

    replacement = implemented(moved)
    definition.implementation = ctypes.cast(replacement, ctypes.c_void_p).value
    try:
        yield
    finally:
        definition.implementation = address_of_own
