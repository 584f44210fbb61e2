"""A library that is imported when something of it is first asked for."""

import importlib
from typing import Any


class Library:
    """Stands for a module that is imported when an attribute of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self._name,)
