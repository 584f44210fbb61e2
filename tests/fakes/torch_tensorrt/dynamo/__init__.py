from __future__ import annotations

from . import backend
from ._compiler import compile
from ._settings import CompilationSettings

__all__ = ["CompilationSettings", "backend", "compile"]
