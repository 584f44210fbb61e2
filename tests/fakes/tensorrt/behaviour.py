"""What the fake does where a test wants it to fail or to answer differently, and what it has seen.

A method is named as `Class.method`. `reset` makes the fake behave as usual again.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

addresses: dict[str, int] = {}
"""The address that each tensor was last given."""

freed: list[str] = []
"""The classes of the objects that were freed, in this order."""

VERSION = "10.13.3.9"

_instead: dict[str, Callable[..., Any]] = {}


def replaceable(method: Callable[P, T]) -> Callable[P, T]:
    """Let tests decide what the method does."""

    @functools.wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> T:
        return _instead.get(method.__qualname__, method)(*given, **named)

    return call


def answer(method: str, value: object) -> None:
    """Make the method return `value`."""
    _instead[method] = lambda *_, **__: value


def fail(method: str, message: str) -> None:
    """Make the method fail as TensorRT's do: it logs `message` and returns None."""

    def log(self: Any, *_: object, **__: object) -> None:
        self._logger.log(type(self._logger).ERROR, message)

    _instead[method] = log


def fail_to_construct(name: str, message: str) -> None:
    """Make the class log `message` and raise, as with an old driver: pybind11 raises TypeError."""

    def log(self: object, logger: Any) -> None:
        logger.log(type(logger).ERROR, message)
        raise TypeError("pybind11::init(): factory function returned nullptr")

    _instead[f"{name}.__init__"] = log


def release(version: str) -> None:
    """Make the fake another version of TensorRT."""
    vars(sys.modules[__package__])["__version__"] = version


def watch(made: object) -> None:
    """Note in `freed` when the object is freed."""
    weakref.finalize(made, freed.append, type(made).__name__)


def reset() -> None:
    release(VERSION)
    _instead.clear()
    addresses.clear()
    freed.clear()
