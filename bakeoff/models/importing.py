"""Finds and imports a user's file, or a module that Python can import, as a worker would."""

import ast
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from bakeoff.records.errors import UsageError
from bakeoff.records.package import checkout

names: dict[Path, str] = {}
"""The names under which this process imports files."""


class UserFile(MetaPathFinder, Loader):
    """Finds a user's file under a name of ours. Under its own name, libraries come first, so that `queue.py` does not
    replace Python's queue, and then the same module."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name:
            return importlib.util.spec_from_file_location(self._name, self._file)
        if fullname != self._file.stem or path is not None or fullname in sys.builtin_module_names:
            return None
        others = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != self._file.parent]
        if (library := PathFinder.find_spec(fullname, others)) is not None and library.origin is not None:
            return library
        # only now, because a module by its own name changes libraries: scipy looks for an imported `sparse`
        return ModuleSpec(fullname, self, origin=str(self._file))

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name)


def import_file(path: Path, tree: ast.Module | None) -> ModuleType:
    """Import the file anew, under its name of ours. It runs as the parsed `tree`, if it is given."""
    name = names[path]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py and was read before
    module = importlib.util.module_from_spec(spec)
    before = dict.fromkeys([name], sys.modules.get(name))
    if (by_stem := sys.modules.get(path.stem)) is not None and getattr(by_stem, "__name__", "") == name:
        before[path.stem] = by_stem
    # as an import does, because dataclasses and pickle look up a class's module by name
    sys.modules.update(dict.fromkeys(before, module))
    try:
        if tree is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException:
        sys.modules.update({name: module for name, module in before.items() if module is not None})
        raise
    return module


def can_import(module: str) -> bool:
    """Return True if Python finds a module of this name from the current folder. Nothing is imported."""
    return _spec_of(module) is not None


def file_of_module(module: str) -> Path:
    spec = _spec_of(module)
    if spec is None:
        raise UsageError(
            f"no module '{module}' can be imported from this folder or this environment: "
            "write package.module:FACTORY, or path/to/file.py:FACTORY"
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"module '{module}' is not a Python file: name the module that holds the factory")
    return Path(spec.origin)


def _spec_of(module: str) -> ModuleSpec | None:
    return spec_of(module, places_from(Path.cwd()))


def places_from(first: Path) -> list[str]:
    # the folder of `python runner.py` is on the controller's path and not on a worker's
    return [str(first), *(path for path in sys.path if Path(path) != checkout())]


def spec_of(module: str, places: Sequence[str]) -> ModuleSpec | None:
    """Find a module in these folders, or by the finders of this process. A package on the way is not imported."""
    spec: ModuleSpec | None = None
    for part in module.split("."):
        is_top = spec is None
        spec = PathFinder.find_spec(part, list(places))
        if spec is None and is_top:
            spec = _spec_by_other_finders(part)
        if spec is None:
            return None
        places = spec.submodule_search_locations or ()
    return spec


def _spec_by_other_finders(name: str) -> ModuleSpec | None:
    """Ask the finders that editable installs add, too. A worker does not have this process's finders of files."""
    others = (finder for finder in sys.meta_path if finder is not PathFinder and not isinstance(finder, UserFile))
    finders = (getattr(finder, "find_spec", None) for finder in others)
    specs = (find(name, None) for find in finders if find)
    return next((spec for spec in specs if spec is not None), None)
