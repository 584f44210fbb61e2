"""What the variables of a user's file hold, so that a second load of the model begins as the first one did.

Calls of a model may leave something there, such as a table in the type of the first call.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from queue import Queue, SimpleQueue
from types import FunctionType, ModuleType
from typing import Any

import torch

CONTAINERS = {dict, OrderedDict, defaultdict, list, set, deque}
"""The containers whose content is put back. Types of others may do anything when they are changed."""

Cached = type(lru_cache(lambda: None))


class Variables:
    """The values of a module's variables, and what lies in the containers, caches, classes and objects among them, but
    for modules of torch. Names in `without` are not the file's own."""

    def __init__(self, module: ModuleType, without: Collection[str]) -> None:
        self._of = module.__name__
        self._known: set[int] = set()
        self._steps: list[Callable[[], object]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._has_iterator = False
        self._note_names(module, without)

    def put_back(self) -> bool:
        for step in self._steps:
            step()
        return not self._has_iterator and all(tensor._version == version for tensor, version in self._versions)

    def _note_names(self, owner: Any, without: Collection[str] = ()) -> None:
        names = {name: value for name, value in vars(owner).items() if not name.startswith("__")}
        names = {name: value for name, value in names.items() if name not in without}
        self._steps.append(partial(_put_back_names, owner, names, without))
        for value in names.values():
            self._note(value)

    def _note(self, value: Any) -> None:
        if id(value) in self._known:
            return
        self._known.add(id(value))  # which no other object gets: the steps keep the value
        if isinstance(value, torch.Tensor):
            if not value.is_inference():
                self._versions.append((value, value._version))
        elif type(value) in CONTAINERS:
            self._steps.append(partial(_put_back_content, value, value.copy()))
            for element in value.values() if isinstance(value, dict) else value:
                self._note(element)
        elif isinstance(value, Iterator | Queue | SimpleQueue):  # which nothing sets back
            self._has_iterator = True
        elif isinstance(value, Cached):
            self._steps.append(partial(_clear_grown_cache, value, value.cache_info().currsize))
        elif not isinstance(value, torch.nn.Module):
            of = value.__module__ if isinstance(value, type | FunctionType) else type(value).__module__
            if of == self._of and hasattr(value, "__dict__"):
                self._note_names(value)


def _put_back_names(owner: Any, names: dict[str, Any], without: Collection[str]) -> None:
    now = vars(owner)
    for name in [name for name in now if name not in names and name not in without and not name.startswith("__")]:
        delattr(owner, name)
    for name, value in names.items():
        if name not in now or now[name] is not value:
            setattr(owner, name, value)


def _put_back_content(container: Any, content: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(content)


def _clear_grown_cache(function: Any, size: int) -> None:
    if function.cache_info().currsize != size:
        function.cache_clear()
