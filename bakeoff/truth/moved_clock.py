"""Shows a model's own code another time than that of the clock, where answers that depend on the time are compared.

The functions of `time` and `datetime`, and NumPy's `datetime64`, stay the objects that they are, and get another
implementation for a while. So names that a file has imported follow, a compiler sees what users' compilers see, and
timed calls have the real clock.
"""

import contextlib
import ctypes
import datetime
import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy

from bakeoff.truth.user_code import LIBRARIES, is_user_call

_Move = Callable[[Callable[[Any], Any], Any, float], Any]
"""Returns what a function returns at a time, by its own implementation and what that is given."""


def _given(place: int, made: Callable[[float], Any]) -> _Move:
    """Return how a function is moved that reads the clock unless its argument at this place is a time."""

    def move(own: Callable[[Any], Any], given: Any, at_s: float) -> Any:
        return own((*given[:place], made(at_s)) if given[place:] in ((), (None,)) else given)

    return move


def _at(own: Callable[[Any], Any], given: Any, at_s: float) -> float:
    own(given)  # raises what it raises
    return at_s


def _at_ns(own: Callable[[Any], Any], given: Any, at_s: float) -> int:
    own(given)
    return int(1e9 * at_s)


def _datetime64(own: Callable[[Any], Any], given: Any, at_s: float) -> Any:
    """Return what `numpy.datetime64` makes of its arguments, of which the first one may be `now` or `today`."""
    moment, *unit = given or ("",)
    if moment == "now":
        return own((numpy.datetime64(int(at_s), "s"), *unit))
    return own((datetime.date.fromtimestamp(at_s).isoformat(), *unit) if moment == "today" else given)


_STARTED_S = time.time()


def _counted(function: Callable[[], float]) -> _Move:
    """Return how a clock is moved that counts from a beginning of its own, in seconds or in whole nanoseconds."""
    start = function()
    units = 1e9 if isinstance(start, int) else 1.0
    return lambda own, given, at_s: start + type(start)(units * (at_s - _STARTED_S))


_NAMES = ("monotonic", "perf_counter", "process_time", "thread_time")
_COUNTING = {each: _counted(each) for name in _NAMES for each in (getattr(time, name), getattr(time, f"{name}_ns"))}
"""Clocks by which libraries wait: stopped for a queue, it would wait for ever."""

_MOVED: dict[Any, _Move] = {
    **_COUNTING,
    time.time: _at,
    time.time_ns: _at_ns,
    **({time.clock_gettime: _at, time.clock_gettime_ns: _at_ns} if hasattr(time, "clock_gettime") else {}),
    time.localtime: _given(0, float),
    time.gmtime: _given(0, float),
    time.ctime: _given(0, float),
    time.asctime: _given(0, time.localtime),
    time.strftime: _given(1, time.localtime),
    datetime.datetime.now: lambda own, given, at_s: (now := own(given)).fromtimestamp(at_s, now.tzinfo),
    datetime.datetime.utcnow: lambda own, given, at_s: (
        own(given).fromtimestamp(at_s, datetime.UTC).replace(tzinfo=None)
    ),
}


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
_SIGNATURES: dict[int, tuple[Any, ...]] = {
    0x1: (_ANY, ctypes.py_object),  # METH_VARARGS
    0x4: (_ANY, _ANY),  # METH_NOARGS
    0x8: (_ANY, ctypes.py_object),  # METH_O
    0x82: (_ANY, _ANY, ctypes.c_ssize_t, _ANY),  # METH_FASTCALL | METH_KEYWORDS
}
"""The types of the arguments of implementations in C, by the flags of their definitions."""

_NEW, _NEW_SLOT_BYTES = 65, 312
"""CPython's number of a type's `tp_new`, and where in the type it lies on 64-bit machines."""

STILL_READS, TICK_S, MOST_DOUBLINGS = 100, 1e-3, 22
"""After so many reads in one call, a stopped clock goes on by a tick that each further read doubles, and at last by an
hour with each: a model may loop until a time has come."""

_at_s: float | None = None  # what the user's code sees, or None for the real clock
_still_reads = STILL_READS
_reads = 0  # of the stopped clock in this call
_listeners: list[Callable[[], None]] = []
_is_replaced = False


def is_clock_stopped() -> bool:
    return _at_s is not None


def time_seen() -> float:
    return time.time() if _at_s is None else _at_s


def begin_call() -> None:
    """Have the next call see the time at which the clock is stopped."""
    global _reads
    _reads = 0


def _next_time(at_s: float) -> float:
    global _reads
    _reads += 1
    ticks = _reads - _still_reads
    if ticks <= 0:
        return at_s
    return at_s + TICK_S * 2.0 ** min(ticks, MOST_DOUBLINGS) * max(1, ticks - MOST_DOUBLINGS + 1)


@contextlib.contextmanager
def clock_at(seconds: float | None, still_reads: int = STILL_READS) -> Iterator[None]:
    """Stop the clock for the user's own code in the block, at a time since 1970. For None, leave it as it is."""
    global _at_s, _still_reads
    before = _at_s, _still_reads
    if seconds is not None:
        _at_s, _still_reads = seconds, still_reads
    begin_call()
    try:
        with contextlib.nullcontext() if seconds is None else _all_replaced():
            yield
    finally:
        _at_s, _still_reads = before


@contextlib.contextmanager
def hearing_clock(listener: Callable[[], None]) -> Iterator[None]:
    """Call a function each time that the user's own code reads a clock in the block."""
    _listeners.append(listener)
    try:
        with _all_replaced():
            yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def _all_replaced() -> Iterator[None]:
    global _is_replaced
    with contextlib.ExitStack() as replaced:
        if not _is_replaced:
            for function, move in _MOVED.items():
                replaced.enter_context(_replaced(function, move))
            replaced.enter_context(_replaced_new(numpy.datetime64, _datetime64))
            _is_replaced = True
            replaced.callback(_none_replaced)
        yield


def _none_replaced() -> None:
    global _is_replaced
    _is_replaced = False


@contextlib.contextmanager
def _replaced(function: Any, move: _Move) -> Iterator[None]:
    """Have a function return the time of `clock_at` to the user's own code in the block."""
    address = _ANY.from_address(id(function) + object.__basicsize__).value
    definition = _Definition.from_address(address or 0)
    if definition.name != function.__name__.encode():
        raise RuntimeError(f"{function.__name__} is not implemented as in CPython")
    place = _ANY.from_address(ctypes.addressof(definition) + _Definition.implementation.offset)
    through = () if function in _COUNTING else LIBRARIES
    with _implemented_by(place, _SIGNATURES[definition.flags & ~METH_CLASS], move, through):
        yield


@contextlib.contextmanager
def _replaced_new(kind: type, move: _Move) -> Iterator[None]:
    """Have a type make an object for the time of `clock_at` for the user's own code in the block."""
    slot_of = ctypes.pythonapi.PyType_GetSlot
    slot_of.restype, slot_of.argtypes = _ANY, (ctypes.py_object, ctypes.c_int)
    place = _ANY.from_address(id(kind) + _NEW_SLOT_BYTES)
    if place.value != slot_of(kind, _NEW):
        raise RuntimeError(f"{kind.__name__} is not laid out as in CPython")
    with _implemented_by(place, (_ANY, ctypes.py_object, _ANY), move, LIBRARIES):
        yield


_raise_next = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
"""Has a thread raise an exception of a class where its Python code has just called something."""


def _raising(error: Exception) -> type[Exception]:
    """Return a class that makes no new exception, but gives this one, and until then stops profiling."""
    profiler = sys.getprofile()

    def given(_: type) -> Exception:
        sys.setprofile(profiler)
        return error

    kind = type("Given", (type,), {"__call__": given})
    raising: type[Exception] = kind(type(error).__name__, (type(error),), {})
    # The profiler would be the next code that is interrupted.
    sys.setprofile(None)
    return raising


@contextlib.contextmanager
def _implemented_by(
    place: ctypes.c_void_p, signature: tuple[Any, ...], move: _Move, through: tuple[str, ...]
) -> Iterator[None]:
    """Have calls by the user's own code, also through the folders `through`, tell listeners and be moved."""
    address_of_own = place.value
    own = ctypes.PYFUNCTYPE(ctypes.py_object, *signature)(address_of_own or 0)
    is_tuple = signature[1] is ctypes.py_object

    def moved(receiver: int, *given: Any) -> int:
        try:
            frame = sys._getframe(1)
            is_users = frame.f_code.co_filename != logging.__file__ and is_user_call(frame, through)
            for listener in _listeners if is_users else ():
                listener()
            if not is_users or _at_s is None:
                made = own(receiver, *given)
            elif is_tuple:
                made = move(lambda arguments: own(receiver, arguments, *given[1:]), given[0], _next_time(_at_s))
            else:
                arguments = given if len(given) > 1 else (None,)
                made = move(lambda arguments: own(receiver, *arguments), arguments, _next_time(_at_s))
        except Exception as error:
            # An exception cannot leave it: the caller gets None, and the exception before its next instruction.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
            address = id(None)
            interrupt = defaultdict[int, int](partial(_raise_next, threading.get_ident(), _raising(error)))
            interrupt[0]  # no call, after which this function itself would be interrupted
            return address
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        return id(made)

    replacement = ctypes.PYFUNCTYPE(_ANY, *signature)(moved)
    place.value = ctypes.cast(replacement, _ANY).value
    try:
        yield
    finally:
        place.value = address_of_own
