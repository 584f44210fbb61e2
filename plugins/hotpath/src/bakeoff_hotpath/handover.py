"""A call in a file, for the process that compiles it. Large weights are described, not copied. Imports torch."""

import ast
import ctypes
import importlib.util
import io
import pickle
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from bakeoff_hotpath import settings
from bakeoff_hotpath.flattening import tensors_in

MAX_COPIED_BYTES = 64 * 1024
"""Smaller weights and inputs are copied. Of larger ones in floating point only the kind is written."""


BUILT_IN = frozenset(sys.builtin_module_names)
"""Modules without a file."""


@dataclass(frozen=True)
class Task:
    """A call as the compiling process reads it."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_training: bool  # forward and backward are compiled, since gradients are wanted
    settings: settings.Settings


class CannotHandOver(Exception):
    """The reason why a module does not get into another process."""


def write(
    file: Path, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], is_training: bool
) -> None:
    """Write a call. Raises OSError, and CannotHandOver for what cannot be pickled, or not be found elsewhere."""
    task = Task(module, args, kwargs, is_training, settings.read())
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers(), *tensors_in(args, kwargs))}
    try:
        with file.open("wb") as stream:
            written = io.BytesIO()
            writer = _Writer(written, known)
            writer.dump(task)
            pickle.dump(writer.files(), stream)
            stream.write(written.getvalue())
    except OSError:
        raise
    except Exception as error:  # a class of the user's may raise anything
        raise CannotHandOver(f"{type(module).__name__} cannot be pickled: {_first_line(error)}") from error


def read(file: Path) -> Task:
    """Read a call. Raises whatever unpickling raises."""
    with file.open("rb") as stream:
        files: dict[str, str] = pickle.load(stream)
        task: Task = _Reader(stream, files).load()
    return task


class _Writer(pickle.Pickler):
    def __init__(self, stream: Any, known: set[int]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._known = known
        self._numbers: dict[int, int] = {}
        self._modules: dict[str, None] = {}  # of the classes and functions that were met

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            self._modules[obj.__module__] = None
        return NotImplemented  # which means: as usual

    def files(self) -> dict[str, str]:
        """Return the files of modules that were loaded under names by which Python does not find them."""
        files = {}
        for name in self._modules:
            origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
            if origin and "." not in name and name not in BUILT_IN and PathFinder.find_spec(name) is None:
                files[name] = str(origin)
        return files

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        number = self._numbers.setdefault(id(obj), len(self._numbers))
        about = (number, obj.device, obj.requires_grad, isinstance(obj, torch.nn.Parameter))
        may_describe = id(obj) in self._known and (obj.is_floating_point() or obj.is_complex())
        if may_describe and obj.nbytes > MAX_COPIED_BYTES:
            return ("described", *about, obj.dtype, tuple(obj.shape), obj.stride())
        # values are written as bytes of memory, since NumPy has no bfloat16
        values = torch.empty_strided(obj.shape, obj.stride(), dtype=obj.dtype, device="cpu")
        values.copy_(obj.detach())
        storage = values.untyped_storage()
        # `bytes(storage)` reads byte by byte, which takes 0.6 s for 260 KB
        stored = ctypes.string_at(storage.data_ptr(), storage.nbytes())
        return ("copied", *about, obj.dtype, tuple(obj.shape), obj.stride(), stored)


class _Reader(pickle.Unpickler):
    def __init__(self, stream: Any, files: dict[str, str]) -> None:
        super().__init__(stream)
        self._files = files
        self._tensors: dict[int, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(0)

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name in self._files and module_name not in sys.modules:
            spec = importlib.util.spec_from_file_location(module_name, self._files[module_name])
            if spec is None or spec.loader is None:
                raise ImportError(f"{self._files[module_name]} is no Python file")
            sys.modules[module_name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module_name])
        return super().find_class(module_name, global_name)

    def persistent_load(self, pid: Any) -> Any:
        number = pid[1]
        if number not in self._tensors:
            self._tensors[number] = self._make(pid[0], *pid[2:])
        return self._tensors[number]

    def _make(
        self,
        how: str,
        device: torch.device,
        requires_grad: bool,
        is_parameter: bool,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        stored: bytes = b"",
    ) -> torch.Tensor:
        if how == "copied":
            flat = torch.frombuffer(bytearray(stored), dtype=dtype) if stored else torch.empty(0, dtype=dtype)
            values = flat.as_strided(shape, stride)
        else:
            values = torch.empty_strided(shape, stride, dtype=dtype)
            # small, as trained weights are, so that a deep model's outputs stay finite
            values.copy_(0.02 * torch.randn(shape, generator=self._generator))
        placed = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        placed.copy_(values)
        if is_parameter:
            return torch.nn.Parameter(placed, requires_grad)
        return placed.requires_grad_(requires_grad)


def main_script(module: torch.nn.Module) -> str | None:
    """Return the script that another process must read to know the module's classes, or None.

    Raises CannotHandOver for a script that would run when it is read, without `if __name__ == "__main__":`.
    """
    mine = [type(part).__name__ for part in module.modules() if type(part).__module__ == "__main__"]
    if not mine:
        return None
    script: str | None = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or not _has_guard(Path(script)):
        raise CannotHandOver(
            f"{mine[0]} is defined in the main script, which another process can only read if what it does stands "
            "under `if __name__ == '__main__':`; or move the class into a module"
        )
    return script


def _has_guard(script: Path) -> bool:
    tree = ast.parse(script.read_text())
    tests = [ast.unparse(statement.test) for statement in tree.body if isinstance(statement, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
