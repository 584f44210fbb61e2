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
        with _by_value([each for each in list(sys.modules.values()) if _is_own(each)]):
            torch.save(kept, path, pickle_module=cloudpickle)
    except Exception as error:  # pickling calls methods of the model's own, which may raise anything
        raise BakeoffError(f"the model cannot be pickled: {first_line(error)}") from error


def _is_own(module: ModuleType) -> bool:
    """Return True for Bakeoff, and for a module of a folder of the search path that no environment brought."""
    name = getattr(module, "__name__", "")
    if "." in name or sys.modules.get(name) is not module or name == "__main__":
        return False
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return name == "bakeoff" or any(_searched_for(Path(place)) in _own_folders() for place in places if place)


def _own_folders() -> set[Path]:
    """Return the folders of the search path that pip has installed nothing into."""
    return {Path(folder) for folder in own_search_path() if not any(Path(folder).glob("*.dist-info"))}


def _searched_for(place: Path) -> Path | None:
    """Return the innermost folder of the search path around a file: an environment often lies inside of a project."""
    folders = {*map(Path, own_search_path()), *(Path(entry).resolve() for entry in sys.path)}
    return max(folders.intersection(place.resolve().parents), key=lambda folder: len(folder.parts), default=None)


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
