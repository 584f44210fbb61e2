"""A model that lives in a program: `bakeoff.compare` writes it into a folder, from which every worker loads it.

`model.pkl` has the module with its inputs. What workers cannot import travels in it by value. `weights.bin` has each
storage once, which workers map and share. `about.json` has what the controller must know, which imports no torch.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
from pydantic import Field

from bakeoff.models.base import LIVE_MODEL, Family, LoadedModel, Pipeline, Sizes
from bakeoff.models.example_inputs import module_in, with_own_inputs, with_stages
from bakeoff.models.importing import spec_of
from bakeoff.models.lazily import torch
from bakeoff.models.seeding import seeded
from bakeoff.models.source_code import dimension_of
from bakeoff.models.unwrapping import held_by_wrapper, kept_from_compilers, require_weights, without_wrappers
from bakeoff.records.errors import UsageError, first_line, os_reason
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import LIVE

PROGRAM = "model.pkl"
WEIGHTS = "weights.bin"
ABOUT = "about.json"
EVALUATE = "evaluate"
EVALUATE_PROGRAM = "evaluate.pkl"
EVALUATE_WEIGHTS = "evaluate.bin"

ALIGNMENT = 64
"""Storages begin at multiples of this many bytes, as those that torch allocates."""

_one_at_a_time = threading.Lock()
"""Held while modules are registered at cloudpickle, whose list belongs to the whole process."""


class About(Frozen):
    name: str
    description: str
    dimensions: dict[str, int | str] = Field(default_factory=dict)  # parameters of a factory, with their defaults
    takes_seed: bool = False
    is_factory: bool = False
    search_path: tuple[str, ...] = ()  # folders of the caller's `sys.path` that belong to no environment
    imports: tuple[str, ...] = ()  # installed modules that loading the model imports
    unwrapped: tuple[str, ...] = ()  # what was taken off the module, such as torch.compile
    code: str = ""  # digest of the pickle, which holds all code that lies in no file

    def make_importable(self) -> None:
        """Let this process find what the caller's program finds: its own folders come first on the search path."""
        own = list(self.search_path)
        sys.path[:] = [*own, *(path for path in sys.path if path not in own)]


class LiveModel(Family):
    """A model that a program has handed to `bakeoff.compare`. A module has no dimensions, and a factory has some."""

    def __init__(self, name: str) -> None:
        """Raise UsageError where this process serves no program that compares such a model."""
        root = Path(os.environ.get(LIVE_MODEL, ""))
        folder = next((folder for folder in (root / name, root) if (folder / ABOUT).is_file()), None)
        if LIVE_MODEL not in os.environ or folder is None:
            raise UsageError(
                f"{LIVE}{name} lived in a program that called bakeoff.compare, and is not kept: "
                "call bakeoff.compare again with the model, or write a factory and name it as FILE.py:FACTORY"
            )
        self._folder = folder
        self._about = About.model_validate_json((folder / ABOUT).read_bytes())
        self.name = f"{LIVE}{self._about.name}"
        self.description = self._about.description
        self.dimensions = {key: dimension_of(self.name, key, value) for key, value in self._about.dimensions.items()}
        self.imports = self._about.imports

    def make_importable(self) -> None:
        self._about.make_importable()

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Map the weights, and make the module or call the factory. Each call gives a fresh module."""
        self.make_importable()
        model, example = _read(self._folder, PROGRAM, WEIGHTS)
        if self._about.is_factory:
            arguments = {**dimensions, **({"seed": seed} if self._about.takes_seed else {})}
            with seeded(seed):
                returned = model(**arguments)
            model, example = module_in(self.name, returned, example)
        module, example, around = with_stages(self.name, model, example)
        made = with_own_inputs(self.name, module, example, self._about.unwrapped, self._about.code)
        return replace(made, around=around)


def save(model: Callable[..., Any] | Pipeline, example: object, folder: Path, name: str = "") -> str:
    """Write a module or a factory, with its inputs, and return the name under which workers find it. Nothing in this
    process changes. Raise UsageError, with the path of the attribute, for what no other process can have."""
    module = model.model if isinstance(model, Pipeline) else model
    is_module = isinstance(module, torch.nn.Module)
    if isinstance(module, torch.nn.Module):
        require_weights(module)
    program, pickler = _write({"model": model, "inputs": example}, folder, PROGRAM, WEIGHTS)
    described: Any = type(module) if is_module else module
    about = About(
        name=name or _name_of(module),
        # its own docstring: a class would inherit that of torch.nn.Module
        description=inspect.cleandoc(described.__doc__ or "a live model").partition("\n")[0],
        is_factory=not is_module,
        search_path=own_search_path(),
        imports=tuple(sorted(pickler.installed)),
        unwrapped=tuple(pickler.taken),
        # without the numbers that cloudpickle draws for classes, it is the same in every process
        code=hashlib.sha256(re.sub(rb"[0-9a-f]{32}", b"", program)).hexdigest(),
        **({} if is_module else _parameters(module)),
    )
    (folder / ABOUT).write_text(about.model_dump_json(), encoding="utf-8")
    return f"{LIVE}{about.name}"


def load_saved(folder: Path) -> tuple[Any, ...]:
    About.model_validate_json((folder / ABOUT).read_bytes()).make_importable()
    return _read(folder, PROGRAM, WEIGHTS)


def save_evaluate(evaluate: Callable[..., Any], folder: Path) -> str:
    if not callable(evaluate):
        raise UsageError(f"evaluate is a {type(evaluate).__name__}: give a function, or FILE.py:FUNCTION")
    _write({EVALUATE: evaluate}, folder, EVALUATE_PROGRAM, EVALUATE_WEIGHTS)
    return f"{LIVE}{getattr(evaluate, '__name__', EVALUATE)}"


def read_evaluate() -> Callable[..., Any]:
    """Return the function of the program that this process serves. Raise UsageError if it has given none."""
    folder = Path(os.environ.get(LIVE_MODEL, ""))
    if LIVE_MODEL not in os.environ or not (folder / EVALUATE_PROGRAM).is_file():
        raise UsageError("evaluate lived in a program that called bakeoff.compare, and is not kept")
    evaluate: Callable[..., Any]
    (evaluate,) = _read(folder, EVALUATE_PROGRAM, EVALUATE_WEIGHTS)
    return evaluate


def _write(named: Mapping[str, Any], folder: Path, program_name: str, weights_name: str) -> tuple[bytes, _Pickling]:
    """Write these values into two files, and return the first one's content with what pickling has found out."""
    with _one_at_a_time:
        pickler = _Pickling()
        try:
            program = io.BytesIO()
            pickler.Pickler(program, protocol=pickle.DEFAULT_PROTOCOL).dump(tuple(named.values()))
            pickler.write_weights(folder / weights_name)
            (folder / program_name).write_bytes(program.getvalue())
        except OSError as error:
            raise UsageError(
                f"the {next(iter(named))} cannot be written into {folder}: {os_reason(error)}: let the variable "
                "TMPDIR name a folder with room for its weights"
            ) from None
        except Exception as error:  # pickling calls methods of the model's own, which may raise anything
            stays = filter(None, (_what_stays(value, name, pickler) for name, value in named.items()))
            other = f"the {next(iter(named))} cannot be taken to another process: {first_line(error)}"
            raise UsageError(next(stays, other)) from error
        finally:
            for module in pickler.by_value:
                cloudpickle.unregister_pickle_by_value(module)
    return program.getvalue(), pickler


def weights_bytes(folder: Path) -> int | None:
    models = [about.with_name(WEIGHTS) for about in folder.rglob(ABOUT)]
    return sum(weights.stat().st_size for weights in models) if models else None


def _read(folder: Path, program_name: str, weights_name: str) -> tuple[Any, ...]:
    """Return what was written. Its tensors lie in the mapped file, and what is written to them is copied."""
    file = folder / weights_name
    size = file.stat().st_size
    weights = torch.UntypedStorage.from_file(str(file), False, size) if size else torch.UntypedStorage(0)
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: tuple[int, int, torch.dtype | None]) -> object:
            start, size, dtype = place
            if (start, size) not in storages:  # what shares memory goes on to do so
                storages[start, size] = weights[start : start + size] if size else torch.UntypedStorage(0)
            storage = storages[start, size]
            if dtype is None:
                return storage
            # a tensor is made of a storage that knows its type
            return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    with (folder / program_name).open("rb") as program:
        values: tuple[Any, ...] = Unpickler(program).load()
    return values


def _name_of(model: Callable[..., Any]) -> str:
    if isinstance(model, torch.nn.Module):
        return type(without_wrappers(model)).__name__
    return getattr(model, "__name__", type(model).__name__).replace("<lambda>", "factory")


def _parameters(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the dimensions of a factory as fields of `About`. Raise UsageError where a parameter is none."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{_name_of(factory)} is neither a torch.nn.Module nor a function that makes one") from None
    sizes: dict[str, int | str] = {}
    for parameter in parameters:
        if parameter.name != "seed" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if parameter.default is parameter.empty:
                raise UsageError(
                    f"a function that is given in place of a torch.nn.Module makes one, and '{parameter.name}' of this "
                    f"one has no default: give it a size, such as {parameter.name}=8. If the function computes the "
                    "answer, make it the forward of a torch.nn.Module"
                )
            sizes[parameter.name] = dimension_of(_name_of(factory), parameter.name, parameter.default).default
    return {"dimensions": sizes, "takes_seed": any(parameter.name == "seed" for parameter in parameters)}


def own_search_path() -> tuple[str, ...]:
    brought = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own = []
    for entry in sys.path:
        # what was relative to an earlier working folder is still searched there
        searched = getattr(sys.path_importer_cache.get(entry), "path", None)
        folder = Path(searched or entry or os.getcwd()).resolve()
        if folder.is_dir() and not any(folder == own or own in folder.parents for own in brought):
            own.append(str(folder))
    return tuple(dict.fromkeys(own))


class _Pickling:
    """Pickles a model without the values of its tensors, and keeps what that finds out."""

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}
        self.installed: set[str] = set()
        self.by_value: list[types.ModuleType] = []
        self._looked_up: set[str] = set()
        self._places: dict[int, tuple[int, int]] = {}
        self._storages: list[torch.UntypedStorage] = []
        self._end = 0
        pickling = self

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
            def persistent_id(self, value: Any) -> Any:
                return pickling.place_of(value)

            def reducer_override(self, value: Any) -> Any:
                reduced = pickling.reduced(value)
                return super().reducer_override(value) if reduced is None else reduced

        self.Pickler = Pickler

    def reduced(self, value: Any) -> tuple[Any, tuple[Any, ...]] | None:
        """Return how a value travels that pickle would get wrong, or None. Raise TypeError for one that cannot."""
        if (original := kept_from_compilers(value)) is not None:
            return torch.compiler.disable, (original, getattr(value, "_torchdynamo_disable_recursive", True))
        if (held := held_by_wrapper(value)) is not None:
            self.taken[held[0]] = None
            return _as_it_is, (held[1],)
        if isinstance(value, type | types.FunctionType):
            self._look_up(value.__module__)
        elif isinstance(value, torch.jit.ScriptModule):
            scripted = io.BytesIO()
            torch.jit.save(value, scripted)
            return _scripted, (scripted.getvalue(),)
        elif value is sys.stdout or value is sys.stderr:
            return getattr, (sys, "stdout" if value is sys.stdout else "stderr")
        elif kind := _belongs_to_process(value):
            raise TypeError(f"cannot take {kind} to another process")
        return None

    def place_of(self, value: Any) -> tuple[int, int, torch.dtype | None] | None:
        """Return where a storage stands in the file of weights, with its type if it has one; None for all else."""
        is_typed = isinstance(value, torch.storage.TypedStorage)
        if not is_typed and not isinstance(value, torch.UntypedStorage):
            return None
        storage = value._untyped_storage if is_typed else value
        if storage._cdata not in self._places:
            start = -(-self._end // ALIGNMENT) * ALIGNMENT
            self._places[storage._cdata] = start, storage.nbytes()
            self._storages.append(storage)  # while it is held, no other one has its address
            self._end = start + storage.nbytes()
        return *self._places[storage._cdata], value.dtype if is_typed else None

    def write_weights(self, path: Path) -> None:
        """Write each storage once. One that lies on a GPU is copied to the host for that, one after the other."""
        with path.open("wb") as file:
            for storage in self._storages:
                if storage.nbytes():
                    file.seek(self._places[storage._cdata][0])
                    host = storage if storage.device.type == "cpu" else storage.cpu()
                    file.write(torch.empty(0, dtype=torch.uint8).set_(host).numpy().data)

    def travels(self, value: object) -> bool:
        """Return True if a value can be pickled. Nothing is written."""
        with open(os.devnull, "wb") as nowhere:
            try:
                self.Pickler(nowhere, protocol=pickle.DEFAULT_PROTOCOL).dump(value)
            except Exception:  # as in `save`
                return False
        return True

    def _look_up(self, name: Any) -> None:
        """Have a module travel by value that workers cannot import, and remember one that takes them time."""
        if not isinstance(name, str) or name in self._looked_up or name == "__main__":
            return
        self._looked_up.add(name)
        module, top = sys.modules.get(name), name.partition(".")[0]
        if module is None or top in sys.stdlib_module_names or top in ("bakeoff", "torch", "cloudpickle"):
            return
        if not _can_import(name, module):
            if name not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                self.by_value.append(module)
        elif "site-packages" in Path(getattr(module, "__file__", None) or "").parts:
            self.installed.add(name)


def _as_it_is(value: Any) -> Any:
    return value


def _scripted(program: bytes) -> Any:
    return torch.jit.load(io.BytesIO(program), map_location="cpu")


def _can_import(name: str, module: types.ModuleType) -> bool:
    """Return True if a worker that has this process's search path imports the same file under this name."""
    file = getattr(module, "__file__", None)
    spec = spec_of(name if file else name.partition(".")[0], sys.path)
    if spec is None or not file:
        return spec is not None
    return bool(spec.origin) and Path(str(spec.origin)).resolve() == Path(file).resolve()


def _belongs_to_process(value: Any) -> str:
    """Say what a value is that only this process can have, or return an empty string."""
    if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
        return "an open file"
    if isinstance(value, torch.Stream | torch.Event | torch.cuda.Stream | torch.cuda.Event):
        return f"a CUDA {type(value).__name__.lower()}"
    if isinstance(value, types.GeneratorType | types.CoroutineType):
        return "a generator"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return _OF_A_PROCESS.get(kind, "")


_OF_A_PROCESS = {
    "_thread.lock": "a lock",
    "_thread.RLock": "a lock",
    "threading.Condition": "a condition that threads wait for",
    "threading.Event": "an event that threads wait for",
    "threading.Semaphore": "a semaphore",
    "threading.Thread": "a thread",
    "_thread._local": "a thread's own storage",
    "concurrent.futures.thread.ThreadPoolExecutor": "a pool of threads",
    "concurrent.futures.process.ProcessPoolExecutor": "a pool of processes",
    "queue.Queue": "a queue",
    "_queue.SimpleQueue": "a queue",
    "socket.socket": "a socket",
    "subprocess.Popen": "a process",
    "sqlite3.Connection": "a connection to a database",
}
"""What cannot leave its process, by type."""


def _what_stays(value: Any, path: str, pickling: _Pickling) -> str:
    """Say by its path which part of a value cannot be pickled, or return an empty string."""
    if pickling.travels(value):
        return ""
    seen: set[int] = set()
    while not (kind := _belongs_to_process(value)):
        seen.add(id(value))
        parts = ((f"{path}{step}", part) for step, part in _parts(value) if id(part) not in seen)
        following = next(((name, part) for name, part in parts if not pickling.travels(part)), None)
        if following is None:
            kind = f"a value of type {type(value).__module__}.{type(value).__qualname__} that cannot be copied"
            break
        path, value = following
    remedy = "take it off while the model is compared, or give a function that makes the model"
    return f"{path} is {kind}, which no other process can have: {remedy}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if (held := held_by_wrapper(value)) is not None:
        yield "", held[1]
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _variables_of(value)
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, type):  # its methods, also `__init__`, are functions
        for name, part in vars(value).items():
            if isinstance(part, types.FunctionType) or not name.startswith("__"):
                yield f".{name}", part
    else:
        registered = ("_modules", "_parameters", "_buffers")
        for name, part in getattr(value, "__dict__", {}).items():
            if name in registered and isinstance(part, dict):
                yield from ((f".{key}", element) for key, element in part.items())
            elif name != "_compiled_call_impl":
                yield f".{name}", part
        yield f" (class {type(value).__name__})", type(value)


def _variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables from outside that a function uses: those of functions around it, and of its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():
            yield f", which uses '{name}': that", cell.cell_contents
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield f", which uses '{name}': that", function.__globals__[name]
    yield ".__defaults__", function.__defaults__
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _names_in(code: types.CodeType) -> Iterable[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return dict.fromkeys([*code.co_names, *(name for code in inner for name in _names_in(code))])
