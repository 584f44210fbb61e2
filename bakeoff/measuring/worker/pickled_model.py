"""A model as a file that loads where the libraries of its code are: what these have not brought travels by value."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import torch

from bakeoff.models.base import Inputs
from bakeoff.models.live_model import own_search_path
from bakeoff.records.errors import BakeoffError, first_line


def write(module: torch.nn.Module, inputs: Inputs, path: Path) -> None:
    """Write the model with the arguments of a call. Raise BakeoffError for one that cannot be pickled."""
    kept = {"model": module, "args": inputs.args, "kwargs": dict(inputs.kwargs)}
    try:
        with _by_value(_own_modules()):
            torch.save(kept, path, pickle_module=cloudpickle)
    except Exception as error:  # pickling calls methods of the model's own, which may raise anything
        raise BakeoffError(f"the model cannot be pickled: {first_line(error)}") from error


def _own_modules() -> list[ModuleType]:
    """Return Bakeoff, and the modules of folders of the search path that no environment brought."""
    on_path = own_search_path()
    own = {Path(folder) for folder in on_path if not any(Path(folder).glob("*.dist-info"))}
    searched = {*map(Path, on_path), *(Path(entry).resolve() for entry in sys.path)}

    def is_own(place: str) -> bool:
        """An environment often lies inside of a project, so that the innermost folder of the search path decides."""
        around = searched.intersection(Path(place).resolve().parents)
        return max(around, key=lambda folder: len(folder.parts), default=None) in own

    found = []
    for name, module in list(sys.modules.items()):
        if "." not in name and name != "__main__" and getattr(module, "__name__", "") == name:
            places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
            if name == "bakeoff" or any(map(is_own, filter(None, places))):
                found.append(module)
    return found


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
